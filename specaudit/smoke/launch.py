"""Runs on a host: starts a smoke run that needs no connection, looks at it, fetches its results, ends it.

Stdlib only, Python 3.8 and newer. Request ``do``: ``start`` | ``look`` | ``stop`` | ``drop``; ``run`` names the run.
Runs lie in ``~/.cache/specaudit/smoke/RUN``, pairs of toy models in ``~/.cache/specaudit/toy-KEY``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    Header = dict[str, Any]

TAIL = 4000


def main(request: Header, blobs: dict[str, bytes]) -> tuple[Header, dict[str, bytes]]:
    """Answers one request."""
    if not re.match(r"[a-z0-9-]{6,64}$", request["run"]):
        return {"error": "that is no name of a run"}, {}
    home = request.get("home") or os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):  # the specification of XDG_CACHE_HOME: relative paths are to be ignored
        home = os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(home):  # else a folder named ~ would be made somewhere
        return {"error": "this account has no home to keep a run in; set XDG_CACHE_HOME there"}, {}
    base = os.path.join(home, "specaudit")
    folder = os.path.join(base, "smoke", request["run"])
    if request["do"] == "start":
        return _start(folder, base, request, blobs), {}
    if not os.path.isdir(folder):
        return {"error": f"there is no run {request['run']} here"}, {}
    if request["do"] == "look":
        return _look(folder, request)
    if request["do"] == "stop":
        _stop(folder)
    else:
        shutil.rmtree(folder)
    return {}, {}


def _start(folder: str, base: str, request: Header, blobs: dict[str, bytes]) -> Header:
    os.makedirs(folder, mode=0o700)
    job = request["job"]
    if request["toy"]:
        toy = os.path.join(base, f"toy-{request['toy']}")
        ready = os.path.isfile(os.path.join(toy, "prompts.json"))
        job.update(target=os.path.join(toy, "target"), draft=os.path.join(toy, "draft"))
        job.update(prompts_file=os.path.join(toy, "prompts.json"), train=None if ready else [toy, *job["train"]])
        for arguments in job["modes"].values():
            if arguments.get("speculative_config", {}).get("model") == "":
                arguments["speculative_config"]["model"] = job["draft"]
    for name, data in blobs.items():
        with open(os.path.join(folder, os.path.basename(name)), "wb") as file:
            file.write(data)
    with open(os.path.join(folder, "job.json"), "w") as file:
        json.dump(job, file)
    with open(os.path.join(folder, "log.txt"), "wb") as log:
        process = subprocess.Popen(
            [request.get("python") or sys.executable, "runner.py"],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    with open(os.path.join(folder, "pid"), "w") as file:
        json.dump([process.pid, _born(process.pid)], file)
    return {"pid": process.pid, "folder": folder, "training": bool(job["train"])}


def _look(folder: str, request: Header) -> tuple[Header, dict[str, bytes]]:
    """State, the end of the log, and the results that are there. ``wait``: seconds to wait for a change of state."""
    until = time.monotonic() + request.get("wait", 0)
    while True:
        state = _json(os.path.join(folder, "state.json")) or {}
        ended = _json(os.path.join(folder, "exit"))
        running = ended is None and _running(folder)
        if not running or state.get("phase") != request.get("phase") or time.monotonic() >= until:
            break
        time.sleep(0.5)
    with open(os.path.join(folder, "log.txt"), "rb") as file:
        file.seek(max(0, os.path.getsize(file.name) - TAIL))
        tail = file.read().decode("utf-8", "replace")
    results = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".json") and name not in ("job.json", "state.json"):
            with open(os.path.join(folder, name), "rb") as file:
                results[name[: -len(".json")]] = file.read()
    job = _json(os.path.join(folder, "job.json"))
    header = {"state": state, "running": running, "exit": ended, "log": tail, "job": job, "folder": folder}
    return header, results


def _stop(folder: str) -> None:
    """Ends the run and every process group that it started."""
    known = _json(os.path.join(folder, "pid"))
    if not known or not _running(folder):
        return
    groups = {known[0], *_descendants(known[0])}
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in groups:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        time.sleep(1 if number == signal.SIGTERM else 0)
        groups = {pid for pid in groups if _born(pid)}


def _descendants(pid: int) -> set[int]:
    """Processes below one, whatever process group they are in."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _stat(int(name))
            if fields:
                parents.setdefault(int(fields[1]), []).append(int(name))
    found: set[int] = set()
    queue = [pid]
    while queue:
        for child in parents.get(queue.pop(), ()):
            if child not in found:
                found.add(child)
                queue.append(child)
    return found


def _running(folder: str) -> bool:
    """Whether the process that was started is still there: the same one, not another of its number, no zombie."""
    known = _json(os.path.join(folder, "pid"))
    fields = _stat(known[0]) if known else []
    return bool(fields) and fields[0] != "Z" and _born(known[0]) == known[1]


def _born(pid: int) -> str:
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else ""


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _json(path: str) -> Any:
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None

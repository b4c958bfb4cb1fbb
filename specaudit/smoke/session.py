"""A smoke run from the near side: start it, follow it over any number of connections, fetch what it found."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from specaudit.errors import IncompleteError, UnreachableError, UsageError
from specaudit.given import decoded
from specaudit.hosts.bundle import bundle
from specaudit.logs import cause, missing_module
from specaudit.model import Target
from specaudit.patching.importing import interpreter
from specaudit.patching.place import Place

#: Seconds that one look waits on the far side for something to change.
WAIT = 15.0
#: Seconds without an answer after which following is given up; the run goes on.
PATIENCE = 300.0
#: Seconds between attempts to reach a host that did not answer.
PAUSE = 5.0

Open = Callable[[], AbstractContextManager[Place]]


@dataclass(frozen=True, slots=True)
class Job:
    """What is run. ``target`` empty: a toy pair, trained on the host in ``minutes`` on what lies below ``corpus``."""

    modes: Mapping[str, Mapping[str, Any]]
    target: str = ""
    draft: str = ""
    prompts: tuple[Any, ...] | None = None
    count: int = 32
    tokens: int = 192
    temperature: float = 0.0
    seed: int = 0
    batches: tuple[int, ...] = (1,)
    repeats: int = 1
    memory: float = 0.9
    limit: float = 1800.0
    minutes: float = 3.5
    corpus: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Look:
    """What a run has come to. ``results`` holds one JSON object per mode that has ended."""

    phase: str
    since: float
    running: bool
    log: str
    results: Mapping[str, Mapping[str, Any]]
    job: Mapping[str, Any]
    folder: str


#: An engine that is tested must not ask the network for anything, and must not tell anyone that it runs.
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "PYTHONUNBUFFERED": "1",
}


def start(place: Place, job: Job) -> str:
    """Starts a run and returns its name.

    Raises:
        IncompleteError: the host could not start it.
    """
    run = f"{place.installation.engine}-{secrets.token_hex(6)}"
    folder = files("specaudit.smoke")
    blobs = {name: folder.joinpath(name).read_bytes() for name in ("runner.py", "train.py")}
    environment = {**QUIET, **({} if job.target else {"TOKENIZERS_PARALLELISM": "true"})}
    if place.installation.source not in ("dist", "editable"):
        environment["PYTHONPATH"] = place.installation.root
    toy = "" if job.target else hashlib.sha256(blobs["train.py"] + repr((job.minutes, job.corpus)).encode()).hexdigest()
    document = {
        "target": job.target,
        "draft": job.draft,
        "modes": job.modes,
        "prompts": list(job.prompts) if job.prompts is not None else None,
        "count": job.count,
        "tokens": job.tokens,
        "temperature": job.temperature,
        "seed": job.seed,
        "batches": list(job.batches),
        "repeats": job.repeats,
        "memory": job.memory,
        "limit": job.limit,
        "train": ["--minutes", str(job.minutes), *(["--corpus", *job.corpus] if job.corpus else [])] if toy else None,
        "environment": {**environment, **job.environment},
    }
    request = {"do": "start", "run": run, "job": document, "toy": toy[:12], "python": place.installation.python or None}
    _call(place, request, blobs)
    return run


def look(place: Place, run: str, phase: str = "", wait: float = 0.0) -> Look:
    """The state of a run, after at most ``wait`` seconds or when it leaves ``phase``.

    Raises:
        UsageError: there is no such run.
    """
    answer = _call(place, {"do": "look", "run": run, "phase": phase, "wait": wait}, deadline=60.0 + wait)
    header = answer.header
    results = {name: _told(json.loads(data)) for name, data in answer.blobs.items()}
    order = [*header["job"]["modes"], *results] if header["job"] else list(results)
    return Look(
        phase=str(header["state"].get("phase", "starting")),
        since=float(header["state"].get("since", 0.0)),
        running=bool(header["running"]),
        log=str(header["log"]),
        results={name: results[name] for name in dict.fromkeys(order) if name in results},
        job=header["job"] or {},
        folder=str(header["folder"]),
    )


def _told(result: dict[str, Any]) -> dict[str, Any]:
    """A mode's result; that of one that failed says why, in the words of its log."""
    said = cause(result.get("log", ""))
    return {**result, "error": f"{result['error']}; its log says: {said}"} if said else result


def follow(open_place: Open, run: str, progress: Callable[[str], None] = lambda _: None) -> Look:
    """Looks until the run has ended; a connection that breaks is made again.

    Raises:
        UnreachableError: the host did not answer for :data:`PATIENCE` seconds; the run goes on there.
        IncompleteError: the run died without a result.
    """
    heard, phase = time.monotonic(), ""
    while True:
        try:
            with open_place() as place:
                while True:
                    seen = look(place, run, phase, WAIT)
                    heard, phase = time.monotonic(), seen.phase
                    progress(f"{run}: {seen.phase}, {seen.since:.0f} s")
                    if not seen.running:
                        return _ended(seen, run)
        except UnreachableError as lost:
            if time.monotonic() - heard > PATIENCE:
                raise UnreachableError(
                    f"{lost.message} The run {run} goes on there.",
                    f"Look again later: specaudit smoke TARGET --attach {run}.",
                ) from lost
            progress(f"{run}: no answer, trying again")
            time.sleep(PAUSE)


def _ended(seen: Look, run: str) -> Look:
    if not seen.results:
        said = cause(seen.log)
        raise IncompleteError(
            f"The run {run} ended without a result; "
            + (f"its log says: {said.rstrip('.')}." if said else "it wrote no log."),
            f"Read {seen.folder}/log.txt there.",
        )
    return seen


def measured(seen: Look, target: Target) -> None:
    """Checks that one mode at least was measured.

    Raises:
        IncompleteError: all failed; the message says with which interpreter, and why.
    """
    if any("runs" in result for result in seen.results.values()):
        return
    reasons: dict[str, list[str]] = {}
    for mode, result in seen.results.items():
        reasons.setdefault(str(result.get("error", "wrote no numbers")).rstrip("."), []).append(mode)
    why = "; ".join(f"{', '.join(modes)} {reason}" for reason, modes in reasons.items())
    python = next((f" with {result['python']}" for result in seen.results.values() if "python" in result), "")
    other = f"{interpreter(target)} " if missing_module(why) else ""
    raise IncompleteError(
        f"{target.spec}: nothing could be measured{python}: {why}.",
        f"{other}All that was said is in {seen.folder}/log.txt there.",
    )


def stop(place: Place, run: str) -> None:
    """Ends a run and every process that it started."""
    _call(place, {"do": "stop", "run": run})


def drop(place: Place, run: str) -> None:
    """Removes the folder of a run."""
    _call(place, {"do": "drop", "run": run})


def _call(
    place: Place, request: dict[str, Any], blobs: Mapping[str, bytes] | None = None, deadline: float = 60.0
) -> Any:
    machine = place.agent().machine
    answer = machine.call(bundle(("specaudit.smoke.launch",)), request, blobs=blobs or {}, deadline=deadline)
    error = answer.header.get("error")
    if error:
        raise UsageError(f"{place.target.spec}: {error}.", "specaudit smoke TARGET starts a new one.")
    return answer


def prompts_of(data: bytes, name: str) -> tuple[Any, ...]:
    """Prompts of a file: a JSON list of texts or of lists of token ids, or one text per line.

    Raises:
        UsageError: it holds none.
    """
    try:
        text = data.decode()
        value = decoded(text) if text.lstrip()[:1] == "[" else [line for line in text.splitlines() if line.strip()]
    except ValueError as bad:
        raise UsageError(f"{name} holds no prompts: {bad}.", "Write one prompt per line, or a JSON list.") from bad
    fine = [
        isinstance(one, str) or (isinstance(one, list) and one and all(isinstance(i, int) for i in one))
        for one in value
    ]
    if not fine or not all(fine):
        raise UsageError(f"{name} holds no prompts.", "Write texts, or lists of token ids.")
    return tuple(value)

"""What the program asks of a host: ``main`` takes one request and answers it. Python 3.8 and newer, stdlib only.

Requests (key ``do``):
    survey     engines, servers, GPUs, versions; the digest of each engine when there is no doubt which one is meant
    manifest   paths and hashes of one installation, RECORD, operator names of its libraries
    contents   bytes of files of one installation
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable
from typing import Any

from specaudit.hosts.probe import applied, environments, files, hardware, installed, ops, processes

#: Bytes of one answer's contents; the near side asks again for the rest.
MAX_CONTENTS = 64 << 20
#: Bytes at each end of a library that, with its size, stand for it.
_ENDS = 1 << 16


def main(request: dict[str, Any], blobs: dict[str, bytes]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Answers one request."""
    if request["do"] == "survey":
        return survey(request), {}
    if request["do"] == "manifest":
        return manifest(request)
    return {}, contents(request["root"], blobs["paths"].decode("utf-8").split("\n"))


def survey(request: dict[str, Any]) -> dict[str, Any]:
    """Everything about the host that is small.

    Request: ``engines`` (names), ``explicit`` (whether the user named the interpreter that runs this), ``proc``,
    ``usual`` (patterns of places for environments), ``smi``, ``metrics`` (whether to read servers' pages).
    """
    names = request["engines"]
    running, theirs = servers(request["proc"], request["metrics"])
    own = environments.own()
    places = [own] if request["explicit"] else [own, *theirs, *environments.common(names, request["usual"])]
    found, within = _installations(places, names)
    engines = [entry["engine"] for entry in found]
    if len(set(engines)) == len(engines):
        for entry, place in zip(found, within):  # noqa: B905 (Python 3.8)
            listed, errors = files.listing(entry["root"], entry["engine"])
            entry["digest"] = files.digest((path, sha) for path, sha, _ in listed)
            entry["complete"] = not errors
            entry["record"] = _record_digest(entry)
            entry["patched"] = applied.applied(entry["root"], entry["engine"])
            entry["libraries"] = [
                [path, _signature(path)] for path in dict.fromkeys(_libraries(entry["engine"], place.paths))
            ]
    gpus, why = hardware.gpus(request["smi"])
    return {
        "python": sys.executable, "uid": os.getuid(), "installations": found, "servers": running,
        "servers_why": processes.hidden(request["proc"], len(running)), "gpus": gpus, "gpus_why": why,
        "environment": (within[0] if len(within) == 1 else own).facts(),
    }  # fmt: skip


def servers(proc: str, metrics: bool) -> tuple[list[dict[str, Any]], list[environments.Environment]]:
    """Engine processes, each with the package it runs and (if wanted) its counters; and their environments."""
    running = processes.servers(proc)
    theirs = _of_servers(running)
    pages = hardware.metrics(running) if metrics else [("", "")] * len(running)
    for server, place, page in zip(running, theirs, pages):  # noqa: B905 (Python 3.8)
        server["package"] = next((_package(entry) for entry in place.engines([server["engine"]])), "")
        server["metrics"], server["metrics_why"] = page
    return running, theirs


def _of_servers(running: list[dict[str, Any]]) -> list[environments.Environment]:
    """The environments that running servers import from, as far as can be told from outside."""
    found = []
    for server in running:
        mount, why = server["mount"], f"process {server['pid']}"
        if server["container"]:
            why += f" in container {server['container']}"
        prefix = environments.prefix_of(server["python"], mount)
        below = environments.of_prefix(prefix, why, mount, server["python"])
        # First what it was told to search, then what it has demonstrably loaded.
        first = [mount + path for path in [*server["searched"], *server["roots"]]]
        found.append(environments.Environment(server["python"], [*first, *below.paths], why, mount))
    return found


def _installations(
    places: list[environments.Environment], names: list[str]
) -> tuple[list[dict[str, Any]], list[environments.Environment]]:
    """The engines of all environments and where each was found; each folder once, with every reason to name it."""
    found: dict[tuple[str, str], tuple[dict[str, Any], environments.Environment]] = {}
    for place in places:
        for entry in place.engines(names):
            entry["package"] = _package(entry)
            known = found.setdefault((entry["engine"], entry["package"]), (entry, place))[0]
            if known is not entry and entry["why"] not in known["why"]:
                known["why"] += "; " + entry["why"]
    return [entry for entry, _ in found.values()], [place for _, place in found.values()]


def _package(entry: dict[str, Any]) -> str:
    return os.path.realpath(os.path.join(str(entry["root"]), str(entry["engine"])))


def _libraries(engine: str, paths: Iterable[str]) -> list[str]:
    return [library for path in paths for library in ops.libraries(path, ops.PACKAGES[engine])]


def _signature(path: str) -> str:
    """Stands for a library's content without reading hundreds of MB: its size, its head and its tables at the end."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            head = file.read(_ENDS)
            file.seek(max(0, size - _ENDS))
            return hashlib.sha256(b"%d\0" % size + head + file.read(_ENDS)).hexdigest()
    except OSError:
        return ""


def _record(entry: dict[str, Any]) -> dict[str, str]:
    return installed.record(entry["info"], entry["engine"]) if entry["source"] == "dist" else {}


def _record_digest(entry: dict[str, Any]) -> str:
    promised = _record(entry)
    return files.digest(promised.items()) if promised else ""


def manifest(request: dict[str, Any]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Request: ``installation`` (an entry of the survey), ``libraries`` (paths to read), ``files`` (whether they
    are wanted).

    RECORD is sent as its differences from the files: path -> hash it has (empty: none for this file).
    """
    entry = request["installation"]
    names: dict[str, list[str]] = {}
    unread: dict[str, str] = {}
    for path in request["libraries"]:
        try:
            names[path] = ops.of_file(path)
        except OSError as error:
            unread[path] = error.strerror or str(error)
    header = {"ops": names, "unread": unread}
    if not request["files"]:
        return header, {}
    listed, errors = files.listing(entry["root"], entry["engine"])
    have = {path: sha for path, sha, _ in listed}
    promised = _record(entry)
    differences = {p: promised.get(p, "") for p in {*promised, *have} if promised.get(p, "") != have.get(p, "")}
    header.update(errors=errors, record=differences if promised else None)
    lines = "\n".join(f"{size} {path}" for path, _, size in listed)
    return header, {"files": lines.encode("utf-8"), "hashes": b"".join(bytes.fromhex(sha) for _, sha, _ in listed)}


def contents(root: str, paths: Iterable[str]) -> dict[str, bytes]:
    """The bytes of the files that can be read, until :data:`MAX_CONTENTS` are together."""
    found: dict[str, bytes] = {}
    total = 0
    for path in paths:
        try:
            data = files.read(root, path)
        except OSError:
            continue
        if files.disguised(root, path):
            continue
        total += len(data)
        if found and total > MAX_CONTENTS:
            break
        found[path] = data
    return found

"""Runs on a machine: who else sees a file that is about to be replaced, and which processes have loaded the engine.

Stdlib only, Python 3.8 and newer. Request: ``root``, ``engine``, ``paths`` (package-relative), ``proc``, ``home``.
A rename leaves other names of an inode alone, so what is listed here is *not* changed by a patch; what shares the
folder itself (a symbolic link to the package or to its site-packages) is.
"""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    Header = dict[str, Any]
    Inode = tuple[int, int]

#: Folders in which package managers and people keep environments, and uv its files.
ENVIRONMENTS = (
    "{up}/*/lib*/python3*/*-packages",
    "{up}/*/.venv/lib*/python3*/*-packages",
    "{up}/*/venv/lib*/python3*/*-packages",
    "{home}/.virtualenvs/*/lib/python3*/site-packages",
    "{home}/*conda3/envs/*/lib/python3*/site-packages",
    "{home}/.local/share/uv/tools/*/lib/python3*/site-packages",
    "{home}/.local/lib/python3*/site-packages",
    "/opt/*/lib/python3*/site-packages",
    "/opt/conda/envs/*/lib/python3*/site-packages",
    "/usr/local/lib/python3*/dist-packages",
)
CACHES = ("{uv}/archive-v*/*", "{home}/.cache/uv/archive-v*/*")
MAPS_LIMIT = 1 << 24


def main(request: Header, blobs: dict[str, bytes]) -> tuple[Header, dict[str, bytes]]:
    """Answers one request."""
    root, engine = request["root"], request["engine"]
    package = os.path.realpath(os.path.join(root, engine))
    home = request.get("home") or os.path.expanduser("~")
    places = _places(os.path.dirname(package), home, ENVIRONMENTS)
    caches = _places(os.path.dirname(package), home, CACHES)
    facts = [_facts(root, path, package, [*places, *caches]) for path in request["paths"]]
    aliases = [
        os.path.join(place, engine)
        for place in places
        if os.path.realpath(os.path.join(place, engine)) == package and os.path.join(place, engine) != package
    ]
    pids = _loaded(request.get("proc", "/proc"), package)
    return {"files": facts, "aliases": sorted(aliases), "processes": pids, "package": package}, {}


def _places(site: str, home: str, patterns: tuple[str, ...]) -> list[str]:
    """Folders that could hold another copy: near this environment (two levels up, three, four), and the usual ones."""
    ups, up = [], site
    for _ in range(6):
        up = os.path.dirname(up)
        if up != os.sep:
            ups.append(up)
    uv = os.environ.get("UV_CACHE_DIR") or os.path.join(home, ".cache", "uv")
    found: dict[str, None] = {}
    for pattern in patterns:
        for above in ups if "{up}" in pattern else [""]:
            found.update(dict.fromkeys(glob.glob(pattern.format(up=above, home=home, uv=uv))))
    return [place for place in sorted(found) if os.path.isdir(place) and not _second_name(place)]


def _second_name(place: str) -> bool:
    """Whether ``place`` lies in the ``lib64`` of an environment that is a link to its ``lib``: no other place."""
    library = os.path.dirname(os.path.dirname(place))
    above, name = os.path.split(library)
    return (
        name.startswith("lib")
        and os.path.islink(library)
        and os.path.dirname(os.path.realpath(library)) == os.path.realpath(above)
    )


def _facts(root: str, path: str, package: str, places: list[str]) -> Header:
    target = os.path.join(package, *path.split("/")[1:])
    entry: Header = {"path": path, "links": 0, "symlink": "", "others": []}
    try:
        link, real = os.lstat(target), os.stat(target)
    except OSError:
        return entry
    if os.path.islink(target):
        entry["symlink"] = os.path.realpath(target)
    entry["links"] = link.st_nlink
    if link.st_nlink > 1 or entry["symlink"]:
        for place in places:
            other = os.path.join(place, *path.split("/"))
            if other != target and os.path.realpath(other) != target and _inode(other) == (real.st_dev, real.st_ino):
                entry["others"].append(other)
    return entry


def _inode(path: str) -> Inode | None:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def _loaded(proc: str, package: str) -> list[Header]:
    """Processes that have a library of the package in memory, or were started from its environment to run it."""
    found = []
    for pid in sorted((int(name) for name in os.listdir(proc) if name.isdigit()) if os.path.isdir(proc) else ()):
        if pid == os.getpid():
            continue
        maps = _read(os.path.join(proc, str(pid), "maps"))
        if os.fsencode(package + "/") in maps:
            found.append({"pid": pid, "name": _read(os.path.join(proc, str(pid), "comm")).decode("utf-8", "replace")})
    return found


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MAPS_LIMIT).strip()
    except OSError:
        return b""

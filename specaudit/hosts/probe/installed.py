"""Finds engines on a module search path, and what is installed beside them, from files alone.

Runs here for folders and local environments, and on hosts as part of the probe: stdlib only, Python 3.8 and newer.
Nothing found is imported.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

from specaudit.hosts.probe import applied, reading

#: Bytes of the largest RECORD that is read; vLLM's has 0.4 MB.
MAX_RECORD = 32 << 20
#: What is told of an installation in which a change by ``specaudit patch`` was begun and not ended.
INTERRUPTED = (
    "an interrupted change by specaudit patch",
    "some files are the old ones, some the new: undo it with specaudit patch revert, and look again",
)

_DIST = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._]*?)-(?P<version>[^-]+)\.(?:dist-info|egg-info)\Z")
_VERSION = re.compile(r"^__version__\s*(?::\s*[\w.]+\s*)?=\s*(?:version\s*=\s*)?['\"]([^'\"\n]+)['\"]", re.MULTILINE)
_CUDA = re.compile(r"^cuda(?:\s*:[^=]+)?\s*=\s*['\"]([\d.]+)['\"]", re.MULTILINE)


def find(search_path: Iterable[str], engines: Iterable[str]) -> list[dict[str, Any]]:
    """Engines on a search path; per engine, the one that would be imported stands first.

    Returns:
        Dictionaries with ``engine``, ``version`` (``""``: not known), ``root`` (the folder that holds the package),
        ``source`` (``dist``, ``editable`` or ``dir``: no metadata), ``info`` (the dist-info folder or ``""``) and
        ``notes``: pairs (what, why) about metadata that do not belong to what is imported, and about a change that
        ``specaudit patch`` has begun there.
    """
    entries = folders(search_path)
    found = []
    for engine in engines:
        infos = [info for entry in entries for info in _infos(entry, engine)]
        roots = [entry for entry in entries if _is_package(os.path.join(entry, engine))]
        for info in infos:
            root = _editable_root(info, engine)
            if root and root not in roots:  # an import hook serves it, after everything on the path
                roots.append(root)
        places = [_place(engine, root, infos) for root in roots]
        if places:
            places[0]["notes"] = _notes(engine, places, infos)
        for place in places:
            if applied.interrupted(place["root"], engine):
                place["notes"].append(list(INTERRUPTED))
        found.extend(places)
    return found


def _place(engine: str, root: str, infos: list[str]) -> dict[str, Any]:
    own = [info for info in infos if os.path.dirname(info) == root and not _editable_root(info, engine)]
    linked = [info for info in infos if _editable_root(info, engine) == root]
    stated = _stated_version(os.path.join(root, engine))
    info = next((i for i in own + linked if _dist(i)[1] == stated), (own + linked + [""])[0])
    version = _dist(info)[1] if info else stated
    source = "dist" if info in own else "editable" if info in linked else "dir"
    return {"engine": engine, "version": version, "root": root, "source": source, "info": info, "notes": []}


def _notes(engine: str, places: list[dict[str, Any]], infos: list[str]) -> list[list[str]]:
    first, notes = places[0], []
    for other in places[1:]:
        what = f"{engine} {other['version'] or '(version unknown)'} in {other['root']}"
        notes.append([what, f"a second installation; {first['root']} comes first on the path and is imported"])
    used = {place["info"] for place in places}
    for info in infos:
        if info not in used:
            notes.append([info, f"metadata of {_dist(info)[1]}, but the files beside it are not what is imported"])
    stated = _stated_version(os.path.join(first["root"], engine))
    if first["source"] == "dist" and stated and stated != first["version"]:
        notes.append([first["info"], f"metadata say {first['version']}, the package itself says {stated}"])
    return notes


def record(info: str, engine: str) -> dict[str, str]:
    """What the RECORD of a dist-info folder promises: path -> SHA-256 (hex) of the engine's ``.py`` files."""
    try:
        promised = parse_record(reading.small(os.path.join(info, "RECORD"), MAX_RECORD))
    except OSError:
        return {}
    return {path: promised[path] for path in sources(promised, engine)}


def parse_record(data: bytes) -> dict[str, str]:
    """The lines of a RECORD that carry a SHA-256, as path -> hex digest. Lines that make no sense are left out."""
    found = {}
    for row in _rows(data.decode("utf-8", "replace").replace("\0", "")):
        if len(row) < 2 or not row[1].startswith("sha256="):
            continue
        text = row[1][len("sha256=") :]
        try:
            found[row[0]] = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).hex()
        except ValueError:
            continue
    return found


def _rows(text: str) -> Iterator[list[str]]:
    rows = csv.reader(io.StringIO(text, newline=""))
    while True:
        try:
            yield next(rows)
        except StopIteration:
            return
        except csv.Error:  # a field without end, a stray carriage return
            continue


def sources(paths: Iterable[str], package: str) -> list[str]:
    """The ``.py`` files of a package among package-relative paths, sorted; paths that lead out of it are not."""
    return sorted(p for p in paths if p.startswith(package + "/") and p.endswith(".py") and ".." not in p.split("/"))


def environment(search_path: Iterable[str]) -> dict[str, str]:
    """Versions of torch, triton and CUDA on a search path, from their metadata; ``""`` where there are none."""
    entries = folders(search_path)
    facts = {"torch": "", "triton": "", "cuda": ""}
    for name in ("torch", "triton"):
        info = next((i for entry in entries for i in _infos(entry, name)), "")
        facts[name] = _dist(info)[1] if info else ""
    for entry in entries:
        found = _CUDA.search(reading.text(os.path.join(entry, "torch", "version.py")))
        if found:
            facts["cuda"] = found.group(1)
            break
    return facts


def folders(search_path: Iterable[str]) -> list[str]:
    """The folders of a search path, each under the name that comes first: ``lib64`` of an environment is its ``lib``.

    Their identity is asked of the system: below ``/proc/PID/root`` a resolved path would lead out of the container.
    """
    found: dict[tuple[int, int], str] = {}
    for entry in search_path:
        try:
            facts = os.stat(entry)
        except (OSError, ValueError):  # nothing is there, or it is no path
            continue
        if stat.S_ISDIR(facts.st_mode):
            found.setdefault((facts.st_dev, facts.st_ino), os.path.abspath(entry))
    return list(found.values())


def _is_package(folder: str) -> bool:
    """A folder that may not be looked into counts: who reads on says so, and the engine is not taken for absent."""
    try:
        return stat.S_ISREG(os.stat(os.path.join(folder, "__init__.py")).st_mode)
    except PermissionError:
        return os.path.isdir(folder)
    except (OSError, ValueError):
        return False


def _infos(entry: str, project: str) -> Iterator[str]:
    """Metadata folders of a project in one entry of the path: those named for it, or whose modules include it."""
    try:
        names = sorted(os.listdir(entry))
    except OSError:
        return
    for name in names:
        parts = _DIST.match(name)
        if parts is None:
            continue
        title = re.sub(r"[._]+", "-", parts["name"]).lower()
        info = os.path.join(entry, name)
        if title == project or (
            title.startswith(project + "-") and project in reading.text(os.path.join(info, "top_level.txt")).split()
        ):
            yield info


def _dist(info: str) -> tuple[str, str]:
    parts = _DIST.match(os.path.basename(info))
    return (parts["name"], parts["version"]) if parts else ("", "")


def _editable_root(info: str, engine: str) -> str:
    """The folder that an editable installation points to and that holds the package; ``""``: not editable."""
    try:
        told = json.loads(reading.text(os.path.join(info, "direct_url.json")) or "{}")
        editable = told.get("dir_info", {}).get("editable") is True
        place = unquote(urlsplit(told.get("url", "")).path)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return ""
    if not editable or not place:
        return ""
    for folder in checkout_roots(place):
        if _is_package(os.path.join(folder, engine)):
            return os.path.abspath(folder)
    return ""


def checkout_roots(folder: str) -> list[str]:
    """Where a source checkout may keep its packages (SGLang: ``python/``)."""
    return [folder, os.path.join(folder, "python"), os.path.join(folder, "src")]


def _stated_version(package: str) -> str:
    for name in ("_version.py", "version.py"):
        found = _VERSION.search(reading.text(os.path.join(package, name)))
        if found:
            return found.group(1)
    return ""

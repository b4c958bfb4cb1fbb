"""Whether a journal is one that the patch agent can have written (stdlib only, Python >= 3.8).

Everything that the agent does rests on it, so nothing of it is taken on trust: a disk may have damaged it, and anybody
who may write beside the engine may have changed it.
"""

from __future__ import annotations

import os
import re
from typing import Any

_SHA = re.compile("[0-9a-f]{64}")


def sound(journal: dict[str, Any], engine: str) -> bool:
    """Whether all of a journal's parts are there and of their kind, and its paths are paths of the engine."""
    files, applied, pending = journal["files"], journal["applied"], journal["pending"]
    if not isinstance(files, dict) or not all(is_path(p, engine) and _is_entry(e) for p, e in files.items()):
        return False
    if not _all(journal["folders"], lambda folder: is_path(folder, engine)):
        return False
    if not _all(applied, lambda one: _is_application(one, files) and _is_text(one.get("version"))):
        return False
    return pending is None or _is_pending(pending, files)


def is_path(path: Any, engine: str) -> bool:
    """Whether it is a package-relative path below the package, without dots."""
    if not isinstance(path, str) or not _is_text(path):
        return False
    parts = path.split("/")
    return parts[0] == engine and len(parts) > 1 and not any(part in ("", ".", "..") for part in parts)


def _is_pending(pending: Any, files: dict[str, Any]) -> bool:
    if not isinstance(pending, dict) or not _is_text(pending.get("op")) or not isinstance(pending.get("goal"), dict):
        return False
    if not all(path in files and _is_state(sha) for path, sha in pending["goal"].items()):
        return False
    return _is_application(pending.get("application"), files) and _all(pending.get("going", []), _is_text)


def _is_application(one: Any, files: dict[str, Any]) -> bool:
    if not isinstance(one, dict) or not _is_text(one.get("recipe")) or not _is_text(one.get("summary", "")):
        return False
    return _all(one.get("requires", []), _is_text) and _all(
        one.get("changes"), lambda change: _is_change(change, files)
    )


def _is_change(change: Any, files: dict[str, Any]) -> bool:
    if not isinstance(change, dict) or "before" not in change or "after" not in change:
        return False
    path = change.get("path")
    return isinstance(path, str) and path in files and _is_state(change["before"]) and _is_state(change["after"])


def _is_entry(entry: Any) -> bool:
    """Whether it says what a file was before it was touched."""
    if not isinstance(entry, dict) or "sha256" not in entry or not _is_state(entry["sha256"]):
        return False
    if not _all(entry.get("pyc"), _is_name) or not isinstance(entry.get("pycache"), bool):
        return False
    if entry["sha256"] is None:
        return True
    numbers = (("mode", 0o7777), ("uid", 2**32), ("gid", 2**32), ("mtime_ns", 2**63 - 1))
    if not all(isinstance(entry.get(key), int) and abs(entry[key]) <= limit for key, limit in numbers):
        return False
    link = entry.get("symlink")
    return entry.get("kept") in ("link", "copy") and (link is None or _is_text(link))


def _is_state(sha: Any) -> bool:
    return sha is None or (isinstance(sha, str) and _SHA.fullmatch(sha) is not None)


def _is_name(name: Any) -> bool:
    return _is_text(name) and "/" not in name and name.endswith(".pyc")


def _is_text(text: Any) -> bool:
    """Whether the kernel would take it in a name."""
    try:
        return isinstance(text, str) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _all(values: Any, good: Any) -> bool:
    return isinstance(values, list) and all(good(value) for value in values)

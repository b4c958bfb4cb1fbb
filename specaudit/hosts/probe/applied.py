"""What ``specaudit patch`` has standing in an engine, by the journal beside it. Python 3.8 and newer, stdlib only.

The journal is written by :mod:`specaudit.patching.agent`; a scan looks it up so that a patched file is not reported as
drift.
"""

from __future__ import annotations

import json
import os
from typing import Any

from specaudit.hosts.probe import reading

STATE_PREFIX = ".specaudit-"
_LIMIT = 16 << 20


def applied(root: str, engine: str) -> dict[str, str]:
    """Package-relative paths of changed and added files, with the SHA-256 that the patch gave them; empty when none."""
    try:
        changes = [change for application in _journal(root, engine)["applied"] for change in application["changes"]]
        return {c["path"]: c["after"] for c in changes if isinstance(c["after"], str)}
    except (KeyError, TypeError):
        return {}


def interrupted(root: str, engine: str) -> bool:
    """Whether a change was begun and neither ended nor undone: some files are the old ones, some the new."""
    return _journal(root, engine).get("pending") is not None


def _journal(root: str, engine: str) -> dict[str, Any]:
    """Empty when there is none that can be read."""
    package = os.path.realpath(os.path.join(root, engine))
    journal = os.path.join(os.path.dirname(package), STATE_PREFIX + engine, "journal.json")
    try:
        found = json.loads(reading.small(journal, _LIMIT).decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}

"""What ``specaudit patch`` has standing in an engine, by the journal beside it. Python 3.8 and newer, stdlib only.

The journal is written by :mod:`specaudit.patching.agent`; a scan looks it up so that a patched file is not reported as
drift.
"""

from __future__ import annotations

import json
import os

from specaudit.hosts.probe import reading

STATE_PREFIX = ".specaudit-"
_LIMIT = 16 << 20


def applied(root: str, engine: str) -> dict[str, str]:
    """Package-relative paths of changed and added files, with the SHA-256 that the patch gave them; empty when none."""
    package = os.path.realpath(os.path.join(root, engine))
    journal = os.path.join(os.path.dirname(package), STATE_PREFIX + engine, "journal.json")
    try:
        standing = json.loads(reading.small(journal, _LIMIT).decode("utf-8"))["applied"]
        return {c["path"]: c["after"] for a in standing for c in a["changes"] if isinstance(c["after"], str)}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}

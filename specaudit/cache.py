"""The content-addressed cache: blobs by SHA-256, and what was derived from a blob by (kind, SHA-256, version).

Lives under ``$XDG_CACHE_HOME/specaudit`` (default ``~/.cache/specaudit``). Nothing in it is trusted: a blob is hashed when
it is read back, and derived values are decoded with a typed schema, never unpickled.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol


class DerivedCache(Protocol):
    """Where derived values (outlines, walk facts, audits) are kept between runs."""

    def get(self, kind: str, key: str, version: int) -> bytes | None:
        """The stored bytes, ``None`` when there are none."""
        ...

    def put(self, kind: str, key: str, version: int, value: bytes) -> None:
        """Stores bytes; failing to store is not an error."""
        ...


class NoCache:
    """A cache that keeps nothing."""

    def get(self, kind: str, key: str, version: int) -> bytes | None:
        """Always ``None``."""
        return None

    def put(self, kind: str, key: str, version: int, value: bytes) -> None:
        """Forgets."""


def folder() -> Path:
    """Where this user's cache lies; it need not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base, "specaudit")

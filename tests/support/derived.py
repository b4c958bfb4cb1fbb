"""What is derived from engines' files (outlines, walks, audits), once in a test run and for all of its workers.

It lies in a folder of the run, never in the user's: what other code derived cannot be met there.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specaudit.cache import Cache, DerivedCache, NoCache
from specaudit.index import digest_of
from specaudit.model import Audit
from specaudit.scan import classify
from specaudit.snapshot import Snapshot

_opened: dict[Path, Cache] = {}


@contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Keeps what is derived in a folder until the block ends."""
    with Cache(folder) as cache:
        _opened[folder] = cache
        try:
            yield
        finally:
            del _opened[folder]


def derived() -> DerivedCache:
    """What the run has derived so far."""
    return next(iter(_opened.values()), NoCache())


@contextmanager
def alone(name: str) -> Iterator[None]:
    """One worker at a time: the others wait, and then find in :func:`derived` what it made."""
    for folder in _opened:
        descriptor = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
            derived().flush()
        finally:
            os.close(descriptor)
        return
    yield


def audited(snapshot: Snapshot) -> Audit:
    """The audit of an engine."""
    with alone(digest_of(snapshot.files.values())):
        return classify(snapshot)


class Outlines:
    """Of what the run has derived, the outlines alone: the rest is derived anew."""

    def get(self, kind: str, key: str, version: int) -> bytes | None:
        """See :class:`DerivedCache`."""
        return derived().get(kind, key, version) if kind == "outline" else None

    def put(self, kind: str, key: str, version: int, value: bytes) -> None:
        """See :class:`DerivedCache`."""
        if kind == "outline":
            derived().put(kind, key, version, value)

    def flush(self) -> None:
        """See :class:`DerivedCache`."""
        derived().flush()

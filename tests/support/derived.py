"""What is derived from engines' files (outlines, walks, audits), once in a test run and for all of its workers.

It lies in a folder of the run, never in the user's: what other code derived cannot be met there.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from specaudit.cache import Cache, DerivedCache, NoCache, recall
from specaudit.index import digest_of
from specaudit.model import Audit
from specaudit.scan import classify
from specaudit.snapshot import Snapshot

_opened: dict[Path, Cache] = {}
T = TypeVar("T")


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


def once(kind: str, name: str, type: type[T], make: Callable[[], T]) -> T:
    """A value that depends on nothing but its name (and this run's code), made by the first who asks for it."""
    with alone(f"{kind}-{name}"):
        known = recall(derived(), kind, name, 1, type)
        if known is None:
            known = make()
            derived().put(kind, name, 1, msgspec.msgpack.encode(known))
        return known

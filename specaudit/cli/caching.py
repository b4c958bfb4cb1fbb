"""The user's cache as the commands use it: what keeps it from being used is said once, early or late."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from specaudit.cache import Cache, folder
from specaudit.console import note


@contextmanager
def cached() -> Iterator[Cache]:
    """The cache; afterwards everything in it is written."""
    with Cache(folder()) as cache:
        at_first = cache.problem
        if at_first:
            note(f"the cache {folder()} cannot be used ({at_first}); nothing will be kept for the next scan")
        yield cache
    if cache.problem and not at_first:
        note(f"the cache {folder()} could not keep everything ({cache.problem}); the next scan will take longer")

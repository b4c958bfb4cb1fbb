"""Threads that work on several things at once, and are not waited for when the work is given up."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def threads(count: int, name: str = "") -> Iterator[ThreadPoolExecutor]:
    """A pool of ``count`` threads.

    When the block is left by an exception (Ctrl-C above all), what has not begun is dropped and what runs is left
    alone: the pool of the standard library would wait for all of it.
    """
    pool = ThreadPoolExecutor(count, name)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()

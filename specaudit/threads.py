"""Threads that work on several things at once, and are not waited for when the work is given up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

#: Seconds after which a wait looks for signals. One that the kernel gave to another thread does not end a wait, and
#: only the main thread may act on it: without this, Ctrl-C was lost now and then.
_WAKE = 0.2


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


def in_order(pool: ThreadPoolExecutor, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Gives the results of ``work`` in the order of the items, as ``pool.map`` does, and wakes for Ctrl-C meanwhile."""
    futures = [pool.submit(work, item) for item in items]
    for future in futures:
        while not wait((future,), _WAKE).done:
            pass
        yield future.result()

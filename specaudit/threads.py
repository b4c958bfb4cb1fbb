"""Threads that work on several things at once, and are not waited for when the work is given up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
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


def to_the_end(work: Callable[[], R]) -> R:
    """Does ``work``, and lets Ctrl-C act when it has ended, not before; pressed again, it acts at once."""
    if threading.current_thread() is not threading.main_thread():  # no other gets Ctrl-C
        return work()
    future: Future[R] = Future()  # known before anything begins: Ctrl-C may come while the pool starts its thread

    def run() -> None:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as bad:
                future.set_exception(bad)

    with threads(1) as pool:
        try:
            pool.submit(run)
            _wait(future)
        except KeyboardInterrupt:
            if not future.cancel():
                _wait(future)
            raise
    return future.result()


def _wait(future: Future[R]) -> None:
    while not wait((future,), _WAKE).done:
        pass


def in_order(pool: ThreadPoolExecutor, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Gives the results of ``work`` in the order of the items, as ``pool.map`` does, and wakes for Ctrl-C meanwhile."""
    futures = [pool.submit(work, item) for item in items]
    for future in futures:
        _wait(future)
        yield future.result()

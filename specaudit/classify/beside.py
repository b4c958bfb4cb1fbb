"""One piece of work in a forked process, beside the caller's own.

Forking hands over the index without copying it, which is why nothing else is used here; a forked copy of a process
that has threads may wait for a lock that no thread will ever release, so the work is then done in the caller's
process.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")


@contextmanager
def beside(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Starts ``work`` and gives a function that waits for its result.

    The result must be picklable. Where no process can be forked, or the forked one fails, the work is done when the
    result is asked for, and raises then what it raises.
    """
    if threading.active_count() > 1 or not hasattr(os, "fork") or (os.cpu_count() or 1) < 2:
        yield work
        return
    from multiprocessing import get_context

    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(work, sender), daemon=True)
    process.start()
    sender.close()
    try:
        yield lambda: _result(receiver, work)
    finally:
        receiver.close()
        process.join()


def _run(work: Callable[[], T], sender: Connection) -> None:
    with open(os.devnull, "w") as nowhere:
        sys.stderr = nowhere  # what fails here is done again, and reported, by the caller
        sender.send(work())
        sender.close()


def _result(receiver: Connection, work: Callable[[], T]) -> T:
    try:
        found: T = receiver.recv()
    except EOFError:
        return work()
    return found

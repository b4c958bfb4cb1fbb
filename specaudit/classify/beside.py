"""Independent pieces of work, shared with forked processes.

Forking hands over the index without copying it, which is why nothing else is used here; a forked copy of a process
that has threads may wait for a lock that no thread will ever release, so the work is then done in the caller's
process.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")

#: More processes would wait for what only the caller can do, and each has memory of its own.
_HELPERS = 2
#: Shares are named by one byte, which no two processes can read.
_SHARES = 255


@contextmanager
def shared(pieces: Sequence[Callable[[], T]]) -> Iterator[Callable[[], list[T]]]:
    """Starts to work on pieces in other processes, and gives a function that helps with them and returns all results.

    Results must be picklable. Where no process can be forked, or a forked one fails, its pieces are done when the
    results are asked for, and raise then what they raise.

    Args:
        pieces: the longest first; their results come in the same order.
    """
    helpers = min(_processors() - 1, _HELPERS, len(pieces) - 1)
    if helpers < 1 or threading.active_count() > 1 or not hasattr(os, "fork"):
        yield lambda: [piece() for piece in pieces]
        return
    from multiprocessing import get_context

    # A pipe as the queue: unlike a counter, it has no lock that a process could take along when it dies.
    queue, supply = os.pipe()
    os.write(supply, bytes(range(min(len(pieces), _SHARES))))
    os.close(supply)
    context = get_context("fork")
    receivers: list[Connection] = []
    processes = []
    for _ in range(helpers):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_help, args=(pieces, queue, sender), daemon=True)
        process.start()
        sender.close()
        receivers.append(receiver)
        processes.append(process)
    try:
        yield lambda: _all(pieces, queue, receivers)
    finally:
        os.close(queue)
        for receiver in receivers:
            receiver.close()
        for process in processes:
            process.terminate()  # what it still does, nobody waits for
            process.join()


def _processors() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _work(pieces: Sequence[Callable[[], T]], queue: int) -> dict[int, T]:
    """Takes shares until none are left; the results by the number of the piece."""
    done: dict[int, T] = {}
    while share := os.read(queue, 1):
        for number in range(share[0], len(pieces), _SHARES):
            done[number] = pieces[number]()
    return done


def _help(pieces: Sequence[Callable[[], T]], queue: int, sender: Connection) -> None:
    with open(os.devnull, "w") as nowhere:
        sys.stderr = nowhere  # what fails here is done again, and reported, by the caller
        sender.send(_work(pieces, queue))
        sender.close()


def _all(pieces: Sequence[Callable[[], T]], queue: int, receivers: Sequence[Connection]) -> list[T]:
    done = _work(pieces, queue)
    for receiver in receivers:
        try:
            done.update(receiver.recv())
        except EOFError:
            continue
    return [done[number] if number in done else piece() for number, piece in enumerate(pieces)]

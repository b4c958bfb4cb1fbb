"""Threads that are not waited for when the work is given up."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Event

import pytest

from specaudit.threads import threads


def test_an_interruption_waits_neither_for_what_runs_nor_for_what_has_not_begun() -> None:
    begun, let_go, done = Event(), Event(), []

    def work(number: int) -> None:
        begun.set()
        let_go.wait(60)
        done.append(number)

    def give_up() -> None:
        with threads(1) as pool:
            futures.extend((pool.submit(work, 1), pool.submit(work, 2)))
            begun.wait(60)
            raise KeyboardInterrupt

    futures: list[Future[None]] = []
    with pytest.raises(KeyboardInterrupt):
        give_up()
    assert done == []
    assert futures[1].cancelled()
    let_go.set()
    futures[0].result(60)


def test_otherwise_everything_is_done_in_the_end() -> None:
    with threads(2) as pool:
        results = [pool.submit(pow, number, 2) for number in range(9)]
    assert [one.result(0) for one in results] == [number * number for number in range(9)]

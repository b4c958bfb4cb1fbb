"""Threads that are not waited for when the work is given up."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import Future
from threading import Event

import pytest

from specaudit.threads import in_order, threads, to_the_end


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


def test_results_come_in_the_order_of_the_items() -> None:
    def work(number: int) -> int:
        Event().wait(0.01 * (9 - number))
        return number * number

    with threads(3) as pool:
        assert list(in_order(pool, work, range(9))) == [number * number for number in range(9)]


def test_a_signal_that_another_thread_got_ends_a_wait() -> None:
    waiting, let_go, late = Event(), Event(), []

    def work(_: int) -> None:
        waiting.wait(60)
        Event().wait(0.5)  # by now the main thread waits
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        if not let_go.wait(20):
            late.append("the main thread was never woken")

    with pytest.raises(KeyboardInterrupt), threads(1) as pool:  # noqa: PT012
        waiting.set()
        list(in_order(pool, work, [1]))
    assert late == []
    let_go.set()


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_acts_after_the_work_and_the_second_one_at_once(times: int) -> None:
    let_go, ended, main = Event(), Event(), threading.get_ident()

    def work() -> None:
        for _ in range(times):
            signal.pthread_kill(main, signal.SIGINT)
            Event().wait(0.5)
        if times > 1:
            let_go.wait(20)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        to_the_end(work)
    assert ended.is_set() == (times == 1)
    let_go.set()
    ended.wait(60)

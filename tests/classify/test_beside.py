"""Work in a forked process beside one's own."""

from __future__ import annotations

import os
import threading

import pytest

from specaudit.classify.beside import beside


def test_the_work_is_done_in_another_process_where_there_is_one_thread() -> None:
    with beside(os.getpid) as result:
        found = result()
    assert (found != os.getpid()) == ((os.cpu_count() or 1) > 1)


def test_beside_another_thread_nothing_is_forked() -> None:
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    try:
        with beside(os.getpid) as result:
            assert result() == os.getpid()
    finally:
        stop.set()
        other.join()


def test_what_fails_there_is_raised_here() -> None:
    def work() -> int:
        raise ValueError("no")

    with beside(work) as result, pytest.raises(ValueError, match="no"):
        result()


def test_a_process_that_dies_is_replaced_by_ones_own_work() -> None:
    here = os.getpid()

    def work() -> str:
        if os.getpid() != here:
            os._exit(9)
        return "done"

    with beside(work) as result:
        assert result() == "done"

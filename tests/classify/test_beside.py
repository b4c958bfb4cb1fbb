"""Pieces of work shared with forked processes; the same results however they come about."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from support.derived import Outlines
from support.engines import index_of

from specaudit.classify import beside
from specaudit.classify.audit import audit
from specaudit.classify.beside import shared
from specaudit.engines import ENGINES
from specaudit.model import Audit

Piece = Callable[[], tuple[int, int]]


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were two, wherever the test runs."""
    monkeypatch.setattr(beside, "_processors", lambda: 2)


@pytest.fixture
def another_thread() -> Iterator[None]:
    """A second thread, for the time of a test."""
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    try:
        yield
    finally:
        stop.set()
        other.join()


def told(number: int) -> tuple[int, int]:
    """The piece's number and the process that did it."""
    return number, os.getpid()


def pieces(count: int) -> list[Piece]:
    """That many pieces of work."""
    return [partial(told, number) for number in range(count)]


@pytest.mark.usefixtures("two_processors")
def test_what_the_caller_has_not_begun_is_done_in_another_process() -> None:
    with shared(pieces(600)) as results:  # more than shares
        time.sleep(0.5)  # time enough for the other process to take them all
        found = results()
    assert [number for number, _ in found] == list(range(600))
    assert os.getpid() not in {process for _, process in found}


@pytest.mark.usefixtures("two_processors")
def test_the_caller_helps_while_the_other_process_is_busy() -> None:
    here = os.getpid()

    def slow() -> tuple[int, int]:
        if os.getpid() != here:
            time.sleep(1)
        return told(0)

    with shared([slow, *pieces(20)]) as results:
        time.sleep(0.2)
        found = results()
    assert found[0][1] != here
    assert {process for _, process in found[1:]} == {here}


@pytest.mark.usefixtures("another_thread", "two_processors")
def test_beside_another_thread_nothing_is_forked() -> None:
    with shared(pieces(4)) as results:
        assert results() == [told(number) for number in range(4)]


def test_with_one_processor_nothing_is_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "_processors", lambda: 1)
    with shared(pieces(4)) as results:
        assert results() == [told(number) for number in range(4)]


@pytest.mark.usefixtures("two_processors")
def test_where_processes_cannot_be_forked_all_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    with shared(pieces(4)) as results:
        assert results() == [told(number) for number in range(4)]


@pytest.mark.usefixtures("two_processors")
def test_what_fails_there_is_raised_here() -> None:
    def work() -> tuple[int, int]:
        raise ValueError("no")

    with shared([work, *pieces(3)]) as results, pytest.raises(ValueError, match="no"):
        results()


@pytest.mark.usefixtures("two_processors")
def test_a_process_that_dies_is_replaced_by_ones_own_work() -> None:
    here = os.getpid()

    def work() -> tuple[int, int]:
        if os.getpid() != here:
            os._exit(9)
        return told(0)

    with shared([work, *pieces(3)]) as results:
        time.sleep(0.2)  # it dies with the first piece taken and three left
        assert results() == [told(0), *(told(number) for number in range(3))]


@pytest.mark.usefixtures("two_processors")
def test_nobody_waits_for_what_is_not_asked_for() -> None:
    here, start = os.getpid(), time.monotonic()

    def slow() -> tuple[int, int]:
        if os.getpid() != here:
            time.sleep(60)
        return told(0)

    with shared([slow, *pieces(1)]):
        pass
    assert time.monotonic() - start < 30


# --- a whole classification -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone(release: Callable[[str], Path]) -> Audit:
    """What one process says of a release."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beside, "_processors", lambda: 1)
        return whole(release)


def whole(release: Callable[[str], Path]) -> Audit:
    """A classification of which no part is known, so that there is work to share."""
    return audit(index_of(release("0.20.1"), wants=ENGINES["vllm"].wants, cache=Outlines()))


@pytest.mark.usefixtures("two_processors")
def test_two_processes_say_the_same_as_one(alone: Audit, release: Callable[[str], Path]) -> None:
    assert whole(release) == alone


@pytest.mark.usefixtures("another_thread", "two_processors")
def test_beside_threads_the_same_is_said(alone: Audit, release: Callable[[str], Path]) -> None:
    assert whole(release) == alone


@pytest.mark.usefixtures("two_processors")
def test_without_the_other_process_the_same_is_said(
    alone: Audit, release: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "_help", lambda *_: os._exit(9))
    assert whole(release) == alone

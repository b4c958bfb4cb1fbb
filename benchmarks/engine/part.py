"""What a measurement is: the arms it needs, and what it does with them in the time it is given."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from .arms import Arm, Pair
from .figures import Clock, OutOfTime, Report
from .pool import Engines, Places


@dataclass(frozen=True)
class Setting:
    """What a measurement is given."""

    pair: Pair
    places: Places
    clock: Clock
    report: Report
    prompts: list[list[int]]
    tokens: int
    options: argparse.Namespace

    @contextmanager
    def in_time(self) -> Iterator[None]:
        """What stands inside ends when the part's time is over; that is said, and what was measured is reported."""
        try:
            yield
        except OutOfTime:
            self.out_of_time()

    def out_of_time(self) -> None:
        self.report.say("out of time: the rest was not measured")
        self.report.bar("measured to the end", 0, "1", None)


@dataclass(frozen=True)
class Part:
    """arms: known before anything starts, so that all parts' engines start together. weight: its share of the time.
    timed: it judges how long something takes, so nothing else may run beside it."""

    arms: Callable[[Setting], list[Arm]]
    run: Callable[[Setting, Engines], None]
    weight: float = 1.0
    timed: bool = False


def choose(names: Sequence[str], only: Sequence[str]) -> list[str]:
    """Those of a command's parts that were asked for; all when none was named."""
    unknown = [name for name in only if name not in names]
    if unknown:
        sys.exit(f"--only {unknown[0]}: there are {', '.join(names)}")
    return list(only or names)

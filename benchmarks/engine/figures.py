"""Numbers and how they are shown. Standard library alone."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

WRITING = threading.Lock()
LEAST_PAIRS = 10  # of a ratio that is judged
LATE = 90.0  # seconds: the first batches of an engine that compiles its kernels as they come take half a minute


class OutOfTime(Exception):
    """The clock of the run has run down; what was measured so far is reported."""


class Clock:
    """The time that a run may take, or that a part of it may."""

    def __init__(self, seconds: float, whole: Clock | None = None) -> None:
        self._end = time.monotonic() + seconds
        self._whole = whole or self

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    def share(self, part: float) -> Clock:
        """The clock of one part: that part of what is left."""
        return Clock(part * self.left, self)

    def need(self, seconds: float) -> float:
        """How long an answer may take: `LATE` longer than the part has left, so that its end does not kill an engine
        that others use, and one that hangs does not take the whole run. Raises OutOfTime when fewer than `seconds` are
        left here."""
        if self.left < seconds:
            raise OutOfTime
        return min(self._whole.left, self.left + LATE)


def lower_bound(values: Sequence[float], confidence: float = 0.95, draws: int = 4000) -> float:
    """One-sided bootstrap bound of the median. Seeded: the same values give the same bound."""
    generator = random.Random(0)
    medians = sorted(median(generator.choices(values, k=len(values))) for _ in range(draws))
    return medians[int((1 - confidence) * draws)]


def quantile(values: Iterable[float], part: float) -> float:
    """The value below which that part of them lies; 0 without any."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


def equal(a: Sequence[Sequence[int]], b: Sequence[Sequence[int]]) -> int:
    """How many outputs are the same to the last token."""
    return sum(list(x) == list(y) for x, y in zip(a, b, strict=True))


def divergences(a: Sequence[Sequence[int]], b: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """(output, place) of each pair's first difference, a length counted as one."""
    found = []
    for number, (x, y) in enumerate(zip(a, b, strict=True)):
        if list(x) != list(y):
            place = next((i for i, (p, q) in enumerate(zip(x, y, strict=False)) if p != q), min(len(x), len(y)))
            found.append((number, place))
    return found


class Report:
    """Sections of Markdown tables, printed as they come, and everything as JSON, written as it comes."""

    def __init__(self, path: Path | None, whole: dict[str, Any] | None = None) -> None:
        self.path = path
        self.content: dict[str, Any] = {"bars": []}
        self.whole = self.content if whole is None else whole
        self.held: list[str] | None = None  # lines that are printed later, where parts run together

    def section(self, name: str) -> Report:
        """The report of one part, in the same file below its name."""
        made = Report(self.path, self.whole)
        self.whole[name] = made.content
        return made

    def say(self, line: str) -> None:
        if self.held is None:
            print(line, flush=True)
        else:
            self.held.append(line)

    def keep(self, name: str, value: Any) -> None:
        """Figures for the JSON file alone."""
        with WRITING:
            self.content[name] = value
            self._write()

    def _add(self, name: str, value: Any) -> None:
        """One more of a list: parts and groups that run together report at the same time."""
        with WRITING:
            self.content.setdefault(name, []).append(value)
            self._write()

    def _write(self) -> None:
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            written = self.path.with_name(f"{self.path.name}.new")  # a run that is killed leaves a whole file
            written.write_text(json.dumps(self.whole, indent=1))
            written.replace(self.path)

    def failed(self, what: str) -> None:
        """Something broke, and the rest goes on."""
        self.say(f"FAILED {what}")
        self._add("failed", what)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        lines = [f"| {' | '.join(show(cell) for cell in row)} |" for row in rows]
        head = f"\n### {title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}"
        self.say("\n".join([head, *lines, ""]))
        self.keep(title, [dict(zip(columns, row, strict=True)) for row in rows])

    def bar(self, what: str, seen: float | int | None, wanted: str, met: bool | None) -> None:
        """One of the promises: met, missed, or not measured (None)."""
        verdict = {True: "ok  ", False: "MISS", None: "n/a "}[met]
        self.say(f"{verdict} {what}: {show(seen)} (wanted {wanted})")
        self._add("bars", {"what": what, "seen": seen, "wanted": wanted, "met": met})

    def timed_bar(self, what: str, seen: float, wanted: str, met: bool, pairs: int, asked: int) -> None:
        """A bar on a median of pairs: not measured where time ran out before there were ten, or as many as asked."""
        enough = pairs >= min(LEAST_PAIRS, asked)
        self.bar(what if enough else f"{what}, of {pairs} pairs alone", seen, wanted, met if enough else None)

    @property
    def missed(self) -> int:
        return sum(bar["met"] is not True for bar in self.content["bars"])


def show(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    return "-" if value is None else str(value)

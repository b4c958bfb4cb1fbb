"""Kills the patch agent at system calls by strace: ``inject=NAME:signal=KILL:when=N`` ends it on entering the Nth call.

A first run under plain strace lists the calls that concern the engine's folder; each is a point at which a later run is
killed. Reads are left out: what is on the disk at a read is what was there at the call before it.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_CALL = re.compile(r"^(?:\d+ +)?(\w+)\((.*)")
_VERBS = ("write", "fsync", "fdatasync", "flock", "ftruncate", "rename", "link", "unlink", "mkdir", "rmdir", "symlink")
_OWNERS = ("chmod", "chown", "fchmod", "fchown", "lchown", "utimens")
_WRITING = frozenset(f"{verb}{variant}" for verb in (*_VERBS, *_OWNERS) for variant in ("", "at", "at2"))
_NEVER = frozenset(("execve", "read", "pread64", "mmap", "munmap", "brk"))


@dataclass(frozen=True, order=True)
class Point:
    """The ``number``-th call of ``name``, counted from the start of the process."""

    name: str
    number: int


class Strace:
    """An interpreter that runs a script under strace, and the version check that precedes the script without it.

    Args:
        folder: where the wrapper and its log lie.
        python: the interpreter inside.
    """

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.wrapper, self.log, self._python = folder / "traced-python", folder / "strace.log", python
        self._options = ""

    @contextmanager
    def using(self, options: str) -> Iterator[str]:
        """The interpreter to name in a call, with these options of strace."""
        strace = shutil.which("strace")
        assert strace is not None, "strace is needed: apt-get install strace"
        self.log.unlink(missing_ok=True)
        traced = f'exec {strace} -f -y -s 0 -o {self.log} {options} {self._python} "$@"'
        self.wrapper.write_text(f'#!/bin/sh\nif [ "$2" = - ]; then {traced}; fi\nexec {self._python} "$@"\n')
        self.wrapper.chmod(0o755)
        yield str(self.wrapper)

    def points(self, run: Callable[[str], object], folder: Path) -> list[Point]:
        """Every call that concerns ``folder`` in one run."""
        with self.using("-e trace=all") as python:
            run(python)
        counts: Counter[str] = Counter()
        found: list[Point] = []
        for line in self.log.read_text().splitlines():
            call = _CALL.match(line)
            if call is None:
                continue
            counts[call[1]] += 1
            if str(folder) in call[2] and call[1] not in _NEVER:
                found.append(Point(call[1], counts[call[1]]))
        return found

    @contextmanager
    def killing(self, point: Point) -> Iterator[str]:
        """The interpreter, killed at a point."""
        with self.using(f"-e trace={point.name} -e inject={point.name}:signal=KILL:when={point.number}") as python:
            yield python


def spread(points: list[Point], wanted: int) -> list[Point]:
    """``wanted`` of the points: half of them calls that write, each half evenly spread over the run."""
    writing = [p for p in points if p.name in _WRITING]
    others = [p for p in points if p.name not in _WRITING]
    half = min(wanted // 2, len(writing))
    return _evenly(writing, half) + _evenly(others, wanted - half)


def _evenly(points: list[Point], wanted: int) -> list[Point]:
    return [points[i * len(points) // wanted] for i in range(min(wanted, len(points)))]

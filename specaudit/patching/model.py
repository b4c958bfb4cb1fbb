"""Data types of a change: what would be written where, and why there."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from specaudit.model import Status


@dataclass(frozen=True, slots=True)
class Anchor:
    """A place that an edit rests on: ``text`` is line ``line`` of the file as it is now, ``what`` is the pattern."""

    path: str
    line: int
    text: str
    what: str


@dataclass(frozen=True, slots=True)
class Change:
    """One file of one recipe: its bytes before (``None``: it does not exist) and after."""

    path: str
    before: bytes | None
    after: bytes
    anchors: tuple[Anchor, ...] = ()

    @property
    def before_sha(self) -> str | None:
        """SHA-256 of what is expected to be there."""
        return None if self.before is None else hashlib.sha256(self.before).hexdigest()

    @property
    def after_sha(self) -> str:
        """SHA-256 of what is written."""
        return hashlib.sha256(self.after).hexdigest()


@dataclass(frozen=True, slots=True)
class Flip:
    """A finding that a recipe claims to change: its status before, and in the tree as it would be."""

    rule: str
    before: Status
    after: Status


@dataclass(frozen=True, slots=True)
class Step:
    """One recipe of a plan: its files in the order in which they are replaced (new files first, switches last)."""

    recipe: str
    version: str
    summary: str
    changes: tuple[Change, ...]
    flips: tuple[Flip, ...] = ()
    requires: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be done to one engine, in order. ``digest`` is that of the engine's files as planned on."""

    engine: str
    version: str
    digest: str
    steps: tuple[Step, ...] = ()
    already: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path once, in the order of the first change."""
        return tuple(dict.fromkeys(change.path for step in self.steps for change in step.changes))

    @property
    def total(self) -> tuple[Change, ...]:
        """All steps as one change per file."""
        first: dict[str, Change] = {}
        last: dict[str, Change] = {}
        anchors: dict[str, tuple[Anchor, ...]] = {}
        for step in self.steps:
            for change in step.changes:
                first.setdefault(change.path, change)
                last[change.path] = change
                anchors[change.path] = anchors.get(change.path, ()) + change.anchors
        return tuple(Change(p, first[p].before, last[p].after, anchors[p]) for p in self.paths)

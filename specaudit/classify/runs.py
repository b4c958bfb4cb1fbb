"""What one run of a function leaves behind: values, comparisons, turns of loops, stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from specaudit.classify.terms import Kind, Term


class Unknown:
    """Marks a value that is only known by its term."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = Unknown()
Known = bool | int | float | str | None | tuple["Value", ...] | Unknown


@dataclass(slots=True, unsafe_hash=True)
class Value:
    """``known`` when the run has fixed it, and the term that says where it comes from; never changed once made.

    (A frozen class takes three times as long to make, and a run makes thousands.)
    """

    known: Known
    term: Term

    @property
    def open(self) -> bool:
        """Only known by its term."""
        return self.known is UNKNOWN


def differs(one: Value, other: Value) -> bool:
    """The two runs hold something else here."""
    if one.open or other.open:
        return one.open is not other.open or one.term is not other.term
    return one.known != other.known


@dataclass(frozen=True, slots=True)
class Seen:
    """One evaluation of an open comparison: its key, what it tests, and where it stands.

    ``equal`` is the truth of ``==`` when it is one; ``ascending`` says that the key, when true, means ``left < right``
    (or ``left <= right``).
    """

    key: int
    kind: Kind
    equal: bool
    ascending: bool
    site: int
    line: int
    left: Term
    right: Term


@dataclass(slots=True)
class Turns:
    """One loop's first execution in a run: what each turn compared, and the carried names before and after."""

    loop: int
    head: dict[str, Value]
    compared: list[list[Seen]] = field(default_factory=list)
    after: list[dict[str, Value]] = field(default_factory=list)
    stores: list[list[Store]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Store:
    """Something written: where, which value (what is known of it, or its term), under which mask term."""

    root: str
    address: int
    value: Known | int
    term: Term
    mask: Term | None
    line: int


@dataclass(slots=True)
class Run:
    """All that one run of the function did."""

    seen: list[Seen] = field(default_factory=list)
    loops: dict[int, Turns] = field(default_factory=dict)
    stores: list[Store] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Asked:
    """One question to the oracle, whether every loop around it was in its first turn, and the answer."""

    key: int
    first: bool
    answer: bool


Oracle = Callable[[Term], bool]

"""Tests of an ``if`` as data: small formulas over :class:`specaudit.model.Condition`.

A formula is ``True``, ``False``, a :class:`Lit`, an :class:`And` or an :class:`Or`. A literal without a condition
stands for something that only the running program knows (a shape, a batch); it is kept in formulas and left out of
reports. Hashes are kept in each node (``code``): formulas nest, and are compared and put into sets all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from specaudit.model import Condition

Operator = Literal["==", "!=", "in", "not in", "<", "<=", ">", ">=", "is set", "is not set"]

_OPPOSITE: dict[Operator, Operator] = {
    "==": "!=", "!=": "==", "in": "not in", "not in": "in", "<": ">=", ">=": "<", ">": "<=", "<=": ">",
    "is set": "is not set", "is not set": "is set",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lit:
    """One test. ``usual`` is what it gives when nothing is configured, ``None`` when that is not known."""

    text: str
    condition: Condition | None = None
    holds: bool = True
    usual: bool | None = None
    key: Hashable = field(init=False, repr=False, compare=False)
    code: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        c = self.condition
        #: What two literals about the same test have in common, whatever their sign.
        key = self.text if c is None else (c.option, c.kind, c.op, c.value)
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "code", hash((key, self.holds)))

    def __hash__(self) -> int:
        return self.code

    @property
    def by_default(self) -> bool | None:
        """Whether the literal, sign included, is true when nothing is configured."""
        return None if self.usual is None else self.usual == self.holds

    @property
    def stated(self) -> Condition | None:
        """The condition as it must hold, sign included."""
        c = self.condition
        if c is None or self.holds:
            return c
        op = _OPPOSITE[c.op]
        return Condition(c.option, c.kind, op, c.value, words(c.option, op, c.value))


@dataclass(frozen=True, slots=True)
class And:
    """All of ``parts`` hold."""

    parts: tuple[Formula, ...]
    code: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", hash(self.parts))

    def __hash__(self) -> int:
        return self.code


@dataclass(frozen=True, slots=True)
class Or:
    """At least one of ``parts`` holds."""

    parts: tuple[Formula, ...]
    code: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", ~hash(self.parts))

    def __hash__(self) -> int:
        return self.code


Formula = bool | Lit | And | Or


def words(option: str, op: str, value: str) -> str:
    """A condition in words."""
    if op in ("is set", "is not set"):
        return f"{option} {op}"
    plain = {"==": "is", "!=": "is not", "in": "is one of", "not in": "is none of"}.get(op, op)
    return f"{option} {plain} {value}"


# --- building


def negate(f: Formula) -> Formula:
    """The opposite, pushed down to the literals."""
    match f:
        case bool():
            return not f
        case Lit():
            return replace(f, holds=not f.holds)
        case And(parts):
            return disj(negate(p) for p in parts)
        case Or(parts):
            return conj(negate(p) for p in parts)


def conj(parts: Iterable[Formula]) -> Formula:
    """All of them."""
    flat = _flatten(parts, And, absorbing=False)
    if flat is None:
        return False
    kept = tuple(p for p in flat if not (isinstance(p, Or) and any(q in flat for q in p.parts)))
    shorter = _resolved(kept, Or)
    if shorter is not None:
        return conj(disj(p) if isinstance(p, list) else p for p in shorter)
    return kept[0] if len(kept) == 1 else (And(kept) if kept else True)


def disj(parts: Iterable[Formula]) -> Formula:
    """At least one of them."""
    flat = _flatten(parts, Or, absorbing=True)
    if flat is None:
        return True
    kept = tuple(p for p in flat if not (isinstance(p, And) and any(q in flat for q in p.parts)))
    shorter = _resolved(kept, And)
    if shorter is not None:
        return disj(conj(p) if isinstance(p, list) else p for p in shorter)
    return kept[0] if len(kept) == 1 else (Or(kept) if kept else False)


def _resolved(parts: tuple[Formula, ...], kind: type[And] | type[Or]) -> list[Formula | list[Formula]] | None:
    """``a and (not a or b)`` is ``a and b``, and the same the other way round: the parts of that kind without the
    opposites of the literals beside them, as lists; ``None`` when there are none."""
    signs = {p.key: p.holds for p in parts if isinstance(p, Lit)}
    out: list[Formula | list[Formula]] = []
    for part in parts:
        inner = part.parts if isinstance(part, (And, Or)) and isinstance(part, kind) else ()
        left = [q for q in inner if not (isinstance(q, Lit) and signs.get(q.key) is (not q.holds))]
        out.append(left if len(left) < len(inner) else part)
    return out if any(isinstance(p, list) for p in out) else None


def _flatten(parts: Iterable[Formula], kind: type[And] | type[Or], *, absorbing: bool) -> tuple[Formula, ...] | None:
    """The parts without duplicates; ``None`` when the absorbing constant, or a literal and its opposite, is there."""
    flat: dict[Formula, None] = {}
    signs: dict[object, bool] = {}
    exact: dict[str, str] = {}
    for part in parts:
        inner = part.parts if isinstance(part, (And, Or)) and isinstance(part, kind) else (part,)
        for p in inner:
            if p is absorbing:
                return None
            if isinstance(p, bool):
                continue
            if isinstance(p, Lit) and signs.setdefault(p.key, p.holds) != p.holds:
                return None
            if kind is And and isinstance(p, Lit) and _conflicts(p, exact):
                return None
            flat.setdefault(p)
    return tuple(flat)


def _conflicts(lit: Lit, exact: dict[str, str]) -> bool:
    """In a conjunction: whether the setting was already said to be something else."""
    c = lit.condition
    if c is None or c.op != "==" or not lit.holds:
        return False
    return exact.setdefault(c.option, c.value) != c.value


# --- deciding


def assume(f: Formula, known: Callable[[Lit], bool | None]) -> Formula:
    """The formula with every literal that ``known`` decides replaced by its value (the literal's sign included)."""
    if f is True or f is False:
        return f
    if isinstance(f, Lit):
        value = known(f)
        return f if value is None else value
    absorbing = isinstance(f, Or)
    new: list[Formula] = []
    same = True
    for part in f.parts:
        found = assume(part, known)
        if found is absorbing:
            return found
        new.append(found)
        same = same and found is part
    if same:
        return f
    return disj(new) if absorbing else conj(new)


def usual(f: Formula) -> Formula:
    """The formula when nothing is configured: what is left depends on the model or on the running program."""
    return assume(f, lambda lit: lit.by_default)


def quiet(f: Formula) -> Formula:
    """The formula when every test that only the running program knows turns out false."""
    return assume(f, lambda lit: not lit.holds if lit.condition is None else None)


def given(f: Formula, settings: Mapping[str, str | None]) -> Formula:
    """The formula for known settings: option or flag name -> value as conditions show it, ``None`` for not set."""

    def known(lit: Lit) -> bool | None:
        c = lit.condition
        if c is None or c.option not in settings:
            return None
        found = holds(c, settings[c.option])
        return None if found is None else found == lit.holds

    return assume(f, known)


def holds(c: Condition, value: str | None) -> bool | None:
    """Whether a condition holds for a setting of that value; ``None`` when numbers were expected and are not there."""
    match c.op:
        case "is set":
            return value is not None
        case "is not set":
            return value is None
        case "==":
            return value == c.value
        case "!=":
            return value != c.value
        case "in" | "not in":
            # a list-valued setting shares an element with the list; values are joined by ", "
            shared = value is not None and not set(value.split(", ")).isdisjoint(c.value.split(", "))
            return shared == (c.op == "in")
    try:
        left, right = float(value or ""), float(c.value)
    except ValueError:
        return None
    return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[c.op]


def literals(f: Formula) -> tuple[Lit, ...]:
    """Every literal in it, without duplicates, in order."""
    match f:
        case bool():
            return ()
        case Lit():
            return (f,)
        case And(parts) | Or(parts):
            return tuple(dict.fromkeys(lit for p in parts for lit in literals(p)))

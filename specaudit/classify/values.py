"""What an expression of the engine's configuration code can be known to be without running it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from specaudit.classify.code import Symbol
from specaudit.classify.conditions import Formula, Lit, Operator, conj, disj, negate, words
from specaudit.model import Condition

_ORDERS: dict[str, Operator] = {"<": "<", "<=": "<=", ">": ">", ">=": ">="}

Kind = Literal["env", "option", "model", "platform"]
Plain = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Const:
    """A value that the text gives: a literal, or a tuple of such for every kind of collection."""

    value: Plain | tuple[Plain, ...]


@dataclass(frozen=True, slots=True)
class Ref:
    """A setting: its ``option`` name as reports show it, and its default where the text gives one."""

    kind: Kind
    option: str
    default: Const | None = None
    boolean: bool = False


@dataclass(frozen=True, slots=True)
class Obj:
    """A configuration object of a known class, reached by ``path`` from the top-level configuration."""

    cls: Symbol
    path: str = ""


@dataclass(frozen=True, slots=True)
class Platform:
    """The object that answers which platform this is."""


@dataclass(frozen=True, slots=True)
class Truth:
    """A test."""

    formula: Formula


@dataclass(frozen=True, slots=True)
class Cases:
    """One of several values, each under its formula; the first that holds counts."""

    cases: tuple[tuple[Formula, Value], ...]


@dataclass(frozen=True, slots=True)
class Opaque:
    """Anything else."""

    text: str


Value = Const | Ref | Obj | Platform | Truth | Cases | Opaque


def truth(value: Value) -> Formula:
    """The formula of ``if value``."""
    match value:
        case Const(v):
            return bool(v)
        case Truth(f):
            return f
        case Ref():
            return _flag(value)
        case Obj() | Platform():
            return True
        case Cases(cases):
            return choose(cases, truth)
        case Opaque(text):
            return Lit(text)


def choose(cases: tuple[tuple[Formula, Value], ...], of: object) -> Formula:
    """The formula of a test on one of several values."""
    assert callable(of)
    out: list[Formula] = []
    before: Formula = True
    for path, value in cases:
        out.append(conj((before, path, of(value))))
        before = conj((before, negate(path)))
    return disj(out)


def _flag(ref: Ref) -> Formula:
    if ref.boolean or ref.kind == "platform":
        return _switch(ref, True)
    usual = None if ref.default is None else bool(ref.default.value)
    return Lit(ref.option, Condition(ref.option, ref.kind, "is set", "", words(ref.option, "is set", "")), True, usual)


def _switch(ref: Ref, on: bool) -> Lit:
    """The test that a switch stands in that position."""
    text = ("1" if on else "0") if ref.kind == "env" else shown(on)
    usual = None if ref.default is None else ref.default.value is on
    return Lit(ref.option, Condition(ref.option, ref.kind, "==", text, words(ref.option, "==", text)), True, usual)


def shown(value: Plain | tuple[Plain, ...]) -> str:
    """A constant as reports show it."""
    if isinstance(value, tuple):
        return ", ".join(shown(v) for v in sorted(value, key=str))
    return {True: "true", False: "false", None: "none"}[value] if isinstance(value, bool | None) else str(value)


def compare(op: str, left: Value, right: Value, text: str) -> Formula:
    """The formula of ``left op right`` for the operators of Python's comparisons."""
    if isinstance(left, Cases):
        return choose(left.cases, lambda v: compare(op, v, right, text))
    if isinstance(right, Cases):
        return choose(right.cases, lambda v: compare(op, left, v, text))
    if op in ("!=", "is not", "not in"):
        positive = {"!=": "==", "is not": "is", "not in": "in"}[op]
        f = compare(positive, left, right, text)
        # of a test that only the running program knows, the text as written is all there is
        return f if isinstance(f, Lit) and f.text == text and f.condition is None else negate(f)
    if isinstance(left, Const) and isinstance(right, Const):
        return _decide(op, left.value, right.value, text)
    if op in ("is", "==") and isinstance(right, Const) and right.value is None:
        return _is_none(left, text)
    if op in ("is", "=="):
        if isinstance(left, Const):
            left, right = right, left
        if isinstance(left, Ref) and isinstance(right, Const) and not isinstance(right.value, tuple):
            return _equals(left, right.value)
        return Lit(text)
    if op == "in":
        return _within(left, right, text)
    if isinstance(left, Ref) and isinstance(right, Const):
        default = left.default.value if left.default is not None else None
        numbers = isinstance(default, (int, float)) and isinstance(right.value, (int, float))
        usual = _ordered(op, default, right.value) if numbers else None
        value = shown(right.value)
        condition = Condition(left.option, left.kind, _ORDERS[op], value, words(left.option, op, value))
        return Lit(text, condition, True, usual)
    return Lit(text)


def _decide(op: str, left: object, right: object, text: str) -> Formula:
    try:
        match op:
            case "is" | "==":
                return left == right
            case "in":
                return left in right  # type: ignore[operator]
            case _:
                return bool(_ordered(op, left, right))
    except TypeError:
        return Lit(text)


def _ordered(op: str, left: object, right: object) -> bool:
    match op:
        case "<":
            return bool(left < right)  # type: ignore[operator]
        case "<=":
            return bool(left <= right)  # type: ignore[operator]
        case ">":
            return bool(left > right)  # type: ignore[operator]
        case _:
            return bool(left >= right)  # type: ignore[operator]


def _is_none(value: Value, text: str) -> Formula:
    match value:
        case Ref(boolean=True, default=Const(value=None)):  # a switch with three positions
            return conj((negate(_switch(value, True)), negate(_switch(value, False))))
        case Ref():
            usual = None if value.default is None else value.default.value is not None
            condition = Condition(value.option, value.kind, "is set", "", words(value.option, "is set", ""))
            return negate(Lit(value.option, condition, True, usual))
        case Opaque(inner):
            return Lit(f"{inner} is None")
        case Truth():
            return Lit(text)
        case _:
            return False


def _equals(ref: Ref, value: Plain) -> Formula:
    if isinstance(value, bool):
        flag = _flag(Ref(ref.kind, ref.option, ref.default, boolean=True))
        if value:
            return flag
        # ``x is False`` of a setting that is unset by default is not the same as ``not x``
        return _switch(ref, False) if ref.default == Const(None) else negate(flag)
    usual = None if ref.default is None else ref.default.value == value
    text = shown(value)
    return Lit(ref.option, Condition(ref.option, ref.kind, "==", text, words(ref.option, "==", text)), True, usual)


def _within(left: Value, right: Value, text: str) -> Formula:
    if isinstance(left, Const) and isinstance(right, Ref):  # a name in a list-valued setting
        names = left.value if isinstance(left.value, tuple) else (left.value,)
        return _within(right, Const(names), text)
    if isinstance(left, Ref) and isinstance(right, Const) and isinstance(right.value, tuple):
        default = left.default.value if left.default is not None else None
        usual = None if left.default is None or isinstance(default, tuple) else default in right.value
        value = shown(right.value)
        return Lit(text, Condition(left.option, left.kind, "in", value, words(left.option, "in", value)), True, usual)
    return Lit(text)

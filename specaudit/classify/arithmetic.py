"""Operators on values that a run has fixed: numbers, truth values, ``None``."""

from __future__ import annotations

from collections.abc import Callable

from specaudit.classify.runs import UNKNOWN, Known, Unknown


def compute(op: str, a: bool | int | float, b: bool | int | float) -> Known:
    try:
        return _ARITHMETIC[op](a, b) if op in _ARITHMETIC else UNKNOWN
    except (ZeroDivisionError, TypeError, ValueError, OverflowError):
        return UNKNOWN


_ARITHMETIC: dict[str, Callable[[bool | int | float, bool | int | float], Known]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "&": lambda a, b: bool(a and b) if isinstance(a, bool) or isinstance(b, bool) else int(a) & int(b),
    "|": lambda a, b: bool(a or b) if isinstance(a, bool) or isinstance(b, bool) else int(a) | int(b),
    "^": lambda a, b: int(a) ^ int(b),
    "<<": lambda a, b: int(a) << min(int(b), 64),
    ">>": lambda a, b: int(a) >> int(b),
}

#: The operators of two numbers.
BINARY = frozenset((*_ARITHMETIC, "**", "@"))


def decide(op: str, a: object, b: object) -> bool | Unknown:
    try:
        return _DECIDE[op](a, b)
    except (TypeError, KeyError):
        return UNKNOWN


_DECIDE: dict[str, Callable[..., bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "is": lambda a, b: a is b,
    "is not": lambda a, b: a is not b,
}

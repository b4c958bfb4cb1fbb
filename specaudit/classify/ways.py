"""Formulas spelled out: the ways to make one true, the fewest changes of settings that do, all that such a way needs,
conditions as reports show them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace

from specaudit.classify.conditions import And, Formula, Lit, Or, assume, conj, holds, literals, usual, words
from specaudit.model import Condition

_ORDER = {"env": 0, "option": 1, "platform": 2, "model": 3}
_LIMIT = 64


def alternatives(f: Formula) -> tuple[tuple[Lit, ...], ...]:
    """The ways to make it true, each a conjunction (at most 64; contradictions and longer forms of a way are left
    out).
    """
    ways = _ways(f)
    sets = [frozenset(way) for way in ways]
    return tuple(way for way, own in zip(ways, sets, strict=True) if not any(other < own for other in sets))


def satisfiable(f: Formula) -> bool:
    """Whether some settings make it true (tried from the default outwards)."""
    if isinstance(f, bool):
        return f
    plain = usual(f)
    lit = next(iter(literals(f)))
    if plain is True:
        return True
    first = lit.usual if lit.usual is not None else lit.holds
    return any(satisfiable(assume(f, _deciding(lit, value))) for value in (first, not first))


def _deciding(lit: Lit, value: bool) -> Callable[[Lit], bool | None]:
    """What is known once that test is known to give ``value``."""
    c = lit.condition

    def known(other: Lit) -> bool | None:
        if other.key == lit.key:
            return value == other.holds
        o = other.condition
        if value and c is not None and o is not None and c.op == o.op == "==" and c.option == o.option:
            return not other.holds  # it cannot be two things
        return None

    return known


def _ways(f: Formula) -> tuple[tuple[Lit, ...], ...]:
    match f:
        case bool():
            return ((),) if f else ()
        case Lit():
            return ((f,),)
        case Or(parts):
            return tuple(dict.fromkeys(way for p in parts for way in _ways(p)))[:_LIMIT]
        case And(parts):
            ways: tuple[tuple[Lit, ...], ...] = ((),)
            for part in parts:
                joined = (_join(a, b) for a in ways for b in _ways(part))
                ways = tuple(dict.fromkeys(way for way in joined if way is not None))[:_LIMIT]
            return ways


def _join(a: tuple[Lit, ...], b: tuple[Lit, ...]) -> tuple[Lit, ...] | None:
    merged = conj((*a, *b))
    match merged:
        case bool():
            return () if merged else None
        case And(parts):
            return tuple(p for p in parts if isinstance(p, Lit))
        case Lit():
            return (merged,)
        case Or():
            return None


def default_way(f: Formula) -> tuple[Lit, ...]:
    """One conjunction that makes a formula true when nothing is configured."""
    match f:
        case bool():
            return ()
        case Lit():
            return (f,)
        case And(parts):
            return tuple(dict.fromkeys(lit for p in parts for lit in default_way(p)))
        case Or(parts):
            return default_way(min(parts, key=_unlikely))


def _unlikely(f: Formula) -> int:
    found = usual(f)
    return (0 if found else 2) if isinstance(found, bool) else 1


def deviations(f: Formula) -> tuple[tuple[Lit, ...], ...]:
    """The smallest sets of settings to change for a formula that is false when nothing is configured.

    What they rely on being as it is by default is not in them: :func:`complete` adds it.
    """
    ways = alternatives(assume(f, lambda lit: True if lit.by_default else None))
    return tuple(way for way in ways if usual(fixed(f, way)) is not False)


def fixed(f: Formula, way: tuple[Lit, ...]) -> Formula:
    """The formula when those literals hold."""
    signs = {lit.key: lit.holds for lit in way}
    exact = {c.option: c.value for lit in way if (c := lit.stated) and c.op == "=="}

    def known(lit: Lit) -> bool | None:
        c = lit.condition
        if lit.key in signs:
            return signs[lit.key] == lit.holds
        if c is None or c.option not in exact:
            return None
        found = holds(c, exact[c.option])
        return None if found is None else found == lit.holds

    return assume(f, known)


def complete(f: Formula, way: tuple[Lit, ...]) -> tuple[Lit, ...]:
    """Everything that must hold for a way to make a formula true: its own literals, and those that it needs to stay as
    they are by default.
    """
    rest = fixed(f, way)
    seen: set[Hashable] = set()
    while lit := next((n for n in default_way(rest) if _open(n) and n.key not in seen), None):
        seen.add(lit.key)
        either = conj(assume(rest, _deciding(lit, value)) for value in (True, False))
        if usual(either) is not False:  # it goes on whatever the test gives, so that must not be asked for
            rest = either
    return (*way, *default_way(rest))


def _open(lit: Lit) -> bool:
    """Whether reports show the test and no default tells what it gives: it asks about the model."""
    return lit.condition is not None and lit.usual is None


def stated(way: Iterable[Lit]) -> tuple[Condition, ...]:
    """The conditions of one conjunction as reports show them: flags first, nothing said twice."""
    kept = [c for lit in way if (c := lit.stated) is not None]
    exact = {c.option for c in kept if c.op == "=="}
    # "X is 1" already says that X is set and that it is nothing else
    kept = [c for c in kept if c.op not in ("is set", "!=") or c.option not in exact]
    neither = {c.option for c in kept if c.kind == "env" and c.op == "!=" and c.value == "0"}
    neither &= {c.option for c in kept if c.op == "!=" and c.value == "1"}
    shown = (_unset(c) if c.option in neither else c for c in kept)
    return tuple(sorted(dict.fromkeys(shown), key=lambda c: _ORDER[c.kind]))


def _unset(c: Condition) -> Condition:
    return replace(c, op="is not set", value="", text=words(c.option, "is not set", ""))

"""Whether a method gets to a read of an option: what the tests around it say, and those in its statement
that come before it.

Only what the method decides counts, and what the choice of its runner does. A test of another option or of the running
program leaves a line where it may be reached; and one that comes out false for every method may be read wrongly, so
that it says nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from specaudit import nodes
from specaudit.classify.acting import around, read_by
from specaudit.classify.conditions import Formula, Lit, assume, conj, given, literals, usual
from specaudit.classify.methods import Methods
from specaudit.classify.places import Guarded, Place
from specaudit.classify.runners import RunnerChoice
from specaudit.classify.symbolic import Reader
from specaudit.classify.values import Obj
from specaudit.classify.ways import satisfiable

#: Stands for whatever an option may be set to.
ANY = "any"
#: A test, and what it must give.
_Test = tuple[ast.expr, bool]


@dataclass(frozen=True, slots=True)
class Way:
    """All tests before a read, and those of them that say on which runner it is."""

    tests: Formula
    choosing: Formula


class Arriving:
    """Answers for every method and runner of one engine."""

    def __init__(self, reader: Reader, methods: Methods, choice: RunnerChoice) -> None:
        self.reader = reader
        self.methods = methods
        self.choice = choice
        self._outer: dict[tuple[str, int, str], tuple[Way, ...]] = {}
        self._chosen: dict[tuple[str, str], Formula] = {}
        self._open: dict[str, tuple[str, ...]] = {}

    def reads(self, path: str, line: int, name: str, method: str, label: str) -> bool:
        """Whether a method on a runner may get to a read of ``name`` outside of the configuration's class."""
        key = path, line, name
        if key not in self._outer:
            self._outer[key] = self._outside(*key)
        ways = self._outer[key]
        return not ways or any(way.tests is False or self.leads(way, method, label) for way in ways)

    def _outside(self, path: str, line: int, name: str) -> tuple[Way, ...]:
        function = around(self.reader.code, path, line)
        if function is None:
            return ()
        owner = self.reader.code.owner(function)
        known = Obj(owner, "") if owner is not None and self.reader.configuration.is_main(owner) else None
        inside = [p for p in self.reader.places(function, owner, known) if _spans(p, line)]
        return self.ways(inside[-1], line, name) if inside else ()  # what stands inside a statement comes after it

    def ways(self, place: Place, line: int, name: str) -> tuple[Way, ...]:
        """The ways to each read of ``name`` on a line of a statement."""
        return tuple(self._way(guarded, place) for guarded in guards(place, line, name))

    def _way(self, guarded: Guarded, place: Place) -> Way:
        choosing = tuple(test for test in guarded.tests if self._chooses(test[0], place))
        tests = guarded.formula(self.reader, place.scope)
        return Way(tests, Guarded(guarded.statement, choosing).formula(self.reader, place.scope))

    def _chooses(self, test: ast.expr, place: Place) -> bool:
        """Whether a test asks for what chooses the runner, or for nothing but the models and the method."""
        kinds = {
            lit.condition.kind if lit.condition is not None else ""
            for lit in literals(self.reader.truth(test, place.scope))
            if lit.condition is None or lit.condition.option != self.methods.anchors.method_field
        }
        return "env" in kinds or kinds == {"model"}

    def leads(self, way: Way, method: str, label: str) -> bool:
        """Whether a method on a runner may take a way."""
        if self.at(way.tests, method) is False:
            return False
        choosing = self.at(way.choosing, method)
        return choosing is True or satisfiable(conj((self._taken(label, method), choosing)))

    def _taken(self, label: str, method: str) -> Formula:
        key = label, method
        if key not in self._chosen:
            self._chosen[key] = self.at(self.choice.formula(label), method)
        return self._chosen[key]

    def at(self, f: Formula, method: str) -> Formula:
        """The formula for that method, with what completing the configuration sets whatever else is configured."""
        if method not in self._open:
            sure = {e.field for e in self.methods.forced(method)} - {self.methods.anchors.count_field}
            sure |= {self.methods.anchors.method_field, *dict(self.reader.engine.assumed)}
            self._open[method] = tuple(name for name in self.methods.settings(method) if name not in sure)
        return self.methods.at(f, method, without=self._open[method])

    def may_take(self, label: str, method: str, option: str = "", value: str = ANY) -> bool:
        """Whether a method may take a runner when nothing else is configured than, if told, one option."""
        return usual(self.at(_with(self.choice.formula(label), option, value), method)) is not False

    def refused(self, f: Formula, name: str, values: Iterable[str], method: str) -> bool:
        """Whether a refusal meets a method whichever of some values an option has; where models matter, they are
        named.
        """
        known = given(f, dict.fromkeys((n for n in self.methods.anchors.named if n != name), "given"))
        told = [self.at(_with(known, name, value), method) is True for value in values]
        return bool(told) and all(told)


def _with(f: Formula, name: str, value: str) -> Formula:
    """The formula where an option has a value, or :data:`ANY`: then it is known to be set, and not to what."""
    if value != ANY:
        return given(f, {name: value})

    def known(lit: Lit) -> bool | None:
        c = lit.condition
        if c is None or c.option != name or c.op not in ("is set", "is not set"):
            return None
        return (c.op == "is set") == lit.holds

    return assume(f, known)


def guards(place: Place, line: int, name: str) -> Iterator[Guarded]:
    """The ways to each read of ``name`` on a line of a statement, with all tests on them: those around the statement,
    and what comes before the read in ``and``, ``or`` and ``if … else``.
    """
    left: list[tuple[ast.AST, tuple[_Test, ...]]] = [(place.statement, ())]
    found = False
    while left:
        node, tests = left.pop()
        if read_by(node) == (line, name):
            found = True
            yield Guarded(place.statement, (*place.tests, *tests))
        match node:
            case ast.BoolOp(op=op, values=values):
                goes_on = isinstance(op, ast.And)
                for number, value in enumerate(values):
                    left.append((value, (*tests, *((earlier, goes_on) for earlier in values[:number]))))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                left += [(test, tests), (body, (*tests, (test, True))), (orelse, (*tests, (test, False)))]
            case _:
                inner = (c for c in nodes.children(node) if not isinstance(c, (ast.stmt, ast.ExceptHandler)))
                left.extend((child, tests) for child in inner)
    if not found:  # it stands in a function inside the statement
        yield Guarded(place.statement, place.tests)


def _spans(place: Place, line: int) -> bool:
    return place.statement.lineno <= line <= (place.statement.end_lineno or 0)

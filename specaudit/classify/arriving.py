"""Whether the code of a method gets to a read of an option: what the tests around it say, and those in its statement
that come before it.

Only what a method decides counts. A test of another option, of a model or of the running program leaves a line where
it may be reached; and one that comes out false for every method may be read wrongly, so that it says nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from specaudit import nodes
from specaudit.classify.acting import around, read_by
from specaudit.classify.conditions import Formula, conj, given, literals
from specaudit.classify.methods import Methods
from specaudit.classify.places import Guarded, Place
from specaudit.classify.runners import RunnerChoice
from specaudit.classify.symbolic import Reader
from specaudit.classify.values import Obj
from specaudit.classify.ways import satisfiable

#: A test, and what it must give.
_Test = tuple[ast.expr, bool]


class Arriving:
    """Answers for every method and runner of one engine."""

    def __init__(self, reader: Reader, methods: Methods, choice: RunnerChoice) -> None:
        self.reader = reader
        self.methods = methods
        self.choice = choice
        self._formulas: dict[tuple[str, int, str], tuple[tuple[Formula, Formula], ...]] = {}
        self._chosen: dict[tuple[str, str], Formula] = {}
        self._open: dict[str, tuple[str, ...]] = {}

    def reads(self, path: str, line: int, name: str, method: str, label: str) -> bool:
        """Whether a method on a runner may get to a read of ``name`` outside of the configuration's class."""
        key = path, line, name
        if key not in self._formulas:
            self._formulas[key] = tuple(self._outside(*key))
        ways = self._formulas[key]
        return not ways or any(self._leads(way, method, label) for way in ways)

    def _outside(self, path: str, line: int, name: str) -> Iterator[tuple[Formula, Formula]]:
        function = around(self.reader.code, path, line)
        if function is None:
            return
        owner = self.reader.code.owner(function)
        known = Obj(owner, "") if owner is not None and self.reader.configuration.is_main(owner) else None
        inside = [p for p in self.reader.places(function, owner, known) if _spans(p, line)]
        if inside:  # what stands inside another statement comes after it
            yield from (self._of(way, inside[-1]) for way in guards(inside[-1], line, name))

    def _of(self, way: Guarded, place: Place) -> tuple[Formula, Formula]:
        """All tests of a way, and those of them that ask for what chooses the runner."""
        choosing = [test for test in way.tests if self._asks_for_runner(test, place)]
        return (
            way.formula(self.reader, place.scope),
            Guarded(way.statement, tuple(choosing)).formula(self.reader, place.scope),
        )

    def _asks_for_runner(self, test: _Test, place: Place) -> bool:
        asked = literals(self.reader.truth(test[0], place.scope))
        return any(lit.condition is not None and lit.condition.kind == "env" for lit in asked)

    def _leads(self, way: tuple[Formula, Formula], method: str, label: str) -> bool:
        tests, choosing = way
        if tests is not False and self.at(tests, method) is False:
            return False
        return choosing is True or satisfiable(conj((self._taken(label, method), self.at(choosing, method))))

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

    def refused(self, f: Formula, name: str, values: Iterable[str], method: str) -> bool:
        """Whether a refusal meets a method whichever of some values an option has."""
        if not any(lit.condition is not None and lit.condition.option == name for lit in literals(f)):
            return False
        return all(self.at(given(f, {name: value}), method) is True for value in values)


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

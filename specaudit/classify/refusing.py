"""Options with which a method is refused: by the configuration as it is completed, by the check of its runner, or by
whatever drafts for it as it is made.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from functools import cached_property

from specaudit.classify.arriving import Arriving
from specaudit.classify.code import Symbol, dotted
from specaudit.classify.conditions import Formula, conj, literals
from specaudit.classify.places import Place, sure
from specaudit.classify.proposers import Proposers
from specaudit.model import Evidence

#: What leads to an exception, and the line of the last test on the way; by the options that are asked for.
_Refusals = dict[str, list[tuple[Formula, Evidence]]]


class Refusing:
    """Answers for every option, method and runner of one engine."""

    def __init__(self, arriving: Arriving, proposers: Proposers) -> None:
        self.arriving = arriving
        self.reader = arriving.reader
        self.proposers = proposers
        self._making: dict[Symbol, _Refusals] = {}

    @cached_property
    def _completing(self) -> _Refusals:
        """What completing the configuration refuses."""
        noted: _Refusals = {}
        for _, place in self.arriving.methods.completing():
            self._note(noted, place, True)
        return noted

    def at(self, option: str, values: Collection[str], method: str, label: str) -> Evidence | None:
        """Where a method on a runner is refused whichever of some values an option has."""
        found = self._met(self._completing, option, values, method) or self._checking(option, values, method, label)
        if found is not None:
            return found
        classes = [
            one.site.cls
            for one in self.proposers.found
            if one.proposer.runner == label and method in one.proposer.methods
        ]
        refused = [self._met(self._made(cls), option, values, method) if cls is not None else None for cls in classes]
        return refused[0] if refused and all(refused) else None

    def _checking(self, option: str, values: Collection[str], method: str, label: str) -> Evidence | None:
        """Where the check of a runner refuses.

        It does so in vain where a run takes that runner by default, and another one because of the option.
        """
        choice = self.arriving.choice
        if not self.arriving.refused(choice.refusals.get(label, False), option, values, method):
            return None
        usually = self.arriving.may_take(label, method)
        others = [other for other in choice.labels() if other != label]
        if usually and any(self.arriving.may_take(o, method, option, v) for o in others for v in values):
            return None
        return choice.refusal_lines[label][0]

    def _met(self, refusals: _Refusals, option: str, values: Collection[str], method: str) -> Evidence | None:
        about = refusals.get(option, ())
        return next((line for f, line in about if self.arriving.refused(f, option, values, method)), None)

    def _made(self, cls: Symbol) -> _Refusals:
        """What making an object of a class refuses, itself or in a method of its own that it calls."""
        if cls not in self._making:
            noted = self._making[cls] = {}
            for place in self._places(cls, "__init__"):
                self._note(noted, place, True)
                for name in _called(place.statement):
                    for inner in self._places(cls, name):
                        self._note(noted, inner, place.formula)
        return self._making[cls]

    def _places(self, cls: Symbol, name: str) -> tuple[Place, ...]:
        method = self.reader.code.method(cls, name)
        return tuple(sure(self.reader.places(method, cls))) if method is not None else ()

    def _note(self, refusals: _Refusals, place: Place, before: Formula) -> None:
        if not isinstance(place.statement, ast.Raise) or not place.tests:
            return
        f = conj((before, place.formula))
        line = self.reader.code.index.evidence(place.scope.path, place.tests[-1][0].lineno)
        for option in {lit.condition.option for lit in literals(f) if lit.condition is not None}:
            refusals.setdefault(option, []).append((f, line))


def _called(statement: ast.stmt) -> Iterator[str]:
    """The method of the same object that is called, where that is all that a statement does."""
    match statement:
        case ast.Expr(value=ast.Call(func=func)) if dotted(func).startswith("self."):
            yield dotted(func).removeprefix("self.")

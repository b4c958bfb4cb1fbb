"""The lines that decide a trace before anything drafts: what the configuration does with a method, and the choice of
runner.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from specaudit import nodes
from specaudit.classify.code import Symbol, dotted
from specaudit.classify.conditions import Formula, literals, quiet, usual
from specaudit.classify.methods import Methods
from specaudit.classify.proposers import Found
from specaudit.classify.runners import RunnerChoice
from specaudit.classify.sampling import Step
from specaudit.classify.scopes import Scope
from specaudit.classify.symbolic import Reader
from specaudit.classify.topology import possible
from specaudit.classify.values import Obj
from specaudit.engines.base import RunnerAnchor

Spot = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Request:
    """What is traced: a method, and settings by name as conditions show them (options, flags, architectures)."""

    method: str
    settings: Mapping[str, str | None]


class Deciding:
    """The configuration's part of a trace."""

    def __init__(self, reader: Reader, methods: Methods, choice: RunnerChoice) -> None:
        self.reader = reader
        self.code = reader.code
        self.index = reader.code.index
        self.methods = methods
        self.choice = choice
        self.workers = {w.path for w in reader.engine.workers}

    def at(self, f: Formula, request: Request) -> Formula:
        """The formula under the request."""
        return self.methods.at(f, request.method, request.settings)

    def live(self, f: Formula, request: Request) -> bool:
        """Whether it can hold under the request, everything else being as it is by default."""
        return usual(possible(self.at(f, request))) is not False

    # --- the speculative configuration

    def configuration(self, chosen: Found, deciding: set[str], request: Request) -> Iterator[Step]:
        """Where the method is known, what completing the configuration does for it, and the predicates that choose.

        Args:
            chosen: the proposer of the trace. deciding: options that decide something further on.
        """
        cls = self.methods.cls
        if cls is None:
            return
        spots = {
            *self._listed(cls, request),
            *self._completion(cls, deciding, request),
            *self._predicates(cls, chosen, request),
        }
        for path, line in sorted(spots, key=lambda spot: (spot[0] != cls.path, spot)):
            yield path, line, "config"

    def _listed(self, cls: Symbol, request: Request) -> Iterator[Spot]:
        """The ``Literal`` that lists the method itself."""
        for stored in self.index.outline(cls.path).assigns:
            if stored.scope == "" and stored.value.startswith("Literal[") and f'"{request.method}"' in stored.value:
                yield cls.path, stored.line

    def _completion(self, cls: Symbol, deciding: set[str], request: Request) -> Iterator[Spot]:
        """What completing the configuration tests for this method, sets for it, and calls because of it."""
        forced = self.methods.forced(request.method)
        for effect in self.methods.effects:
            named = effect.field == self.methods.anchors.method_field and effect.value == request.method
            if named or (effect.field in deciding and effect in forced):
                yield effect.path, effect.line
        method = self.code.method(cls, self.methods.anchors.initialiser)
        for place in self.reader.places(method, cls, Obj(cls, "")) if method is not None else ():
            statement = place.statement
            if isinstance(statement, ast.If):
                # whether a draft model is named makes no difference to where a method is known
                around = self.methods.at(
                    place.formula, request.method, request.settings, without=self.methods.anchors.named
                )
                if around is not False:
                    yield from self._naming(statement.test, place.scope, request)
            elif (
                isinstance(statement, ast.Expr)
                and place.tests
                and any(dotted(c.func).startswith("self.") for c in place.calls)
            ):
                test, wanted = place.tests[-1]
                if wanted and any(True for _ in self._naming(test, place.scope, request)):
                    yield place.scope.path, statement.lineno

    def _naming(self, test: ast.expr, scope: Scope, request: Request, *, excluding: bool = False) -> Iterator[Spot]:
        """Comparisons inside a test that name the method (or, with ``excluding``, name others) and hold for it."""
        for inner in nodes.walk(test):
            if isinstance(inner, ast.Compare):
                f = self.reader.truth(inner, scope)
                about = [
                    lit
                    for lit in literals(f)
                    if lit.condition and lit.condition.option == self.methods.anchors.method_field
                ]
                if about and self.at(f, request) is True and (excluding or any(lit.holds for lit in about)):
                    yield scope.path, inner.lineno

    def _predicates(self, cls: Symbol, chosen: Found, request: Request) -> Iterator[Spot]:
        """The predicates of the configuration that choose the proposer and hold."""
        for evidence in chosen.site.tests:
            for predicate in self.asked(evidence.text):
                scope = Scope(predicate.path, predicate.qualname, cls, Obj(cls, ""))
                f = self.reader.truth(ast.parse(f"self.{predicate.name}()", mode="eval").body, scope)
                if self.at(f, request) is not False:
                    yield predicate.path, predicate.definition.line
                    yield from self.returns(predicate)

    def asked(self, text: str) -> Iterator[Symbol]:
        """The predicates of the configuration that a test's text calls."""
        cls = self.methods.cls
        for word in text.replace("(", " ").replace(")", " ").replace(":", " ").split():
            method = self.code.method(cls, word.rpartition(".")[2]) if cls is not None and "." in word else None
            if method is not None:
                yield method

    def returns(self, function: Symbol) -> Iterator[Spot]:
        """The lines on which a function returns."""
        for place in self.reader.places(function):
            if isinstance(place.statement, ast.Return):
                yield function.path, place.statement.lineno

    # --- the runner

    def runner(self, anchor: RunnerAnchor, request: Request) -> Iterator[Step]:
        """The property or flag that chooses the runner, what it asks about the method, and the worker that makes it."""
        evidence = self.choice.evidence(anchor.label)
        spots: set[Spot] = set()
        for e in evidence:
            function = self._function_at(e.path, e.line) if e.path not in self.workers else None
            if function is not None:
                spots |= {(e.path, e.line), *self._through(function, request)}
        for lines in self.choice.refusal_lines.values():
            spots |= {spot for e in lines for spot in self.validated(e.path, e.line, request)}
        yield from ((path, line, "config") for path, line in sorted(spots))
        yield from ((e.path, e.line, "config") for e in evidence if e.path == self.reader.engine.environment_path)
        for e in evidence:
            if e.path in self.workers:
                yield from ((e.path, line, "runner") for line in (*self._callers(e.path, e.line), e.line))

    def _callers(self, path: str, line: int) -> Iterator[int]:
        """Where the function around a line is called by its own class."""
        calls = self.index.outline(path).calls
        maker = next((c.scope.rpartition(".")[2] for c in calls if c.line == line), "")
        return (c.line for c in calls if maker and c.func == f"self.{maker}")

    def _function_at(self, path: str, line: int) -> Symbol | None:
        found = (d for d in self.index.outline(path).definitions if d.kind == "function" and d.line == line)
        return next((Symbol(path, d) for d in found), None)

    def _own_calls(self, function: Symbol) -> Iterator[tuple[int, Symbol]]:
        """The methods of the same class that a method calls, with the lines of the calls."""
        cls = self.code.owner(function)
        for call in self.index.outline(function.path).calls:
            if cls is not None and call.scope == function.qualname and call.func.startswith("self."):
                callee = self.code.method(cls, call.func[5:])
                if callee is not None:
                    yield call.line, callee

    def _through(self, function: Symbol, request: Request) -> Iterator[Spot]:
        """Calls of own methods inside a function, and the tests in those that name the method."""
        for line, callee in self._own_calls(function):
            yield function.path, line
            yield from self._refusing(callee, request)

    def _refusing(self, function: Symbol, request: Request) -> Iterator[Spot]:
        """The comparisons about the method in tests that hold for it."""
        owner = self.code.owner(function)
        for place in self.reader.places(function, owner, Obj(owner, "")) if owner is not None else ():
            if isinstance(place.statement, ast.If):
                f = self.reader.truth(place.statement.test, place.scope)
                if usual(self.at(f, request)) is True:
                    yield from self._naming(place.statement.test, place.scope, request, excluding=True)

    def validated(self, path: str, line: int, request: Request) -> Iterator[Spot]:
        """A validator's call and the tests about the method behind it, when there are such that hold."""
        for functions in self._validators(path, line):
            named = {spot for f in functions for spot in self._refusing(f, request)}
            if named:
                yield path, line
                yield from named

    def _validators(self, path: str, line: int) -> Iterator[tuple[Symbol, ...]]:
        """The validator that is called on a line, and the own methods that it asks."""
        cls = self.reader.configuration.named(self.reader.engine.config.engine_cls)
        for call in self.index.outline(path).calls:
            callee = (
                self.code.method(cls, call.func[5:])
                if cls and call.line == line and call.func.startswith("self.")
                else None
            )
            if callee is not None:
                yield callee, *(f for _, f in self._own_calls(callee))

    def _blamed(self, path: str, line: int, request: Request) -> Iterator[Spot]:
        """A validator's call, and the tests behind it that hold and ask about the request without naming a method: a
        predicate of the configuration, another option, the architecture of a model.
        """
        yield path, line
        asked = {self.methods.anchors.method_field, *request.settings}
        for function in (f for functions in self._validators(path, line) for f in functions):
            owner = self.code.owner(function)
            for place in self.reader.places(function, owner, Obj(owner, "")) if owner is not None else ():
                test = place.statement.test if isinstance(place.statement, ast.If) else None
                if test is not None and not isinstance(test, ast.Name):  # a name tells nothing to who reads the line
                    f = self.reader.truth(test, place.scope)
                    if asked & options_in([f]) and self._certain(f, request):
                        yield function.path, test.lineno

    def refusal(self, request: Request) -> str:
        """Why no runner takes the request: the runner that its settings choose, and the tests that refuse it."""
        for label, refused in self.choice.refusals.items():
            chosen = [c.formula for c in self.choice.choices if c.label == label]
            if self._certain(refused, request) and any(self._certain(f, request) for f in chosen):
                calls = [(e.path, e.line) for e in self.choice.refusal_lines[label]]
                spots = {spot for call in calls for spot in self.validated(*call, request)}
                spots = spots or {spot for call in calls for spot in self._blamed(*call, request)}
                shown = "; ".join(f"{path}:{line}: {self.index.line(path, line)}" for path, line in sorted(spots))
                return f"they choose the {label} runner, which refuses it ({shown})"
        return ""

    def _certain(self, f: Formula, request: Request) -> bool:
        return usual(quiet(self.at(f, request))) is True


def options_in(formulas: Iterable[Formula]) -> set[str]:
    """The settings that formulas ask about."""
    return {lit.condition.option for f in formulas for lit in literals(f) if lit.condition is not None}

"""From the runner's call of its sampler to the kernels that accept: the calls in between, for one set of settings.

Which functions and kernels accept is known from their bodies (:mod:`specaudit.classify.verifiers`); here only the way
to them is followed: through methods, functions, launches ``kernel[grid](…)`` and kernels bound by a decorator.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from specaudit.classify.code import Code, Symbol, dotted
from specaudit.classify.conditions import Formula
from specaudit.classify.places import places
from specaudit.classify.scopes import Scope
from specaudit.classify.symbolic import Reader
from specaudit.classify.values import Opaque, Value
from specaudit.engines.base import RunnerAnchor
from specaudit.index import Call
from specaudit.model import HopKind, Verifier

#: One step of a trace before its text is read: path, line, what it is.
Step = tuple[str, int, HopKind]


@dataclass(frozen=True, slots=True)
class _Made:
    """Where an object of a verifying class is kept by the runner, or put there by its proposer."""

    cls: Symbol
    attribute: str
    path: str
    line: int


@dataclass(frozen=True, slots=True)
class _Entered:
    """A function on the way: what it is, and the calls in it that lead on."""

    function: Symbol
    calls: tuple[_Leading, ...] = ()


@dataclass(frozen=True, slots=True)
class _Leading:
    """One call that leads on, its formula, and what it enters; ``helper``: that accepts nothing itself."""

    line: int
    formula: Formula
    target: _Entered
    helper: bool


class Sampling:
    """The ways from the runners to their verifiers, read once for all requests."""

    def __init__(self, reader: Reader, verifiers: Iterable[Verifier]) -> None:
        self.reader = reader
        self.code: Code = reader.code
        self.index = reader.code.index
        self.verifiers = tuple(verifiers)
        self.known = {(v.path, v.line): v for v in self.verifiers}
        self._leads: dict[tuple[str, str, str], bool] = {}
        self._kept_by: dict[str, tuple[_Made, ...]] = {}
        self._entered: dict[tuple[str, str], _Entered] = {}

    def steps(self, runner: RunnerAnchor, drafter: Symbol | None, live: Callable[[Formula], bool]) -> tuple[Step, ...]:
        """The steps from the line that makes the sampler to the kernels.

        Args:
            drafter: the proposer's class, which may put another sampler in the place of the runner's.
            live: tells which formulas can hold.
        """
        out: list[Step] = []
        for made in self._kept(runner):
            out.append((made.path, made.line, "sampler"))
            call = next((c for c in self._uses(runner, made) if live(self._formula(runner.path, c))), None)
            if call is not None:
                out.extend(self._call(runner.path, call))
                for other in self._put(drafter, made.attribute) if drafter is not None else ():
                    out.append((other.path, other.line, "sampler"))
                    out.extend(self._shown(self._entry(other), live))
                out.extend(self._shown(self._entry(made), live))
        return tuple(dict.fromkeys(out))

    def _kept(self, runner: RunnerAnchor) -> tuple[_Made, ...]:
        if runner.label not in self._kept_by:
            self._kept_by[runner.label] = tuple(self._search(runner))
        return self._kept_by[runner.label]

    def _search(self, runner: RunnerAnchor) -> Iterator[_Made]:
        classes = {(v.path, v.line) for v in self.verifiers if v.role == "class" and v.runner == runner.label}
        names = {v.name for v in self.verifiers if v.role == "class"}
        for stored in self.index.outline(runner.path).assigns:
            name = stored.value.partition("(")[0]
            imported = self.code.imported_from(runner.path, stored.scope, name) if name[:1].isupper() else ""
            if stored.target.startswith("self.") and imported.rpartition(".")[2] in names:
                made = self.code.resolve(runner.path, stored.scope, name)
                if made is not None and (made.path, made.definition.line) in classes:
                    yield _Made(made, stored.target[5:], runner.path, stored.line)

    def _put(self, drafter: Symbol, attribute: str) -> Iterator[_Made]:
        """``runner.attribute = Class(…)`` inside the proposer."""
        for owner in self.code.bases(drafter):
            for stored in self.code.assigns(owner.path, owner.qualname):
                if stored.target.endswith(f".{attribute}") and stored.target != f"self.{attribute}":
                    made = self.code.resolve(owner.path, stored.scope, stored.value.partition("(")[0])
                    if made is not None and made.definition.kind == "class":
                        yield _Made(made, attribute, owner.path, stored.line)

    def _uses(self, runner: RunnerAnchor, made: _Made) -> Iterator[Call]:
        return (c for c in self.index.outline(runner.path).calls if c.func == f"self.{made.attribute}")

    def _formula(self, path: str, call: Call) -> Formula:
        function = self.code.definition(path, call.scope)
        for place in self.reader.places(function) if function is not None else ():
            if any(c.lineno == call.line for c in place.calls):
                return place.formula
        return True

    def _call(self, path: str, call: Call) -> Iterator[Step]:
        """The call itself, and the arguments that are literally absent."""
        yield path, call.line, "sampler"
        function = self.code.definition(path, call.scope)
        for place in self.reader.places(function) if function is not None else ():
            for inner in place.calls:
                if inner.lineno == call.line and dotted(inner.func) == call.func:
                    absent = (a for a in inner.args if isinstance(a, ast.Constant) and a.value is None)
                    yield from ((path, argument.lineno, "sampler") for argument in absent)

    def _shown(self, entered: _Entered | None, live: Callable[[Formula], bool]) -> Iterator[Step]:
        """A function's own line, then what leads on; accepting kernels before their helpers."""
        if entered is None:
            return
        function = entered.function
        verifier = self.known.get((function.path, function.definition.line))
        yield (
            function.path,
            function.definition.line,
            "kernel" if verifier is not None and verifier.role == "kernel" else "sampler",
        )
        found = [c for c in entered.calls if live(c.formula)]
        for helpers in (False, True):
            group = [c for c in found if c.helper == helpers]
            yield from ((function.path, call.line, "sampler") for call in group)
            for call in group:
                yield from self._bound(call.target.function)
                yield from self._shown(call.target, live)

    # --- reading, once

    def _entry(self, made: _Made) -> _Entered | None:
        key = made.cls.path, made.cls.qualname
        if key not in self._entered:
            entry = self.code.method(made.cls, "forward") or self.code.method(made.cls, "__call__")
            if entry is None:
                return None
            self._entered[key] = self._enter(made.cls, entry, {}, ())
        return self._entered[key]

    def _enter(
        self, cls: Symbol | None, function: Symbol, bound: Mapping[str, Value], seen: tuple[Symbol, ...]
    ) -> _Entered:
        """What leads on inside a function; ``bound`` is what is known of its parameters from the call that entered
        it.
        """
        node = self.code.function(function)
        if function in seen or node is None:
            return _Entered(function)
        out: list[_Leading] = []
        for place in places(self.reader, node, Scope(function.path, function.qualname, cls), bound):
            for call in place.calls:
                target = self._target(cls, function, call)
                if target is None or not self._leading(cls, target):
                    continue
                own = cls if self.code.owner(target) is not None else None
                given = self._arguments(call, target, place.scope)
                inner = self._enter(own, target, given, (*seen, function))
                out.append(_Leading(call.lineno, place.formula, inner, self._walk(target) == "helper"))
        return _Entered(function, tuple(sorted(out, key=lambda c: c.line)))

    def _arguments(self, call: ast.Call, target: Symbol, scope: Scope) -> dict[str, Value]:
        """What is known of the arguments, by the name of the parameter that they meet."""
        params = [p for p in target.definition.params if p != "self"]
        given = {k.arg: k.value for k in call.keywords if k.arg is not None}
        given |= {
            name: value for name, value in zip(params, call.args, strict=False) if not isinstance(value, ast.Starred)
        }
        found = {name: self.reader.value(value, scope) for name, value in given.items()}
        return {name: value for name, value in found.items() if not isinstance(value, Opaque)}

    def _bound(self, function: Symbol) -> Iterator[Step]:
        """A kernel that the function launches through a decorator's argument: the argument's line and the kernel."""
        for line, kernel in self._decorated(function):
            yield function.path, line, "sampler"
            yield kernel.path, kernel.definition.line, "kernel"

    def _decorated(self, function: Symbol) -> Iterator[tuple[int, Symbol]]:
        node = self.code.function(function) if function.definition.decorators else None
        for decorator in node.decorator_list if node is not None else ():
            for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
                kernel = self.code.resolve(function.path, function.definition.scope, dotted(keyword.value))
                if kernel is not None and kernel.definition.kind == "function" and self._walk(kernel):
                    yield keyword.value.lineno, kernel

    def _walk(self, symbol: Symbol) -> str:
        verifier = self.known.get((symbol.path, symbol.definition.line))
        return verifier.walk if verifier is not None else ""

    def _target(self, cls: Symbol | None, function: Symbol, call: ast.Call) -> Symbol | None:
        """The function that a call enters or launches."""
        func = call.func.value if isinstance(call.func, ast.Subscript) else call.func
        name = dotted(func)
        if name.startswith("self.") and name.count(".") == 1:
            return self.code.method(cls, name[5:]) if cls is not None else None
        if not name or name.startswith("self."):
            return None
        found = self.code.resolve(function.path, function.qualname, name)
        return found if found is not None and found.definition.kind == "function" else None

    def _leading(self, cls: Symbol | None, function: Symbol) -> bool:
        """Whether a function verifies, or calls something that does."""
        key = function.path, function.qualname, cls.qualname if cls is not None else ""
        if key not in self._leads:
            self._leads[key] = False
            self._leads[key] = bool(self._walk(function)) or self._leads_on(cls, function)
        return self._leads[key]

    def _leads_on(self, cls: Symbol | None, function: Symbol) -> bool:
        if any(True for _ in self._decorated(function)):
            return True
        for call in self.index.outline(function.path).calls:
            if call.scope != function.qualname:
                continue
            name = call.func.partition("[")[0]
            if name.startswith("self."):
                inner = self.code.method(cls, name[5:]) if cls is not None and name.count(".") == 1 else None
            else:
                inner = self.code.resolve(function.path, function.qualname, name) if name.isidentifier() else None
            if inner is not None and inner.definition.kind == "function" and inner != function:
                own = cls if self.code.owner(inner) is not None else None
                if self._leading(own, inner):
                    return True
        return False

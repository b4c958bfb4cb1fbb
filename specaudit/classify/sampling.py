"""From the runner's call of its sampler to the kernels that accept: the calls in between, for one set of settings.

Which functions and kernels accept is known from their bodies (:mod:`specaudit.classify.verifiers`); here only the way to them
is followed: through methods, functions, launches ``kernel[grid](…)`` and kernels bound by a decorator.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from specaudit.classify.code import Code, Symbol, dotted
from specaudit.classify.conditions import Formula
from specaudit.classify.symbolic import Guarded, Reader, Scope, calls, guarded, local
from specaudit.classify.values import Opaque, Value
from specaudit.engines.base import RunnerAnchor
from specaudit.index import Call
from specaudit.model import HopKind, Verifier

#: One step of a trace before its text is read: path, line, what it is.
Step = tuple[str, int, HopKind]


@dataclass(frozen=True, slots=True)
class _Made:
    """Where the runner keeps an object of a verifying class."""

    cls: Symbol
    attribute: str
    scope: str
    line: int


class Sampling:
    """The way from one runner to its verifiers. ``live`` tells whether a formula can hold under the traced settings."""

    def __init__(self, reader: Reader, verifiers: Iterable[Verifier], live: Callable[[Formula], bool]) -> None:
        self.reader = reader
        self.code: Code = reader.code
        self.index = reader.code.index
        self.live = live
        self.verifiers = tuple(verifiers)
        self.known = {(v.path, v.line): v for v in self.verifiers}
        self._leads: dict[tuple[str, str, str], bool] = {}

    def steps(self, runner: RunnerAnchor) -> tuple[Step, ...]:
        """The steps from the line that makes the sampler to the kernels."""
        out: list[Step] = []
        for made in self._kept(runner):
            out.append((runner.path, made.line, "sampler"))
            for call in self.index.outline(runner.path).calls:
                if call.func == f"self.{made.attribute}" and self._reached(runner.path, call):
                    out.extend(self._call(runner.path, call))
                    entry = self.code.method(made.cls, "forward") or self.code.method(made.cls, "__call__")
                    if entry is not None:
                        out.extend(self._inside(made.cls, entry, {}, ()))
                    break
        return tuple(dict.fromkeys(out))

    def _kept(self, runner: RunnerAnchor) -> Iterator[_Made]:
        classes = {(v.path, v.line) for v in self.verifiers if v.role == "class" and v.runner == runner.label}
        for stored in self.index.outline(runner.path).assigns:
            if not stored.target.startswith("self."):
                continue
            name = stored.value.partition("(")[0]
            made = self.code.resolve(runner.path, stored.scope, name) if name[:1].isupper() else None
            if made is not None and (made.path, made.definition.line) in classes:
                yield _Made(made, stored.target[5:], stored.scope, stored.line)

    def _reached(self, path: str, call: Call) -> bool:
        function = self.code.definition(path, call.scope)
        place = self._place(function, call.line) if function is not None else None
        return place is None or self.live(place[0].formula(self.reader, place[1]))

    def _place(self, function: Symbol, line: int, owner: Symbol | None = None) -> tuple[Guarded, Scope] | None:
        node = self.code.function(function)
        if node is None:
            return None
        scope = local(self.reader, node, Scope(function.path, function.qualname, owner or self.code.owner(function)))
        for place in guarded(node.body):
            if any(c.lineno == line for c in calls(place.statement)):
                return place, scope
        return None

    def _call(self, path: str, call: Call) -> Iterator[Step]:
        """The call itself, and the arguments that are literally absent."""
        yield path, call.line, "sampler"
        function = self.code.definition(path, call.scope)
        node = self.code.function(function) if function is not None else None
        for inner in ast.walk(node) if node is not None else ():
            if isinstance(inner, ast.Call) and inner.lineno == call.line and dotted(inner.func) == call.func:
                for argument in inner.args:
                    if isinstance(argument, ast.Constant) and argument.value is None:
                        yield path, argument.lineno, "sampler"

    def _inside(self, cls: Symbol | None, function: Symbol, bound: Mapping[str, Value], seen: tuple[Symbol, ...]) -> Iterator[Step]:
        """The steps inside one function: its own line, then what leads on; accepting kernels before their helpers.

        ``bound`` holds what is known of its parameters from the call that entered it.
        """
        verifier = self.known.get((function.path, function.definition.line))
        yield function.path, function.definition.line, "kernel" if verifier is not None and verifier.role == "kernel" else "sampler"
        node = self.code.function(function)
        if function in seen or node is None:
            return
        scope = local(self.reader, node, Scope(function.path, function.qualname, cls), bound)
        found: list[tuple[ast.Call, Symbol]] = []
        for place in guarded(node.body):
            for call in calls(place.statement):
                target = self._target(cls, function, call)
                if target is not None and self._leading(cls, target) and self.live(place.formula(self.reader, scope)):
                    found.append((call, target))
        for helpers in (False, True):
            group = sorted(((c, t) for c, t in found if (self._walk(t) == "helper") == helpers), key=lambda p: p[0].lineno)
            for call, _ in group:
                yield function.path, call.lineno, "sampler"
            for call, target in group:
                yield from self._bound(target)
                own = cls if self.code.owner(target) is not None else None
                yield from self._inside(own, target, self._arguments(call, target, scope), (*seen, function))

    def _arguments(self, call: ast.Call, target: Symbol, scope: Scope) -> dict[str, Value]:
        """What is known of the arguments, by the name of the parameter that they meet."""
        params = [p for p in target.definition.params if p != "self"]
        given = {k.arg: k.value for k in call.keywords if k.arg is not None}
        given |= {name: value for name, value in zip(params, call.args, strict=False) if not isinstance(value, ast.Starred)}
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

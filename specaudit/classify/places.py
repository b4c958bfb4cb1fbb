"""Single statements of long functions, each with the tests around it, evaluated only when asked for."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from specaudit import nodes
from specaudit.classify.conditions import Formula, conj, negate
from specaudit.classify.scopes import Scope
from specaudit.classify.values import Opaque, Value

if TYPE_CHECKING:
    from specaudit.classify.symbolic import Reader
    from specaudit.classify.walking import Function


class Place:
    """A statement with the tests that enclose it (``False``: it stands in the ``else`` of that test)."""

    def __init__(self, reader: Reader, guarded: Guarded, scope: Scope) -> None:
        self.reader = reader
        self.statement = guarded.statement
        self.tests = guarded.tests
        self.scope = scope

    @cached_property
    def formula(self) -> Formula:
        """The tests as one formula."""
        return Guarded(self.statement, self.tests).formula(self.reader, self.scope)

    @cached_property
    def calls(self) -> tuple[ast.Call, ...]:
        """The calls that the statement makes itself (not those of the statements inside it)."""
        return tuple(calls(self.statement))


def places(reader: Reader, node: Function, scope: Scope, bound: Mapping[str, Value] | None = None) -> tuple[Place, ...]:
    """Every statement of a function. ``bound`` is what is known of its parameters."""
    here = local(reader, node, scope, bound)
    return tuple(Place(reader, g, here) for g in guarded(node.body))


def sure(found: Iterable[Place]) -> Iterator[Place]:
    """Those of the places of a function that tests alone decide: a loop may have no round, and an exception need not
    come, or is caught again.
    """
    known = tuple(found)
    outer = (p.statement for p in known if isinstance(p.statement, (ast.For, ast.While, ast.Try)))
    loose = {inner for statement in outer for inner in nodes.walk(statement)}
    return (place for place in known if place.statement not in loose)


@dataclass(frozen=True, slots=True)
class Guarded:
    """A statement and the tests around it, before anything is evaluated."""

    statement: ast.stmt
    tests: tuple[tuple[ast.expr, bool], ...]

    def formula(self, reader: Reader, scope: Scope) -> Formula:
        """The tests as one formula."""
        out: list[Formula] = []
        for test, wanted in self.tests:
            f = reader.truth(test, scope)
            out.append(f if wanted else negate(f))
            if out[-1] is False:
                break
        return conj(out)


def guarded(body: list[ast.stmt], tests: tuple[tuple[ast.expr, bool], ...] = ()) -> Iterator[Guarded]:
    """Every statement of a body in source order, nested ones included, with the tests around it.

    What follows an ``if`` whose body ends in ``return`` counts as its ``else``.
    """
    for statement in body:
        yield Guarded(statement, tests)
        match statement:
            case ast.If(test=test, body=inner, orelse=orelse):
                yield from guarded(inner, (*tests, (test, True)))
                yield from guarded(orelse, (*tests, (test, False)))
                if isinstance(inner[-1], ast.Return):
                    tests = (*tests, (test, False))
            case ast.Try(body=inner, handlers=handlers, orelse=orelse, finalbody=final):
                yield from guarded([*inner, *orelse, *final], tests)
                for handler in handlers:
                    yield from guarded(handler.body, tests)
            case ast.For(body=inner, orelse=orelse) | ast.While(body=inner, orelse=orelse):
                yield from guarded([*inner, *orelse], tests)
            case ast.With(body=inner) | ast.AsyncWith(body=inner):
                yield from guarded(inner, tests)


def calls(statement: ast.stmt) -> Iterator[ast.Call]:
    """The calls that a statement makes itself (not those of the statements inside it)."""
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Call):
            yield node
        todo.extend(c for c in nodes.children(node) if not isinstance(c, (ast.stmt, ast.ExceptHandler)))


class Locals(Mapping[str, Value]):
    """The names of a function that are assigned once, evaluated when asked for, and its known parameters."""

    def __init__(self, reader: Reader, node: Function, scope: Scope, bound: Mapping[str, Value]) -> None:
        self._reader = reader
        self._scope = replace(scope, names=self)
        found: dict[str, list[ast.expr]] = {}
        for inner in nodes.walk(node):
            match inner:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    found.setdefault(name, []).append(value)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    found.setdefault(name, []).append(value)
                case ast.AugAssign(target=ast.Name(id=name)) | ast.For(target=ast.Name(id=name)):
                    found.setdefault(name, []).extend([ast.Constant(None)] * 2)
        self._values = {name: values[0] for name, values in found.items() if len(values) == 1}
        known = {**reader.typed(node), **bound}
        self._known: dict[str, Value] = {name: value for name, value in known.items() if name not in found}

    def __getitem__(self, name: str) -> Value:
        if name not in self._known:
            node = self._values[name]
            self._known[name] = Opaque(name)  # a name that is defined through itself
            self._known[name] = self._reader.value(node, self._scope)
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values or name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter({**self._values, **self._known})

    def __len__(self) -> int:
        return len({**self._values, **self._known})


def local(reader: Reader, node: Function, scope: Scope, bound: Mapping[str, Value] | None = None) -> Scope:
    """The scope with the names that the function assigns once, and what is known of its parameters."""
    return replace(scope, names=Locals(reader, node, scope, bound or {}))

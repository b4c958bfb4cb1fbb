"""The statements of a function, each with the formula under which it is reached.

Exact, and therefore for functions of moderate length: the formula of a statement knows every earlier exit. For long
functions, of which only some statements matter, see :mod:`specaudit.classify.places`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specaudit.classify.conditions import Formula, conj, disj, literals, negate
from specaudit.classify.scopes import Scope
from specaudit.classify.values import Cases, Truth, Value

if TYPE_CHECKING:
    from specaudit.classify.symbolic import Reader

Function = ast.FunctionDef | ast.AsyncFunctionDef
Visitor = Callable[[ast.stmt, Formula, Scope], None]


@dataclass(frozen=True, slots=True)
class _Here:
    """A point of a walk: ``path`` leads to it from the start, ``guard`` is only the tests around it."""

    path: Formula
    guard: Formula
    scope: Scope
    names: dict[str, Value]


class Walk:
    """Visits the statements of a function. While a statement is visited, the attributes tell more about it.

    Attributes:
        test: the formula of the ``if`` that is visited.
        aside: it stands in a branch that leaves the function and that no setting decides.
        names: what the local names (and, in a constructor, ``self.x``) have come to be.
    """

    def __init__(self, reader: Reader, visit: Visitor) -> None:
        self.reader = reader
        self.visit = visit
        self.names: dict[str, Value] = {}
        self.test: Formula = True
        self.aside = False

    def close(self) -> None:
        """Parts it with its visitor, which may know it."""
        self.visit = _unseen

    def run(self, node: Function, scope: Scope, path: Formula = True) -> Formula:
        """Visits everything; returns the formula of falling off the end."""
        self.names = names = {**self.reader.typed(node), **scope.names}
        return self._block(node.body, _Here(path, True, replace(scope, names=names), names))

    def _block(self, body: list[ast.stmt], here: _Here) -> Formula:
        path = here.path
        for statement in body:
            if path is False:
                break
            if isinstance(statement, ast.If):
                self.test = f = self.reader.truth(statement.test, here.scope)
                self.visit(statement, path, here.scope)
                path = self._if(f, statement, replace(here, path=path))
            else:
                self.visit(statement, path, here.scope)
                path = self._statement(statement, replace(here, path=path))
        return path

    def _if(self, f: Formula, statement: ast.If, here: _Here) -> Formula:
        yes = replace(here, path=conj((here.path, f)), guard=conj((here.guard, f)))
        no = replace(here, path=conj((here.path, negate(f))), guard=conj((here.guard, negate(f))))
        before = self.aside
        self.aside = before or (_leaves(statement.body) and _undecided(f))
        after_yes = self._block(statement.body, yes) if yes.path is not False else False
        self.aside = before
        after_no = self._block(statement.orelse, no) if no.path is not False else False
        if after_yes == yes.path and after_no == no.path:
            return here.path
        return disj((after_yes, after_no))

    def _statement(self, statement: ast.stmt, here: _Here) -> Formula:
        match statement:
            case ast.Return() | ast.Raise():
                return False
            case ast.With(body=body) | ast.AsyncWith(body=body):
                return self._block(body, here)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                after = self._block([*body, *orelse], here)
                for handler in handlers:
                    self._block(handler.body, here)
                return self._block(final, replace(here, path=after)) if final else after
            case ast.For(body=body, orelse=orelse) | ast.While(body=body, orelse=orelse):
                self._block([*body, *orelse], here)
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assigned(target, value, here)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr), args=args)) if args:
                self._grow(name, attr, args[0], here)
            case ast.Assert(test=test) if self.reader.truth(test, here.scope) is False:
                return False  # only an assertion that is known to fail says something about the path
        return here.path

    def _assigned(self, target: ast.expr, value: ast.expr, here: _Here) -> None:
        match target:
            case ast.Name(id=name):
                empty = isinstance(value, ast.List) and not value.elts  # a list that statements below may fill
                self._assign(name, Truth(False) if empty else self.reader.value(value, here.scope), here)
            case ast.Attribute(value=ast.Name(id="self"), attr=attr) if here.scope.qualname.endswith("__init__"):
                self._assign(f"self.{attr}", self.reader.value(value, here.scope), here)

    def _assign(self, name: str, value: Value, here: _Here) -> None:
        before = here.names.get(name)
        if here.guard is True or before is None or before == value:
            here.names[name] = value
        else:
            here.names[name] = Cases(((here.guard, value), (True, before)))

    def _grow(self, name: str, attr: str, arg: ast.expr, here: _Here) -> None:
        """``name.append(x)``: the list is not empty on this path."""
        before = here.names.get(name)
        if not isinstance(before, Truth):
            return
        if attr == "append":
            here.names[name] = Truth(disj((before.formula, here.guard)))
        elif attr == "extend":
            more = self.reader.truth(arg, here.scope)
            here.names[name] = Truth(disj((before.formula, conj((here.guard, more)))))


def _unseen(statement: ast.stmt, path: Formula, scope: Scope) -> None:
    """Visits nothing."""


def _leaves(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], (ast.Return, ast.Raise, ast.Continue))


def _undecided(f: Formula) -> bool:
    return not isinstance(f, bool) and all(lit.condition is None for lit in literals(f))

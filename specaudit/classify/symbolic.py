"""Reads configuration code without running it: what a test comes to, and what remains to be known.

:meth:`Reader.truth` turns a test into a formula over settings; predicates of the configuration (``use_something()``)
are read from their bodies, never from their names. The method stays a setting like any other, so that one reading
answers for all.
"""

from __future__ import annotations

import ast

from specaudit.classify.asked import Asked
from specaudit.classify.backends import Backends
from specaudit.classify.code import Code, Symbol, dotted, expression
from specaudit.classify.conditions import Formula, conj, disj, negate, usual
from specaudit.classify.configuration import Configuration
from specaudit.classify.objects import Objects
from specaudit.classify.places import Place, calls, guarded, local, places
from specaudit.classify.scopes import Scope
from specaudit.classify.values import (
    Cases,
    Const,
    Obj,
    Opaque,
    Plain,
    Platform,
    Ref,
    Truth,
    Value,
    choose,
    compare,
    truth,
)
from specaudit.classify.walking import Function, Walk
from specaudit.engines.base import Engine

__all__ = ["Reader", "Scope", "Walk", "calls", "guarded", "local"]

_COMPARE = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_DEPTH = 12


class Reader:
    """Evaluates configuration code symbolically."""

    def __init__(self, code: Code, engine: Engine) -> None:
        self.code = code
        self.engine = engine
        self.backends = Backends(code, engine)
        self.configuration = Configuration(code, engine, self.value)
        self.asked = Asked(self)
        self.objects = Objects(self)
        self._inlined: dict[tuple[str, str, Value | None, Symbol | None], Value] = {}
        self._typed: dict[int, dict[str, Value]] = {}
        self._places: dict[tuple[str, str, Symbol | None, Value | None], tuple[Place, ...]] = {}

    def close(self) -> None:
        """Parts with everything that it knows and that knows it; it cannot be asked any more."""
        vars(self).clear()

    # --- tests

    def truth(self, node: ast.expr, scope: Scope) -> Formula:
        """The formula of ``if node``."""
        match node:
            case ast.BoolOp(op=ast.And(), values=values):
                return self._sequence(values, scope, stop=False)
            case ast.BoolOp(op=ast.Or(), values=values):
                return self._sequence(values, scope, stop=True)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return negate(self.truth(operand, scope))
            case ast.Compare():
                return self._comparison(node, scope)
            case ast.NamedExpr(value=value):
                return self.truth(value, scope)
            case _:
                return truth(self.value(node, scope))

    def _sequence(self, values: list[ast.expr], scope: Scope, *, stop: bool) -> Formula:
        out: list[Formula] = []
        for node in values:
            part = self.truth(node, scope)
            out.append(part)
            if part is stop:
                break
        return disj(out) if stop else conj(out)

    def _comparison(self, node: ast.Compare, scope: Scope) -> Formula:
        if (
            isinstance(node.left, ast.Call)
            and dotted(node.left.func) == "min"
            and isinstance(node.ops[0], (ast.Gt, ast.GtE))
        ):
            # ``min(a, b) > c`` is ``a > c and b > c``
            return conj(self.truth(ast.Compare(part, node.ops, node.comparators), scope) for part in node.left.args)
        out: list[Formula] = []
        left = self.configuration.as_method(self.value(node.left, scope))
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.configuration.as_method(self.value(right_node, scope))
            out.append(compare(_COMPARE[type(op)], left, right, ast.unparse(node)))
            left = right
        return conj(out)

    # --- values

    def value(self, node: ast.expr, scope: Scope) -> Value:
        """What the expression is known to be."""
        match node:
            case ast.Constant(value=v):
                return Const(v) if isinstance(v, (str, int, float, bool, type(None))) else Opaque(ast.unparse(node))
            case ast.Name(id=name):
                return self._name(name, scope)
            case ast.Attribute(value=base, attr=attr):
                return self.attribute(base, attr, scope)
            case ast.Call():
                return self.asked.value(node, scope)
            case ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()):
                return self._boolean(node, scope)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=v)) if isinstance(v, (int, float)):
                return Const(-v)
            case ast.Tuple(elts=elts) | ast.Set(elts=elts) | ast.List(elts=elts):
                return self._collection(elts, node, scope)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                f = self.truth(test, scope)
                if isinstance(f, bool):
                    return self.value(body if f else orelse, scope)
                return Cases(((f, self.value(body, scope)), (True, self.value(orelse, scope))))
            case ast.NamedExpr(value=inner):
                return self.value(inner, scope)
            case _:
                return Opaque(ast.unparse(node))

    def _boolean(self, node: ast.expr, scope: Scope) -> Value:
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            first = self.value(node.values[0], scope)  # ``x or default``: the setting itself is what matters
            if isinstance(first, (Ref, Obj)) and isinstance(
                node.values[-1], (ast.List, ast.Tuple, ast.Dict, ast.Constant)
            ):
                return first
        return Truth(self.truth(node, scope))

    def _collection(self, elts: list[ast.expr], node: ast.expr, scope: Scope) -> Value:
        out: list[Plain] = []
        for element in elts:
            inner = self.value(element.value if isinstance(element, ast.Starred) else element, scope)
            if not isinstance(inner, Const):
                return Opaque(ast.unparse(node))
            out.extend(inner.value if isinstance(inner.value, tuple) else (inner.value,))
        return Const(tuple(out))

    def _name(self, name: str, scope: Scope) -> Value:
        known = self.configuration.carried(name)
        if known is not None:
            return known
        for carried, field_name in self.engine.config.renamed:
            cls = self.configuration.named(self.engine.config.cls) if name == carried else None
            if cls is not None:
                return self.member(Obj(cls, ""), field_name, scope)
        if name in scope.names:
            return scope.names[name]
        if name == "self" and scope.self_value is not None:
            return scope.self_value
        if name in self.engine.platform:
            return Platform()
        if name in self.engine.device_flags:
            return Ref("platform", name, Const(True), boolean=True)
        return self._global(scope.path, name, scope)

    def _global(self, path: str, name: str, scope: Scope) -> Value:
        """A module-level constant, followed through imports."""
        if scope.depth > _DEPTH:
            return Opaque(name)
        for stored in self.code.index.outline(path).assigns:
            if stored.scope == "" and stored.target == name:
                node = expression(stored.value)
                return self.value(node, Scope(path, "", depth=scope.depth + 1)) if node is not None else Opaque(name)
        module, _, original = self.code.imported_from(path, scope.qualname, name).rpartition(".")
        target = self.code.module_path(module, path) if module else None
        if target is not None and target != path:
            return self._global(target, original, Scope(target, "", depth=scope.depth + 1))
        return Opaque(name)

    def attribute(self, base: ast.expr, attr: str, scope: Scope) -> Value:
        """``base.attr``, whatever the base is."""
        carried = self.configuration.carried(attr)
        if carried is not None:
            return carried
        if isinstance(base, ast.Name):
            known = self._of_name(base.id, attr, scope)
            if known is not None:
                return known
        return self.member(self.value(base, scope), attr, scope)

    def _of_name(self, base: str, attr: str, scope: Scope) -> Value | None:
        """``base.attr`` where the base is the environment, a class, an enumeration or the object itself."""
        if base == self.engine.environment and base not in scope.names:
            return self.configuration.flag(attr)
        if base == "self":
            if f"self.{attr}" in scope.names:
                return scope.names[f"self.{attr}"]
            if scope.owner is None or scope.self_value is not None:
                return None
            return self.objects.stored(scope.owner, attr, scope)
        if base[:1].isupper() and attr.isupper():
            return Const(attr)
        if base[:1].isupper() and base not in scope.names:
            cls = self.code.resolve(scope.path, scope.qualname, base)
            return (
                self.configuration.declared(cls, attr)[1]
                if cls is not None and cls.definition.kind == "class"
                else None
            )
        return None

    def member(self, base: Value, attr: str, scope: Scope) -> Value:
        """``base.attr`` of a known value."""
        match base:
            case Obj():
                return self._field(base, attr, scope)
            case Ref(kind="model", option=option):
                return Ref("model", f"{option}.{attr}")
            case Platform():
                return self.platform(attr)
            case Cases(cases):
                return Cases(tuple((f, self.member(v, attr, scope)) for f, v in cases))
            case Opaque(text):
                return Opaque(f"{text}.{attr}")
            case _:
                return Opaque(attr)

    def platform(self, predicate: str) -> Ref:
        """What a predicate of the platform says."""
        return Ref("platform", predicate, Const(predicate in self.engine.platform_default), boolean=True)

    def _field(self, base: Obj, attr: str, scope: Scope) -> Value:
        path = f"{base.path}.{attr}" if base.path else attr
        about_model = any(part in self.engine.config.models for part in path.split(".")[:-1])
        method = self.code.method(base.cls, attr)
        if method is not None:
            if not any("property" in d for d in method.definition.decorators):
                return Opaque(path)
            if self.configuration.is_main(base.cls):
                return self.inline(method, base, scope)
            return Ref("model", path, boolean=True) if about_model else self._derived(method, base, path, scope)
        annotation, default = self.configuration.declared(base.cls, attr)
        inner = self.configuration.in_annotation(annotation)
        if inner is not None:
            # a sub-configuration that may be absent is a switch; one that merely starts empty is filled before use
            return Ref("option", path, Const(None)) if "None" in annotation else Obj(inner, path)
        if default is None and about_model:
            return Ref("model", path, boolean=attr.startswith(("is_", "has_")))
        return Ref("option", path, default, boolean="bool" in annotation)

    def _derived(self, method: Symbol, base: Obj, path: str, scope: Scope) -> Value:
        """A property of another configuration class: one setting, with the default that its body gives."""
        value = self.inline(method, base, scope)
        default = usual(truth(value)) if isinstance(value, Truth) else None
        return Ref("option", path, Const(default) if isinstance(default, bool) else None, boolean=True)

    # --- functions

    def typed(self, node: Function) -> dict[str, Value]:
        """The parameters whose annotation names one of the two main configuration classes."""
        if id(node) not in self._typed:  # trees are kept by :class:`Code`, so that ids stay unique
            out: dict[str, Value] = {}
            for arg in (*node.args.args, *node.args.kwonlyargs):
                cls = (
                    self.configuration.in_annotation(ast.unparse(arg.annotation))
                    if arg.annotation is not None
                    else None
                )
                if cls is not None and self.configuration.is_main(cls):
                    out[arg.arg] = Obj(cls, "")
            self._typed[id(node)] = out
        return self._typed[id(node)]

    def inline(self, method: Symbol, self_value: Value | None, scope: Scope) -> Value:
        """What a method returns. ``self_value`` is ``None`` for a method of an ordinary object (of ``scope``'s
        class).
        """
        if scope.depth > _DEPTH:
            return Opaque(method.name)
        owner = self.code.owner(method) if self_value is not None else scope.owner
        key = method.path, method.qualname, self_value, owner
        if key not in self._inlined:
            inner = Scope(method.path, method.qualname, owner, self_value, {}, scope.depth + 1)
            self._inlined[key] = self.returns(method, inner)
        return self._inlined[key]

    def returns(self, method: Symbol, scope: Scope) -> Value:
        """What a function returns when its names mean what the scope says."""
        node = self.code.function(method)
        if node is None:
            return Opaque(method.name)
        cases: list[tuple[Formula, Value]] = []

        def visit(statement: ast.stmt, path: Formula, here: Scope) -> None:
            if isinstance(statement, ast.Return):
                value = self.value(statement.value, here) if statement.value is not None else Const(None)
                cases.append((path, value))

        Walk(self, visit).run(node, scope)
        if len(cases) == 1 and cases[0][0] is True:
            return cases[0][1]
        if not cases:
            return Const(None)
        booleans = all(isinstance(v, Truth) or (isinstance(v, Const) and isinstance(v.value, bool)) for _, v in cases)
        return Truth(choose(tuple(cases), truth)) if booleans else Cases(tuple(cases))

    def places(
        self, function: Symbol, owner: Symbol | None = None, self_value: Value | None = None
    ) -> tuple[Place, ...]:
        """Every statement of a function with the tests around it; kept, so that formulas are made once.

        Args:
            owner: the class of the object, where that is not the class that defines the function.
            self_value: what the object is, where it is a configuration object.
        """
        key = function.path, function.qualname, owner, self_value
        if key not in self._places:
            node = self.code.function(function)
            scope = Scope(function.path, function.qualname, owner or self.code.owner(function), self_value)
            self._places[key] = places(self, node, scope) if node is not None else ()
        return self._places[key]

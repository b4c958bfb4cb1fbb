"""Calls in configuration code: what a predicate, a small function or a builtin gives, told from its body."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from specaudit import nodes
from specaudit.classify.code import Symbol, dotted
from specaudit.classify.scopes import Scope
from specaudit.classify.values import Const, Obj, Opaque, Platform, Ref, Truth, Value, compare

if TYPE_CHECKING:
    from specaudit.classify.symbolic import Reader

_COLLECTIONS = frozenset({"frozenset", "set", "tuple", "list"})
_DEPTH = 12
_PREDICATE_LINES, _PREDICATE_STATEMENTS = 20, 20


class Asked:
    """Evaluates calls for one reader."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.code = reader.code

    def value(self, node: ast.Call, scope: Scope) -> Value:
        """What the call gives, as far as that is known."""
        name = dotted(node.func)
        match name.rpartition(".")[2], node.args:
            case "getattr", [base, ast.Constant(value=str(attr)), *_]:
                return self.reader.attribute(base, attr, scope)
            case "get_args", [alias]:
                return self.reader.configuration.literal(alias, scope.path)
            case "bool" | "any", [ast.GeneratorExp() as over]:
                return self._over(over, scope)
            case "bool", [inner]:
                return Truth(self.reader.truth(inner, scope))
            case "isinstance", [_, cls]:
                return self._kind_test(node, cls, scope)
        if name in _COLLECTIONS:
            return self.reader.value(node.args[0], scope) if node.args else Const(())
        if isinstance(node.func, ast.Attribute):
            return self._method_call(node, node.func, scope)
        return self._function_call(node, name, scope)

    def _function_call(self, node: ast.Call, name: str, scope: Scope) -> Value:
        """A small function that is asked about configuration objects and nothing else is read from its body."""
        given = [self.reader.value(a, scope) for a in node.args] if name and not node.keywords else []
        if not given or not all(isinstance(value, Obj) for value in given) or scope.depth > _DEPTH:
            return Opaque(ast.unparse(node))
        function = self.code.resolve(scope.path, scope.qualname, name)
        if function is None or function.definition.kind != "function" or not self._is_small(function):
            return Opaque(ast.unparse(node))
        names = dict(zip(function.definition.params, given, strict=False))
        return self.reader.returns(
            function, Scope(function.path, function.qualname, None, None, names, scope.depth + 1)
        )

    def _method_call(self, node: ast.Call, func: ast.Attribute, scope: Scope) -> Value:
        if func.attr == "intersection" and node.args:
            left, right = self.reader.value(func.value, scope), self.reader.value(node.args[0], scope)
            return Truth(compare("in", right, left, ast.unparse(node)))
        own = isinstance(func.value, ast.Name) and func.value.id == "self" and scope.self_value is None
        if own and scope.owner is not None:
            method = self.code.method(scope.owner, func.attr)
            small = method is not None and self._is_small(method)
            return (
                self.reader.inline(method, None, scope) if method is not None and small else Opaque(ast.unparse(node))
            )
        base = self.reader.value(func.value, scope)
        if isinstance(base, Platform):
            return self.reader.platform(func.attr)
        if isinstance(base, Ref) and base.kind == "env" and func.attr == "get":
            return base
        if isinstance(base, Ref) and base.kind == "option" and func.attr == "get" and node.args:
            named = self.reader.value(node.args[0], scope)  # of a setting that is a table
            if isinstance(named, Const) and isinstance(named.value, str):
                return Ref("option", f"{base.option}.{named.value}", Const(None))
        if isinstance(base, Obj):
            match func.attr, node.args:
                case "get", [ast.Constant(value=str(key)), *_]:
                    return self.reader.member(base, key, scope)  # the configuration before it is an object
            method = self.code.method(base.cls, func.attr)
            if method is not None:
                return self.reader.inline(method, base, scope)
        return Opaque(ast.unparse(node))

    def _over(self, node: ast.GeneratorExp, scope: Scope) -> Value:
        """``any(x in A for x in B)``: do the two share an element."""
        clause = node.generators[0]
        match node.elt:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, cls]):
                return self._kind_test(node.elt, cls, scope)
            case ast.Compare(left=ast.Name(id=name), ops=[ast.In()], comparators=[right]) if len(node.generators) == 1:
                if isinstance(clause.target, ast.Name) and clause.target.id == name:
                    shared = compare(
                        "in", self.reader.value(clause.iter, scope), self.reader.value(right, scope), ast.unparse(node)
                    )
                    return Truth(shared)
        return Opaque(ast.unparse(node))

    def _kind_test(self, node: ast.expr, cls: ast.expr, scope: Scope) -> Value:
        """``isinstance(x, C)``: of a class from an attention backend's file it says which backend runs."""
        found = self.code.resolve(scope.path, scope.qualname, dotted(cls))
        backend = self.reader.backends.name_of(found.path) if found is not None else ""
        return Truth(self.reader.backends.selected(self.reader, backend)) if backend else Opaque(ast.unparse(node))

    def _is_small(self, function: Symbol) -> bool:
        """Few lines, or few statements: a call that takes a line for each argument is one statement."""
        if function.definition.end - function.definition.line <= _PREDICATE_LINES:
            return True
        node = self.code.function(function)
        statements = sum(isinstance(n, ast.stmt) for n in nodes.walk(node)) - 1 if node is not None else 0
        return 0 < statements <= _PREDICATE_STATEMENTS

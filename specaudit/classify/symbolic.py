"""Reads configuration code without running it: what a test comes to for one method, and what remains to be known.

A :class:`Reader` holds what is given (the method, options the user set). :meth:`Reader.truth` turns a test into a formula;
predicates of the configuration (``use_something()``) are read from their bodies, never from their names.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from specaudit.classify.code import Code, Field, Symbol, dotted, expression
from specaudit.classify.conditions import Formula, conj, disj, literals, negate, usual
from specaudit.classify.values import (
    Cases,
    Const,
    Obj,
    Opaque,
    Plain,
    Platform,
    Ref,
    Some,
    Truth,
    Value,
    choose,
    compare,
    truth,
)
from specaudit.classify.backends import Backends
from specaudit.engines.base import Engine

_COMPARE = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_COLLECTIONS = frozenset({"frozenset", "set", "tuple", "list"})
_DEPTH = 12
_PREDICATE_LINES = 12


@dataclass(frozen=True, slots=True)
class Scope:
    """Where an expression stands: file, enclosing qualified name, what ``self`` is, and local names."""

    path: str
    qualname: str
    owner: Symbol | None = None
    self_value: Value | None = None
    names: Mapping[str, Value] = field(default_factory=dict)
    depth: int = 0


class Reader:
    """Evaluates configuration code symbolically.

    Args:
        code: name resolution. engine: anchors. given: fields of the speculative configuration that are known.
        environment: environment flags that are known, as the text the user would set.
    """

    def __init__(
        self,
        code: Code,
        engine: Engine,
        given: Mapping[str, Value] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.code = code
        self.engine = engine
        self.given = dict(given or {})
        self.environment = dict(environment or {})
        self.backends = Backends(code, engine)
        self._classes: dict[str, Symbol | None] = {}
        self._cache: dict[object, object] = {}

    # --- configuration classes

    def config_class(self, name: str) -> Symbol | None:
        """The configuration class of that name, looked up in the files that hold configuration."""
        if name not in self._classes:
            self._classes[name] = self._find_class(name)
        return self._classes[name]

    def _find_class(self, name: str) -> Symbol | None:
        from fnmatch import fnmatchcase

        needle = f"class {name}".encode()
        places = [p for p in self.code.index.paths if any(fnmatchcase(p, g) for g in self.engine.config.paths)]
        for path in self.code.index.mentioning(needle, places):
            found = self.code.definition(path, name)
            if found is not None and found.definition.kind == "class":
                return found
        return None

    def speculative(self) -> Value:
        """The speculative configuration object."""
        cls = self.config_class(self.engine.config.cls)
        return Obj(cls, "") if cls else Opaque(self.engine.config.cls)

    def object_named(self, name: str) -> Value | None:
        """The configuration object that travels under that name, if one does."""
        anchors = self.engine.config
        cls = self.config_class(anchors.objects[name]) if name in anchors.objects else None
        if cls is None:
            return None
        return Obj(cls, "" if cls.name in (anchors.cls, anchors.engine_cls) else name)

    # --- expressions

    def truth(self, node: ast.expr, scope: Scope) -> Formula:
        """The formula of ``if node``."""
        match node:
            case ast.BoolOp(op=ast.And(), values=values):
                return self._sequence(values, scope, stop=False)
            case ast.BoolOp(op=ast.Or(), values=values):
                return self._sequence(values, scope, stop=True)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return negate(self.truth(operand, scope))
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                return self._comparison(node, left, ops, comparators, scope)
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

    def _comparison(
        self, node: ast.expr, left: ast.expr, ops: list[ast.cmpop], rights: list[ast.expr], scope: Scope
    ) -> Formula:
        smallest = self._minimum(left, ops, rights, scope)
        if smallest is not None:
            return smallest
        out: list[Formula] = []
        first = self.value(left, scope)
        for op, right_node in zip(ops, rights, strict=True):
            right = self.value(right_node, scope)
            out.append(compare(_COMPARE[type(op)], first, right, ast.unparse(node)))
            first = right
        return conj(out)

    def _minimum(self, left: ast.expr, ops: list[ast.cmpop], rights: list[ast.expr], scope: Scope) -> Formula | None:
        """``min(a, b) > c`` is ``a > c and b > c``."""
        if not (isinstance(left, ast.Call) and dotted(left.func) == "min" and isinstance(ops[0], (ast.Gt, ast.GtE))):
            return None
        return conj(self.truth(ast.Compare(part, ops, rights), scope) for part in left.args)

    def value(self, node: ast.expr, scope: Scope) -> Value:
        """What the expression is known to be."""
        match node:
            case ast.Constant(value=v):
                return Const(v) if isinstance(v, (str, int, float, bool, type(None))) else Opaque(ast.unparse(node))
            case ast.Name(id=name):
                return self._name(name, scope)
            case ast.Attribute(value=base, attr=attr):
                return self._attribute(base, attr, scope)
            case ast.Call():
                return self._call(node, scope)
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
            if isinstance(first, (Ref, Obj, Some)) and _is_fallback(node.values[-1]):
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
        known = self.object_named(name)
        if known is not None:
            return known
        for carried, field_name in self.engine.config.renamed:
            if name == carried:
                return self.member(self.speculative(), field_name, scope)
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

    def _attribute(self, base: ast.expr, attr: str, scope: Scope) -> Value:
        if isinstance(base, ast.Name) and base.id == self.engine.environment and base.id not in scope.names:
            return self.flag(attr)
        named = self.object_named(attr)
        if named is not None:
            return named
        if isinstance(base, ast.Name) and base.id[:1].isupper() and attr.isupper():
            return Const(attr)  # a member of an enumeration
        if isinstance(base, ast.Name) and base.id[:1].isupper() and base.id not in scope.names:
            cls = self.code.resolve(scope.path, scope.qualname, base.id)
            default = self.declared(cls, attr)[1] if cls is not None and cls.definition.kind == "class" else None
            if default is not None:
                return default
        if isinstance(base, ast.Name) and base.id == "self" and f"self.{attr}" in scope.names:
            return scope.names[f"self.{attr}"]
        if isinstance(base, ast.Name) and base.id == "self" and scope.self_value is None and scope.owner is not None:
            return self.stored(scope.owner, attr, scope)
        return self.member(self.value(base, scope), attr, scope)

    def member(self, base: Value, attr: str, scope: Scope) -> Value:
        """``base.attr``."""
        match base:
            case Obj():
                return self._field(base, attr, scope)
            case Ref(kind="model", option=option):
                return Ref("model", f"{option}.{attr}")
            case Platform():
                return Ref("platform", attr, Const(attr in self.engine.platform_default), boolean=True)
            case Cases(cases):
                return Cases(tuple((f, self.member(v, attr, scope)) for f, v in cases))
            case _:
                return Opaque(f"{getattr(base, 'text', '')}.{attr}")

    def _field(self, base: Obj, attr: str, scope: Scope) -> Value:
        anchors = self.engine.config
        if base.cls.name == anchors.cls and attr in self.given:
            return self.given[attr]
        path = f"{base.path}.{attr}" if base.path else attr
        method = self.code.method(base.cls, attr)
        if method is not None:
            if not any("property" in d for d in method.definition.decorators):
                return Opaque(path)
            if base.cls.name in (anchors.cls, anchors.engine_cls):
                return self.inline(method, base, {}, scope)
            return self._derived(method, base, path, scope)
        annotation, default = self.declared(base.cls, attr)
        inner = self.config_in(annotation)
        if inner is not None:
            # a sub-configuration that may be absent is a switch; one that merely starts empty is filled before use
            return Ref("option", path, Const(None)) if "None" in annotation else Obj(inner, path)
        if default is None and _about_model(path):
            return Ref("model", path, boolean=attr.startswith(("is_", "has_")))
        return Ref("option", path, default, boolean="bool" in annotation)

    def _derived(self, method: Symbol, base: Obj, path: str, scope: Scope) -> Value:
        """A property of another configuration class: one setting, with the default that its body gives."""
        if _about_model(path):
            return Ref("model", path, boolean=True)
        value = self.inline(method, base, {}, scope)
        default = usual(truth(value)) if isinstance(value, Truth) else None
        return Ref("option", path, Const(default) if isinstance(default, bool) else None, boolean=True)

    def config_in(self, annotation: str) -> Symbol | None:
        """The configuration class that an annotation names."""
        for mark in '|[]"':
            annotation = annotation.replace(mark, " ")
        names = (part for part in annotation.split() if part[:1].isupper() and part.endswith("Config"))
        return next((c for name in names if (c := self.config_class(name)) is not None), None)

    def declared(self, cls: Symbol, attr: str) -> tuple[str, Const | None]:
        """Annotation and default of a field (``Field(default=…)`` read as its default)."""
        key = cls.path, cls.qualname, attr
        if key not in self._cache:
            self._cache[key] = self._declaration(cls, attr)
        found = self._cache[key]
        assert isinstance(found, tuple)
        return found

    def _declaration(self, cls: Symbol, attr: str) -> tuple[str, Const | None]:
        for owner in self.code.bases(cls):
            for stored in self.code.assigns(owner.path, owner.qualname):
                if stored.scope != owner.qualname or stored.target != attr:
                    continue
                head = self.code.index.line(owner.path, stored.line)
                annotation = head.partition(":")[2].partition("=")[0].strip()
                return annotation, self._default(stored.value, Scope(owner.path, owner.qualname))
        return "", None

    def _default(self, text: str, scope: Scope) -> Const | None:
        node = expression(text)
        if isinstance(node, ast.Call):
            node = next((k.value for k in node.keywords if k.arg == "default"), None)
        value = self.value(node, scope) if node is not None else None
        return value if isinstance(value, Const) else None

    def flag(self, name: str) -> Value:
        """An environment flag."""
        if name in self.environment:
            raw = self.environment[name]
            return Const({"1": True, "true": True, "0": False, "false": False, "": None}.get(raw.lower(), raw))
        path = self.engine.environment_path
        for stored in self.code.index.outline(path).assigns:
            if stored.target == name and stored.scope == "":
                head = self.code.index.line(path, stored.line)
                default = self._default(stored.value, Scope(path, ""))
                return Ref("env", name, default, boolean="bool" in head)
        return Ref("env", name)

    def stored(self, owner: Symbol, attr: str, scope: Scope) -> Value:
        """``self.attr`` of an ordinary object: what its class stores there (first what ``__init__`` stores)."""
        if scope.depth > _DEPTH:
            return Opaque(f"self.{attr}")
        found = self._counting(owner, attr) or self._settled(owner, attr)
        if found is None:
            return self._constructed(owner, attr)
        node = expression(found.value)
        if node is None:
            return Opaque(f"self.{attr}")
        method = self.code.definition(found.path, found.scope)
        function = self.code.function(method) if method is not None and node_needs_names(node) else None
        names = self.typed(function) if function is not None else {}
        return self.value(node, Scope(found.path, found.scope, owner, names=names, depth=scope.depth + 1))

    def _constructed(self, owner: Symbol, attr: str) -> Value:
        """What the constructor leaves in an attribute that it sets more than once, if nothing else ever sets it."""
        fields = self.code.attribute(owner, attr)
        scopes = {(f.path, f.scope) for f in fields}
        if len(scopes) != 1 or not fields[0].scope.endswith("__init__"):
            return Opaque(f"self.{attr}")
        key = "constructed", fields[0].path, fields[0].scope, owner
        if key not in self._cache:
            self._cache[key] = {}
            method = self.code.definition(fields[0].path, fields[0].scope)
            node = self.code.function(method) if method is not None else None
            if method is not None and node is not None:
                walk = Walk(self, lambda *_: None)
                walk.run(node, Scope(method.path, method.qualname, owner))
                self._cache[key] = walk.names
        kept = self._cache[key]
        assert isinstance(kept, dict)
        return kept.get(f"self.{attr}", Opaque(f"self.{attr}"))

    def typed(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, Value]:
        """The parameters whose annotation names a configuration class."""
        out: dict[str, Value] = {}
        anchors = self.engine.config
        for arg in (*node.args.args, *node.args.kwonlyargs):
            cls = self.config_in(ast.unparse(arg.annotation)) if arg.annotation is not None else None
            if cls is not None and cls.name in (anchors.cls, anchors.engine_cls):
                out[arg.arg] = Obj(cls, "")
        return out

    def _counting(self, owner: Symbol, attr: str) -> Field | None:
        """Where an attribute takes the number of drafted tokens; later changes of it stay within what is configured."""
        ending = f".{self.engine.config.count_field}"
        return next((f for f in self.code.attribute(owner, attr) if f.value.endswith(ending)), None)

    def _settled(self, owner: Symbol, attr: str) -> Field | None:
        """The one value that an attribute has after construction; ``None`` when it changes or has several."""
        fields = self.code.attribute(owner, attr)
        built = [f for f in fields if f.scope.endswith("__init__") or "." not in f.scope]
        if not fields or len(built) != len(fields):
            return fields[0] if len(fields) == 1 else None
        nearest = [f for f in built if f.scope.partition(".")[0] == built[0].scope.partition(".")[0]]
        return nearest[0] if len({f.value for f in nearest}) == 1 else None

    # --- calls

    def _call(self, node: ast.Call, scope: Scope) -> Value:
        name = dotted(node.func)
        args = node.args
        if name == "getattr" and len(args) >= 2 and isinstance(args[1], ast.Constant) and isinstance(args[1].value, str):
            return self._attribute(args[0], args[1].value, scope)
        if name.rpartition(".")[2] == "get_args" and args:
            return self._literal(args[0], scope)
        if name in ("bool", "any", "all") and len(args) == 1:
            if isinstance(args[0], ast.GeneratorExp):
                return self._over(args[0], scope)
            return Truth(self.truth(args[0], scope)) if name == "bool" else Opaque(ast.unparse(node))
        if name == "isinstance" and len(args) == 2:
            return self._kind_test(node, scope)
        if name in _COLLECTIONS:
            return self.value(args[0], scope) if args else Const(())
        if isinstance(node.func, ast.Attribute):
            return self._method_call(node, node.func, scope)
        return Opaque(ast.unparse(node))

    def _method_call(self, node: ast.Call, func: ast.Attribute, scope: Scope) -> Value:
        if func.attr == "intersection" and node.args:
            left, right = self.value(func.value, scope), self.value(node.args[0], scope)
            return Truth(compare("in", right, left, ast.unparse(node)))
        if isinstance(func.value, ast.Name) and func.value.id == "self" and scope.self_value is None and scope.owner is not None:
            method = self.code.method(scope.owner, func.attr)
            small = method is not None and method.definition.end - method.definition.line <= _PREDICATE_LINES
            return self.inline(method, None, {}, scope) if method is not None and small else Opaque(ast.unparse(node))
        base = self.value(func.value, scope)
        if isinstance(base, Platform):
            return Ref("platform", func.attr, Const(func.attr in self.engine.platform_default), boolean=True)
        if isinstance(base, Obj):
            if func.attr == "get" and node.args and isinstance(node.args[0], ast.Constant):
                return self.member(base, str(node.args[0].value), scope)  # the configuration before it is an object
            method = self.code.method(base.cls, func.attr)
            if method is not None:
                return self.inline(method, base, {}, scope)
        return Opaque(ast.unparse(node))

    def _over(self, node: ast.GeneratorExp, scope: Scope) -> Value:
        """``any(x in A for x in B)``: do the two share an element."""
        clause = node.generators[0]
        if isinstance(node.elt, ast.Call) and dotted(node.elt.func) == "isinstance" and len(node.elt.args) == 2:
            return self._kind_test(node.elt, scope)
        if isinstance(node.elt, ast.Compare) and isinstance(clause.target, ast.Name) and len(node.generators) == 1:
            left, right = node.elt.left, node.elt.comparators[0]
            if isinstance(node.elt.ops[0], ast.In) and isinstance(left, ast.Name) and left.id == clause.target.id:
                return Truth(compare("in", self.value(clause.iter, scope), self.value(right, scope), ast.unparse(node)))
        return Opaque(ast.unparse(node))

    def _kind_test(self, node: ast.Call, scope: Scope) -> Value:
        """``isinstance(x, C)``: of a class from an attention backend's file it says which backend runs."""
        found = self.code.resolve(scope.path, scope.qualname, dotted(node.args[1]))
        backend = self.backends.name_of(found.path) if found is not None else ""
        if not backend:
            return Opaque(ast.unparse(node))
        return Truth(self.backends.selected(self, backend))

    def _literal(self, node: ast.expr, scope: Scope) -> Value:
        """The members of a ``Literal`` alias, nested aliases included."""
        if isinstance(node, ast.Name):
            for stored in self.code.index.outline(scope.path).assigns:
                if stored.target == node.id and stored.scope == "":
                    inner = expression(stored.value)
                    return self._literal(inner, scope) if inner is not None else Opaque(node.id)
        if isinstance(node, ast.Subscript):
            elts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            out: list[Plain] = []
            for element in elts:
                value = Const(element.value) if isinstance(element, ast.Constant) else self._literal(element, scope)  # type: ignore[arg-type]
                if isinstance(value, Const):
                    out.extend(value.value if isinstance(value.value, tuple) else (value.value,))
            return Const(tuple(out))
        return Opaque(ast.unparse(node))

    def members(self, path: str, alias: str) -> tuple[str, ...]:
        """The strings of a ``Literal`` alias of that file."""
        found = self._literal(ast.Name(alias), Scope(path, ""))
        values = found.value if isinstance(found, Const) and isinstance(found.value, tuple) else ()
        return tuple(dict.fromkeys(v for v in values if isinstance(v, str)))

    # --- functions

    def inline(self, method: Symbol, self_value: Value | None, names: Mapping[str, Value], scope: Scope) -> Value:
        """What a method returns. ``self_value`` is ``None`` for a method of an ordinary object (of ``scope``'s class)."""
        if scope.depth > _DEPTH:
            return Opaque(method.name)
        owner = self.code.owner(method) if self_value is not None else scope.owner
        key = method.path, method.qualname, self_value, owner
        if not names and key in self._cache:
            return self._cache[key]  # type: ignore[return-value]
        inner = Scope(method.path, method.qualname, owner, self_value, names, scope.depth + 1)
        result = self._returns(method, inner)
        if not names:
            self._cache[key] = result
        return result

    def _returns(self, method: Symbol, scope: Scope) -> Value:
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
        if booleans:
            return Truth(choose(tuple(cases), truth))
        return Cases(tuple(cases))


Visitor = Callable[[ast.stmt, Formula, Scope], None]


@dataclass(frozen=True, slots=True)
class _Here:
    """A point of a walk: ``path`` leads to it from the start, ``guard`` is only the tests around it."""

    path: Formula
    guard: Formula
    scope: Scope
    names: dict[str, Value]


class Walk:
    """Visits the statements of a function with the formula under which each is reached."""

    def __init__(self, reader: Reader, visit: Visitor) -> None:
        self.reader = reader
        self.visit = visit
        self.names: dict[str, Value] = {}
        self.test: Formula = True  # of the ``if`` that is visited now
        self.aside = False  # inside a branch that leaves the function and that no setting decides

    def run(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope, path: Formula = True) -> Formula:
        """Visits everything; returns the formula of falling off the end. Names are tracked in ``scope`` (copied)."""
        self.names = names = {**self.reader.typed(node), **scope.names}
        here = Scope(scope.path, scope.qualname, scope.owner, scope.self_value, names, scope.depth)
        return self._block(node.body, _Here(path, True, here, names))

    def _block(self, body: list[ast.stmt], here: _Here) -> Formula:
        path = here.path
        for statement in body:
            if path is False:
                break
            if isinstance(statement, ast.If):
                self.test = f = self.reader.truth(statement.test, here.scope)
                self.visit(statement, path, here.scope)
                path = self._if(f, statement.body, statement.orelse, replace(here, path=path))
                continue
            self.visit(statement, path, here.scope)
            path = self._statement(statement, replace(here, path=path))
        return path

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
            case ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AnnAssign(
                target=ast.Name(id=name), value=ast.expr() as value
            ):
                self._assign(name, self._assigned(value, here.scope), here)
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=attr)], value=value) | ast.AnnAssign(
                target=ast.Attribute(value=ast.Name(id="self"), attr=attr), value=ast.expr() as value
            ) if here.scope.qualname.endswith("__init__"):
                self._assign(f"self.{attr}", self.reader.value(value, here.scope), here)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr), args=args)) if args:
                self._grow(name, attr, args[0], here)
            case ast.Assert(test=test) if self.reader.truth(test, here.scope) is False:
                return False  # only an assertion that is known to fail says something about the path
        return here.path

    def _assigned(self, value: ast.expr, scope: Scope) -> Value:
        if isinstance(value, ast.List) and not value.elts:
            return Truth(False)  # an empty list that statements below may fill
        return self.reader.value(value, scope)

    def _if(self, f: Formula, body: list[ast.stmt], orelse: list[ast.stmt], here: _Here) -> Formula:
        yes = replace(here, path=conj((here.path, f)), guard=conj((here.guard, f)))
        no = replace(here, path=conj((here.path, negate(f))), guard=conj((here.guard, negate(f))))
        before = self.aside
        self.aside = before or (_leaves(body) and not isinstance(f, bool) and all(x.condition is None for x in literals(f)))
        after_yes = self._block(body, yes) if yes.path is not False else False
        self.aside = before
        after_no = self._block(orelse, no) if no.path is not False else False
        if after_yes == yes.path and after_no == no.path:
            return here.path
        return disj((after_yes, after_no))

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


def node_needs_names(node: ast.expr) -> bool:
    """Whether an expression reads anything but literals and the object itself."""
    return any(isinstance(n, ast.Name) and n.id != "self" for n in ast.walk(node))


def _leaves(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], (ast.Return, ast.Raise, ast.Continue))


def _is_fallback(node: ast.expr) -> bool:
    return isinstance(node, (ast.List, ast.Tuple, ast.Dict, ast.Constant))


def _about_model(path: str) -> bool:
    parts = path.split(".")
    return any(p.endswith(("model_config", "hf_config", "hf_text_config")) for p in parts[:-1])



class Locals(Mapping[str, Value]):
    """The names of a function that are assigned once, evaluated when asked for: for reading a long function in parts."""

    def __init__(
        self, reader: Reader, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope, bound: Mapping[str, Value]
    ) -> None:
        self._reader = reader
        self._scope = replace(scope, names=self)
        found: dict[str, list[ast.expr]] = {}
        for inner in ast.walk(node):
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


def local(
    reader: Reader, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope, bound: Mapping[str, Value] | None = None
) -> Scope:
    """The scope with the names that the function assigns once, and what is known of its parameters."""
    return replace(scope, names=Locals(reader, node, scope, bound or {}))


@dataclass(frozen=True, slots=True)
class Guarded:
    """A statement with the tests that enclose it (``False``: it stands in the ``else`` of that test)."""

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
        todo.extend(c for c in ast.iter_child_nodes(node) if not isinstance(c, (ast.stmt, ast.ExceptHandler)))

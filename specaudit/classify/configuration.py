"""The engine's configuration classes: which fields they declare, with which defaults, and the lists of named values."""

from __future__ import annotations

import ast
from collections.abc import Callable
from fnmatch import fnmatchcase

from specaudit.classify.code import Code, Symbol, expression
from specaudit.classify.scopes import Scope
from specaudit.classify.values import Const, Obj, Opaque, Plain, Ref, Value
from specaudit.engines.base import Engine

Evaluate = Callable[[ast.expr, Scope], Value]


class Configuration:
    """Configuration classes by name; ``evaluate`` reads a default's expression."""

    def __init__(self, code: Code, engine: Engine, evaluate: Evaluate) -> None:
        self.code = code
        self.engine = engine
        self.evaluate = evaluate
        self._classes: dict[str, Symbol | None] = {}
        self._declared: dict[tuple[str, str, str], tuple[str, Const | None]] = {}
        self._flags: dict[str, Ref] = {}

    def named(self, name: str) -> Symbol | None:
        """The configuration class of that name, looked up in the files that hold configuration."""
        if name not in self._classes:
            self._classes[name] = self._find(name)
        return self._classes[name]

    def _find(self, name: str) -> Symbol | None:
        files = [p for p in self.code.index.paths if any(fnmatchcase(p, g) for g in self.engine.config.paths)]
        for path in self.code.index.mentioning(f"class {name}".encode(), files):
            found = self.code.definition(path, name)
            if found is not None and found.definition.kind == "class":
                return found
        return None

    def carried(self, name: str) -> Obj | None:
        """The configuration object that travels under that name, if one does."""
        anchors = self.engine.config
        cls = self.named(anchors.objects[name]) if name in anchors.objects else None
        if cls is None:
            return None
        return Obj(cls, "" if self.is_main(cls) else name)

    def is_main(self, cls: Symbol) -> bool:
        """Whether settings of that class are named without a prefix, and its properties are read from their bodies."""
        return cls.name in (self.engine.config.cls, self.engine.config.engine_cls)

    def as_method(self, value: Value) -> Value:
        """A value; where it is a member of the enumeration of methods, the setting that names the method."""
        if isinstance(value, Obj) and value.cls.name == self.engine.config.method_type:
            return Ref("option", self.engine.config.method_field)
        return value

    def in_annotation(self, annotation: str) -> Symbol | None:
        """The configuration class that an annotation names."""
        if "Config" not in annotation:
            return None
        for mark in '|[]"':
            annotation = annotation.replace(mark, " ")
        names = (part for part in annotation.split() if part[:1].isupper() and part.endswith("Config"))
        return next((c for name in names if (c := self.named(name)) is not None), None)

    def declared(self, cls: Symbol, attr: str) -> tuple[str, Const | None]:
        """Annotation and default of a field (``Field(default=…)`` read as its default)."""
        key = cls.path, cls.qualname, attr
        if key not in self._declared:
            self._declared[key] = self._declaration(cls, attr)
        return self._declared[key]

    def _declaration(self, cls: Symbol, attr: str) -> tuple[str, Const | None]:
        for owner in self.code.bases(cls):
            for stored in self.code.assigns(owner.path, owner.qualname):
                if stored.scope == owner.qualname and stored.target == attr:
                    annotation = self._annotation(owner.path, stored.line)
                    return annotation, self._default(stored.value, Scope(owner.path, owner.qualname))
        return "", None

    def _annotation(self, path: str, line: int) -> str:
        """The annotation of the field that is declared on a line, also where its brackets go over more lines."""
        text = ""
        for number in range(line, len(self.code.index.lines(path)) + 1):
            text += self.code.index.line(path, number).partition("#")[0]
            annotation = text.partition(":")[2].partition("=")[0]
            if annotation.count("[") <= annotation.count("]"):
                return " ".join(annotation.split())
        return ""

    def _default(self, text: str, scope: Scope) -> Const | None:
        node = expression(text)
        if isinstance(node, ast.Call):
            node = next((k.value for k in node.keywords if k.arg == "default"), None)
        value = self.evaluate(node, scope) if node is not None else None
        return value if isinstance(value, Const) else None

    def flag(self, name: str) -> Ref:
        """An environment flag, with the default that the environment module declares."""
        if name not in self._flags:
            self._flags[name] = self._flag(name)
        return self._flags[name]

    def _flag(self, name: str) -> Ref:
        path = self.engine.environment_path
        declared = f"{name}:"
        for line in self.code.index.lines(path) if path in self.code.index.snapshot.files else ():
            if line.strip().startswith(declared):
                annotation, _, default = line.partition("=")
                return Ref(
                    "env",
                    name,
                    self._default(default.partition("#")[0].strip(), Scope(path, "")),
                    boolean="bool" in annotation,
                )
        return Ref("env", name)

    def members(self, path: str, alias: str) -> tuple[str, ...]:
        """The strings of a ``Literal`` alias of that file, or the names of an enumeration's members."""
        enumeration = self.named(alias)
        if enumeration is not None:
            stored = self.code.assigns(enumeration.path, enumeration.qualname)
            return tuple(a.target for a in stored if a.scope == enumeration.qualname and a.target.isupper())
        found = self.literal(ast.Name(alias), path)
        values = found.value if isinstance(found, Const) and isinstance(found.value, tuple) else ()
        return tuple(dict.fromkeys(v for v in values if isinstance(v, str)))

    def literal(self, node: ast.expr, path: str) -> Value:
        """The members of a ``Literal``, nested aliases included."""
        match node:
            case ast.Name(id=name):
                for stored in self.code.index.outline(path).assigns:
                    if stored.target == name and stored.scope == "":
                        inner = expression(stored.value)
                        return self.literal(inner, path) if inner is not None else Opaque(name)
                module, _, original = self.code.imported_from(path, "", name).rpartition(".")
                origin = self.code.module_path(module, path) if module else None
                if origin is not None and origin != path:
                    return self.literal(ast.Name(original), origin)
            case ast.Subscript(slice=index):
                out: list[Plain] = []
                for element in index.elts if isinstance(index, ast.Tuple) else [index]:
                    value = _constant(element) if isinstance(element, ast.Constant) else self.literal(element, path)
                    if isinstance(value, Const):
                        out.extend(value.value if isinstance(value.value, tuple) else (value.value,))
                return Const(tuple(out))
        return Opaque(ast.unparse(node))


def _constant(node: ast.Constant) -> Value:
    return Const(node.value) if isinstance(node.value, (str, int, float, bool, type(None))) else Opaque("")

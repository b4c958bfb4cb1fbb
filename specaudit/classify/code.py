"""Names -> definitions, across files: what a name means in a scope, the classes behind a class, the tree of one
function.

Everything is read on demand: a question about one class opens the files of its bases and no others.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from specaudit.index import Assign, Definition, Import, Index


@dataclass(frozen=True, slots=True)
class Symbol:
    """A definition and the file that it stands in."""

    path: str
    definition: Definition

    @property
    def name(self) -> str:
        """The name it was defined under."""
        return self.definition.name

    @property
    def qualname(self) -> str:
        """Its qualified name inside the file."""
        return self.definition.qualname


@dataclass(frozen=True, slots=True)
class Field:
    """A value that is stored somewhere, with the scope that its names are to be read in."""

    path: str
    scope: str
    value: str
    line: int


class Code:
    """Name resolution over one :class:`specaudit.index.Index`, with everything found so far kept."""

    def __init__(self, index: Index, package: str) -> None:
        self.index = index
        self.package = package
        self._resolved: dict[tuple[str, str, str], Symbol | None] = {}
        self._bases: dict[tuple[str, str], tuple[Symbol, ...]] = {}
        self._functions: dict[tuple[str, str], ast.FunctionDef | ast.AsyncFunctionDef | None] = {}
        self._assigns: dict[tuple[str, str], tuple[Assign, ...]] = {}
        self._attributes: dict[tuple[str, str], dict[str, tuple[Field, ...]]] = {}

    # --- files and names

    def module_path(self, module: str, importer: str = "") -> str | None:
        """The file of a module; relative modules are taken from the importing file. ``None`` outside the engine."""
        stem = _absolute(module, importer).replace(".", "/")
        return next((p for p in (f"{stem}.py", f"{stem}/__init__.py") if p in self.index.snapshot.files), None)

    def definition(self, path: str, qualname: str) -> Symbol | None:
        """The definition of that qualified name in that file."""
        found = self.index.outline(path).definition(qualname)
        return Symbol(path, found) if found else None

    def resolve(self, path: str, scope: str, name: str, depth: int = 0) -> Symbol | None:
        """What ``name`` (dotted or not) means inside ``scope`` of ``path``: a class or function of the engine, or
        ``None``.
        """
        key = path, scope, name
        if key not in self._resolved:
            self._resolved[key] = None  # a cycle of re-exports resolves to nothing
            self._resolved[key] = self._resolve(path, scope, name, depth)
        return self._resolved[key]

    def _resolve(self, path: str, scope: str, name: str, depth: int) -> Symbol | None:
        if depth > 6 or not name:
            return None
        head, _, rest = name.partition(".")
        outline = self.index.outline(path)
        for outer in _scopes(scope):
            for known in reversed(outline.imports):
                if known.scope == outer and known.alias == head:
                    return self._imported(path, known.module, known.name, rest, depth)
            local = outline.definition(f"{outer}.{head}" if outer else head)
            if local is not None:
                if not rest:
                    return Symbol(path, local)
                return self.definition(path, f"{local.qualname}.{rest}")
        return None

    def _imported(self, path: str, module: str, name: str, rest: str, depth: int) -> Symbol | None:
        if not name:  # ``import a.b``: the dotted name says which part is the module
            parts = rest.split(".")
            inner = self.module_path(".".join([module, *parts[:-1]]))
            return self.resolve(inner, "", parts[-1], depth + 1) if inner and rest else None
        target = self.module_path(module, path)
        submodule = self.module_path(f"{module}.{name}" if not module.endswith(".") else module + name, path)
        if target is not None:
            found = self.resolve(target, "", f"{name}.{rest}" if rest else name, depth + 1)
            if found is not None:
                return found
        if submodule is not None and rest:
            return self.resolve(submodule, "", rest, depth + 1)
        return None

    def lost(self, path: str, scope: str, name: str, depth: int = 0) -> str:
        """The file that ``name`` comes from in that scope, if it cannot be read; ``""`` where that is not so."""
        if depth > 6 or not name:
            return ""
        head, _, rest = name.partition(".")
        outline = self.index.outline(path)
        for outer in _scopes(scope):
            for known in reversed(outline.imports):
                if known.scope == outer and known.alias == head:
                    return self._lost_import(path, known, rest, depth)
            if outline.definition(f"{outer}.{head}" if outer else head) is not None:
                return ""
        return ""

    def _lost_import(self, path: str, known: Import, rest: str, depth: int) -> str:
        if not known.name:  # ``import a.b``
            return self._lost_module(".".join([known.module, *rest.split(".")[:-1]]), path) if rest else ""
        dot = "" if known.module.endswith(".") else "."
        submodule = self._lost_module(f"{known.module}{dot}{known.name}", path) if rest else ""
        found = submodule or self._lost_module(known.module, path)
        target = self.module_path(known.module, path)
        if found or target is None:
            return found
        return self.lost(target, "", f"{known.name}.{rest}" if rest else known.name, depth + 1)

    def _lost_module(self, module: str, importer: str) -> str:
        stem = _absolute(module, importer).replace(".", "/")
        return next((p for p in (f"{stem}.py", f"{stem}/__init__.py") if self.index.lost(p)), "")

    def lost_behind(self, cls: Symbol) -> str:
        """The file of a class behind that class, if it cannot be read; ``""`` where that is not so."""
        for known in self.bases(cls):
            for text in known.definition.bases:
                found = self.lost(known.path, known.definition.scope, text.partition("[")[0])
                if found:
                    return found
        return ""

    def imports(self, path: str, other: str) -> bool:
        """Whether a file imports another one, or something below a folder, by name."""
        module = other.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        named = {
            name
            for known in self.index.outline(path).imports
            for name in (_absolute(known.module, path), _absolute(f"{known.module}.{known.name}", path))
        }
        return module in named or (not other.endswith(".py") and any(name.startswith(f"{module}.") for name in named))

    def imported_from(self, path: str, scope: str, name: str) -> str:
        """The dotted module that ``name`` is imported from in that scope (``""``: it is not imported)."""
        for outer in _scopes(scope):
            for known in self.index.outline(path).imports:
                if known.scope == outer and known.alias == name:
                    module = _absolute(known.module, path)
                    return f"{module}.{known.name}" if known.name else module
        return ""

    # --- classes

    def bases(self, cls: Symbol) -> tuple[Symbol, ...]:
        """The class and all classes of the engine behind it, nearest first, in the order that attributes are looked
        up.
        """
        key = cls.path, cls.qualname
        if key not in self._bases:
            order: list[Symbol] = []
            self._collect(cls, order)
            self._bases[key] = tuple(order)
        return self._bases[key]

    def _collect(self, cls: Symbol, order: list[Symbol]) -> None:
        if any(c.path == cls.path and c.qualname == cls.qualname for c in order):
            return
        order.append(cls)
        for text in cls.definition.bases:
            base = self.resolve(cls.path, cls.definition.scope, text.partition("[")[0])
            if base is not None and base.definition.kind == "class":
                self._collect(base, order)

    def method(self, cls: Symbol, name: str, *, after: Symbol | None = None) -> Symbol | None:
        """The method that ``name`` means on an object of the class; ``after`` asks what ``super()`` means there."""
        order = self.bases(cls)
        if after is not None:
            places = [i for i, c in enumerate(order) if c.path == after.path and c.qualname == after.qualname]
            order = order[places[0] + 1 :] if places else order
        for owner in order:
            found = self.index.outline(owner.path).definition(f"{owner.qualname}.{name}")
            if found is not None and found.kind == "function":
                return Symbol(owner.path, found)
        return None

    def owner(self, method: Symbol) -> Symbol | None:
        """The class that a method is defined in."""
        return self.definition(method.path, method.definition.scope) if method.definition.scope else None

    def attribute(self, cls: Symbol, name: str) -> tuple[Field, ...]:
        """Every value stored as ``self.name`` or in the class body, by the class or those behind it, nearest first."""
        key = cls.path, cls.qualname
        if key not in self._attributes:
            kept: dict[str, list[Field]] = {}
            for owner in self.bases(cls):
                for stored in self.assigns(owner.path, owner.qualname):
                    attr = stored.target.removeprefix("self.")
                    if attr is not stored.target or stored.scope == owner.qualname:
                        kept.setdefault(attr, []).append(Field(owner.path, stored.scope, stored.value, stored.line))
            self._attributes[key] = {attr: tuple(found) for attr, found in kept.items()}
        return self._attributes[key].get(name, ())

    def assigns(self, path: str, qualname: str) -> tuple[Assign, ...]:
        """The assignments inside a class or function, nested scopes included."""
        key = path, qualname
        if key not in self._assigns:
            inner = f"{qualname}."
            self._assigns[key] = tuple(
                a for a in self.index.outline(path).assigns if a.scope == qualname or a.scope.startswith(inner)
            )
        return self._assigns[key]

    # --- trees

    def function(self, symbol: Symbol) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The ``ast`` tree of one function, line numbers those of the file; ``None`` for a class or unreadable text."""
        key = symbol.path, symbol.qualname
        if key not in self._functions:
            self._functions[key] = self._parse(symbol)
        return self._functions[key]

    def _parse(self, symbol: Symbol) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        found = symbol.definition
        if found.kind != "function":
            return None
        lines = self.index.lines(symbol.path)[found.first - 1 : found.end]
        indent = len(lines[0]) - len(lines[0].lstrip())
        # an enclosing block keeps multi-line strings as they are, which dedenting would not; empty lines give line
        # numbers
        above = "\n" * (found.first - 2) + "if 1:\n" if indent else "\n" * (found.first - 1)
        try:
            node = ast.parse(above + "\n".join(lines)).body[0]
        except (SyntaxError, ValueError):
            return None
        if indent:
            assert isinstance(node, ast.If)
            node = node.body[0]
        return node if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else None


def _absolute(module: str, importer: str) -> str:
    """A module's name from the top; that of a relative one as the importing file means it."""
    below = module.lstrip(".")
    if below == module:
        return module
    return ".".join([*importer.split("/")[: len(below) - len(module)], *([below] if below else [])])


def _scopes(scope: str) -> Iterator[str]:
    """The scope and those around it, innermost first, the module (``""``) last."""
    while scope:
        yield scope
        scope = scope.rpartition(".")[0]
    yield ""


@lru_cache(maxsize=8192)
def expression(text: str) -> ast.expr | None:
    """The tree of an expression's text; ``None`` when the text was cut or is no expression."""
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None


def dotted(node: ast.AST) -> str:
    """``a.b.c`` for a chain of names, ``""`` for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    parts.append(node.id)
    return ".".join(reversed(parts))

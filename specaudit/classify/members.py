"""What ``self.x`` is: a method, a kept object, a function; of which class a kept object is, and what was handed to
it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from specaudit import nodes
from specaudit.classify.code import Code, Symbol, dotted, expression
from specaudit.index import Call

#: A method that was handed to a kept object, with the path and line of the argument.
Handed = tuple[Symbol, str, int]


class Members:
    """Questions about the attributes of objects."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self._handed: dict[tuple[str, str], dict[str, list[Handed]]] = {}

    def own(self, func: ast.expr, cls: Symbol, inside: Symbol) -> Symbol | None:
        """The method of the same object that a call inside a method means (``self.x``, ``super().x``)."""
        match func:
            case ast.Attribute(value=ast.Name(id="self"), attr=attr):
                return self.code.method(cls, attr)
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=attr):
                return self.code.method(cls, attr, after=self.code.owner(inside))
        return None

    def is_kept(self, node: ast.expr, cls: Symbol) -> bool:
        """``self.x`` that is an object kept by the class: neither one of its methods nor a function."""
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=attr) if self.code.method(cls, attr) is None:
                stored = self.code.attribute(cls, attr)
                return not any(self._is_function(f.path, f.scope, f.value) for f in stored)
        return False

    def _is_function(self, path: str, scope: str, text: str) -> bool:
        if "(" in text:
            return False
        node = expression(text)
        name = dotted(node) if node is not None else ""
        found = self.code.resolve(path, scope, name) if name else None
        return found is not None and found.definition.kind == "function"

    def kept_class(self, node: ast.expr, cls: Symbol) -> Symbol | None:
        """The class of the engine that a kept object is made from, when its code is at hand."""
        for stored in self.code.attribute(cls, node.attr) if isinstance(node, ast.Attribute) else ():
            made = expression(stored.value) if "(" in stored.value else None
            for call in nodes.walk(made) if made is not None else ():
                name = dotted(call.func) if isinstance(call, ast.Call) else ""
                found = self.code.resolve(stored.path, stored.scope, name) if name[:1].isupper() else None
                if found is not None and found.definition.kind == "class":
                    return found
        return None

    def handed(self, node: ast.expr, cls: Symbol) -> list[Handed]:
        """The methods that were handed to a kept object (for capture): a call of that object runs them again."""
        if not isinstance(node, ast.Attribute) or not self.is_kept(node, cls):
            return []
        key = cls.path, cls.qualname
        if key not in self._handed:
            self._handed[key] = {}
            for owner in self.code.bases(cls):
                for call in self.code.index.outline(owner.path).calls:
                    inside = call.scope.startswith(f"{owner.qualname}.")
                    if inside and call.func.startswith("self.") and call.func.count(".") == 2:
                        found = self._arguments(cls, owner.path, call)
                        self._handed[key].setdefault(call.func.split(".")[1], []).extend(found)
        return self._handed[key].get(node.attr, [])

    def _arguments(self, cls: Symbol, path: str, call: Call) -> Iterator[Handed]:
        for argument in call.args:
            method = self.code.method(cls, argument[5:]) if argument.startswith("self.") else None
            if method is not None and not method.definition.decorators:
                lines = self.code.index.lines(path)[call.line - 1 : call.line + 20]
                yield method, path, call.line + next((i for i, text in enumerate(lines) if argument in text), 0)

    def by_keywords(self, name: str, keywords: set[str]) -> Symbol | None:
        """The one method of that name, of any class, that takes those keywords and fewest others."""
        found = [m for m in self._named(name) if keywords and keywords <= set(m.definition.params)]
        fewest = min((len(m.definition.params) for m in found), default=0)
        fitting = [m for m in found if len(m.definition.params) == fewest]
        return fitting[0] if len(fitting) == 1 else None

    def _named(self, name: str) -> Iterator[Symbol]:
        for path in self.code.index.mentioning(f"def {name}(".encode()):
            for definition in self.code.index.outline(path).definitions:
                if definition.name == name and definition.scope and definition.kind == "function":
                    yield Symbol(path, definition)

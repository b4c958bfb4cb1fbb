"""Attributes of ordinary objects: what a constructor leaves in them, if nothing else changes it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from specaudit import nodes
from specaudit.classify.code import Field, Symbol, expression
from specaudit.classify.scopes import Scope
from specaudit.classify.values import Opaque, Value
from specaudit.classify.walking import Walk

if TYPE_CHECKING:
    from specaudit.classify.symbolic import Reader

_DEPTH = 12


class Objects:
    """Evaluates attributes for one reader."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.code = reader.code
        self._built: dict[tuple[str, str, Symbol], dict[str, Value]] = {}

    def stored(self, owner: Symbol, attr: str, scope: Scope) -> Value:
        """``self.attr`` of an ordinary object: what its constructor leaves there, if nothing else changes it."""
        if scope.depth > _DEPTH:
            return Opaque(f"self.{attr}")
        found = self._counting(owner, attr) or self._settled(owner, attr)
        if found is None:
            return self._constructed(owner, attr)
        node = expression(found.value)
        method = self.code.definition(found.path, found.scope)
        function = (
            self.code.function(method) if method is not None and node is not None and _reads_names(node) else None
        )
        if node is None:
            return Opaque(f"self.{attr}")
        names = self.reader.typed(function) if function is not None else {}
        return self.reader.value(node, Scope(found.path, found.scope, owner, names=names, depth=scope.depth + 1))

    def _counting(self, owner: Symbol, attr: str) -> Field | None:
        """Where an attribute takes the number of drafted tokens; later changes of it stay within what is configured."""
        ending = f".{self.reader.engine.config.count_field}"
        return next((f for f in self.code.attribute(owner, attr) if f.value.endswith(ending)), None)

    def _settled(self, owner: Symbol, attr: str) -> Field | None:
        """The one value that an attribute has after construction; ``None`` when it changes or has several."""
        fields = self.code.attribute(owner, attr)
        built = [f for f in fields if f.scope.endswith("__init__") or "." not in f.scope]
        if not fields or len(built) != len(fields):
            return fields[0] if len(fields) == 1 else None
        nearest = [f for f in built if f.scope.partition(".")[0] == built[0].scope.partition(".")[0]]
        return nearest[0] if len({f.value for f in nearest}) == 1 else None

    def _constructed(self, owner: Symbol, attr: str) -> Value:
        """What the constructor leaves in an attribute that it sets more than once."""
        fields = self.code.attribute(owner, attr)
        if len({(f.path, f.scope) for f in fields}) != 1 or not fields[0].scope.endswith("__init__"):
            return Opaque(f"self.{attr}")
        key = fields[0].path, fields[0].scope, owner
        if key not in self._built:
            self._built[key] = {}
            method = self.code.definition(fields[0].path, fields[0].scope)
            node = self.code.function(method) if method is not None else None
            if method is not None and node is not None:
                walk = Walk(self.reader, lambda *_: None)
                walk.run(node, Scope(method.path, method.qualname, owner))
                self._built[key] = walk.names
        return self._built[key].get(f"self.{attr}", Opaque(f"self.{attr}"))


def _reads_names(node: ast.expr) -> bool:
    """Whether an expression reads anything but literals and the object itself."""
    return any(isinstance(n, ast.Name) and n.id != "self" for n in nodes.walk(node))

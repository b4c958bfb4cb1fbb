"""Attention backends by the names under which users select them, read from where the engine registers them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from specaudit import nodes
from specaudit.classify.code import Code, dotted
from specaudit.classify.conditions import Lit, words
from specaudit.classify.values import Kind
from specaudit.engines.base import Engine
from specaudit.model import Condition, Evidence

if TYPE_CHECKING:
    from specaudit.classify.symbolic import Reader


class Backends:
    """Files of attention backends and the names that select them."""

    def __init__(self, code: Code, engine: Engine) -> None:
        self.code = code
        self.engine = engine
        self._names: dict[str, tuple[str, Evidence | None]] = {}

    def name_of(self, path: str) -> str:
        """The name that selects the backend in that file (``""``: no registered backend lives there)."""
        return self._found(path)[0]

    def registered(self, path: str) -> Evidence | None:
        """The line that registers the backend in that file."""
        return self._found(path)[1]

    def _found(self, path: str) -> tuple[str, Evidence | None]:
        if path not in self._names:
            self._names[path] = self._search(path)
        return self._names[path]

    def _search(self, path: str) -> tuple[str, Evidence | None]:
        index = self.code.index
        module = path.removesuffix(".py").replace("/", ".")
        present = [p for p in self.engine.backend_registries if p in index.snapshot.files]
        for registry in index.mentioning(f"{module}.".encode(), present):
            for stored in index.outline(registry).assigns:
                if f"{module}." in stored.value:
                    name = self._selecting(registry, stored.scope, stored.target) or stored.target
                    return name, index.evidence(registry, stored.line)
        return "", None

    def _selecting(self, registry: str, scope: str, local: str) -> str:
        """Where a function returns the dotted path under ``selected == Names.X``: that ``X``."""
        function = self.code.definition(registry, scope) if scope else None
        node = self.code.function(function) if function is not None else None
        for inner in nodes.walk(node) if node is not None else ():
            if not isinstance(inner, ast.If) or not isinstance(inner.test, ast.Compare):
                continue
            returns = [s for s in inner.body if isinstance(s, ast.Return) and s.value is not None]
            if any(dotted(r.value) == local for r in returns if r.value is not None):
                return dotted(inner.test.comparators[0]).rpartition(".")[2]
        return ""

    def selected(self, reader: Reader, name: str) -> Lit:
        """The test that this backend runs. It never does unless the user selects it."""
        cls, field = self.engine.backend_setting
        kind: Kind = "option"
        option = f"{_attribute_of(cls)}.{field}"
        if reader.configuration.named(cls) is None:
            kind, option = "env", self.engine.backend_flag
        return Lit(option, Condition(option, kind, "==", name, words(option, "==", name)), True, False)


def _attribute_of(cls: str) -> str:
    """``AttentionConfig`` travels as ``attention_config``."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in cls).lstrip("_")

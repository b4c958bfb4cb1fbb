"""Who calls, launches or holds what, upwards: from a kernel to the runner that reaches it.

Calls are matched by name first and confirmed by resolving the name where it stands; a kernel that a decorator binds
to a function is called where that function is; an object is called where the attribute that holds it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from specaudit.classify.code import Code, Symbol
from specaudit.classify.holders import Holder, Holders, Mentions, is_class, same, word
from specaudit.index import Assign, Call, Definition

_ENTRIES = ("forward", "__call__")


@dataclass(frozen=True, slots=True)
class Site:
    """One place that uses a function: ``scope`` is the qualified name of the function that it stands in.

    ``how``: called or launched there, or ``bound`` to the function of that scope by its decorator.
    """

    path: str
    line: int
    scope: str
    call: Call | None
    how: Literal["call", "bound"] = "call"


class Callers:
    """Questions about callers over one engine's source; everything found is kept."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.index = code.index
        self.mentions = Mentions(code)
        self.objects = Holders(code, self.mentions)
        self._sites: dict[tuple[str, str], tuple[Site, ...]] = {}

    def enclosing(self, site: Site) -> Symbol | None:
        """The function that a site stands in."""
        return self.code.definition(site.path, site.scope) if site.scope else None

    def sites(self, symbol: Symbol) -> tuple[Site, ...]:
        """Every place that calls or launches a function, or the method of an object."""
        key = symbol.path, symbol.qualname
        if key not in self._sites:
            self._sites[key] = ()  # recursion is no caller
            owner = self.code.owner(symbol)
            found = self._of_method(symbol, owner) if is_class(owner) else self._of_function(symbol)
            self._sites[key] = tuple(dict.fromkeys(found))
        return self._sites[key]

    # --- functions

    def _of_function(self, symbol: Symbol) -> Iterator[Site]:
        for path in self.mentions.of(symbol.name):
            outline = self.index.outline(path)
            for call in outline.calls:
                if call.name == symbol.name and self._means(path, call.scope, call.func, symbol):
                    yield Site(path, call.line, call.scope, call)
            for definition in outline.definitions:
                if self._binds(path, definition, symbol):
                    yield Site(path, self._line_of(path, definition, symbol.name), definition.qualname, None, "bound")
            for assign in outline.assigns:
                if assign.target.isidentifier() and self._hands_on(path, assign, symbol):
                    for call in outline.calls:
                        if call.func == assign.target and call.scope.startswith(assign.scope):
                            yield Site(path, call.line, call.scope, call)

    def _means(self, path: str, scope: str, func: str, symbol: Symbol) -> bool:
        return same(self.code.resolve(path, scope, func.partition("[")[0]), symbol)

    def _binds(self, path: str, definition: Definition, symbol: Symbol) -> bool:
        """A decorator of that function names ours: ``@dispatcher(kernel=ours)``."""
        if not any(word(text, symbol.name) for text in definition.decorators):
            return False
        return self._means(path, definition.scope, symbol.name, symbol)

    def _line_of(self, path: str, definition: Definition, name: str) -> int:
        lines = range(definition.first, definition.line)
        return next((n for n in lines if word(self.index.line(path, n), name)), definition.first)

    def _hands_on(self, path: str, assign: Assign, symbol: Symbol) -> bool:
        """``run = ours`` or ``run = ours if … else other``."""
        if (
            not word(assign.value, symbol.name)
            or f"{symbol.name}(" in assign.value
            or f"{symbol.name}[" in assign.value
        ):
            return False
        return self._means(path, assign.scope, symbol.name, symbol)

    # --- methods

    def _of_method(self, symbol: Symbol, owner: Symbol | None) -> Iterator[Site]:
        """Calls on ``self`` in the class and those derived from it, and on the objects that are kept somewhere."""
        assert owner is not None
        family = tuple(self.objects.subclasses(owner))
        behind = self.code.bases(owner)
        for path in dict.fromkeys(cls.path for cls in (*family, *behind)):
            for call in self.index.outline(path).calls:
                if call.name == symbol.name and self._on_self(path, call, symbol, behind):
                    yield Site(path, call.line, call.scope, call)
        for cls in family:
            if same(self.code.method(cls, symbol.name), symbol):
                for holder in self.objects.of(cls):
                    yield from self._on_object(holder, symbol.name)
                yield from self._on_class(cls, symbol)

    def by_name(self, method: Symbol) -> Iterator[Site]:
        """Calls of a method of that name on something whose class is not told: to be trusted only where they stand in
        the right place."""
        for path in self.mentions.of(f".{method.name}("):
            for call in self.index.outline(path).calls:
                base = call.func.rpartition(".")[0]
                other = call.name == method.name and base.isidentifier() and base not in ("self", "cls")
                if other and self.code.resolve(path, call.scope, base) is None:
                    yield Site(path, call.line, call.scope, call)

    def _on_self(self, path: str, call: Call, symbol: Symbol, behind: tuple[Symbol, ...]) -> bool:
        """A call on ``self`` that means the method: on an object of the class around it, or where that class is behind
        the method's own, on one of the method's class.
        """
        base = call.func.rpartition(".")[0]
        cls = self.objects.class_of(path, call.scope) if base in ("self", "cls", "super()") else None
        if cls is None:
            return False
        if base == "super()":
            return same(self.code.method(cls, symbol.name, after=cls), symbol)
        return same(self.code.method(cls, symbol.name), symbol) or any(same(cls, other) for other in behind)

    def _on_class(self, cls: Symbol, symbol: Symbol) -> Iterator[Site]:
        """``Class.method(…)``: static and class methods."""
        for path in self.mentions.of(f"{cls.name}.{symbol.name}("):
            for call in self.index.outline(path).calls:
                if call.func == f"{cls.name}.{symbol.name}" and self._means(path, call.scope, cls.name, cls):
                    yield Site(path, call.line, call.scope, call)

    def _on_object(self, holder: Holder, method: str) -> Iterator[Site]:
        wanted = {f"{holder.target}.{method}", *([holder.target] if method in _ENTRIES else [])}
        places = [holder.path]
        if holder.owner is not None:
            places += [cls.path for cls in self.objects.subclasses(holder.owner)]
        for path in dict.fromkeys(places):
            for call in self.index.outline(path).calls:
                if call.func in wanted and (holder.owner is not None or call.scope == holder.scope):
                    yield Site(path, call.line, call.scope, call)

"""Who calls, launches or holds what, upwards: from a kernel to the runner that reaches it.

Calls are matched by name first and confirmed by resolving the name where it stands; a kernel that a decorator binds
to a function is called where that function is; an object is called where the attribute that holds it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from specaudit.classify.code import Code, Symbol
from specaudit.index import Assign, Call, Definition

_ENTRIES = ("forward", "__call__")


@dataclass(frozen=True, slots=True)
class Site:
    """One place that uses a function: ``scope`` is the qualified name of the function that it stands in.

    ``how``: called or launched there, ``bound`` to the function of that scope by its decorator, or ``held`` (an
    object of its class is made there).
    """

    path: str
    line: int
    scope: str
    call: Call | None
    how: Literal["call", "bound", "held"] = "call"


@dataclass(frozen=True, slots=True)
class Holder:
    """Where an object of a class is kept: an attribute of ``owner``, or a local name of ``scope``."""

    path: str
    scope: str
    target: str
    line: int
    owner: Symbol | None


class Callers:
    """Questions about callers over one engine's source; everything found is kept."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self.index = code.index
        self._bytes = {path: self.index.snapshot.read(path) for path in self.index.paths}
        self._sites: dict[tuple[str, str], tuple[Site, ...]] = {}
        self._holders: dict[tuple[str, str], tuple[Holder, ...]] = {}

    def mentioning(self, name: str) -> list[str]:
        """Paths whose bytes hold that name."""
        needle = name.encode()
        return [path for path, data in self._bytes.items() if needle in data]

    def data(self, path: str) -> bytes:
        """The bytes of one file."""
        return self._bytes[path]

    def enclosing(self, site: Site) -> Symbol | None:
        """The function that a site stands in."""
        return self.code.definition(site.path, site.scope) if site.scope else None

    def sites(self, symbol: Symbol) -> tuple[Site, ...]:
        """Every place that calls or launches a function, or the method of an object."""
        key = symbol.path, symbol.qualname
        if key not in self._sites:
            self._sites[key] = ()  # recursion is no caller
            owner = self.code.owner(symbol)
            found = self._of_method(symbol, owner) if _is_class(owner) else self._of_function(symbol)
            self._sites[key] = tuple(dict.fromkeys(found))
        return self._sites[key]

    # --- functions

    def _of_function(self, symbol: Symbol) -> Iterator[Site]:
        for path in self.mentioning(symbol.name):
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
        found = self.code.resolve(path, scope, func.partition("[")[0])
        return found is not None and (found.path, found.definition.line) == (symbol.path, symbol.definition.line)

    def _binds(self, path: str, definition: Definition, symbol: Symbol) -> bool:
        """A decorator of that function names ours: ``@dispatcher(kernel=ours)``."""
        if not any(_word(text, symbol.name) for text in definition.decorators):
            return False
        return self._means(path, definition.scope, symbol.name, symbol)

    def _line_of(self, path: str, definition: Definition, name: str) -> int:
        lines = range(definition.first, definition.line)
        return next((n for n in lines if _word(self.index.line(path, n), name)), definition.first)

    def _hands_on(self, path: str, assign: Assign, symbol: Symbol) -> bool:
        """``run = ours`` or ``run = ours if … else other``."""
        if (
            not _word(assign.value, symbol.name)
            or f"{symbol.name}(" in assign.value
            or f"{symbol.name}[" in assign.value
        ):
            return False
        return self._means(path, assign.scope, symbol.name, symbol)

    # --- methods

    def _of_method(self, symbol: Symbol, owner: Symbol | None) -> Iterator[Site]:
        """Calls on ``self`` in the class and those derived from it, and on the objects that are kept somewhere."""
        assert owner is not None
        family = tuple(self.subclasses(owner))
        for path in dict.fromkeys(cls.path for cls in family):
            for call in self.index.outline(path).calls:
                if call.name == symbol.name and self._on_self(path, call, symbol):
                    yield Site(path, call.line, call.scope, call)
        for cls in family:
            if self._same(self.code.method(cls, symbol.name), symbol):
                for holder in self.holders(cls):
                    yield from self._on_object(holder, symbol.name)
                yield from self._on_class(cls, symbol)

    def by_name(self, method: Symbol) -> Iterator[Site]:
        """Calls of a method of that name on something whose class is not told: to be trusted only where they stand in
        the right place."""
        for path in self.mentioning(f".{method.name}("):
            for call in self.index.outline(path).calls:
                base = call.func.rpartition(".")[0]
                other = call.name == method.name and base not in ("", "self", "cls", "super()")
                if other and self.code.resolve(path, call.scope, base) is None:
                    yield Site(path, call.line, call.scope, call)

    def _on_self(self, path: str, call: Call, symbol: Symbol) -> bool:
        base = call.func.rpartition(".")[0]
        cls = self.class_of(path, call.scope) if base in ("self", "cls", "super()") else None
        return cls is not None and self._same(
            self.code.method(cls, symbol.name, after=cls if base == "super()" else None), symbol
        )

    def _on_class(self, cls: Symbol, symbol: Symbol) -> Iterator[Site]:
        """``Class.method(…)``: static and class methods."""
        for path in self.mentioning(f"{cls.name}.{symbol.name}("):
            for call in self.index.outline(path).calls:
                if call.func == f"{cls.name}.{symbol.name}" and self._means(path, call.scope, cls.name, cls):
                    yield Site(path, call.line, call.scope, call)

    def _on_object(self, holder: Holder, method: str) -> Iterator[Site]:
        wanted = {f"{holder.target}.{method}", *([holder.target] if method in _ENTRIES else [])}
        places = [holder.path]
        if holder.owner is not None:
            places += [cls.path for cls in self.subclasses(holder.owner)]
        for path in dict.fromkeys(places):
            for call in self.index.outline(path).calls:
                if call.func in wanted and (holder.owner is not None or call.scope == holder.scope):
                    yield Site(path, call.line, call.scope, call)

    def _same(self, found: Symbol | None, symbol: Symbol) -> bool:
        return found is not None and (found.path, found.definition.line) == (symbol.path, symbol.definition.line)

    def class_of(self, path: str, scope: str) -> Symbol | None:
        """The class that a function's scope belongs to."""
        while scope:
            found = self.code.definition(path, scope)
            if found is not None and _is_class(found):
                return found
            scope = scope.rpartition(".")[0]
        return None

    def _made_by(self, path: str, scope: str, value: str) -> Symbol | None:
        """The class that ``Class(…)`` makes an object of."""
        name, bracket, _ = value.partition("(")
        found = self.code.resolve(path, scope, name) if bracket else None
        return found if _is_class(found) else None

    # --- objects

    def subclasses(self, cls: Symbol) -> Iterator[Symbol]:
        """The class and all classes of the engine that have it behind them."""
        todo, seen = [cls], set()
        while todo:
            here = todo.pop()
            if (here.path, here.qualname) in seen:
                continue
            seen.add((here.path, here.qualname))
            yield here
            for path in self.mentioning(here.name):
                for definition in self.index.outline(path).definitions:
                    named = [base for base in definition.bases if _word(base, here.name)]
                    if any(self._means(path, definition.scope, base, here) for base in named):
                        todo.append(Symbol(path, definition))

    def holders(self, cls: Symbol) -> tuple[Holder, ...]:
        """Where objects of exactly that class are kept, followed through arguments of constructors."""
        key = cls.path, cls.qualname
        if key not in self._holders:
            self._holders[key] = ()
            self._holders[key] = tuple(dict.fromkeys(self._find_holders(cls)))
        return self._holders[key]

    def _find_holders(self, cls: Symbol) -> Iterator[Holder]:
        for path in self.mentioning(cls.name):
            for assign in self.index.outline(path).assigns:
                if not _word(assign.value, cls.name) or "(" not in assign.value:
                    continue
                made = self._made_by(path, assign.scope, assign.value)
                if made is not None and self._same(made, cls):
                    yield from self._kept(path, assign)

    def _kept(self, path: str, assign: Assign, depth: int = 0) -> Iterator[Holder]:
        owner = self.class_of(path, assign.scope)
        if assign.target.startswith("self."):
            yield Holder(path, assign.scope, assign.target, assign.line, owner)
            return
        yield Holder(path, assign.scope, assign.target, assign.line, None)
        if depth < 2:
            for call in self.index.outline(path).calls:
                if call.scope == assign.scope:
                    yield from self._passed(path, call, assign, depth)

    def _passed(self, path: str, call: Call, assign: Assign, depth: int) -> Iterator[Holder]:
        """The object is handed to a constructor, which keeps it under the parameter's name."""
        names = [name for name, value in call.keywords if value == assign.target]
        places = [n for n, value in enumerate(call.args) if value == assign.target]
        if not names and not places:
            return
        cls = self.code.resolve(path, call.scope, call.func)
        init = self.code.method(cls, "__init__") if cls is not None and _is_class(cls) else None
        if init is None:
            return
        params = [p for p in init.definition.params if p != "self"]
        names += [params[n] for n in places if n < len(params)]
        for stored in self.code.assigns(init.path, init.qualname):
            if stored.value in names:
                yield from self._kept(init.path, stored, depth + 1)


def _is_class(symbol: Symbol | None) -> bool:
    return symbol is not None and symbol.definition.kind == "class"


def _word(text: str, name: str) -> bool:
    return name in text and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None

"""Where objects of a class are kept: in an attribute, followed through arguments of constructors, or in the place of
an object of a class behind theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from specaudit.classify.code import Code, Symbol
from specaudit.index import Assign, Call

_DEPTH = 2


@dataclass(frozen=True, slots=True)
class Holder:
    """Where an object of a class is kept: an attribute of ``owner``, or a local name of ``scope``.

    ``instead``: it is put there in the place of another object.
    """

    path: str
    scope: str
    target: str
    line: int
    owner: Symbol | None
    instead: bool = False


class Mentions:
    """Which files hold a name, by their bytes."""

    def __init__(self, code: Code) -> None:
        self.index = code.index
        self._found: dict[str, list[str]] = {}

    def of(self, name: str) -> list[str]:
        """Paths whose bytes hold that name."""
        if name not in self._found:
            self._found[name] = list(self.index.mentioning(name.encode()))
        return self._found[name]


class Holders:
    """Questions about the objects of classes; everything found is kept."""

    def __init__(self, code: Code, mentions: Mentions) -> None:
        self.code = code
        self.mentions = mentions
        self._found: dict[tuple[str, str], tuple[Holder, ...]] = {}

    def subclasses(self, cls: Symbol) -> Iterator[Symbol]:
        """The class and all classes of the engine that have it behind them."""
        todo, seen = [cls], set()
        while todo:
            here = todo.pop()
            if (here.path, here.qualname) in seen:
                continue
            seen.add((here.path, here.qualname))
            yield here
            for path in self.mentions.of(here.name):
                for definition in self.code.index.outline(path).definitions:
                    named = [base for base in definition.bases if word(base, here.name)]
                    if any(same(self.code.resolve(path, definition.scope, base), here) for base in named):
                        todo.append(Symbol(path, definition))

    def class_of(self, path: str, scope: str) -> Symbol | None:
        """The class that a function's scope belongs to."""
        while scope:
            found = self.code.definition(path, scope)
            if found is not None and is_class(found):
                return found
            scope = scope.rpartition(".")[0]
        return None

    def of(self, cls: Symbol) -> tuple[Holder, ...]:
        """Where objects of exactly that class are kept."""
        key = cls.path, cls.qualname
        if key not in self._found:
            self._found[key] = ()
            self._found[key] = tuple(dict.fromkeys(self._find(cls)))
        return self._found[key]

    def replaces(self, cls: Symbol) -> bool:
        """Objects of the class, or of one derived from it, are kept nowhere but in the place of others."""
        kept = [h for derived in self.subclasses(cls) for h in self.of(derived)]
        return any(h.instead for h in kept) and not any(h.owner is not None and not h.instead for h in kept)

    def _find(self, cls: Symbol) -> Iterator[Holder]:
        for path in self.mentions.of(cls.name):
            for assign in self.code.index.outline(path).assigns:
                if not word(assign.value, cls.name) or "(" not in assign.value:
                    continue
                if same(self._made_by(path, assign.scope, assign.value), cls):
                    yield from self._kept(path, assign)
                    yield from self._instead(path, assign, cls)

    def _made_by(self, path: str, scope: str, value: str) -> Symbol | None:
        """The class that ``Class(…)`` makes an object of."""
        name, bracket, _ = value.partition("(")
        found = self.code.resolve(path, scope, name) if bracket else None
        return found if is_class(found) else None

    def _kept(self, path: str, assign: Assign, depth: int = 0) -> Iterator[Holder]:
        owner = self.class_of(path, assign.scope)
        if assign.target.startswith("self."):
            yield Holder(path, assign.scope, assign.target, assign.line, owner)
            return
        yield Holder(path, assign.scope, assign.target, assign.line, None)
        if depth < _DEPTH:
            for call in self.code.index.outline(path).calls:
                if call.scope == assign.scope:
                    yield from self._passed(path, call, assign, depth)

    def _passed(self, path: str, call: Call, assign: Assign, depth: int) -> Iterator[Holder]:
        """The object is handed to a constructor, which keeps it under the parameter's name."""
        names = [name for name, value in call.keywords if value == assign.target]
        places = [n for n, value in enumerate(call.args) if value == assign.target]
        if not names and not places:
            return
        cls = self.code.resolve(path, call.scope, call.func)
        init = self.code.method(cls, "__init__") if cls is not None and is_class(cls) else None
        if init is None:
            return
        params = [p for p in init.definition.params if p != "self"]
        names += [params[n] for n in places if n < len(params)]
        for stored in self.code.assigns(init.path, init.qualname):
            if stored.value in names:
                yield from self._kept(init.path, stored, depth + 1)

    def _instead(self, path: str, assign: Assign, cls: Symbol) -> Iterator[Holder]:
        """``other.attribute = Class(…)`` where an object of a class behind it is kept under that attribute."""
        base, _, attribute = assign.target.rpartition(".")
        if not base.isidentifier() or base == "self":
            return
        for behind in self.code.bases(cls)[1:]:
            for holder in self.of(behind):
                if holder.owner is not None and holder.target == f"self.{attribute}":
                    yield replace(holder, path=path, scope=assign.scope, line=assign.line, instead=True)


def is_class(symbol: Symbol | None) -> bool:
    """It is a class."""
    return symbol is not None and symbol.definition.kind == "class"


def same(one: Symbol | None, other: Symbol | None) -> bool:
    """Both are the same definition."""
    if one is None or other is None:
        return False
    return (one.path, one.definition.line) == (other.path, other.definition.line)


def word(text: str, name: str) -> bool:
    """The name stands in the text as a word of its own."""
    return name in text and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None

"""What leads from a runner to accepting functions: functions that choose, and the objects kept for it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from specaudit import nodes
from specaudit.classify.callers import Site
from specaudit.classify.code import Symbol
from specaudit.classify.entries import Entries
from specaudit.classify.holders import is_class, same
from specaudit.model import Evidence, Verifier

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class End:
    """A function at whose call a choice ends, with the ways in which it may go on there.

    ``lines``: where it leads out of the source.
    """

    symbol: Symbol
    ways: frozenset[object]
    lines: tuple[int, ...] = ()


@dataclass(slots=True)
class _Above:
    """Everything above the ends: ``below`` are the ways that each function may take."""

    passed: dict[Key, tuple[Symbol, tuple[Site, ...]]] = field(default_factory=dict)
    below: dict[Key, set[object]] = field(default_factory=dict)
    stubs: set[Key] = field(default_factory=set)


class Dispatchers:
    """Finds the functions and classes between a runner and what accepts.

    A function is one when the runner calls it, or when it chooses among two ways and a runner reaches it; a method
    stands for its class, which is one when the runner keeps an object of it.
    """

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.roles = entries.roles
        self.callers = entries.roles.callers
        self.code = entries.roles.code
        self.index = entries.index

    def between(self, ends: Sequence[End], accepting: Iterable[Key]) -> Iterator[Verifier]:
        """Every dispatcher above those ends.

        Args:
            ends: what accepts, and calls of compiled operators.
            accepting: functions that accept themselves, which are no dispatchers.
        """
        above = self._above(ends)
        reached = any(self.roles.reach(end.symbol).runners for end in ends)
        left_out = {*accepting, *above.stubs}
        for key, (symbol, sites) in above.passed.items():
            if key in left_out or is_kernel(symbol):
                continue
            entered = [site for site in sites if self.roles.runner_of(site)]
            if is_class(self.code.owner(symbol)):
                yield from self._classes(symbol, entered)
            elif entered or (len(above.below[key]) > 1 and sites and (self._is_reached(symbol) or not reached)):
                out = [line for end in ends if same(end.symbol, symbol) for line in end.lines]
                yield self.entries.of(symbol, "function", "dispatcher", self._onward(symbol, above, out))

    def _above(self, ends: Iterable[End]) -> _Above:
        above = _Above()
        for end in ends:
            reach = self.roles.reach(end.symbol)
            above.stubs |= reach.stubs
            for key, found in reach.passed.items():
                above.passed[key] = found
                above.below.setdefault(key, set()).update(end.ways)
        return above

    def _is_reached(self, symbol: Symbol) -> bool:
        return bool(self.roles.reach(symbol).runners)

    def _onward(self, symbol: Symbol, above: _Above, out: list[int]) -> tuple[Evidence, ...]:
        """The lines in a dispatcher that lead on to what accepts."""
        lines = {
            site.line
            for _, sites in above.passed.values()
            for site in sites
            if (site.path, site.scope) == (symbol.path, symbol.qualname) and site.how == "call"
        }
        return tuple(self.index.evidence(symbol.path, line) for line in sorted({*out, *lines}))

    def _classes(self, method: Symbol, entered: list[Site]) -> Iterator[Verifier]:
        """The classes whose objects the runner keeps and calls."""
        owner = self.code.owner(method)
        if owner is None or not entered or not self._answers(method):
            return
        for cls in self.callers.objects.subclasses(owner):
            holders = self.callers.objects.of(cls) if same(self.code.method(cls, method.name), method) else ()
            if not holders:
                continue
            lines = {(h.path, h.line) for h in holders} | {(s.path, s.line) for s in entered}
            yield Verifier(
                name=cls.name,
                path=cls.path,
                line=cls.definition.line,
                role="class",
                walk="dispatcher",
                runner=self.roles.runner_of(entered[0]),
                called_from=tuple(self.index.evidence(path, line) for path, line in sorted(lines)),
                reachable="conditional" if self.callers.objects.replaces(cls) else "default",
                evidence=(self.index.evidence(method.path, method.definition.line),),
            )

    def _answers(self, method: Symbol) -> bool:
        """A method returns or stores something: one that does neither only watches."""
        node = self.code.function(method)
        return node is not None and any(_hands_on(part) for part in nodes.walk(node))


def is_kernel(symbol: Symbol) -> bool:
    """A function is compiled for a device."""
    return any("jit" in decorator for decorator in symbol.definition.decorators)


def _hands_on(node: ast.AST) -> bool:
    if isinstance(node, ast.Return):
        return node.value is not None
    return isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store)

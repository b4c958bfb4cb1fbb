"""What else a dispatcher launches: helpers that take part in the arithmetic of acceptance, and pre-passes.

A helper accepts nothing; something that it stores combines at least two of the tensors on which acceptance rests (the
drafted tokens, the two distributions, what was made of them). Kernels that reduce one of them alone, copy or expand
are none.
"""

from __future__ import annotations

from collections.abc import Iterator

from specaudit.classify import arguments, slices
from specaudit.classify.callers import Callers, Site
from specaudit.classify.code import Symbol
from specaudit.classify.facts import Locals, tree
from specaudit.classify.machine import Machine
from specaudit.classify.oracle import discover
from specaudit.classify.statements import program
from specaudit.classify.terms import Terms, root
from specaudit.classify.trees import parts
from specaudit.index import Call


class Launches:
    """The kernels that a function launches, itself or through the functions it calls, with the tensors they meet."""

    def __init__(self, callers: Callers) -> None:
        self.callers = callers
        self.code = callers.code
        self._stored: dict[tuple[str, str], tuple[frozenset[str], ...]] = {}

    def below(self, function: Symbol, depth: int = 2) -> Iterator[tuple[Symbol, Site, dict[str, str]]]:
        """(kernel, site, parameter -> tensor in the names of ``function``)."""
        for call in self.code.index.outline(function.path).calls:
            if call.scope != function.qualname:
                continue
            site = Site(function.path, call.line, call.scope, call)
            target = self._target(function, call)
            if target is None:
                continue
            kernel = target if "[" in call.func else self._bound_kernel(target)
            if kernel is not None:
                yield kernel, site, arguments.of_launch(self.callers, kernel, site)
            elif depth and self.is_plain(target):
                given = arguments.meet(target.definition.params, call)
                for inner, _, names in self.below(target, depth - 1):
                    yield inner, site, {param: given.get(text, text) for param, text in names.items()}

    def _target(self, function: Symbol, call: Call) -> Symbol | None:
        found = self.code.resolve(function.path, function.qualname, call.func.partition("[")[0])
        return found if found is not None and found.definition.kind == "function" else None

    def is_plain(self, function: Symbol) -> bool:
        """A module's function that is no kernel."""
        return not function.definition.scope and not any("jit" in d for d in function.definition.decorators)

    def _bound_kernel(self, function: Symbol) -> Symbol | None:
        """The kernel that a decorator of this function names."""
        for text in function.definition.decorators:
            for word in slices.words(text.partition("(")[2]):
                found = self.code.resolve(function.path, function.definition.scope, word)
                if found is not None and any("jit" in d for d in found.definition.decorators):
                    return found
        return None

    def stored(self, kernel: Symbol) -> tuple[frozenset[str], ...]:
        """For everything that a kernel stores, on some path: the parameters that flow into it by value."""
        key = kernel.path, kernel.qualname
        if key not in self._stored:
            self._stored[key] = _stored(self.code.index.source(kernel.path), kernel.qualname)
        return self._stored[key]


def _stored(source: str, qualname: str) -> tuple[frozenset[str], ...]:
    pieces = slices.functions(source)
    piece = next((p for p in reversed(pieces) if p.qualname == qualname), None)
    parsed = slices.parse(piece) if piece is not None else None
    function = tree(parsed) if parsed is not None else None
    if function is None:
        return ()
    machine = Machine(program(function), Locals(pieces), Terms(), {})
    found: dict[frozenset[str], None] = {}
    for path in discover(machine):
        for store in path.run.stores:
            loads = (part for part in parts(store.term) if part.kind == "load")
            found[frozenset(r.name for load in loads if (r := root(load.args[0])) is not None)] = None
    return tuple(found)

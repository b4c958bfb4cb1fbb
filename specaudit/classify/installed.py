"""Verifiers that a drafter puts in the place of the engine's own: they verify for the methods that it drafts for.

A verifier counts as such where every chain from a runner to it passes an object that is kept nowhere but in the place
of another one, where only methods of a drafter put it there, and where such a drafter is made for proposals alone.
Where any of that cannot be seen, it may verify for every method.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from specaudit.classify.code import Symbol
from specaudit.classify.holders import is_class, same
from specaudit.classify.proposers import Proposers
from specaudit.classify.roles import Roles
from specaudit.model import Verifier


class Installed:
    """Finds the methods of such verifiers."""

    def __init__(self, roles: Roles, proposers: Proposers) -> None:
        self.roles = roles
        self.code = roles.code
        self.callers = roles.callers
        self.proposers = proposers
        self._makes = {(site.path, site.line) for site in proposers.sites}

    def told(self, found: Iterable[Verifier]) -> tuple[Verifier, ...]:
        """The same verifiers, those that drafters put there with their methods."""
        return tuple(
            replace(verifier, methods=self._methods(verifier)) if verifier.reachable == "conditional" else verifier
            for verifier in found
        )

    def _methods(self, verifier: Verifier) -> tuple[str, ...]:
        objects = self.callers.objects
        labels, replacing = self._above(verifier)
        named: set[str] = set()
        for holder in (kept for above in replacing for cls in objects.subclasses(above) for kept in objects.of(cls)):
            drafter = objects.class_of(holder.path, holder.scope)
            methods = self._drafting(drafter, labels) if drafter is not None else None
            if methods is None:
                return ()
            named |= methods
        return tuple(method for method in self.proposers.methods.names if method in named)

    def _above(self, verifier: Verifier) -> tuple[set[str], list[Symbol]]:
        """The runners that reach a verifier, and the classes of objects in the place of others on every way to it."""
        definitions = self.code.index.outline(verifier.path).definitions
        symbol = next((Symbol(verifier.path, d) for d in definitions if d.line == verifier.line), None)
        if symbol is None:
            return set(), []
        if is_class(symbol):
            labels, passed = {verifier.runner}, [symbol]
        else:
            reach = self.roles.reach(symbol)
            owners = () if reach.settled else (self.code.owner(function) for function, _ in reach.passed.values())
            labels, passed = set(reach.runners), [owner for owner in owners if owner is not None and is_class(owner)]
        return labels, [cls for cls in passed if labels and self.callers.objects.replaces(cls)]

    def _drafting(self, cls: Symbol, labels: set[str]) -> set[str] | None:
        """The methods of the proposers that have a class behind them; ``None``: its objects may be there for others.

        A proposer of these runners whose class is not known, as one that the user names, may have it behind it, too.
        """
        for derived in self.callers.objects.subclasses(cls):
            if any((site.path, site.line) not in self._makes for site in self.callers.sites(derived)):
                return None
        drafting = [f for f in self.proposers.found if f.site.cls is not None and self._behind(cls, f.site.cls)]
        unknown = [f for f in self.proposers.found if f.site.cls is None and f.site.runner.label in labels]
        return {method for f in (*drafting, *unknown) for method in f.ways} if drafting else None

    def _behind(self, cls: Symbol, proposer: Symbol) -> bool:
        return any(same(cls, other) for other in self.code.bases(proposer))

"""Accepting functions -> their part in an engine: who launches them, which dispatchers lie between them and the runner.

A function that accepts by its shape alone is a verifier only where a runner reaches it, and not on the way to its
drafts: a chain of calls that passes the entry of a drafter is drafting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from specaudit.classify.callers import Callers, Site
from specaudit.classify.code import Code, Symbol
from specaudit.classify.facts import FunctionFacts
from specaudit.engines.base import RunnerAnchor

_DEPTH = 10
_COMMON = (list, dict, set, str)


@dataclass(frozen=True, slots=True)
class Accepting:
    """A function that accepts by its shape, where it is."""

    symbol: Symbol
    facts: FunctionFacts


@dataclass(slots=True)
class Reach:
    """What lies above one function: the runners that reach it, and every function passed on the way, with its sites.

    ``drafting``: some chain ends at the entry of a drafter. ``entered``: the sites inside runners. ``stubs``:
    functions that a decorator makes the launch of a kernel; their bodies only say with which grid and flags.
    ``settled``: some chain ends in a runner without an object that was put in the place of another one.
    """

    runners: dict[str, None] = field(default_factory=dict)
    passed: dict[tuple[str, str], tuple[Symbol, tuple[Site, ...]]] = field(default_factory=dict)
    entered: dict[Site, str] = field(default_factory=dict)
    stubs: set[tuple[str, str]] = field(default_factory=set)
    drafting: bool = False
    settled: bool = False


class Roles:
    """Reads the call graph above accepting functions."""

    def __init__(self, callers: Callers, runners: tuple[RunnerAnchor, ...]) -> None:
        self.callers = callers
        self.code: Code = callers.code
        self._reach: dict[tuple[str, str], Reach] = {}
        self._labels: dict[tuple[str, str], str] = {}
        self._behind: dict[tuple[str, str], str] = {}
        self._verifying: dict[str, str] = {}
        self._drafting: set[str] = set()
        for anchor in runners:
            runner = self.code.definition(anchor.path, anchor.cls)
            for cls in self.code.bases(runner) if runner is not None else ():
                self._behind[cls.path, cls.qualname] = anchor.label
            if not anchor.verifies:
                self._drafting.add(anchor.entry)
            elif runner is not None:
                self._verifying[anchor.entry] = anchor.label

    @property
    def known(self) -> bool:
        """The engine has a runner that the anchors name."""
        return bool(self._behind)

    def reach(self, symbol: Symbol) -> Reach:
        """Everything above that function."""
        key = symbol.path, symbol.qualname
        if key not in self._reach:
            self._reach[key] = self._climb(symbol)
        return self._reach[key]

    def _climb(self, start: Symbol) -> Reach:
        reach = Reach()
        todo = [(start, 0, True)]
        seen: set[tuple[str, str, bool]] = set()
        while todo:
            here, depth, settled = todo.pop(0)
            key = here.path, here.qualname
            settled = settled and not self._replaces(here)
            if (*key, settled) in seen or depth > _DEPTH:
                continue
            seen.add((*key, settled))
            sites = self.sites(here)
            reach.passed[key] = here, sites
            for site in sites:
                above = self.callers.enclosing(site)
                if above is None:
                    continue
                if site.how == "bound":
                    reach.stubs.add((above.path, above.qualname))
                label = self.runner_of(site)
                if label:
                    reach.runners[label] = None
                    reach.entered[site] = label
                    reach.settled = reach.settled or settled
                elif self._drafts(above):
                    reach.drafting = True
                else:
                    todo.append((above, depth + 1, settled))
        return reach

    def sites(self, function: Symbol) -> tuple[Site, ...]:
        """Who calls a function; for a method of objects that travel untold, the calls of that name inside runners."""
        found = self.callers.sites(function)
        owner = self.code.owner(function)
        if found or owner is None or owner.definition.kind != "class":
            return found
        if any(hasattr(known, function.name) for known in _COMMON):  # what is called may as well be one of those
            return found
        return tuple(site for site in self.callers.by_name(function) if self.runner_of(site))

    def runner_of(self, site: Site) -> str:
        """The label of the runner that a site stands in: its class, one behind it, or one derived from it; or a class
        that it asks for drafts which are verified already.
        """
        cls = self.callers.objects.class_of(site.path, site.scope)
        if cls is None:
            return ""
        key = cls.path, cls.qualname
        if key not in self._labels:
            found = [self._behind.get((c.path, c.qualname), "") for c in (cls, *self.code.bases(cls))]
            found += [label for entry, label in self._verifying.items() if self.code.method(cls, entry) is not None]
            self._labels[key] = next((label for label in found if label), "")
        return self._labels[key]

    def _replaces(self, method: Symbol) -> bool:
        """A method of objects that are put in the place of others."""
        owner = self.code.owner(method)
        return owner is not None and owner.definition.kind == "class" and self.callers.objects.replaces(owner)

    def _drafts(self, function: Symbol) -> bool:
        """A method of an object that is asked for drafts."""
        owner = self.code.owner(function)
        if owner is None or owner.definition.kind != "class":
            return False
        return any(self.code.method(owner, entry) is not None for entry in self._drafting)

    def launchers(self, kernel: Symbol) -> Iterator[tuple[Symbol, Site]]:
        """The functions that launch a kernel, with the site of the launch.

        A function that a decorator binds to the kernel is the launch itself: its callers are the launchers.
        """
        for site in self.sites(kernel):
            above = self.callers.enclosing(site)
            if above is None:
                continue
            if site.how != "bound":
                yield above, site
                continue
            for outer in self.callers.sites(above):
                launcher = self.callers.enclosing(outer)
                if launcher is not None:
                    yield launcher, outer

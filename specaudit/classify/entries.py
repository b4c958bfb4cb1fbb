"""One function -> its entry as a verifier: what its callers tell about it, beside what its body does."""

from __future__ import annotations

from specaudit.classify.code import Symbol
from specaudit.classify.roles import Roles
from specaudit.classify.selection import Selection
from specaudit.index import Index
from specaudit.model import Condition, Evidence, Reachable, Role, Verifier, Walk


class Entries:
    """Makes entries, with the runner that reaches a function, the settings on the way, and its launches."""

    def __init__(self, index: Index, roles: Roles, selection: Selection) -> None:
        self.index = index
        self.roles = roles
        self.selection = selection

    def of(self, symbol: Symbol, role: Role, walk: Walk, evidence: tuple[Evidence, ...], reason: str = "") -> Verifier:
        """The entry of one function, whose part, walk and evidence are known."""
        reach = self.roles.reach(symbol)
        launches = list(self.roles.launchers(symbol))
        conditions: tuple[Condition, ...] = ()
        if launches:
            conditions = self.selection.conditions(self.selection.of_launch(*launches[0]))
        called = tuple(self.index.evidence(site.path, site.line) for _, site in launches)
        always = bool(reach.runners) and not conditions and reach.settled
        reachable: Reachable = "dead" if not called else "default" if always else "conditional"
        if reachable == "dead":
            reason = reason or "nothing in the engine calls it"
        elif not reach.runners:
            reason = reason or "no call from a runner leads to it"
        elif not reach.settled:
            reason = reason or "it is called on an object that the engine puts in the place of another one"
        return Verifier(
            name=symbol.name,
            path=symbol.path,
            line=symbol.definition.line,
            role=role,
            walk=walk,
            runner=next(iter(reach.runners), ""),
            selected_by=conditions,
            called_from=called,
            reachable=reachable,
            evidence=evidence,
            reason=reason,
        )

    def behind(self, kernel: Symbol, flag: str) -> tuple[Condition, ...]:
        """What turns a kernel's flag on."""
        for _, site in self.roles.launchers(kernel):
            return self.selection.of_flag(kernel, site, flag)
        return (Condition(flag, "option", "is set", "", f"the kernel's flag {flag} is on"),)

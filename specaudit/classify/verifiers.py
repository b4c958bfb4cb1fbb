"""Index -> verifiers: every kernel, function, class and compiled operator that accepts or rejects drafts, with its
part.

A function is here because of what its body does (:mod:`.facts`) and because of who calls it (:mod:`.roles`); never
because of its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from specaudit.classify import draws
from specaudit.classify.callers import Callers, Site
from specaudit.classify.code import Code, Symbol
from specaudit.classify.compiled import Operator, Operators, Replacements
from specaudit.classify.facts import FunctionFacts, WalkFact, facts_of
from specaudit.classify.helpers import Launches
from specaudit.classify.roles import Accepting, Reach, Roles
from specaudit.classify.selection import Selection
from specaudit.classify.symbolic import Reader
from specaudit.engines.base import Engine
from specaudit.index import Index
from specaudit.model import Condition, Evidence, Reachable, Role, Runner, Verifier, Walk, WalkVariant

#: Functions above what accepts, with the places that call them.
Passed = dict[tuple[str, str], tuple[Symbol, tuple[Site, ...]]]

_PRECEDENCE: tuple[Walk, ...] = ("tree", "linear", "block", "synthetic", "lossy", "unknown")


def verifiers(index: Index, engine: Engine) -> tuple[Verifier, ...]:
    """Every verifier of one engine, by path and line.

    Args:
        index: its source.
        engine: its anchors, of which the runners and the names of settings are used.
    """
    return Verifiers(index, engine).all()


def with_runners(found: Iterable[Verifier], runners: Iterable[Runner]) -> tuple[Verifier, ...]:
    """The same, with what is reached through a runner that no method takes by default marked as conditional."""
    default = {runner.runner for runner in runners if runner.default}

    def settled(verifier: Verifier) -> Verifier:
        if verifier.reachable == "default" and verifier.runner and verifier.runner not in default:
            return replace(verifier, reachable="conditional")
        return verifier

    return tuple(settled(verifier) for verifier in found)


class Verifiers:
    """The parts of one engine's verification, read once."""

    def __init__(self, index: Index, engine: Engine) -> None:
        self.index = index
        self.code = Code(index, engine.package)
        self.callers = Callers(self.code)
        self.roles = Roles(self.callers, engine.runners)
        self.selection = Selection(Reader(self.code, engine), self.roles)
        self.launches = Launches(self.callers)
        self.operators = Operators(self.callers)
        found = list(self._accepting())
        self.prepasses = [a for a in found if _is_prepass(a.facts)]
        self.accepting = [a for a in found if not _is_prepass(a.facts) and self._counts(a)]
        self.keys = {_key(a.symbol) for a in (*self.accepting, *self.prepasses)}

    def all(self) -> tuple[Verifier, ...]:
        """Everything found, without duplicates."""
        operators = list(self._operators())
        found: dict[tuple[str, int, str], Verifier] = {}
        for verifier in (
            *(self._leaf(accepting) for accepting in self.accepting),
            *self._rewriting(),
            *self._replacing(),
            *(self._operator(operator) for operator in operators),
            *self._dispatching(operators),
            *self._helping(),
        ):
            found.setdefault((verifier.path, verifier.line, verifier.name), verifier)
        return tuple(sorted(found.values(), key=lambda v: (v.path, v.line, v.name)))

    # --- what accepts

    def _accepting(self) -> Iterator[Accepting]:
        for path, functions in facts_of(self.index).items():
            for known in functions:
                symbol = self.code.definition(path, known.qualname)
                if symbol is not None:
                    confirmed = draws.confirmed(self.code, symbol, known)
                    yield from self._kernels(Accepting(symbol, confirmed), 0)

    def _kernels(self, accepting: Accepting, depth: int) -> Iterator[Accepting]:
        """The function itself, or the kernels that call it where it is a part of kernels."""
        sites = self.callers.sites(accepting.symbol) if accepting.facts.device else ()
        inside = [self.callers.enclosing(site) for site in sites if not _launches(site)]
        kernels = [above for above in inside if above is not None and _is_kernel(above)]
        if not kernels or depth > 3 or any(_launches(site) for site in sites):
            yield accepting
            return
        for kernel in kernels:
            yield from self._kernels(Accepting(kernel, accepting.facts), depth + 1)

    def _counts(self, accepting: Accepting) -> bool:
        """A kernel counts unless it is on the way to drafts alone; other code compares tokens for many reasons, and
        counts where a runner reaches it (or where no runner is known)."""
        reach = self.roles.reach(accepting.symbol)
        if reach.runners:
            return True
        return not reach.drafting and (accepting.facts.device or not self.roles.known)

    def _leaf(self, accepting: Accepting) -> Verifier:
        """The entry of a kernel or function that accepts."""
        symbol, known = accepting.symbol, accepting.facts
        plain = sorted({w.walk for w in known.walks if not w.flag}, key=_PRECEDENCE.index)
        first = plain[0] if plain else known.walks[0].walk
        variants = [WalkVariant(walk, (), _line(known, walk, "")) for walk in plain[1:]]
        behind: tuple[Condition, ...] = ()
        for fact in _behind_flags(known):
            conditions = self._flag(symbol, fact.flag)
            if plain:
                variants.append(WalkVariant(fact.walk, conditions, fact.branch or fact.line))
            else:
                behind = conditions
        role: Role = "kernel" if known.device else "function"
        lines = dict.fromkeys(line for w in known.walks for line in (w.branch, w.line) if line)
        evidence = tuple(self.index.evidence(symbol.path, line) for line in lines)
        reason = "" if first != "unknown" else f"nothing says whether {', '.join(known.draws)} draws random numbers"
        found = self._entry(symbol, role, first, evidence, reason)
        return replace(found, variants=tuple(variants), selected_by=(*found.selected_by, *behind))

    def _flag(self, kernel: Symbol, name: str) -> tuple[Condition, ...]:
        for _, site in self.roles.launchers(kernel):
            return self.selection.of_flag(kernel, site, name)
        return (Condition(name, "option", "is set", "", f"the kernel's flag {name} is on"),)

    def _entry(
        self, symbol: Symbol, role: Role, walk: Walk, evidence: tuple[Evidence, ...], reason: str = ""
    ) -> Verifier:
        """The part of an entry that comes from its callers."""
        reach = self.roles.reach(symbol)
        launches = list(self.roles.launchers(symbol))
        conditions: tuple[Condition, ...] = ()
        if launches:
            conditions = self.selection.conditions(self.selection.of_launch(*launches[0]))
        called = tuple(self.index.evidence(site.path, site.line) for _, site in launches)
        reachable: Reachable = "dead" if not called else "conditional" if conditions or not reach.runners else "default"
        if reachable == "dead":
            reason = reason or "nothing in the engine calls it"
        elif not reach.runners:
            reason = reason or "no call from a runner leads to it"
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

    # --- what stands beside it

    def _rewriting(self) -> Iterator[Verifier]:
        """Pre-passes: what they overwrite is compared by an accepting kernel that is launched after them."""
        for prepass in self.prepasses:
            rewritten = next(w.rewrites for w in prepass.facts.walks if w.rewrites)
            for function, site in self.roles.launchers(prepass.symbol):
                below = list(self.launches.below(function))
                tensors = {
                    n[rewritten] for k, s, n in below if _same(k, prepass.symbol) and s == site and rewritten in n
                }
                if any(self._compares(kernel, names, tensors) and s.line > site.line for kernel, s, names in below):
                    lines = dict.fromkeys(w.line for w in prepass.facts.walks)
                    evidence = tuple(self.index.evidence(prepass.symbol.path, line) for line in lines)
                    yield self._entry(
                        prepass.symbol, "kernel", "lossy", evidence, "a pre-pass that rewrites what is compared"
                    )

    def _compares(self, kernel: Symbol, names: dict[str, str], tensors: set[str]) -> bool:
        for accepting in self.accepting:
            if _same(accepting.symbol, kernel):
                return any(names.get(param) in tensors for param in accepting.facts.reads)
        return False

    def _replacing(self) -> Iterator[Verifier]:
        """What a platform puts in the place of an accepting kernel."""
        replacements = Replacements(self.callers)
        for accepting in self.accepting:
            for found in replacements.of(accepting.symbol) if accepting.facts.device else ():
                where = found.function
                yield Verifier(
                    name=found.operator,
                    path=where.path,
                    line=where.definition.line,
                    role="compiled",
                    walk="unknown",
                    runner=next(iter(self.roles.reach(accepting.symbol).runners), ""),
                    called_from=(found.registered,),
                    reachable="conditional",
                    evidence=(found.call,),
                    reason=f"its body is compiled; it takes the place of {accepting.symbol.name} on some platforms",
                )

    def _operators(self) -> Iterator[Operator]:
        yield from self.operators.of_trees()
        passed = {_key(s): s for a in self.accepting for s, _ in self.roles.reach(a.symbol).passed.values()}
        for symbol in passed.values():
            if _key(symbol) not in self.keys:
                yield from self.operators.beside(symbol, lambda target: _key(target) in passed)

    def _operator(self, operator: Operator) -> Verifier:
        function = operator.function
        walk: Walk = "tree" if operator.links else "unknown"
        reason = "its body is compiled"
        if operator.links:
            reason += f"; it is handed the links of a tree: {', '.join(operator.links)}"
        found = self._entry(function, "compiled", walk, (operator.call,), reason)
        return replace(found, name=operator.name, called_from=(operator.call, *found.called_from))

    # --- what leads to it

    def _dispatching(self, operators: list[Operator]) -> Iterator[Verifier]:
        below: dict[tuple[str, str], set[object]] = {}
        passed: Passed = {}
        stubs: set[tuple[str, str]] = set()
        for leaf, ends in (
            *((a.symbol, _ends(a)) for a in self.accepting),
            *((o.function, _end(o)) for o in operators),
        ):
            reach = self.roles.reach(leaf)
            stubs |= reach.stubs
            for key, found in reach.passed.items():
                passed[key] = found
                below.setdefault(key, set()).update(ends)
        for key, (symbol, sites) in passed.items():
            if key in self.keys or key in stubs or _is_kernel(symbol):
                continue
            entered = [site for site in sites if self.roles.runner_of(site)]
            if self._is_method(symbol):
                yield from self._classes(symbol, entered)
            elif entered or (len(below[key]) > 1 and sites and self._is_reached(symbol)):
                lines = [o.call.line for o in operators if _same(o.function, symbol)]
                yield self._entry(symbol, "function", "dispatcher", self._leading(symbol, passed, lines))

    def _is_reached(self, symbol: Symbol) -> bool:
        """From a runner, where the engine has any that verify."""
        return bool(self.roles.reach(symbol).runners) or not any(
            self.roles.reach(a.symbol).runners for a in self.accepting
        )

    def _is_method(self, symbol: Symbol) -> bool:
        owner = self.code.owner(symbol)
        return owner is not None and owner.definition.kind == "class"

    def _classes(self, method: Symbol, entered: list[Site]) -> Iterator[Verifier]:
        """The classes whose objects the runner keeps and calls."""
        owner = self.code.owner(method)
        if owner is None or not entered:
            return
        for cls in self.callers.subclasses(owner):
            found = self.code.method(cls, method.name)
            holders = self.callers.holders(cls) if found is not None and _same(found, method) else ()
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
                evidence=(self.index.evidence(method.path, method.definition.line),),
            )

    def _leading(self, symbol: Symbol, passed: Passed, more: list[int]) -> tuple[Evidence, ...]:
        """The lines in a dispatcher that lead on to what accepts."""
        places = [
            s for _, sites in passed.values() for s in sites if (s.path, s.scope) == (symbol.path, symbol.qualname)
        ]
        lines = sorted({*more, *(site.line for site in places if site.how == "call")})
        return tuple(self.index.evidence(symbol.path, line) for line in lines)

    def _helping(self) -> Iterator[Verifier]:
        """Kernels that the same dispatcher launches and that take part in the arithmetic without deciding."""
        seen: set[tuple[str, str]] = set()
        for function in self._launching():
            below = list(self.launches.below(function))
            tensors = {
                names[param]
                for kernel, _, names in below
                for accepting in self.accepting
                if _same(accepting.symbol, kernel)
                for param in accepting.facts.reads
                if param in names
            }
            for kernel, _, names in below:
                if _key(kernel) in self.keys or _key(kernel) in seen:
                    continue
                seen.add(_key(kernel))
                if any(
                    len({names.get(param) for param in params} & tensors) > 1 for params in self.launches.stored(kernel)
                ):
                    line = (self.index.evidence(kernel.path, kernel.definition.line),)
                    yield self._entry(kernel, "kernel", "helper", line)

    def _launching(self) -> list[Symbol]:
        launchers = [f for a in self.accepting if a.facts.device for f, _ in self.roles.launchers(a.symbol)]
        return list({_key(function): function for function in launchers}.values())


def _key(symbol: Symbol) -> tuple[str, str]:
    return symbol.path, symbol.qualname


def _same(one: Symbol, other: Symbol) -> bool:
    return _key(one) == _key(other)


def _is_prepass(known: FunctionFacts) -> bool:
    return all(walk.rewrites for walk in known.walks)


def _is_kernel(symbol: Symbol) -> bool:
    return any("jit" in decorator for decorator in symbol.definition.decorators)


def _launches(site: Site) -> bool:
    return site.how == "bound" or (site.call is not None and "[" in site.call.func)


def _ends(accepting: Accepting) -> set[object]:
    """The ways in which one accepting function walks, as things to choose between."""
    return {(_key(accepting.symbol), walk.walk) for walk in accepting.facts.walks}


def _end(operator: Operator) -> set[object]:
    return {(operator.name, operator.call.path, operator.call.line)}


def _behind_flags(known: FunctionFacts) -> list[WalkFact]:
    """One fact for each flag and walk, the first by line."""
    found: dict[tuple[str, str], WalkFact] = {}
    for fact in known.walks:
        if fact.flag:
            found.setdefault((fact.flag, fact.walk), fact)
    return sorted(found.values(), key=lambda f: f.branch or f.line)


def _line(known: FunctionFacts, walk: Walk, flag: str) -> int:
    return next(w.line for w in known.walks if w.walk == walk and w.flag == flag)


__all__ = ["Reach", "Verifiers", "verifiers", "with_runners"]

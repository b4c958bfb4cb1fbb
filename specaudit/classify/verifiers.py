"""Index -> verifiers: every kernel, function, class and compiled operator that accepts or rejects drafts, with its
part.

A function is here because of what its body does (:mod:`.facts`) and because of who calls it (:mod:`.roles`); never
because of its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from specaudit.classify import draws
from specaudit.classify.callers import Callers, Site
from specaudit.classify.code import Code, Symbol
from specaudit.classify.compiled import Operator, Operators, Replacements
from specaudit.classify.dispatchers import Dispatchers, End, Key, is_kernel
from specaudit.classify.entries import Entries
from specaudit.classify.facts import FunctionFacts, WalkFact, facts_of
from specaudit.classify.helpers import Launches
from specaudit.classify.holders import same
from specaudit.classify.roles import Accepting, Roles
from specaudit.classify.selection import Selection
from specaudit.classify.symbolic import Reader
from specaudit.engines.base import Engine
from specaudit.index import Index
from specaudit.model import Condition, Role, Runner, Verifier, Walk, WalkVariant

_PRECEDENCE: tuple[Walk, ...] = ("tree", "linear", "block", "synthetic", "lossy", "unknown")


def verifiers(index: Index, engine: Engine) -> tuple[Verifier, ...]:
    """Every verifier of one engine, by path and line.

    Args:
        index: its source.
        engine: its anchors, of which the runners and the names of settings are used.
    """
    return Verifiers(Reader(Code(index, engine.package), engine)).all(facts_of(index))


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

    def __init__(self, reader: Reader) -> None:
        self.code: Code = reader.code
        self.index = self.code.index
        self.callers = Callers(self.code)
        self.roles = Roles(self.callers, reader.engine.runners)
        self.entries = Entries(self.index, self.roles, Selection(reader, self.roles))
        self.launches = Launches(self.callers)
        self.operators = Operators(self.callers)
        self.of_trees = tuple(self.operators.of_trees())
        self.prepasses: list[Accepting] = []
        self.accepting: list[Accepting] = []
        self.keys: set[Key] = set()

    def all(self, facts: Mapping[str, tuple[FunctionFacts, ...]]) -> tuple[Verifier, ...]:
        """Everything found, without duplicates.

        Args:
            facts: of every file, by path.
        """
        accepting = list(self._accepting(facts))
        self.prepasses = [a for a in accepting if _is_prepass(a.facts)]
        self.accepting = [a for a in accepting if not _is_prepass(a.facts) and self._counts(a)]
        self.keys = {_key(a.symbol) for a in (*self.accepting, *self.prepasses)}
        operators = list(self._operators())
        ends = [*map(_end, self.accepting), *map(_out, operators)]
        found: dict[tuple[str, int, str], Verifier] = {}
        for verifier in (
            *map(self._leaf, self.accepting),
            *self._rewriting(),
            *self._replacing(),
            *map(self._operator, operators),
            *Dispatchers(self.entries).between(ends, self.keys),
            *self._helping(),
        ):
            found.setdefault((verifier.path, verifier.line, verifier.name), verifier)
        return tuple(sorted(found.values(), key=lambda v: (v.path, v.line, v.name)))

    # --- what accepts

    def _accepting(self, facts: Mapping[str, tuple[FunctionFacts, ...]]) -> Iterator[Accepting]:
        for path, functions in facts.items():
            for known in functions:
                symbol = self.code.definition(path, known.qualname)
                if symbol is not None:
                    confirmed = draws.confirmed(self.code, symbol, known)
                    yield from self._kernels(Accepting(symbol, confirmed), 0)

    def _kernels(self, accepting: Accepting, depth: int) -> Iterator[Accepting]:
        """The function itself, or the kernels that call it where it is a part of kernels."""
        sites = self.callers.sites(accepting.symbol) if accepting.facts.device else ()
        inside = [self.callers.enclosing(site) for site in sites if not _launches(site)]
        kernels = [above for above in inside if above is not None and is_kernel(above)]
        if not kernels or depth > 3 or any(_launches(site) for site in sites):
            yield accepting
            return
        for kernel in kernels:
            yield from self._kernels(Accepting(kernel, accepting.facts), depth + 1)

    def _counts(self, accepting: Accepting) -> bool:
        """A kernel counts unless it is on the way to drafts alone; other code compares tokens for many reasons, and
        counts where a runner reaches it. Where no runner is known, work on whole tensors counts, too: a loop over two
        lists of tokens may look for a common prefix.
        """
        reach = self.roles.reach(accepting.symbol)
        if reach.runners:
            return True
        form = accepting.facts.form
        return not reach.drafting and (form == "device" or (form == "tensor" and not self.roles.known))

    def _leaf(self, accepting: Accepting) -> Verifier:
        """The entry of a kernel or function that accepts."""
        symbol, known = accepting.symbol, accepting.facts
        plain = sorted({w.walk for w in known.walks if not w.flag}, key=_PRECEDENCE.index)
        first = plain[0] if plain else known.walks[0].walk
        variants = [WalkVariant(walk, (), _line(known, walk)) for walk in plain[1:]]
        behind: tuple[Condition, ...] = ()
        for fact in _behind_flags(known):
            conditions = self.entries.behind(symbol, fact.flag)
            if plain:
                variants.append(WalkVariant(fact.walk, conditions, fact.branch or fact.line))
            else:
                behind = conditions
        role: Role = "kernel" if known.device else "function"
        lines = dict.fromkeys(line for w in known.walks for line in (w.branch, w.line) if line)
        evidence = tuple(self.index.evidence(symbol.path, line) for line in lines)
        reason = "" if first != "unknown" else f"nothing says whether {', '.join(known.draws)} draws random numbers"
        found = self.entries.of(symbol, role, first, evidence, reason)
        return replace(found, variants=tuple(variants), selected_by=(*found.selected_by, *behind))

    # --- what stands beside it

    def _rewriting(self) -> Iterator[Verifier]:
        """Pre-passes: what they overwrite is compared by an accepting kernel that is launched after them."""
        for prepass in self.prepasses:
            rewritten = next(w.rewrites for w in prepass.facts.walks if w.rewrites)
            for function, site in self.roles.launchers(prepass.symbol):
                below = list(self.launches.below(function))
                tensors = {
                    n[rewritten] for k, s, n in below if same(k, prepass.symbol) and s == site and rewritten in n
                }
                if any(self._compares(kernel, names, tensors) and s.line > site.line for kernel, s, names in below):
                    lines = dict.fromkeys(w.line for w in prepass.facts.walks)
                    evidence = tuple(self.index.evidence(prepass.symbol.path, line) for line in lines)
                    reason = "a pre-pass that rewrites what is compared"
                    yield self.entries.of(prepass.symbol, "kernel", "lossy", evidence, reason)

    def _compares(self, kernel: Symbol, names: dict[str, str], tensors: set[str]) -> bool:
        found = next((a for a in self.accepting if same(a.symbol, kernel)), None)
        return found is not None and any(names.get(param) in tensors for param in found.facts.reads)

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
        yield from self.of_trees
        passed = {_key(s): s for a in self.accepting for s, _ in self.roles.reach(a.symbol).passed.values()}
        for symbol in passed.values():
            if _key(symbol) not in self.keys:
                yield from self.operators.beside(symbol, lambda target: _key(target) in passed)

    def _operator(self, operator: Operator) -> Verifier:
        walk: Walk = "tree" if operator.links else "unknown"
        reason = "its body is compiled"
        if operator.links:
            reason += f"; it is handed the links of a tree: {', '.join(operator.links)}"
        found = self.entries.of(operator.function, "compiled", walk, (operator.call,), reason)
        return replace(found, name=operator.name, called_from=(operator.call, *found.called_from))

    def _helping(self) -> Iterator[Verifier]:
        """Kernels that the same dispatcher launches and that take part in the arithmetic without deciding."""
        seen: set[Key] = set()
        for function in self._launching():
            below = list(self.launches.below(function))
            tensors = {
                names[param]
                for kernel, _, names in below
                for accepting in self.accepting
                if same(accepting.symbol, kernel)
                for param in accepting.facts.reads
                if param in names
            }
            for kernel, _, names in below:
                if _key(kernel) in self.keys or _key(kernel) in seen:
                    continue
                seen.add(_key(kernel))
                stored = self.launches.stored(kernel)
                if any(len({names.get(param) for param in params} & tensors) > 1 for params in stored):
                    line = (self.index.evidence(kernel.path, kernel.definition.line),)
                    yield self.entries.of(kernel, "kernel", "helper", line)

    def _launching(self) -> list[Symbol]:
        launchers = [f for a in self.accepting if a.facts.device for f, _ in self.roles.launchers(a.symbol)]
        return list({_key(function): function for function in launchers}.values())


def _key(symbol: Symbol) -> Key:
    return symbol.path, symbol.qualname


def _is_prepass(known: FunctionFacts) -> bool:
    return all(walk.rewrites for walk in known.walks)


def _launches(site: Site) -> bool:
    return site.how == "bound" or (site.call is not None and "[" in site.call.func)


def _end(accepting: Accepting) -> End:
    """Each walk of an accepting function is one way to go on."""
    ways = frozenset((_key(accepting.symbol), walk.walk) for walk in accepting.facts.walks)
    return End(accepting.symbol, ways)


def _out(operator: Operator) -> End:
    line = operator.call.line
    return End(operator.function, frozenset(((operator.name, operator.call.path, line),)), (line,))


def _behind_flags(known: FunctionFacts) -> list[WalkFact]:
    """One fact for each flag and walk, the first by line."""
    found: dict[tuple[str, str], WalkFact] = {}
    for fact in known.walks:
        if fact.flag:
            found.setdefault((fact.flag, fact.walk), fact)
    return sorted(found.values(), key=lambda f: f.branch or f.line)


def _line(known: FunctionFacts, walk: Walk) -> int:
    return next(w.line for w in known.walks if w.walk == walk and not w.flag)

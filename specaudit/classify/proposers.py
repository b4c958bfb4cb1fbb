"""Every class that drafts: where a runner makes it, under which test, for which methods, and what it emits.

A proposer is found by structure: the runner keeps an object and calls its entry; whatever is stored there (made in the
runner, or returned by a function the runner calls) is a proposer, under the tests around the line that makes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from specaudit.classify.building import Building
from specaudit.classify.code import Symbol
from specaudit.classify.conditions import Formula, conj, quiet, usual, words
from specaudit.classify.emission import Emission
from specaudit.classify.making import Making, Site
from specaudit.classify.members import Members
from specaudit.classify.methods import Methods
from specaudit.classify.runners import RunnerChoice
from specaudit.classify.symbolic import Reader
from specaudit.classify.topology import Verdict, judge, possible
from specaudit.classify.ways import alternatives, deviations, satisfiable, stated
from specaudit.engines.base import RunnerAnchor
from specaudit.model import Condition, Proposer, Reachable, Topology, TopologyVariant


@dataclass(frozen=True, slots=True)
class Found:
    """A proposer of the report with the site it was found at and, per method, the formula that leads to it."""

    proposer: Proposer
    site: Site
    ways: Mapping[str, Formula]


class Proposers:
    """All proposers of one engine."""

    def __init__(self, reader: Reader, choice: RunnerChoice, methods: Methods) -> None:
        self.reader = reader
        self.code = reader.code
        self.index = reader.code.index
        self.choice = choice
        self.methods = methods
        self.emissions = {a.label: Emission(reader, a.runs) for a in choice.present}
        self.building = Building(self.code, Members(self.code))
        making = Making(reader)
        self.sites = tuple(site for anchor in choice.present for site in making.sites(anchor))
        self.found = tuple(self._describe())

    # --- what they are

    def _describe(self) -> Iterator[Found]:
        emissions = self.emissions
        for site in self.sites:
            ways = {}
            for method in self.methods.names:
                chosen = quiet(self.methods.at(self.choice.formula(site.runner.label), method))
                f = conj((chosen, possible(self.methods.at(site.formula, method))))
                if satisfiable(f):
                    ways[method] = f
            if ways:
                yield Found(self._proposer(site, ways, emissions[site.runner.label]), site, ways)
        yield from self._dead(emissions)

    def _proposer(self, site: Site, ways: Mapping[str, Formula], emission: Emission) -> Proposer:
        reachable, conditions = self._reach(site, ways)
        target = site.cls or site.maker
        path, line = target.path, target.definition.line
        if site.lost and target.definition.kind != "class":
            path, line = site.path, site.line
        main, variants = self._topology(site, tuple(ways), emission)
        lines = (
            self.index.evidence(site.path, site.line),
            self.index.evidence(path, line),
            *main.evidence,
        )
        return Proposer(
            name=site.named or (target.name if site.cls is not None else f"<user class> via {target.name}()"),
            path=path,
            line=line,
            methods=tuple(ways),
            runner=site.runner.label,
            topology=main.topology,
            variants=variants,
            reachable=reachable,
            conditions=conditions,
            evidence=tuple(dict.fromkeys(lines)),
            reason=main.reason,
        )

    def _topology(
        self, site: Site, methods: tuple[str, ...], emission: Emission
    ) -> tuple[Verdict, tuple[TopologyVariant, ...]]:
        if site.lost:
            return Verdict("unknown", (), reason=f"{site.lost} could not be read"), ()
        if site.cls is None:
            return Verdict("unknown", (), reason="the class is named by the user and looked up at run time"), ()
        built = self.building.reached(site.cls, site.runner.entry)
        if built:
            return Verdict("tree-dynamic", built), ()
        if site.runner.verifies:
            why = f"its {site.runner.entry}() drafts and verifies and builds no tree; which drafts it makes is not told"
            return Verdict("unknown", (), reason=why), ()
        summary = emission.of(site.cls, site.runner.entry)
        assert summary is not None
        verdicts = {m: judge(emission, summary, self.methods.settings(m)) for m in methods}
        main = verdicts[methods[0]]
        variants: dict[tuple[Topology, tuple[Condition, ...]], TopologyVariant] = {}
        for method, verdict in verdicts.items():
            option = self.methods.anchors.method_field
            own = (Condition(option, "option", "==", method, words(option, "==", method)),)
            differs = (
                [TopologyVariant(verdict.topology, own, (), verdict.evidence)]
                if verdict.topology != main.topology
                else []
            )
            for variant in (*differs, *verdict.variants):
                when = self._with_tree(site, variant.topology, variant.when)
                known = variants.get((variant.topology, when))
                names = (*known.methods, method) if known else (method,)
                variants[variant.topology, when] = TopologyVariant(variant.topology, when, names, variant.evidence)
        return main, tuple(variants.values())

    def _with_tree(self, site: Site, topology: Topology, when: tuple[Condition, ...]) -> tuple[Condition, ...]:
        """A tree whose shape the class takes from the configuration needs that shape to be configured."""
        option = self.methods.anchors.tree_field
        if not topology.startswith("tree") or not option or site.cls is None:
            return when
        shaped = any(
            f".{option}" in a.value for c in self.code.bases(site.cls) for a in self.code.assigns(c.path, c.qualname)
        )
        return (*when, Condition(option, "option", "is set", "", words(option, "is set", ""))) if shaped else when

    def _reach(self, site: Site, ways: Mapping[str, Formula]) -> tuple[Reachable, tuple[Condition, ...]]:
        """Whether one of its methods reaches it with nothing configured, and what all its methods need besides."""
        plain = {m: alternatives(usual(f)) for m, f in ways.items()}
        if any(plain.values()):
            needed = [set(stated(w)) for found in plain.values() for w in found]
            return "default", self._common(needed, [stated(w) for found in plain.values() for w in found])
        changed = [stated(w) for f in ways.values() for w in deviations(f)[:1]]
        return "conditional", self._common([set(c) for c in changed], changed)

    @staticmethod
    def _common(sets: list[set[Condition]], ordered: list[tuple[Condition, ...]]) -> tuple[Condition, ...]:
        if not sets:
            return ()
        shared = set.intersection(*sets)
        return tuple(c for c in ordered[0] if c in shared)

    # --- those that nobody makes

    def _dead(self, emissions: Mapping[str, Emission]) -> Iterable[Found]:
        """Classes with an entry, in the folders of those in use, that nothing in the engine makes, subclasses or
        calls.
        """
        made = [site.cls for site in self.sites if site.cls is not None]
        used = {(c.path, c.qualname) for cls in made for c in self.code.bases(cls)}
        for anchor in self.choice.present:
            folders = {_folder(site.cls.path) for site in self.sites if site.cls is not None and site.runner is anchor}
            near = [p for p in self.index.paths if _folder(p) in folders]
            for path in self.index.mentioning(b"class ", near):
                for definition in self.index.outline(path).definitions:
                    cls = Symbol(path, definition)
                    if (
                        definition.kind != "class"
                        or (path, cls.qualname) in used
                        or self.code.method(cls, anchor.entry) is None
                    ):
                        continue
                    used.add((path, cls.qualname))
                    if not self._is_used(cls):
                        yield self._unused(cls, anchor, emissions[anchor.label])

    def _is_used(self, cls: Symbol) -> bool:
        for path in self.index.mentioning(cls.name.encode()):
            outline = self.index.outline(path)
            if any(
                c.func == cls.name or c.func.endswith(f".{cls.name}") or c.func.startswith(f"{cls.name}.")
                for c in outline.calls
            ):
                return True
            if any(
                base.partition("[")[0].rpartition(".")[2] == cls.name for d in outline.definitions for base in d.bases
            ):
                return True
        return False

    def _unused(self, cls: Symbol, anchor: RunnerAnchor, emission: Emission) -> Found:
        summary = emission.of(cls, anchor.entry)
        assert summary is not None
        verdict = judge(emission, summary, self.methods.settings(self.methods.names[0]))
        line = self.index.evidence(cls.path, cls.definition.line)
        site = Site(anchor, cls, cls, cls.path, cls.definition.line, False, (), (), "")
        evidence = tuple(dict.fromkeys((line, *verdict.evidence)))
        reason = "nothing in the engine makes an object of this class"
        proposer = Proposer(
            cls.name,
            cls.path,
            cls.definition.line,
            (),
            anchor.label,
            verdict.topology,
            (),
            "dead",
            (),
            evidence,
            reason,
        )
        return Found(proposer, site, {})


def _folder(path: str) -> str:
    return path.rpartition("/")[0]

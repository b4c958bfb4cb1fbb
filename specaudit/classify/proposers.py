"""Every class that drafts: where a runner makes it, under which test, for which methods, and what it emits.

A proposer is found by structure: the runner keeps an object and calls its entry; whatever is stored there (made in the
runner, or returned by a function the runner calls) is a proposer, under the tests around the line that makes it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from specaudit.classify.building import Building
from specaudit.classify.code import Symbol, dotted
from specaudit.classify.conditions import (
    Formula,
    alternatives,
    conj,
    deviations,
    quiet,
    satisfiable,
    stated,
    usual,
    words,
)
from specaudit.classify.emission import Emission
from specaudit.classify.members import Members
from specaudit.classify.methods import Methods
from specaudit.classify.places import Place
from specaudit.classify.runners import RunnerChoice
from specaudit.classify.symbolic import Reader
from specaudit.classify.topology import Verdict, judge, possible
from specaudit.engines.base import RunnerAnchor
from specaudit.model import Condition, Evidence, Proposer, Reachable, Topology, TopologyVariant


@dataclass(frozen=True, slots=True)
class Site:
    """One line that makes a proposer: the class (``None``: a class the user names), its tests as a formula, and the
    way there.

    ``tests`` are the lines of the tests passed on the way, ``via`` the lines that lead from the runner to ``line``.
    """

    runner: RunnerAnchor
    cls: Symbol | None
    maker: Symbol
    path: str
    line: int
    formula: Formula
    tests: tuple[Evidence, ...]
    via: tuple[Evidence, ...]
    attribute: str


@dataclass(frozen=True, slots=True)
class _Way:
    """How far the search for a proposer's class has come: the tests and lines behind it, and where the object is
    kept.
    """

    formula: Formula = True
    tests: tuple[Evidence, ...] = ()
    via: tuple[Evidence, ...] = ()
    attribute: str = ""


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
        self.sites = tuple(site for anchor in choice.present for site in self._sites(anchor))
        self.found = tuple(self._describe())

    # --- where they are made

    def _sites(self, anchor: RunnerAnchor) -> Iterator[Site]:
        outline = self.index.outline(anchor.path)
        kept = {
            c.func.split(".")[1]
            for c in outline.calls
            if c.func.startswith("self.") and c.func.endswith(f".{anchor.entry}") and c.func.count(".") == 2
        }
        places = [a for a in outline.assigns if a.target.startswith("self.") and a.target[5:] in kept]
        if not places and not kept:
            places = [a for a in outline.assigns if a.scope.startswith(f"{anchor.cls}.") and a.target.isidentifier()]
        for scope in dict.fromkeys(a.scope for a in places):
            lines = {a.line: a.target.removeprefix("self.") for a in places if a.scope == scope}
            yield from self._made_in(anchor, anchor.path, scope, lines, _Way())

    def _made_in(
        self, anchor: RunnerAnchor, path: str, scope: str, lines: Mapping[int, str], way: _Way
    ) -> Iterator[Site]:
        """The sites among the statements at ``lines`` of one function (all returns when ``lines`` is empty)."""
        function = self.code.definition(path, scope)
        for place in self.reader.places(function) if function is not None else ():
            statement = place.statement
            wanted = statement.lineno in lines if lines else isinstance(statement, ast.Return)
            if not wanted or not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Return)):
                continue
            for call in place.calls:
                made = self.code.resolve(path, scope, dotted(call.func))
                attribute = lines.get(statement.lineno, way.attribute)
                formula = conj((way.formula, place.formula))
                passed = (*way.tests, *self._tests(place, path))
                if made is not None and made.definition.kind == "class" and self._drafts(made, anchor):
                    yield Site(anchor, made, made, path, call.lineno, formula, passed, way.via, attribute)
                elif made is not None and made.definition.kind == "function" and formula is not False:
                    step = (
                        *way.via,
                        self.index.evidence(path, call.lineno),
                        self.index.evidence(made.path, made.definition.line),
                    )
                    further = _Way(formula, passed, step, attribute)
                    inner = list(self._made_in(anchor, made.path, made.qualname, {}, further)) if lines else []
                    yield from inner
                    if lines and not inner and self._user_class(made):
                        yield Site(anchor, None, made, path, call.lineno, formula, passed, way.via, attribute)

    def _tests(self, place: Place, path: str) -> tuple[Evidence, ...]:
        return tuple(self.index.evidence(path, test.lineno) for test, _ in place.tests)

    def _drafts(self, cls: Symbol, anchor: RunnerAnchor) -> bool:
        return self.code.method(cls, anchor.entry) is not None

    def _user_class(self, function: Symbol) -> bool:
        """Whether a function makes an object of a class that it looked up by name at run time."""
        node = self.code.function(function)
        if node is None:
            return False
        looked_up = {
            target.id
            for n in ast.walk(node)
            if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call) and dotted(n.value.func) == "getattr"
            for target in n.targets
            if isinstance(target, ast.Name)
        }
        return any(isinstance(n, ast.Call) and dotted(n.func) in looked_up for n in ast.walk(node))

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
        made_at = self.index.evidence(site.path, site.line)
        name, target = (
            (site.cls.name, site.cls) if site.cls is not None else (f"<user class> via {site.maker.name}()", site.maker)
        )
        if site.cls is None:
            reason = "the class is named by the user and looked up at run time"
            return Proposer(
                name,
                target.path,
                target.definition.line,
                tuple(ways),
                site.runner.label,
                "unknown",
                (),
                reachable,
                conditions,
                (made_at, self.index.evidence(target.path, target.definition.line)),
                reason,
            )
        main, variants = self._topology(site, tuple(ways), emission)
        evidence = tuple(
            dict.fromkeys((made_at, self.index.evidence(target.path, target.definition.line), *main.evidence))
        )
        return Proposer(
            name,
            target.path,
            target.definition.line,
            tuple(ways),
            site.runner.label,
            main.topology,
            variants,
            reachable,
            conditions,
            evidence,
        )

    def _topology(
        self, site: Site, methods: tuple[str, ...], emission: Emission
    ) -> tuple[Verdict, tuple[TopologyVariant, ...]]:
        assert site.cls is not None
        summary = emission.of(site.cls, site.runner.entry)
        assert summary is not None
        built = self.building.reached(site.cls, site.runner.entry)
        if built:
            return Verdict("tree-dynamic", built), ()
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

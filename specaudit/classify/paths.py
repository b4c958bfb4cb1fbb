"""The way from configuration to kernel for one method under given settings, hop by hop.

Each hop is a line of the engine: what the configuration does with the method, how the runner and the proposer are
chosen, what the proposer does, and how its drafts are verified. Tests that could lead elsewhere stay in the list;
where they lead is told by :class:`specaudit.model.Runner` and by each proposer's variants. What another draft model
would get in the chosen one's place is marked ``otherwise``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from specaudit.classify.conditions import Formula, assume, quiet, usual
from specaudit.classify.deciding import Deciding, Request, options_in
from specaudit.classify.events import Event
from specaudit.classify.methods import Methods
from specaudit.classify.proposers import Found, Proposers
from specaudit.classify.runners import RunnerChoice
from specaudit.classify.sampling import Sampling, Step
from specaudit.classify.scopes import Scope
from specaudit.classify.symbolic import Reader
from specaudit.classify.topology import possible
from specaudit.classify.ways import alternatives, complete, stated
from specaudit.engines.base import RunnerAnchor
from specaudit.model import Condition, Evidence, Hop, HopKind, Path, Verifier

_SHOWN = frozenset({"run", "return", "loop", "enter", "def", "kernel", "value"})


class Tracer:
    """Traces one engine."""

    def __init__(
        self,
        reader: Reader,
        methods: Methods,
        choice: RunnerChoice,
        proposers: Proposers,
        verifiers: tuple[Verifier, ...],
    ) -> None:
        self.reader = reader
        self.code = reader.code
        self.index = reader.code.index
        self.choice = choice
        self.proposers = proposers
        self.deciding = Deciding(reader, methods, choice)
        self.sampling = Sampling(reader, verifiers)

    def paths(self, request: Request) -> tuple[Path, ...]:
        """The paths that the request takes: one, or one per runner where the model decides between them."""
        out: list[Path] = []
        for anchor in self.choice.present:
            found = [f for f in self.proposers.found if f.site.runner is anchor and request.method in f.ways]
            f = self.deciding.at(self.choice.formula(anchor.label), request)
            ways = alternatives(quiet(usual(f))) if found else ()
            if ways:  # the first; the others are told by the runners of the method
                when, hops = stated(complete(f, ways[0])), self._hops(anchor, found, request)
                out.append(Path(request.method, anchor.label, when, hops))
        return tuple(out)

    def _hops(self, anchor: RunnerAnchor, found: list[Found], request: Request) -> tuple[Hop, ...]:
        chosen = self._chosen(found, request)
        live = [f for f in found if f is chosen or self.deciding.live(f.ways[request.method], request)]
        decides = options_in(
            (self.choice.formula(anchor.label), chosen.site.formula, *(e.when for e in self._events(chosen)))
        )
        steps: list[Step] = [
            *self.deciding.configuration(chosen, decides, request),
            *self.deciding.runner(anchor, request),
            *self._factory(live, chosen, request),
            *self._classes(chosen),
            *self._proposing(chosen, request),
            *self._drafting(chosen, request),
            *self._otherwise(live, chosen, request),
            *self.sampling.steps(anchor, chosen.site.cls, lambda f: self.deciding.live(f, request)),
        ]
        return tuple(self._hop(*step) for step in _without_repeats(steps))

    def _hop(self, path: str, line: int, what: HopKind) -> Hop:
        return Hop(path, line, self.index.line(path, line), what)

    def _chosen(self, found: list[Found], request: Request) -> Found:
        """The proposer of an ordinary draft model: every test for a special one fails."""

        def plain(f: Found) -> Formula:
            formula = self.deciding.at(f.site.formula, request)
            ordinary = assume(formula, lambda lit: not lit.holds if _special(lit.condition) else None)
            return usual(possible(ordinary))

        first = next((f for f in found if plain(f) is True), found[-1])
        replacing = [f for f in found if _replaces(f, first) and plain(f) is True]
        return replacing[-1] if replacing else first

    # --- the runner makes the proposer

    def _factory(self, live: Iterable[Found], chosen: Found, request: Request) -> Iterator[Step]:
        """The tests passed on the way to the proposer, and the other proposers that a special draft model would get."""
        passed: set[tuple[str, int]] = set()
        for found in live:
            site = found.site
            if site.path != chosen.site.path or site.line > chosen.site.line:
                continue
            for step in self._made(found, "proposer" if found is chosen else "otherwise", request):
                if step[:2] not in passed:  # the way to one goes on where the way to the one before it has ended
                    passed.add(step[:2])
                    yield step

    def _made(self, found: Found, what: HopKind, request: Request) -> Iterator[Step]:
        site = found.site
        outside = [e for e in site.tests if e.path == site.runner.path]
        yield from self._passed(outside, request)
        yield from ((e.path, e.line, "proposer") for e in site.via)
        yield from self._passed([e for e in site.tests if e not in outside], request)
        yield site.path, site.line, what

    def _passed(self, tests: Iterable[Evidence], request: Request) -> Iterator[Step]:
        for evidence in tests:
            test = _test_of(evidence.text)
            f = (
                self.deciding.at(self.reader.truth(test, Scope(evidence.path, "")), request)
                if test is not None
                else True
            )
            if f is not False:
                yield evidence.path, evidence.line, "proposer"
                for predicate in self.deciding.asked(evidence.text):
                    yield from ((path, line, "config") for path, line in self.deciding.returns(predicate))

    def _classes(self, chosen: Found) -> Iterator[Step]:
        """The class, and those behind it up to the one that has the entry."""
        site = chosen.site
        if site.cls is None and site.lost and site.maker.definition.kind != "class":
            return  # its file cannot be read
        if site.cls is None:
            yield site.maker.path, site.maker.definition.line, "proposer"
            return
        entry = self.code.method(site.cls, site.runner.entry)
        owner = self.code.owner(entry) if entry is not None else None
        for cls in self.code.bases(site.cls):
            yield cls.path, cls.definition.line, "proposer"
            if cls == owner:
                return

    # --- the proposer drafts

    def _proposing(self, chosen: Found, request: Request) -> Iterator[Step]:
        """Where the runner calls the entry and uses the drafts."""
        anchor = chosen.site.runner
        for call in self.index.outline(anchor.path).calls:
            function = self.code.definition(anchor.path, call.scope)
            if call.func != f"self.{chosen.site.attribute}.{anchor.entry}" or function is None:
                continue
            for place in self.reader.places(function):
                dropped = isinstance(place.statement, ast.Expr)  # a warm-up
                if dropped or not any(c.lineno == call.line for c in place.calls):
                    continue
                if self.deciding.live(place.formula, request):
                    yield anchor.path, function.definition.line, "runner"
                    yield from ((anchor.path, test.lineno, "runner") for test, wanted in place.tests if wanted)
                    yield anchor.path, call.line, "proposer"

    def _events(self, found: Found) -> tuple[Event, ...]:
        site = found.site
        summary = (
            self.proposers.emissions[site.runner.label].of(site.cls, site.runner.entry)
            if site.cls is not None
            else None
        )
        return summary.events if summary is not None else ()

    def _drafting(self, chosen: Found, request: Request) -> Iterator[Step]:
        site = chosen.site
        entry = self.code.method(site.cls, site.runner.entry) if site.cls is not None else None
        if entry is None:
            return
        yield entry.path, entry.definition.line, "proposer"
        events = [e for e in self._events(chosen) if not e.aside and self.deciding.live(e.when, request)]
        kept = {tag for e in events if e.kind == "return" for tag in e.origin if tag.startswith(".")}
        for event in events:
            if event.kind in _SHOWN or (event.kind == "write" and event.origin & kept) or self._is_ours(event):
                yield event.path, event.line, "kernel" if event.kind == "kernel" else "proposer"

    def _is_ours(self, event: Event) -> bool:
        """A test on the speculative configuration, on a flag, or on the attention backend."""
        backend = self.reader.backends.selected(self.reader, "").text
        return event.kind == "test" and any("." not in option or option == backend for option in event.origin)

    def _otherwise(self, live: Iterable[Found], chosen: Found, request: Request) -> Iterator[Step]:
        """The tests behind which this proposer drafts otherwise, and the other proposers of special draft models."""
        for variant in chosen.proposer.variants:
            options = {c.option for c in variant.when}
            for event in self._events(chosen) if request.method in variant.methods else ():
                if event.kind == "test" and event.origin & options and self.deciding.live(event.when, request):
                    yield event.path, event.line, "proposer"
        for found in live:
            if found is not chosen and found.site.runner is chosen.site.runner:
                yield from ((e.path, e.line, "otherwise") for e in found.proposer.evidence[1:])


def _replaces(later: Found, first: Found) -> bool:
    """Whether a line stores another proposer in the place of one that was stored before, under the same tests."""
    a, b = first.site, later.site
    behind = b.path == a.path and b.line > a.line and b.attribute == a.attribute and not b.via
    return behind and b.tests[: len(a.tests)] == a.tests


def _special(condition: Condition | None) -> bool:
    return condition is not None and condition.kind == "model"


def _test_of(text: str) -> ast.expr | None:
    """The test of an ``if`` or ``elif`` line that ends on the same line."""
    words = text.split("#")[0].strip().removesuffix(":")
    for head in ("if ", "elif "):
        if words.startswith(head):
            try:
                return ast.parse(words.removeprefix(head), mode="eval").body
            except SyntaxError:
                return None
    return None


def _without_repeats(steps: Iterable[Step]) -> Iterator[Step]:
    """Without the same line twice in a row."""
    before: Step | None = None
    for step in steps:
        if before is None or step[:2] != before[:2]:
            yield step
        before = step

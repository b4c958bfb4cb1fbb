"""The way from configuration to kernel for one method under given settings, hop by hop.

Each hop is a line of the engine: where the method is known to the configuration and what that forces, how the runner is
chosen, how the runner chooses the proposer, what the proposer does, and how its drafts are verified. Tests that could lead
elsewhere stay in the list; what they lead to is told by :class:`specaudit.model.Runner` and by each proposer's variants.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from specaudit.classify.code import Symbol, dotted
from specaudit.classify.conditions import (
    Formula,
    alternatives,
    assume,
    default_way,
    literals,
    quiet,
    satisfiable,
    stated,
    usual,
)
from specaudit.classify.emission import Emission, Event
from specaudit.classify.methods import Methods
from specaudit.classify.proposers import Found, Proposers
from specaudit.classify.runners import RunnerChoice, fixed
from specaudit.classify.sampling import Sampling, Step
from specaudit.classify.symbolic import Reader, Scope, calls, guarded, local
from specaudit.classify.topology import possible
from specaudit.classify.values import Obj
from specaudit.engines.base import RunnerAnchor
from specaudit.model import Condition, Evidence, Hop, HopKind, Path, Verifier

_DRAFT_MODEL = frozenset({"model"})  # whether one is named makes no difference to where a method is known
_SHOWN = frozenset({"run", "return", "loop", "enter", "def", "kernel", "value"})


@dataclass(frozen=True, slots=True)
class Request:
    """What is traced: a method, and settings by name as conditions show them (options, flags, architectures)."""

    method: str
    settings: Mapping[str, str | None]


class Tracer:
    """Traces one engine."""

    def __init__(
        self, reader: Reader, methods: Methods, choice: RunnerChoice, proposers: Proposers, verifiers: tuple[Verifier, ...]
    ) -> None:
        self.reader = reader
        self.code = reader.code
        self.index = reader.code.index
        self.methods = methods
        self.choice = choice
        self.proposers = proposers
        self.verifiers = verifiers

    def paths(self, request: Request) -> tuple[Path, ...]:
        """The paths that the request takes: one, or one per kind of model where that decides."""
        out: list[Path] = []
        for anchor in self.choice.present:
            found = [f for f in self.proposers.found if f.site.runner is anchor and request.method in f.ways]
            f = self._at(self.choice.formula(anchor.label), request)
            plain = quiet(usual(f))
            if not found or plain is False:
                continue
            way = alternatives(plain)[0]  # the others are told by the runners of the method
            when = stated((*way, *default_way(fixed(f, way))))
            out.append(Path(request.method, anchor.label, when, self._hops(anchor, found, request)))
        return tuple(out)

    def refusal(self, request: Request) -> str:
        """Why no runner takes the request: the runner that its settings choose, and the test that refuses it."""
        for label, refused in self.choice.refusals.items():
            chosen = [c.formula for c in self.choice.choices if c.label == label]
            if any(usual(quiet(self._at(f, request))) is True for f in chosen) and usual(quiet(self._at(refused, request))) is True:
                lines = {place for e in self.choice.refusal_lines[label] for place in self._validated(e.path, e.line, request)}
                shown = "; ".join(f"{path}:{line}: {self.index.line(path, line)}" for path, line in sorted(lines))
                return f"its settings choose the {label} runner, which refuses it ({shown})"
        return ""

    def _at(self, f: Formula, request: Request) -> Formula:
        return self.methods.at(f, request.method, request.settings)

    def _live(self, f: Formula, request: Request) -> bool:
        return usual(possible(self._at(f, request))) is not False

    # --- all hops of one path

    def _hops(self, anchor: RunnerAnchor, found: list[Found], request: Request) -> tuple[Hop, ...]:
        chosen = self._chosen(found, request)
        live = [f for f in found if satisfiable(self._at(f.ways[request.method], request))]
        sampling = Sampling(self.reader, self.verifiers, lambda f: self._live(f, request))
        steps: list[Step] = [
            *self._configuration(anchor, chosen, request),
            *self._worker(anchor),
            *self._factory(live, chosen, request),
            *self._classes(chosen),
            *self._proposing(chosen, request),
            *self._drafting(chosen, request),
            *self._otherwise(live, chosen, request),
            *sampling.steps(anchor),
        ]
        return tuple(self._hop(*step) for step in _without_repeats(steps))

    def _hop(self, path: str, line: int, what: HopKind) -> Hop:
        return Hop(path, line, self.index.line(path, line), what)

    def _chosen(self, found: list[Found], request: Request) -> Found:
        """The proposer of an ordinary draft model: every test for a special one fails."""

        def plain(f: Found) -> Formula:
            ordinary = assume(self._at(f.site.formula, request), lambda lit: not lit.holds if _special(lit.condition) else None)
            return usual(possible(ordinary))

        return next((f for f in found if plain(f) is True), found[-1])

    # --- configuration

    def _configuration(self, anchor: RunnerAnchor, chosen: Found, request: Request) -> Iterator[Step]:
        cls = self.methods.cls
        if cls is None:
            return
        lines = {*self._aliases(cls, request), *self._completion(cls, anchor, chosen, request), *self._predicates(chosen, request)}
        for path, line in sorted(lines, key=lambda p: (p[0] != cls.path, p)):
            yield path, line, "config"
        yield from self._choosing(anchor, request)

    def _aliases(self, cls: Symbol, request: Request) -> Iterator[tuple[str, int]]:
        """The ``Literal`` that lists the method itself."""
        for stored in self.index.outline(cls.path).assigns:
            if stored.scope == "" and stored.value.startswith("Literal[") and f'"{request.method}"' in stored.value:
                yield cls.path, stored.line

    def _completion(self, cls: Symbol, anchor: RunnerAnchor, chosen: Found, request: Request) -> Iterator[tuple[str, int]]:
        """What completing the configuration tests for this method, sets for it, and calls because of it."""
        method = self.code.method(cls, self.methods.anchors.initialiser)
        node = self.code.function(method) if method is not None else None
        if method is None or node is None:
            return
        scope = local(self.reader, node, Scope(method.path, method.qualname, cls, Obj(cls, "")))
        deciding = self._deciding(anchor, chosen)
        for effect in self.methods.effects:
            named = effect.field == self.methods.anchors.method_field and effect.value == request.method
            if named or (effect.field in deciding and effect in self.methods.forced(request.method)):
                yield effect.path, effect.line
        for place in guarded(node.body):
            statement = place.statement
            if isinstance(statement, ast.If):
                around = place.formula(self.reader, scope)
                if self.methods.at(around, request.method, request.settings, open_to=_DRAFT_MODEL) is not False:
                    yield from self._mentions(statement.test, scope, request)
            elif isinstance(statement, ast.Expr) and place.tests and any(dotted(c.func).startswith("self.") for c in calls(statement)):
                test, wanted = place.tests[-1]
                if wanted and any(True for _ in self._mentions(test, scope, request)):
                    yield method.path, statement.lineno

    def _deciding(self, anchor: RunnerAnchor, chosen: Found) -> set[str]:
        """Options that decide something further on."""
        formulas = [self.choice.formula(anchor.label), chosen.site.formula]
        if chosen.site.cls is not None:
            summary = Emission(self.reader, anchor.runs).of(chosen.site.cls, anchor.entry)
            formulas.extend(e.when for e in summary.events) if summary is not None else None
        return {lit.condition.option for f in formulas for lit in literals(f) if lit.condition is not None}

    def _mentions(self, test: ast.expr, scope: Scope, request: Request, *, only_named: bool = True) -> Iterator[tuple[str, int]]:
        """Comparisons inside a test that name the method (or, without ``only_named``, exclude others) and hold for it."""
        for inner in ast.walk(test):
            if isinstance(inner, ast.Compare):
                f = self.reader.truth(inner, scope)
                about = [lit for lit in literals(f) if lit.condition and lit.condition.option == self.methods.anchors.method_field]
                if about and self._at(f, request) is True and (not only_named or any(lit.holds for lit in about)):
                    yield scope.path, inner.lineno

    def _predicates(self, chosen: Found, request: Request) -> Iterator[tuple[str, int]]:
        """The predicates of the configuration that the runner's choice of a proposer asks and that hold."""
        for predicate in self._asked(chosen):
            f = self.reader.truth(ast.parse(f"self.{predicate.name}()", mode="eval").body, self._own_scope(predicate))
            if self._at(f, request) is not False:
                yield predicate.path, predicate.definition.line
                yield from ((predicate.path, line) for line in self._return_lines(predicate))

    def _asked(self, chosen: Found) -> Iterator[Symbol]:
        cls = self.methods.cls
        for test in chosen.site.tests:
            for word in test.text.replace("(", " ").replace(")", " ").replace(":", " ").split():
                method = self.code.method(cls, word.rpartition(".")[2]) if cls is not None and "." in word else None
                if method is not None:
                    yield method

    def _own_scope(self, predicate: Symbol) -> Scope:
        cls = self.methods.cls
        assert cls is not None
        return Scope(predicate.path, predicate.qualname, cls, Obj(cls, ""))

    def _return_lines(self, function: Symbol) -> Iterator[int]:
        node = self.code.function(function)
        for inner in ast.walk(node) if node is not None else ():
            if isinstance(inner, ast.Return):
                yield inner.lineno

    # --- runner

    def _choosing(self, anchor: RunnerAnchor, request: Request) -> Iterator[Step]:
        """The property or flag that chooses the runner, what it calls, and the tests in there that name the method."""
        lines: set[tuple[str, int]] = set()
        flags: list[Step] = []
        for evidence in self.choice.evidence(anchor.label):
            function = self._function_at(evidence.path, evidence.line)
            if evidence.path == self.reader.engine.environment_path:
                flags.append((evidence.path, evidence.line, "config"))
            elif function is not None and function.path != anchor.path and evidence.path not in self._workers():
                lines.add((evidence.path, evidence.line))
                lines.update(self._through(function, request))
        for label in self.choice.refusals:
            for evidence in self.choice.refusal_lines.get(label, ()):
                lines.update(self._validated(evidence.path, evidence.line, request))
        for path, line in sorted(lines):
            yield path, line, "config"
        yield from flags

    def _workers(self) -> set[str]:
        return {w.path for w in self.reader.engine.workers}

    def _function_at(self, path: str, line: int) -> Symbol | None:
        for definition in self.index.outline(path).definitions:
            if definition.kind == "function" and definition.line == line:
                return Symbol(path, definition)
        return None

    def _through(self, function: Symbol, request: Request) -> Iterator[tuple[str, int]]:
        """Calls of the configuration's own methods inside a function, and the tests in those that name the method."""
        cls = self.code.owner(function)
        for call in self.index.outline(function.path).calls:
            callee = self.code.method(cls, call.func[5:]) if cls and call.scope == function.qualname and call.func.startswith("self.") else None
            if callee is not None:
                yield function.path, call.line
                yield from self._named_in(callee, request)

    def _own_calls(self, function: Symbol) -> Iterator[Symbol]:
        """The methods of the same class that a method calls."""
        cls = self.code.owner(function)
        for call in self.index.outline(function.path).calls:
            callee = self.code.method(cls, call.func[5:]) if cls and call.scope == function.qualname and call.func.startswith("self.") else None
            if callee is not None:
                yield callee

    def _named_in(self, function: Symbol, request: Request) -> Iterator[tuple[str, int]]:
        node = self.code.function(function)
        owner = self.code.owner(function)
        if node is None or owner is None:
            return
        scope = local(self.reader, node, Scope(function.path, function.qualname, owner, Obj(owner, "")))
        for inner in ast.walk(node):
            if isinstance(inner, ast.If) and usual(self._at(self.reader.truth(inner.test, scope), request)) is True:
                yield from self._mentions(inner.test, scope, request, only_named=False)

    def _validated(self, path: str, line: int, request: Request) -> Iterator[tuple[str, int]]:
        """A validator's call, when the validator names the method."""
        cls = self.reader.config_class(self.reader.engine.config.engine_cls)
        for call in self.index.outline(path).calls:
            callee = self.code.method(cls, call.func[5:]) if cls and call.line == line and call.func.startswith("self.") else None
            if callee is not None:
                named = {place for f in (callee, *self._own_calls(callee)) for place in self._named_in(f, request)}
                if named:
                    yield path, line
                    yield from named

    def _worker(self, anchor: RunnerAnchor) -> Iterator[Step]:
        for evidence in self.choice.evidence(anchor.label):
            if evidence.path not in self._workers():
                continue
            maker = next((c.scope for c in self.index.outline(evidence.path).calls if c.line == evidence.line), "")
            name = maker.rpartition(".")[2]
            for call in self.index.outline(evidence.path).calls:
                if name and call.func == f"self.{name}":
                    yield evidence.path, call.line, "runner"
            yield evidence.path, evidence.line, "runner"

    # --- proposer

    def _factory(self, live: Iterable[Found], chosen: Found, request: Request) -> Iterator[Step]:
        """The tests passed on the way to the proposer, and the other proposers that a special draft model would get."""
        for found in live:
            if found.site.path != chosen.site.path or found.site.line > chosen.site.line:
                continue
            outside = [e for e in found.site.tests if e.path == found.site.runner.path]
            yield from self._passed(outside, request)
            for evidence in found.site.via:
                yield evidence.path, evidence.line, "proposer"
            yield from self._passed([e for e in found.site.tests if e not in outside], request)
            yield found.site.path, found.site.line, "proposer"

    def _passed(self, tests: Iterable[Evidence], request: Request) -> Iterator[Step]:
        for evidence in tests:
            test = _test_of(evidence.text)
            scope = Scope(evidence.path, "")
            f = self._at(self.reader.truth(test, scope), request) if test is not None else True
            if f is False:
                continue
            yield evidence.path, evidence.line, "proposer"
            for method in self._asked_by(evidence.text):
                yield from ((method.path, line, "config") for line in self._return_lines(method))

    def _asked_by(self, text: str) -> Iterator[Symbol]:
        cls = self.methods.cls
        for word in text.replace("(", " ").replace(")", " ").replace(":", " ").split():
            method = self.code.method(cls, word.rpartition(".")[2]) if cls is not None and "." in word else None
            if method is not None:
                yield method

    def _classes(self, chosen: Found) -> Iterator[Step]:
        """The class, and those behind it up to the one that has the entry."""
        site = chosen.site
        if site.cls is None:
            yield site.maker.path, site.maker.definition.line, "proposer"
            return
        entry = self.code.method(site.cls, site.runner.entry)
        owner = self.code.owner(entry) if entry is not None else None
        for cls in self.code.bases(site.cls):
            yield cls.path, cls.definition.line, "proposer"
            if cls == owner:
                return

    def _proposing(self, chosen: Found, request: Request) -> Iterator[Step]:
        """Where the runner calls the entry."""
        anchor = chosen.site.runner
        for call in self.index.outline(anchor.path).calls:
            if call.func != f"self.{chosen.site.attribute}.{anchor.entry}":
                continue
            function = self.code.definition(anchor.path, call.scope)
            node = self.code.function(function) if function is not None else None
            if function is None or node is None:
                continue
            scope = local(self.reader, node, Scope(function.path, function.qualname, self.code.owner(function)))
            for place in guarded(node.body):
                if isinstance(place.statement, ast.Expr):  # a warm-up that drops the drafts
                    continue
                if any(c.lineno == call.line for c in calls(place.statement)) and self._live(place.formula(self.reader, scope), request):
                    yield anchor.path, function.definition.line, "runner"
                    for test, wanted in place.tests:
                        if wanted:
                            yield anchor.path, test.lineno, "runner"
                    yield anchor.path, call.line, "proposer"

    def _events(self, found: Found) -> tuple[Event, ...]:
        if found.site.cls is None:
            return ()
        summary = Emission(self.reader, found.site.runner.runs).of(found.site.cls, found.site.runner.entry)
        return summary.events if summary is not None else ()

    def _drafting(self, chosen: Found, request: Request) -> Iterator[Step]:
        site = chosen.site
        entry = self.code.method(site.cls, site.runner.entry) if site.cls is not None else None
        if entry is None:
            return
        yield entry.path, entry.definition.line, "proposer"
        events = [e for e in self._events(chosen) if not e.aside and self._live(e.when, request)]
        kept = {tag for e in events if e.kind == "return" for tag in e.origin if tag.startswith(".")}
        for event in events:
            shown = event.kind in _SHOWN or (event.kind == "write" and event.origin & kept) or self._is_ours(event)
            if shown:
                yield event.path, event.line, "kernel" if event.kind == "kernel" else "proposer"

    def _is_ours(self, event: Event) -> bool:
        """A test on the speculative configuration or on a flag."""
        return event.kind == "test" and any("." not in option or option == self._backend_option() for option in event.origin)

    def _backend_option(self) -> str:
        return self.reader.backends.selected(self.reader, "").text

    def _otherwise(self, live: Iterable[Found], chosen: Found, request: Request) -> Iterator[Step]:
        """The tests behind which the same proposer drafts otherwise, and the other proposers of special draft models."""
        for variant in chosen.proposer.variants:
            options = {c.option for c in variant.when}
            if request.method in variant.methods:
                for event in self._events(chosen):
                    if event.kind == "test" and event.origin & options and self._live(event.when, request):
                        yield event.path, event.line, "proposer"
        for found in live:
            if found is not chosen and found.site.runner is chosen.site.runner:
                for evidence in found.proposer.evidence[1:]:
                    yield evidence.path, evidence.line, "proposer"


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

"""Which model runner a method takes, and under which conditions another one.

Read from the worker (where the runner's class is made), the property or flag that it tests, the validators that
refuse a combination, and, where two engine generations live side by side, the function that chooses between them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from specaudit import nodes
from specaudit.classify.code import Symbol, dotted
from specaudit.classify.conditions import Formula, conj, disj, negate, quiet, usual
from specaudit.classify.places import Guarded, Place
from specaudit.classify.scopes import Scope
from specaudit.classify.symbolic import Reader
from specaudit.classify.values import Obj, Ref, truth
from specaudit.classify.walking import Walk
from specaudit.classify.ways import alternatives, complete, deviations, stated
from specaudit.engines.base import GateAnchor, RunnerAnchor
from specaudit.model import Condition, Evidence, Runner


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to a runner: its formula with the method left open, and the lines that decide."""

    label: str
    formula: Formula
    evidence: tuple[Evidence, ...] = ()


class RunnerChoice:
    """Everything that decides between runners in one engine. The method stays symbolic until :meth:`of` is asked."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.code = reader.code
        self.index = reader.code.index
        self.engine = reader.engine
        self.present = tuple(r for r in self.engine.runners if self._runner_class(r) is not None)
        self._formulas: dict[str, Formula] = {}
        self.choices = tuple(self._choices())
        self.refusals, self.refusal_lines = self._refusals()  # by runner

    def _runner_class(self, anchor: RunnerAnchor) -> Symbol | None:
        if anchor.path not in self.index.snapshot.files:
            return None
        return self.code.definition(anchor.path, anchor.cls)

    # --- from worker to runner

    def _choices(self) -> Iterable[Choice]:
        if not self.engine.workers:  # nothing chooses: there is one
            for anchor, cls in ((a, self._runner_class(a)) for a in self.present[:1]):
                if cls is not None:
                    yield Choice(anchor.label, True, (self.index.evidence(cls.path, cls.definition.line),))
            return
        gate, gate_lines = self._gate()
        for found in self._made():
            if self.engine.gate is not None and gate is not True and found.label == self.engine.gate.label:
                yield Choice(found.label, conj((gate, found.formula)), (*gate_lines, *found.evidence))
            else:
                yield found
        other = self.engine.gate.otherwise if self.engine.gate is not None else ""
        if gate is not True and any(r.label == other for r in self.present):
            yield Choice(other, negate(gate), gate_lines)

    def _made(self) -> Iterable[Choice]:
        """Where a worker makes an object of a runner's class."""
        for worker in self.engine.workers:
            cls = self.code.definition(worker.path, worker.cls)
            for call in self.index.outline(worker.path).calls if cls is not None else ():
                anchor = self._made_by(worker.path, call.scope, call.func)
                method = self.code.definition(worker.path, call.scope) if anchor is not None else None
                if anchor is None or method is None:
                    continue
                for place in self.reader.places(method, cls):
                    if any(c.lineno == call.line for c in place.calls):
                        yield Choice(anchor.label, place.formula, self._worker_lines(place, call.line))

    def _made_by(self, path: str, scope: str, func: str) -> RunnerAnchor | None:
        if not func.rpartition(".")[2][:1].isupper():
            return None
        made = self.code.resolve(path, scope, func)
        return next((r for r in self.present if made and (made.path, made.name) == (r.path, r.cls)), None)

    def _worker_lines(self, place: Place, line: int) -> tuple[Evidence, ...]:
        """The flag's definition, the attribute that keeps it, and the line that makes the runner."""
        out: list[Evidence] = []
        owner = place.scope.owner
        for test, _ in place.tests:
            for attr in (
                n.attr for n in nodes.walk(test) if isinstance(n, ast.Attribute) and dotted(n) == f"self.{n.attr}"
            ):
                for kept in self.code.attribute(owner, attr)[:1] if owner is not None else ():
                    out.extend(self._origin(kept.value))
                    out.append(self.index.evidence(kept.path, kept.line))
        out.append(self.index.evidence(place.scope.path, line))
        return tuple(dict.fromkeys(out))

    def _origin(self, text: str) -> list[Evidence]:
        """Where the value that a worker keeps comes from: a flag's definition or a property of the configuration."""
        head, _, attr = text.rpartition(".")
        if head == self.engine.environment:
            return list(self.flag_lines(attr))
        cls = self.reader.configuration.named(self.engine.config.engine_cls)
        method = self.code.method(cls, attr) if cls is not None else None
        return [self.index.evidence(method.path, method.definition.line)] if method is not None else []

    def flag_lines(self, flag: str) -> tuple[Evidence, ...]:
        """Where an environment flag is read."""
        quoted = f'"{flag}"'
        for path in self._present(self.engine.environment_path):
            for number, line in enumerate(self.index.lines(path), 1):
                if quoted in line and ("getenv" in line or "environ" in line):
                    return (self.index.evidence(path, number),)
        return ()

    def _gate(self) -> tuple[Formula, tuple[Evidence, ...]]:
        """The formula of the newer engine generation; ``True`` when there is nothing to choose."""
        anchor = self.engine.gate
        if anchor is None or not any(
            True for _ in self.index.mentioning(anchor.function.encode(), self._present(anchor.path))
        ):
            return True, ()
        cls = self.code.definition(anchor.path, anchor.cls)
        method = self.code.method(cls, anchor.function) if cls is not None else None
        if cls is None or method is None:
            return True, ()
        supported = truth(self.reader.inline(method, Obj(cls, ""), Scope(method.path, "")))
        # a test that is not about a setting this reader knows asks for an unusual feature: not so by default
        supported = quiet(supported)
        return self._gate_formula(anchor, supported), (
            *self.flag_lines(anchor.flag),
            self.index.evidence(method.path, method.definition.line),
        )

    def _present(self, path: str) -> tuple[str, ...]:
        return (path,) if path in self.index.snapshot.files else ()

    def _gate_formula(self, anchor: GateAnchor, supported: Formula) -> Formula:
        default = self.reader.configuration.flag(anchor.flag).default
        return conj((truth(Ref("env", anchor.flag, default, boolean=True)), supported))

    # --- what refuses a combination

    def _refusals(self) -> tuple[dict[str, Formula], dict[str, tuple[Evidence, ...]]]:
        """Per runner: the formula under which a validator that runs for this runner only raises, and where it is
        called.
        """
        refused: dict[str, Formula] = {}
        lines: dict[str, tuple[Evidence, ...]] = {}
        cls = self.reader.configuration.named(self.engine.config.engine_cls)
        method = self.code.method(cls, self.engine.config.initialiser) if cls is not None else None
        if cls is None or method is None:
            return refused, lines
        for place in self.reader.places(method, cls, Obj(cls, "")):
            if not place.tests or not isinstance(place.statement, ast.Expr):
                continue
            for call in place.calls:
                callee = self._validator(cls, call)
                nearest = Guarded(place.statement, place.tests[-1:])
                label = self._meant(nearest.formula(self.reader, place.scope)) if callee is not None else ""
                if callee is not None and label:
                    raised = self.raises(callee, Obj(cls, ""))
                    refused[label] = disj((refused.get(label, False), raised))
                    lines[label] = (*lines.get(label, ()), self.index.evidence(method.path, call.lineno))
        return refused, lines

    def _meant(self, guard: Formula) -> str:
        """The runner that a guard is about: the one that is made under the same formula."""
        return next((c.label for c in self.choices if c.formula == guard and guard is not True), "")

    def _validator(self, cls: Symbol, call: ast.Call) -> Symbol | None:
        """A method of the configuration that may refuse because of its speculative part."""
        name = dotted(call.func)
        if not name.startswith("self.") or name.count(".") != 1:
            return None
        callee = self.code.method(cls, name[5:])
        if callee is None or not self._mentions(callee, "raise "):
            return None
        names = [n for n, c in self.engine.config.objects.items() if c == self.engine.config.cls]
        near = [callee, *self._called(cls, callee)]
        return callee if any(self._mentions(c, n) for c in near for n in names) else None

    def _called(self, cls: Symbol, method: Symbol) -> Iterable[Symbol]:
        for call in self.index.outline(method.path).calls:
            if call.scope == method.qualname and call.func.startswith("self."):
                callee = self.code.method(cls, call.func[5:])
                if callee is not None:
                    yield callee

    def _mentions(self, method: Symbol, text: str) -> bool:
        lines = self.index.lines(method.path)[method.definition.line : method.definition.end]
        return any(text in line for line in lines)

    def raises(self, method: Symbol, self_value: Obj) -> Formula:
        """The formula under which the method raises."""
        node = self.code.function(method)
        out: list[Formula] = []

        def visit(statement: ast.stmt, path: Formula, here: Scope) -> None:
            if isinstance(statement, ast.Raise):
                out.append(path)

        if node is not None:
            scope = Scope(method.path, method.qualname, self.code.owner(method), self_value)
            Walk(self.reader, visit).run(node, scope)
        return disj(out)

    # --- answers

    def labels(self) -> tuple[str, ...]:
        """The runners that this engine has, oldest first."""
        return tuple(r.label for r in self.present)

    def formula(self, label: str) -> Formula:
        """The formula under which a run takes that runner and is not refused, with everything left open."""
        if label not in self._formulas:
            chosen = disj(c.formula for c in self.choices if c.label == label)
            self._formulas[label] = conj((chosen, negate(self.refusals.get(label, False))))
        return self._formulas[label]

    def evidence(self, label: str) -> tuple[Evidence, ...]:
        """The lines that decide for that runner."""
        return tuple(dict.fromkeys(e for c in self.choices if c.label == label for e in c.evidence))

    def of(self, method: str, formulas: Mapping[str, Formula]) -> tuple[Runner, ...]:
        """The runners of one method, those that need nothing to be set first.

        Args:
            formulas: runner -> the formula that leads to it, for this method.
        """
        defaults: list[Runner] = []
        others: list[Runner] = []
        for label, f in formulas.items():
            plain = quiet(usual(f))
            lines = self.evidence(label)
            defaults.extend(Runner(method, label, True, stated(complete(f, way)), lines) for way in alternatives(plain))
            for way in deviations(f) if plain is not True else ():
                needed = complete(f, way)
                changes = stated(lit for lit in needed if not lit.by_default)
                if _needs_setting(changes):
                    others.append(Runner(method, label, False, stated(needed), lines, changes))
        return (*defaults, *dict.fromkeys(others))


def _needs_setting(conditions: tuple[Condition, ...]) -> bool:
    return any(c.kind != "model" for c in conditions)

"""The methods that the configuration offers, and what completing the configuration sets for each of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from specaudit.classify.code import Symbol
from specaudit.classify.conditions import Formula, assume, given, literals, usual
from specaudit.classify.places import Place, sure
from specaudit.classify.symbolic import Reader
from specaudit.classify.values import Const, Obj, shown
from specaudit.index import Definition
from specaudit.model import Evidence

#: The number of drafted tokens that is assumed where the user gave none: more than one, or nothing would be a chain.
USUAL_COUNT = "4"


@dataclass(frozen=True, slots=True)
class Effect:
    """A field that completing the configuration sets to a constant, under a formula."""

    field: str
    value: str
    when: Formula
    path: str
    line: int


class Methods:
    """The methods of one engine; aliases that the configuration rewrites are folded into what they become."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.index = reader.code.index
        self.anchors = reader.engine.config
        self.cls = reader.configuration.named(self.anchors.cls)
        self.effects = tuple(self._effects())
        listed = reader.configuration.members(self.cls.path, self.anchors.method_type) if self.cls else ()
        self.aliases = {name: self._becomes(name) for name in listed}
        self.names = tuple(name for name in listed if self.aliases[name] == name)
        self.detections = self._detections()
        self._settings: dict[str, dict[str, str | None]] = {}

    def _effects(self) -> list[Effect]:
        method = self.reader.code.method(self.cls, self.anchors.initialiser) if self.cls else None
        out: list[Effect] = []
        if self.cls is None or method is None:
            return out
        for place in self.reader.places(method, self.cls, Obj(self.cls, "")):
            match place.statement:
                case ast.Assign(
                    targets=[ast.Attribute(value=ast.Name(id="self"), attr=attr)], value=ast.Constant() as value
                ):
                    constant = self.reader.value(value, place.scope)
                    if isinstance(constant, Const):
                        line = place.statement.lineno
                        out.append(Effect(attr, shown(constant.value), place.formula, method.path, line))
        return out

    def always_runs(self, definition: Definition) -> bool:
        """Whether a method of the configuration's class runs for every configuration: its initialiser, and what is
        registered as a validator.
        """
        return definition.name == self.anchors.initialiser or any("validator" in d for d in definition.decorators)

    def completing(self) -> Iterator[tuple[Symbol, Place]]:
        """Every statement that tests alone decide as a configuration is completed, with the method it stands in."""
        cls = self.cls
        for definition in self.index.outline(cls.path).definitions if cls is not None else ():
            if cls is not None and definition.scope == cls.qualname and self.always_runs(definition):
                method = Symbol(cls.path, definition)
                yield from ((method, place) for place in sure(self.reader.places(method, cls, Obj(cls, ""))))

    def _base(self, name: str) -> dict[str, str | None]:
        """What is known before completion: the method, a number of tokens, and that a draft model is named."""
        known: dict[str, str | None] = dict(self.reader.engine.assumed)
        known |= {self.anchors.method_field: name, self.anchors.count_field: USUAL_COUNT}
        return known | dict.fromkeys(self.anchors.named, "given")

    def _becomes(self, name: str) -> str:
        for effect in self.effects:
            if effect.field == self.anchors.method_field and given(effect.when, self._base(name)) is True:
                name = effect.value
        return name

    def _detections(self) -> tuple[tuple[object, str], ...]:
        """Tests of the draft model by which the configuration tells a method, with that method."""
        out: list[tuple[object, str]] = []
        for effect in self.effects:
            if effect.field != self.anchors.method_field:
                continue
            positive = [
                lit for lit in literals(effect.when) if lit.holds and lit.condition and lit.condition.kind == "model"
            ]
            if len(positive) == 1 and positive[0].condition is not None and positive[0].condition.op == "==":
                out.append((positive[0].key, effect.value))
        return tuple(out)

    # --- one method

    def settings(self, name: str) -> dict[str, str | None]:
        """The settings of a run with that method: what is given, and what completing the configuration fills in."""
        if name not in self._settings:
            known = self._base(name)
            filled = {e.field: e.value for e in self.effects if usual(given(e.when, self._base(name))) is True}
            self._settings[name] = {**filled, **known}
        return self._settings[name]

    def at(
        self, f: Formula, name: str, more: Mapping[str, str | None] | None = None, *, without: tuple[str, ...] = ()
    ) -> Formula:
        """The formula for that method; ``more`` are further settings, which count first; ``without`` are left
        undecided.
        """
        known = {**self.settings(name), **(more or {})}
        f = given(f, {option: value for option, value in known.items() if option not in without})
        told = dict(self.detections)
        return assume(f, lambda lit: (told[lit.key] == name) == lit.holds if lit.key in told else None)

    def forced(self, name: str) -> tuple[Effect, ...]:
        """The effects that hold for that method whatever else is configured."""
        base = self._base(name)
        return tuple(e for e in self.effects if given(e.when, base) is True)

    def named_by(self, option: str, name: str) -> tuple[Effect, ...]:
        """The effects by which a value of an option is what makes it that method."""
        return tuple(
            effect
            for effect in self.effects
            if effect.field == self.anchors.method_field
            and effect.value == name
            and any(
                lit.holds and lit.condition is not None and lit.condition.option == option and lit.condition.value
                for lit in literals(effect.when)
            )
        )

    def evidence(self, effect: Effect) -> Evidence:
        """The line of an effect."""
        return self.index.evidence(effect.path, effect.line)

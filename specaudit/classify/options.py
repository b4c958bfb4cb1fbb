"""Which speculative options the path of a method honours, ignores or overrides.

An option is honoured when code on the path reads it for more than validation: the configuration's own completion, a
shared file, the runner's own files, or the files of the method's proposers and verifiers. It must be a read that the
method gets to, and the option none that is refused with this method. An option that names the method is honoured, too.
For an option with named values, a value counts as honoured when something on the path compares with it, or with every
other one. An option that completing the configuration sets to a constant for the method is overridden.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from specaudit import nodes
from specaudit.classify.accesses import Access, accesses
from specaudit.classify.acting import told_apart
from specaudit.classify.agreeing import entries
from specaudit.classify.arriving import ANY, Way
from specaudit.classify.belonging import Belonging, Others
from specaudit.classify.code import Symbol, dotted
from specaudit.classify.conditions import Formula
from specaudit.classify.methods import Methods
from specaudit.classify.proposers import Proposers
from specaudit.classify.refusing import Refusing
from specaudit.classify.runners import RunnerChoice
from specaudit.classify.symbolic import Reader
from specaudit.classify.uses import checked, filled, used
from specaudit.classify.values import Obj, shown
from specaudit.model import Evidence, OptionVerdict, Runner, Verifier

_SILENT = frozenset({"compute_hash", "__repr__", "__str__"})


@dataclass(frozen=True, slots=True)
class Field:
    """One option: where it is declared, its named values (empty: any) and its default as conditions show it."""

    name: str
    line: int
    values: tuple[str, ...]
    default: str | None
    switch: bool = False

    @property
    def others(self) -> tuple[str, ...]:
        """What it can be set to beside its default."""
        known = ("true", "false") if self.switch else self.values or (ANY,)
        return tuple(value for value in known if value != self.default)


@dataclass(frozen=True, slots=True)
class Use:
    """A place inside the configuration's class that uses an option for more than validation.

    ``into`` are the options and objects that it only fills in: then it matters as far as they do.
    """

    method: Symbol
    ways: tuple[Way, ...]
    evidence: Evidence
    into: frozenset[str] = frozenset()


class Options:
    """All options of one engine."""

    def __init__(
        self,
        reader: Reader,
        methods: Methods,
        choice: RunnerChoice,
        proposers: Proposers,
        refusing: Refusing,
    ) -> None:
        self.reader = reader
        self.code = reader.code
        self.index = reader.code.index
        self.methods = methods
        self.choice = choice
        self.proposers = proposers
        self.refusing = refusing
        self.arriving = refusing.arriving
        self.fields = tuple(self._fields())
        valued = {f.name for f in self.fields if f.values}
        found = accesses(self.index, reader.engine.config, methods.cls.path if methods.cls else "", valued)
        # how many tokens are drafted is read everywhere, and never in vain
        told = {f.name for f in self.fields} - {methods.anchors.count_field}
        self.accesses, self.checks = told_apart(self.code, found, told)
        self.checked: dict[str, Evidence] = {}
        self.uses = self._uses()

    # --- what there is

    def _fields(self) -> Iterator[Field]:
        cls = self.methods.cls
        for stored in self.code.assigns(cls.path, cls.qualname) if cls is not None else ():
            head = self.index.line(cls.path, stored.line) if cls is not None else ""
            if cls is None or stored.scope != cls.qualname or not head.startswith(f"{stored.target}:"):
                continue
            annotation, default = self.reader.configuration.declared(cls, stored.target)
            if (
                self.reader.configuration.in_annotation(annotation) is None
                and stored.target != self.methods.anchors.method_field
            ):
                values = self._named_values(cls, annotation)
                usual = shown(default.value) if default is not None else None
                yield Field(stored.target, stored.line, values, usual, re.match(r"bool\b", annotation) is not None)

    @cached_property
    def _objects(self) -> frozenset[str]:
        """What the configuration's class declares beside options: objects that completing it makes of them."""
        cls = self.methods.cls
        stored = self.code.assigns(cls.path, cls.qualname) if cls is not None else ()
        declared = {s.target for s in stored if cls is not None and s.scope == cls.qualname}
        return frozenset(declared - {f.name for f in self.fields})

    def _named_values(self, cls: Symbol, annotation: str) -> tuple[str, ...]:
        for word in re.findall(r"\w+", annotation):
            found = (
                self.reader.configuration.members(cls.path, word) if word[:1].isupper() and word != "Literal" else ()
            )
            if found:
                return found
        return tuple(re.findall(r"\"(\w+)\"", annotation)) if annotation.startswith("Literal[") else ()

    # --- the configuration's own use

    def _uses(self) -> Mapping[str, list[Use]]:
        cls = self.methods.cls
        out: dict[str, list[Use]] = {}
        names = {f.name for f in self.fields}
        kept = names | self._objects
        for definition in self.index.outline(cls.path).definitions if cls is not None else ():
            if cls is None or definition.scope != cls.qualname or definition.name in _SILENT:
                continue
            method = Symbol(cls.path, definition)
            for place in self.reader.places(method, cls, Obj(cls, "")):
                for attribute in checked(place.statement):
                    where = self.index.evidence(method.path, attribute.lineno)
                    self.checked.setdefault(attribute.attr, where)
                into = filled(place.statement) if filled(place.statement) <= kept else frozenset()
                for attribute in used(place.statement):
                    if attribute.attr in names:
                        where = self.index.evidence(method.path, attribute.lineno)
                        ways = self.arriving.ways(place, attribute.end_lineno or attribute.lineno, attribute.attr)
                        out.setdefault(attribute.attr, []).append(Use(method, ways, where, into))
            node = self.code.function(method)
            for name, line in self._by_name(method, node) if node is not None else ():
                out.setdefault(name, []).append(Use(method, (Way(True, True),), self.index.evidence(method.path, line)))
        return out

    def _by_name(self, method: Symbol, node: ast.AST) -> Iterator[tuple[str, int]]:
        """Options that a method reads with ``getattr`` over a table of names."""
        dynamic = any(
            isinstance(n, ast.Call) and dotted(n.func) == "getattr" and not isinstance(n.args[1], ast.Constant)
            for n in nodes.walk(node)
        )
        tables = {n.id for n in nodes.walk(node) if isinstance(n, ast.Name)} if dynamic else set()
        lines = self.index.lines(method.path)
        for stored in self.index.outline(method.path).assigns if tables else ():
            if stored.scope == "" and stored.target in tables:
                for name in (f.name for f in self.fields if f'"{f.name}"' in stored.value):
                    yield name, next(n for n in range(stored.line, len(lines) + 1) if f'"{name}"' in lines[n - 1])

    # --- one path

    def of(self, runners: Iterable[Runner], verifiers: Iterable[Verifier]) -> tuple[OptionVerdict, ...]:
        """The verdicts for every runner that a method can take, by default or not.

        Methods of a runner with the same verdict share one entry, which names none where it is about all of them.
        """
        every = (*self.accesses.values(), *self.checks.values())
        reading = frozenset(access.path for found in every for access in found)
        belonging = Belonging(self.code, self.choice, self.proposers, tuple(verifiers), reading)
        takers: dict[str, list[str]] = {}
        for method, label in dict.fromkeys((r.method, r.runner) for r in runners):
            takers.setdefault(label, []).append(method)
        verdicts = (
            verdict
            for label, methods in takers.items()
            for method in methods
            for verdict in self._verdicts(method, label, belonging.others(method, label))
        )
        declared = [(field.name, value) for field in self.fields for value in ("", *field.values)]
        labels = list(takers)
        return tuple(
            sorted(
                entries(verdicts, takers),
                key=lambda one: (labels.index(one.runner), declared.index((one.name, one.value))),
            )
        )

    def _verdicts(self, method: str, label: str, theirs: Others) -> Iterator[OptionVerdict]:
        """``theirs`` is what is not on this path."""
        forced = {e.field: e for e in self.methods.forced(method)}
        for field in self.fields:
            declared = self._declared(field)
            if field.name in forced and field.name != self.methods.anchors.count_field:
                effect = forced[field.name]
                reason = f"completing the configuration sets it to {effect.value} for this method"
                yield OptionVerdict(
                    field.name, "", "overridden", method, label, (declared, self.methods.evidence(effect)), reason
                )
                continue
            refused = self.refusing.at(field.name, field.others, method, label)
            if refused is not None:
                reason = "it is checked, and refused for this method"
                yield OptionVerdict(field.name, "", "ignored", method, label, (declared, refused), reason)
                continue
            reads = list(self._reads(field.name, method, label, theirs))
            naming = (self.methods.evidence(effect) for effect in self.methods.named_by(field.name, method))
            inner = [*naming, *self._inner_reads(field.name, method, label, theirs, frozenset())]
            if not reads and not inner:
                test = self._checked_at(field.name, theirs)
                reason = "nothing on this path reads it" if test is None else "it is checked, and nothing acts on it"
                lines = (declared,) if test is None else (declared, test)
                yield OptionVerdict(field.name, "", "ignored", method, label, lines, reason)
                continue
            evidence = (declared, *(self.index.evidence(a.path, a.line) for a in reads), *inner)
            yield OptionVerdict(field.name, "", "honoured", method, label, tuple(dict.fromkeys(evidence)))
            if field.values and any(a.known for a in reads):
                yield from self._values(field, method, label, reads)

    def _values(self, field: Field, method: str, label: str, reads: list[Access]) -> Iterator[OptionVerdict]:
        here = frozenset().union(*(a.known for a in reads))
        asked = frozenset().union(*(a.asked for a in self.accesses[field.name]))
        lines = tuple(dict.fromkeys(self.index.evidence(a.path, a.line) for a in reads if a.known))
        for value in field.values:
            # the default needs no branch, unless some other path has one for it and here it is not all that is left
            usual = value == field.default and (value not in asked or here.issuperset({*field.values} - {value}))
            # what one place leaves when it has asked for every other value is its last branch
            last = any(a.known.issuperset({*field.values} - {value}) for a in reads)
            if value in here or usual or last:
                yield OptionVerdict(field.name, value, "honoured", method, label, lines)
            else:
                reason = "what reads the option on this path does not ask for this value"
                yield OptionVerdict(
                    field.name, value, "ignored", method, label, (self._declared(field), *lines), reason
                )

    def _checked_at(self, name: str, theirs: Others) -> Evidence | None:
        """Where the configuration or something on the path refuses because of an option."""
        outside = (self.index.evidence(a.path, a.line) for a in _here(self.checks, name, theirs))
        return self.checked.get(name) or next(outside, None)

    def _declared(self, field: Field) -> Evidence:
        assert self.methods.cls is not None
        return self.index.evidence(self.methods.cls.path, field.line)

    def _reads(self, name: str, method: str, label: str, theirs: Others) -> Iterator[Access]:
        """The reads of an option, an object or a method of the configuration that are on the path and gotten to."""
        here = _here(self.accesses, name, theirs)
        return (a for a in here if self.arriving.reads(a.path, a.line, name, method, label))

    def _inner_reads(self, name: str, method: str, label: str, theirs: Others, seen: frozenset[str]) -> list[Evidence]:
        """Uses inside the configuration's class that take effect: in its completion, or in a method that the path
        calls.
        """
        out: list[Evidence] = []
        for use in self.uses.get(name, ()):
            if use.into and not any(self._matters(other, method, label, theirs, seen | {name}) for other in use.into):
                continue
            called = self.methods.always_runs(use.method.definition)
            if not called:
                inside = (self.methods.at(f, method) is not False for f in self._called.get(use.method.name, ()))
                called = any(inside) or any(self._reads(use.method.name, method, label, theirs))
            if called and any(self.arriving.leads(way, method, label) for way in use.ways):
                out.append(use.evidence)
        return out

    def _matters(self, name: str, method: str, label: str, theirs: Others, seen: frozenset[str]) -> bool:
        if name in seen:
            return False
        reads = self._reads(name, method, label, theirs)
        return any(reads) or bool(self._inner_reads(name, method, label, theirs, seen))

    @cached_property
    def _called(self) -> Mapping[str, list[Formula]]:
        """Methods of the configuration's class that the class itself calls, each with the formulas of the calls."""
        cls = self.methods.cls
        out: dict[str, list[Formula]] = {}
        for definition in self.index.outline(cls.path).definitions if cls is not None else ():
            if cls is None or definition.scope != cls.qualname:
                continue
            for place in self.reader.places(Symbol(cls.path, definition), cls, Obj(cls, "")):
                for call in place.calls:
                    head, _, name = dotted(call.func).rpartition(".")
                    if head in ("self", cls.name):
                        when = place.formula if self.methods.always_runs(definition) else True
                        out.setdefault(name, []).append(when)
        return out


def _here(accesses: Mapping[str, list[Access]], name: str, theirs: Others) -> Iterator[Access]:
    """The accesses to a name that are on a path."""
    return (a for a in accesses.get(name, ()) if not theirs.hold(a.path, a.line))

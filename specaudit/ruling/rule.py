"""The data types of a rule: what a document says, checked, and nothing that could run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

from specaudit.model import Condition, Severity, Status

Shape = Mapping[str, Any]
"""A rule object of ast-grep's rule language, as plain data."""

EVERYWHERE = ("**",)
#: A word with which a sentence begins; the name of a variable or an option stays as it is written.
_WORD = re.compile(r"[A-Z][a-z]*\b")


@dataclass(frozen=True, slots=True)
class Subject:
    """What is looked at: files, or the classes or functions of these names in them.

    ``files`` are globs of package-relative paths (``**`` crosses folders). With ``classes`` and ``functions`` a
    function is a method of the class or, where the class does not define it, of the nearest class that it inherits
    from. With ``chain`` a class stands for itself and every class that it inherits from. Names may hold ``*``. ``line``
    is where the document says so.
    """

    files: tuple[str, ...] = EVERYWHERE
    classes: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    chain: bool = False
    line: int = field(default=0, compare=False)

    def __str__(self) -> str:
        names = [f"class {' or '.join(self.classes)}"] if self.classes else []
        names += ["with the classes that it inherits from"] if self.chain else []
        names += [f"function {' or '.join(self.functions)}"] if self.functions else []
        where = f"in {', '.join(self.files)}" if self.files != EVERYWHERE else "anywhere in the package"
        return f"{', '.join(names)} {where}" if names else f"files {', '.join(self.files)}"


@dataclass(frozen=True, slots=True)
class Match:
    """A node of this shape is there."""

    shape: Shape
    at: Subject | None = None


@dataclass(frozen=True, slots=True)
class Uses:
    """One of these names is there: identifier, attribute, keyword or whole string; comments do not count."""

    names: tuple[str, ...]
    at: Subject | None = None


@dataclass(frozen=True, slots=True)
class Exists:
    """The subject is there at all."""

    at: Subject


@dataclass(frozen=True, slots=True)
class Declares:
    """The class, or one it inherits from, declares a field or method of one of these names."""

    names: tuple[str, ...]
    at: Subject | None = None


@dataclass(frozen=True, slots=True)
class Inherits:
    """The class derives, over any number of files, from one of these."""

    names: tuple[str, ...]
    at: Subject | None = None


@dataclass(frozen=True, slots=True)
class Overrides:
    """The method is defined somewhere on the way from the class up to, and without, the class ``below``."""

    method: str
    below: str
    at: Subject | None = None


@dataclass(frozen=True, slots=True)
class Writers:
    """Every function that assigns to an attribute of this name is one of ``within`` (also when none does)."""

    attribute: str
    within: tuple[str, ...]
    at: Subject | None = None


@dataclass(frozen=True, slots=True)
class Values:
    """A set of texts: ``literals``, and the string literals below nodes of ``shape``."""

    literals: tuple[str, ...] = ()
    shape: Shape | None = None
    at: Subject | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """Some value of the sets ``of`` is in none of the sets ``minus``."""

    of: tuple[Values, ...]
    minus: tuple[Values, ...]


@dataclass(frozen=True, slots=True)
class Passes:
    """Some call of ``function`` passes its parameter ``parameter``, by keyword, by position or by ``**``."""

    function: str
    parameter: str
    at: Subject | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """In one subject, a node of shape ``first`` begins before the first node of shape ``then``."""

    first: Shape
    then: Shape
    at: Subject | None = None


@dataclass(frozen=True, slots=True)
class Flows:
    """A value of shape ``source`` reaches a node of shape ``sink``, directly or through local names."""

    source: Shape
    sink: Shape
    at: Subject | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """One part of the tree verdict (drafting, attention, verification) is one of these."""

    part: str
    among: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class All:
    """All of them hold."""

    of: tuple[Test, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One of them holds."""

    of: tuple[Test, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """It holds for one place alone: tests that must hold together in the same file, class or function."""

    of: Test
    at: Subject | None = None


@dataclass(frozen=True, slots=True)
class Not:
    """It does not hold."""

    of: Test


Relation = Uses | Exists | Declares | Inherits | Overrides | Writers | Difference | Passes | Order | Flows | Verdict
Test = Match | Relation | All | AnyOf | Some | Not


@dataclass(frozen=True, slots=True)
class Example:
    """A small engine and the status that the rule must give it; ``tree`` is the tree verdict it would get."""

    status: Status
    files: Mapping[str, str]
    tree: Mapping[str, str] = field(default_factory=dict)
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Edit:
    """One documented change of a real tree: nodes of ``shape`` become ``text``, its ``$NAMES`` filled in."""

    shape: Shape
    text: str
    at: Subject
    first: bool = False


@dataclass(frozen=True, slots=True)
class Mutation:
    """Edits that turn a tree with status ``before`` into one with status ``after``."""

    before: Status
    after: Status
    edits: tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class Remedy:
    """What a user can do: the first release without the defect, an option, a recipe of this program."""

    release: str = ""
    option: str = ""
    recipe: str = ""

    def __str__(self) -> str:
        option = self.option.strip()
        if self.release and option:
            option = f"Fixed in {self.release}; until then: {_continued(option)}"
        elif self.release:
            option = f"Fixed in {self.release}."
        recipe = f"Recipe of `specaudit patch`: {self.recipe}." if self.recipe else ""
        return " ".join(part for part in (option, recipe) if part)


def _continued(sentence: str) -> str:
    """A sentence as it reads after a colon."""
    return sentence[:1].lower() + sentence[1:] if _WORD.match(sentence) else sentence


@dataclass(frozen=True, slots=True)
class Rule:
    """One known defect.

    Statuses, in this order: ``applies`` does not hold: not-applicable. The subject is missing: ``missing``. ``present``
    holds: present. ``partial`` holds: partial. ``fixed`` is given and does not hold: not-found (the code is there, in a
    shape that nobody has described yet). Otherwise ``otherwise``. ``evidence`` is what to point at where the deciding
    test rests on absence.
    """

    id: str
    title: str
    severity: Severity
    engine: str
    methods: tuple[str, ...]
    runners: tuple[str, ...]
    symptom: str
    cause: str
    references: tuple[str, ...]
    remedy: Remedy
    present: Test
    subject: Subject | None = None
    missing: Status = "not-found"
    applies: Test | None = None
    partial: Test | None = None
    fixed: Test | None = None
    otherwise: Status = "fixed"
    evidence: Shape | None = None
    reach: tuple[Condition, ...] = ()
    notes: str = ""
    examples: tuple[Example, ...] = ()
    mutations: tuple[Mutation, ...] = ()
    name: str = ""
    source: Literal["packaged", "user"] = "packaged"

    @property
    def runner(self) -> str:
        """The runners as the scan document writes them: ``v1``, ``v2`` or ``v1+v2``."""
        return "+".join(self.runners)


def globs(value: object) -> Iterator[str]:
    """Every file pattern in a rule, or in a part of one; not what a rule's mutations change, which no scan reads."""
    if isinstance(value, Subject):
        yield from value.files
    elif isinstance(value, tuple):
        for item in value:
            yield from globs(item)
    elif is_dataclass(value) and not isinstance(value, (Example, Mutation)):
        for part in fields(value):
            yield from globs(getattr(value, part.name))

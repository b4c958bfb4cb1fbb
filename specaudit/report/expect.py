"""Expectations: what a scan must say, as ``KEY=VALUE`` on the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

from specaudit import taken
from specaudit.engines import ENGINES
from specaudit.errors import UsageError
from specaudit.model import UNCOMPARED, VERDICTS, Proposer, Scan, Status, Topology, Walk


@dataclass(frozen=True, slots=True)
class Unmet:
    """An expectation that a scan does not meet: what was expected, and what is."""

    expectation: Expectation
    found: str

    def __str__(self) -> str:
        return f"expected {self.expectation}, found {self.found}"


@dataclass(frozen=True, slots=True)
class Expectation:
    """``key`` (with ``of``: a method or a rule) must have ``value``."""

    key: str
    of: str
    value: str

    def __str__(self) -> str:
        return f"{self.key}{f'.{self.of}' if self.of else ''}={self.value}"

    def check(self, scan: Scan) -> Unmet | None:
        """``None`` when the scan meets it. What a scan does not know is not met."""
        found = sorted(set(_KEYS[self.key](scan, self.of)))
        met = self.value in found if self.key in _ANY else found == [self.value]
        return None if met else Unmet(self, ", ".join(found) or "nothing")


def read(text: str) -> Expectation:
    """Reads ``KEY=VALUE`` or ``KEY.OF=VALUE``.

    Raises:
        UsageError: another form, a key that nothing can be expected of, or a value that it never has.
    """
    name, equals, value = text.partition("=")
    key, _, of = name.strip().partition(".")
    if not equals or not value.strip() or key not in _KEYS:
        known = ", ".join(_KEYS)
        raise UsageError(f"--expect {text!r} cannot be understood.", f"Write KEY=VALUE with one of {known}.")
    if bool(of) != (key in _OF) and key not in _OPTIONAL:
        example = f"{key}.NAME=VALUE" if key in _OF else f"{key}=VALUE"
        raise UsageError(f"--expect {text!r} cannot be understood.", f"Write {example}.")
    possible = _VALUES.get(key)
    if possible is not None and value.strip() not in possible:
        raise UsageError(f"--expect {text!r} can never be met.", f"{key} is one of {', '.join(possible)}.")
    return Expectation(key, of, value.strip())


def _tree(part: str) -> Callable[[Scan, str], Iterator[str]]:
    def verdict(scan: Scan, of: str) -> Iterator[str]:
        if scan.tree is not None:
            yield {
                "drafting": scan.tree.drafting,
                "attention": scan.tree.attention,
                "verification": scan.tree.verification,
            }[part].verdict

    return verdict


def _runner(scan: Scan, method: str) -> Iterator[str]:
    """The runner of the configuration that was named, else the default runner of the method, or of every method."""
    unmarked = not method and scan.paths and not taken.configured(scan)  # as in documents of older versions
    if unmarked and all(not path.when for path in scan.paths):
        yield from (path.runner for path in scan.paths)
        return
    yield from taken.runners(scan, method)


def _drafting(scan: Scan, method: str) -> Iterator[Proposer]:
    labels = taken.runners(scan, method)
    for proposer in taken.part(scan).proposers:
        if proposer.reachable != "dead" and method in proposer.methods and proposer.runner in labels:
            yield proposer


def _proposer(scan: Scan, method: str) -> Iterator[str]:
    yield from (proposer.name for proposer in _drafting(scan, method))


def _topology(scan: Scan, method: str) -> Iterator[str]:
    yield from (proposer.topology for proposer in _drafting(scan, method))


def _walk(scan: Scan, of: str) -> Iterator[str]:
    for verifier in taken.part(scan).verifiers:
        if verifier.reachable != "dead":
            yield verifier.walk
            yield from (variant.walk for variant in verifier.variants)


def _rule(scan: Scan, rule: str) -> Iterator[str]:
    yield from (finding.status for finding in scan.findings if finding.rule == rule)


def _engine(scan: Scan, of: str) -> Iterator[str]:
    if scan.engine is not None:
        yield scan.engine.name


def _version(scan: Scan, of: str) -> Iterator[str]:
    if scan.engine is not None:
        yield scan.engine.version


def _modified(scan: Scan, of: str) -> Iterator[str]:
    if any(item.what == UNCOMPARED for item in scan.not_looked):
        yield "nothing that could be compared: no RECORD of the engine could be read"
    elif scan.engine is not None:
        yield "yes" if scan.engine.modified or scan.engine.missing or scan.engine.added else "no"


_KEYS: Mapping[str, Callable[[Scan, str], Iterator[str]]] = {
    "tree-drafting": _tree("drafting"),
    "tree-attention": _tree("attention"),
    "tree-verification": _tree("verification"),
    "runner": _runner,
    "proposer": _proposer,
    "topology": _topology,
    "walk": _walk,
    "rule": _rule,
    "engine": _engine,
    "version": _version,
    "modified": _modified,
}
#: What the values of some keys can be.
_VALUES: Mapping[str, tuple[str, ...]] = {
    **{f"tree-{part}": verdicts for part, verdicts in VERDICTS.items()},
    "runner": tuple(dict.fromkeys(runner.label for engine in ENGINES.values() for runner in engine.runners)),
    "topology": get_args(Topology),
    "walk": get_args(Walk),
    "rule": get_args(Status),
    "modified": ("yes", "no"),
}
#: Keys that need a method or a rule after a dot, and those that may have one.
_OF = frozenset({"proposer", "topology", "rule"})
_OPTIONAL = frozenset({"runner"})
#: Keys of which one value among several is enough.
_ANY = frozenset({"walk"})

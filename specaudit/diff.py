"""Two scans -> what appeared, vanished, moved or changed between them. Pure; in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal, TypeVar

from specaudit import document, taken
from specaudit.model import Finding, Proposer, Scan, Severity, Verifier
from specaudit.narrowing import with_methods
from specaudit.report.gate import OPEN, Baseline, at_least
from specaudit.report.view import where

Kind = Literal["appeared", "vanished", "moved", "changed"]
T = TypeVar("T")
Thing = TypeVar("Thing", Proposer, Verifier)


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: ``about`` names the kind of thing, ``name`` the thing, ``what`` its property.

    ``severity`` is that of a finding, ``""`` for anything else.
    """

    kind: Kind
    about: str
    name: str
    what: str = ""
    before: str = ""
    after: str = ""
    severity: str = ""

    @property
    def lead(self) -> str:
        """The kind, as wide as any."""
        return f"{self.kind:<9} "

    @property
    def text(self) -> str:
        """All but the kind, in words."""
        line = f"{self.about} {self.name}"
        if self.kind in ("changed", "moved"):
            return f"{line}: {self.what + ' ' if self.what else ''}{self.before or '-'} -> {self.after or '-'}"
        detail = self.after or self.before
        return f"{line}: {detail}" if detail else line


def diff(before: Scan, after: Scan) -> tuple[Change, ...]:
    """What is different in ``after``."""
    return tuple(
        [
            *_engine(before, after),
            *_runners(before, after),
            *_proposers(before, after),
            *_verifiers(before, after),
            *_trees(before, after),
            *_options(before, after),
            *_findings(before, after),
        ]
    )


def as_json(before: Scan, after: Scan, changes: Iterable[Change]) -> bytes:
    """The document ``specaudit/diff/1``."""
    made = {
        "schema": "specaudit/diff/1",
        "before": _named(before),
        "after": _named(after),
        "changes": [asdict(change) for change in changes],
    }
    return document.as_json(made, indent=2)


def worse(before: Scan, after: Scan, floor: Severity) -> list[Finding]:
    """Findings at or above a severity that ``after`` has and ``before`` has not."""
    known = Baseline(tuple(finding for finding in before.findings if finding.status in OPEN))
    return [
        finding
        for finding in after.findings
        if finding.status in OPEN and at_least(finding.severity, floor) and not known.knows(finding)
    ]


def _named(scan: Scan) -> dict[str, str]:
    engine = scan.engine
    facts = {"engine": engine.name, "version": engine.version, "digest": engine.digest} if engine else {}
    return {"target": scan.target.spec, **facts}


def _engine(before: Scan, after: Scan) -> Iterator[Change]:
    old, new = before.engine, after.engine
    if old is None or new is None:
        return
    for what in ("name", "version", "source"):
        if getattr(old, what) != getattr(new, what):
            yield Change("changed", "engine", new.name, what, getattr(old, what), getattr(new, what))
    for what in ("modified", "missing", "added", "patched"):
        was, now = set(getattr(old, what)), set(getattr(new, what))
        for path in sorted(now - was):
            yield Change("appeared", f"{what} file", path)
        for path in sorted(was - now):
            yield Change("vanished", f"{what} file", path)


def _runners(before: Scan, after: Scan) -> Iterator[Change]:
    was, now = _defaults(before), _defaults(after)
    yield from _keys("method", was, now)
    named = {path.method for scan in (before, after) for path in taken.configured(scan)}
    for method in sorted(was.keys() & now.keys()):
        yield from _changed("method", method, "default runner", was[method], now[method])
        if method in named:
            old, new = (" or ".join(taken.runners(scan, method)) for scan in (before, after))
            yield from _changed("method", method, "runner as configured", old, new)


def _defaults(scan: Scan) -> dict[str, str]:
    """method -> its default runner, or those between which the model decides; ``depends``: none without a setting."""
    methods = dict.fromkeys(runner.method for runner in scan.runners)
    return {method: " or ".join(taken.default_runners(scan.runners, method)) or "depends" for method in methods}


def _proposers(before: Scan, after: Scan) -> Iterator[Change]:
    was, now = _by_name(before.proposers), _by_name(after.proposers)
    yield from _keys("proposer", was, now, lambda p: f"{p.path}:{p.line} ({p.topology})")
    for name in sorted(was.keys() & now.keys()):
        old, new = was[name], now[name]
        yield from _moved("proposer", name, old.path, new.path)
        for what, values in (
            ("topology", (_topologies(old), _topologies(new))),
            ("methods", (", ".join(sorted(old.methods)), ", ".join(sorted(new.methods)))),
            ("reachable", (old.reachable, new.reachable)),
        ):
            yield from _changed("proposer", name, what, *values)


def _topologies(proposer: Proposer) -> str:
    return ", ".join(dict.fromkeys([proposer.topology, *(variant.topology for variant in proposer.variants)]))


def _verifiers(before: Scan, after: Scan) -> Iterator[Change]:
    was, now = _by_name(before.verifiers), _by_name(after.verifiers)
    yield from _keys("verifier", was, now, lambda v: f"{v.path}:{v.line} ({v.walk})")
    for name in sorted(was.keys() & now.keys()):
        old, new = was[name], now[name]
        yield from _moved("verifier", name, old.path, new.path)
        yield from _changed("verifier", name, "walk", _walks(old), _walks(new))
        yield from _changed("verifier", name, "reachable", old.reachable, new.reachable)
        yield from _changed("verifier", name, "methods", *(", ".join(sorted(v.methods)) or "all" for v in (old, new)))


def _walks(verifier: Verifier) -> str:
    return ", ".join(sorted({verifier.walk, *(variant.walk for variant in verifier.variants)}))


def _trees(before: Scan, after: Scan) -> Iterator[Change]:
    if before.tree is None or after.tree is None:
        return
    for part in ("drafting", "attention", "verification"):
        old, new = getattr(before.tree, part).verdict, getattr(after.tree, part).verdict
        yield from _changed("tree", part, "", old, new)


def _options(before: Scan, after: Scan) -> Iterator[Change]:
    """Options that become something else, the methods for which the same changes brought together."""
    was, now = _by_method(before), _by_method(after)
    both = was.keys() & now.keys()
    changed: dict[tuple[str, str, str, str], list[str]] = {}
    for name, runner, method in (key for key in was if key in both):
        old, new = was[name, runner, method], now[name, runner, method]
        if old != new:
            changed.setdefault((name, runner, old, new), []).append(method)
    for (name, runner, old, new), methods in sorted(changed.items()):
        every = {known for option, on, known in both if (option, on) == (name, runner)}
        whose = " on ".join(part for part in ("" if every == {*methods} else ", ".join(methods), runner) if part)
        yield Change("changed", "option", f"{name} ({whose})" if whose else name, "", old, new)


def _by_method(scan: Scan) -> dict[tuple[str, str, str], str]:
    """What becomes of an option, by its name and value, runner and method."""
    return {
        (option.name + (f"={option.value}" if option.value else ""), option.runner, method): option.status
        for option, methods in with_methods(scan)
        for method in methods or ("",)
    }


def _findings(before: Scan, after: Scan) -> Iterator[Change]:
    was = {finding.rule: finding for finding in before.findings}
    now = {finding.rule: finding for finding in after.findings}
    for rule in sorted(was.keys() & now.keys()):
        old, new = was[rule], now[rule]
        if old.status != new.status:
            yield Change("changed", "finding", rule, "", old.status, new.status, new.severity)
        elif new.status in OPEN and old.fingerprint != new.fingerprint:
            yield Change("changed", "finding", rule, f"({new.status})", _places(old), _places(new), new.severity)
    for rule in sorted(now.keys() - was.keys()):
        yield Change("appeared", "rule", rule, after=now[rule].status, severity=now[rule].severity)
    for rule in sorted(was.keys() - now.keys()):
        yield Change("vanished", "rule", rule, before=was[rule].status, severity=was[rule].severity)


def _places(finding: Finding) -> str:
    """Where a finding is: its first place, and how many there are."""
    more = f" and {len(finding.sites) - 1} more" if len(finding.sites) > 1 else ""
    return where(finding) + more


def _by_name(things: Iterable[Thing]) -> dict[str, Thing]:
    """One class name may stand for several things; runner, and file where that is not enough, tell them apart."""
    found: dict[str, Thing] = {}
    for thing in things:
        name = f"{thing.name} ({thing.runner})" if thing.runner else thing.name
        found[name if name not in found else f"{name} in {thing.path}"] = thing
    return found


def _keys(about: str, was: Mapping[str, T], now: Mapping[str, T], tell: Callable[[T], str] = str) -> Iterator[Change]:
    for name in sorted(now.keys() - was.keys()):
        yield Change("appeared", about, name, after=tell(now[name]))
    for name in sorted(was.keys() - now.keys()):
        yield Change("vanished", about, name, before=tell(was[name]))


def _moved(about: str, name: str, old: str, new: str) -> Iterator[Change]:
    if old != new:
        yield Change("moved", about, name, "", old, new)


def _changed(about: str, name: str, what: str, old: str, new: str) -> Iterator[Change]:
    if old != new:
        yield Change("changed", about, name, what, old, new)

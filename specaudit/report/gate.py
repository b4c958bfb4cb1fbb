"""Which findings fail a run: at or above a severity, not ignored, and not in the baseline.

A finding is the same finding as long as its rule, its symbol and the normalised text of its sites are (the
fingerprint), wherever its lines and files move. One that has lost some of its sites is no new one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

from specaudit.errors import Exit, UsageError
from specaudit.model import Finding, Run, Scan, Severity
from specaudit.report.expect import Expectation, Unmet
from specaudit.ruling.identity import normal
from specaudit.words import meant

SEVERITIES: tuple[Severity, ...] = get_args(Severity)
#: Statuses of findings that matter.
OPEN = ("present", "partial")


@dataclass(frozen=True, slots=True)
class Baseline:
    """Findings that were accepted earlier, and the engines on which they were found."""

    findings: tuple[Finding, ...] = ()
    engines: frozenset[str] = frozenset()

    def knows(self, finding: Finding) -> bool:
        """Whether it is one of them, or one of them with fewer sites."""
        return any(
            old.rule == finding.rule and (old.fingerprint == finding.fingerprint or _within(finding, old))
            for old in self.findings
        )


def _within(finding: Finding, old: Finding) -> bool:
    """Whether every symbol and every line of a finding was in an earlier one."""
    texts = {normal(site.text) for site in finding.sites}
    symbols = set(finding.symbol.split(", "))
    return bool(texts) and texts <= {normal(site.text) for site in old.sites} and symbols <= set(old.symbol.split(", "))


@dataclass(frozen=True, slots=True)
class Gate:
    """What a run must not have.

    ``fail_on`` is the lowest severity that fails (``None``: no finding fails); ``ignored`` are rule ids; ``known`` is
    a baseline; ``expectations`` are checked on every scan.
    """

    fail_on: Severity | None = None
    ignored: frozenset[str] = frozenset()
    known: Baseline = Baseline()
    expectations: tuple[Expectation, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the gate says about one scan. ``failing``, ``known`` and ``ignored`` are open findings; ``unjudged`` that
    findings were to be gated and the document has none, because it was made without rules; ``gated`` that the gate
    asks for anything.
    """

    scan: Scan
    failing: tuple[Finding, ...] = ()
    known: tuple[Finding, ...] = ()
    ignored: tuple[Finding, ...] = ()
    unmet: tuple[Unmet, ...] = ()
    met: tuple[Expectation, ...] = ()
    unjudged: bool = False
    gated: bool = True

    @property
    def code(self) -> Exit:
        """Incomplete wins over findings; the document says both."""
        if self.scan.engine is None or self.scan.errors or self.unjudged:
            return Exit.INCOMPLETE
        return Exit.FINDINGS if self.failing or self.unmet else Exit.CLEAN


def judge(scan: Scan, gate: Gate) -> Judgement:
    """Applies the gate to one scan."""
    opened = [finding for finding in scan.findings if finding.status in OPEN]
    ignored = [finding for finding in opened if finding.rule in gate.ignored]
    counted = [finding for finding in opened if finding.rule not in gate.ignored]
    known = [finding for finding in counted if gate.known.knows(finding)]
    left = [finding for finding in counted if finding not in known]
    checked = [(expectation, expectation.check(scan)) for expectation in gate.expectations]
    return Judgement(
        scan,
        failing=tuple(f for f in left if gate.fail_on is not None and at_least(f.severity, gate.fail_on)),
        known=tuple(known),
        ignored=tuple(ignored),
        unmet=tuple(unmet for _, unmet in checked if unmet is not None),
        met=tuple(expectation for expectation, unmet in checked if unmet is None),
        unjudged=gate.fail_on is not None and not scan.findings,
        gated=gate.fail_on is not None or bool(gate.expectations),
    )


def at_least(severity: Severity, floor: Severity) -> bool:
    """Whether a severity is the floor or above it."""
    return SEVERITIES.index(severity) >= SEVERITIES.index(floor)


def worst(judgements: Iterable[Judgement]) -> Exit:
    """The exit code of several scans: incomplete, findings, clean."""
    codes = {judgement.code for judgement in judgements}
    return next((code for code in (Exit.INCOMPLETE, Exit.FINDINGS) if code in codes), Exit.CLEAN)


def severity(text: str) -> Severity:
    """A severity by its name.

    Raises:
        UsageError: there is no such severity.
    """
    for name in SEVERITIES:
        if name == text:
            return name
    raise UsageError(f"{text!r} is no severity.", f"Write one of {', '.join(SEVERITIES)}.")


def baseline(document: Scan | Run) -> Baseline:
    """The open findings of an earlier scan document.

    Raises:
        UsageError: the document holds no findings at all, open or not, so that it can excuse nothing.
    """
    scans = document.scans if isinstance(document, Run) else (document,)
    judged = [scan for scan in scans if scan.findings and scan.engine is not None]
    if not judged:
        raise UsageError(
            "The baseline holds no findings: its scan failed, or was made without rules.",
            "Write it again with `specaudit scan TARGET --output FILE`, or leave --baseline out.",
        )
    return Baseline(
        tuple(finding for scan in judged for finding in scan.findings if finding.status in OPEN),
        frozenset(scan.engine.name for scan in judged if scan.engine is not None),
    )


def fit(known: Baseline, scans: Iterable[Scan]) -> None:
    """Checks that a baseline can say something about the scans.

    Raises:
        UsageError: it is of another engine.
    """
    engines = {scan.engine.name for scan in scans if scan.engine is not None}
    if known.engines and engines and known.engines.isdisjoint(engines):
        raise UsageError(
            f"The baseline is of {', '.join(sorted(known.engines))}, and this is {', '.join(sorted(engines))}.",
            "Give the scan document of the same engine.",
        )


def check_ids(wanted: Iterable[str], known: Iterable[str]) -> None:
    """Checks that rules with these ids exist: one that is misspelt would ignore nothing, or expect the impossible.

    Raises:
        UsageError: there is no such rule; the message names similar ones.
    """
    names = sorted(set(known))
    for one in wanted:
        if one not in names:
            hint = meant(one, names, 3) or "`specaudit rules list` prints all ids."
            raise UsageError(f"There is no rule {one!r}.", hint)

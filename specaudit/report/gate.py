"""Which findings fail a run: at or above a severity, not ignored, and not in the baseline.

A finding is the same finding as long as its rule, its symbol and the normalised text of its sites are (the
fingerprint), wherever its lines and files move.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import get_args

from specaudit.errors import Exit, UsageError
from specaudit.model import Finding, Run, Scan, Severity
from specaudit.report.expect import Expectation, Unmet

SEVERITIES: tuple[Severity, ...] = get_args(Severity)
#: Statuses of findings that matter.
OPEN = ("present", "partial")


@dataclass(frozen=True, slots=True)
class Gate:
    """What a run must not have.

    ``fail_on`` is the lowest severity that fails (``None``: no finding fails); ``ignored`` are rule ids; ``known`` are
    fingerprints of a baseline; ``expectations`` are checked on every scan.
    """

    fail_on: Severity | None = None
    ignored: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()
    expectations: tuple[Expectation, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the gate says about one scan. ``failing`` and ``tolerated`` (known or ignored) are open findings."""

    scan: Scan
    failing: tuple[Finding, ...] = ()
    known: tuple[Finding, ...] = ()
    ignored: tuple[Finding, ...] = ()
    unmet: tuple[Unmet, ...] = ()
    met: tuple[Expectation, ...] = field(default=())

    @property
    def code(self) -> Exit:
        """Incomplete wins over findings; the document says both."""
        if self.scan.engine is None or self.scan.errors:
            return Exit.INCOMPLETE
        return Exit.FINDINGS if self.failing or self.unmet else Exit.CLEAN


def judge(scan: Scan, gate: Gate) -> Judgement:
    """Applies the gate to one scan."""
    opened = [finding for finding in scan.findings if finding.status in OPEN]
    ignored = [finding for finding in opened if finding.rule in gate.ignored]
    known = [f for f in opened if f.rule not in gate.ignored and f.fingerprint in gate.known]
    left = [f for f in opened if f.rule not in gate.ignored and f.fingerprint not in gate.known]
    checked = [(expectation, expectation.check(scan)) for expectation in gate.expectations]
    return Judgement(
        scan,
        failing=tuple(f for f in left if gate.fail_on is not None and at_least(f.severity, gate.fail_on)),
        known=tuple(known),
        ignored=tuple(ignored),
        unmet=tuple(unmet for _, unmet in checked if unmet is not None),
        met=tuple(expectation for expectation, unmet in checked if unmet is None),
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


def baseline(document: Scan | Run) -> frozenset[str]:
    """Fingerprints of the open findings of an earlier scan document."""
    scans = document.scans if isinstance(document, Run) else (document,)
    return frozenset(f.fingerprint for scan in scans for f in scan.findings if f.status in OPEN)

"""Report -> what a GitHub Actions step prints: at most ten annotations, and a step summary of less than 1 MiB.

GitHub shows ten annotations of a kind per step and drops the rest without a word; so the tenth says how many there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from specaudit.hosts.shell import printable
from specaudit.model import Severity
from specaudit.report import pages, view
from specaudit.report.gate import Judgement
from specaudit.report.view import Report

LIMIT = 10
SUMMARY_BYTES = 1 << 20
_KINDS: dict[Severity, str] = {
    "critical": "error",
    "high": "error",
    "medium": "warning",
    "low": "notice",
    "info": "notice",
}


@dataclass(frozen=True, slots=True)
class _Annotation:
    kind: str
    title: str
    message: str
    path: str = ""
    line: int = 0

    def __str__(self) -> str:
        where = f"file={_value(self.path)},line={self.line}," if self.path else ""
        return f"::{self.kind} {where}title={_value(self.title)}::{_data(self.message)}"


def github(report: Report) -> str:
    """Workflow commands, worst first; beyond ``LIMIT`` the last one counts the rest."""
    found = [annotation for judgement in report.judgements for annotation in _annotations(judgement)]
    order = ("error", "warning", "notice")
    found.sort(key=lambda annotation: order.index(annotation.kind))
    if len(found) > LIMIT:
        more = len(found) - (LIMIT - 1)
        found = [*found[: LIMIT - 1], _Annotation(found[LIMIT - 1].kind, "specaudit", f"and {more} more")]
    return "".join(f"{annotation}\n" for annotation in found)


def _annotations(judgement: Judgement) -> Iterator[_Annotation]:
    scan = judgement.scan
    for failure in scan.errors:
        yield _Annotation("error", f"{scan.target.spec}: not examined", failure.error)
    for unmet in judgement.unmet:
        yield _Annotation("error", f"{scan.target.spec}: expectation not met", str(unmet))
    for finding in view.opened(scan):
        if view.standing(judgement, finding) in ("known", "ignored"):
            continue
        kind = "error" if finding in judgement.failing else _below(finding.severity)
        site = finding.sites[0] if finding.sites else None
        message = " ".join(part for part in (f"{finding.title}.", finding.remedy) if part)
        yield _Annotation(kind, finding.rule, message, site.path if site else "", site.line if site else 0)


def _below(severity: Severity) -> str:
    """The kind of a finding that does not fail the run: never an error."""
    return "warning" if _KINDS[severity] == "error" else _KINDS[severity]


def summary(report: Report) -> str:
    """Markdown for the step summary, cut at a line where GitHub would refuse it whole."""
    written = pages.markdown(report)
    if len(written.encode()) < SUMMARY_BYTES:
        return written
    note = "\n\nThe rest does not fit into a step summary; see the full report.\n"
    kept = written.encode()[: SUMMARY_BYTES - len(note.encode()) - 1].decode(errors="ignore")
    return kept.rpartition("\n")[0] + note


def _data(text: str) -> str:
    return printable(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _value(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")

"""What all formats show, and in which order. Pure functions of a scan document and of what the gate says about it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from specaudit.model import Finding, Hop, Path, Scan, Search, TreePart
from specaudit.report.gate import OPEN, SEVERITIES, Gate, Judgement, judge
from specaudit.taken import configured
from specaudit.words import counted

#: Statuses in the order in which a reader wants them.
STATUSES = ("present", "partial", "unreachable", "fixed", "not-found", "not-applicable")
#: Steps of a path, in order.
STAGES = ("config", "runner", "proposer", "attention", "sampler", "kernel")


@dataclass(frozen=True, slots=True)
class Report:
    """Scans as the gate sees them."""

    judgements: tuple[Judgement, ...]
    gate: Gate

    @property
    def scans(self) -> tuple[Scan, ...]:
        """The scans, in the order in which they were given."""
        return tuple(judgement.scan for judgement in self.judgements)


def report_of(scans: Iterable[Scan], gate: Gate | None = None) -> Report:
    """Scans with the gate applied."""
    chosen = gate or Gate()
    return Report(tuple(judge(scan, chosen) for scan in scans), chosen)


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Open ones first and among them the worst, then by status, severity and rule."""
    return sorted(
        findings,
        key=lambda f: (
            0 if f.status in OPEN else STATUSES.index(f.status),
            -SEVERITIES.index(f.severity),
            STATUSES.index(f.status),
            f.rule,
        ),
    )


def opened(scan: Scan) -> list[Finding]:
    """Findings that are present or partial, the tree verdicts (severity info) aside."""
    return ranked(f for f in scan.findings if f.status in OPEN and f.severity != "info")


def closed(scan: Scan, status: str) -> list[Finding]:
    """Findings of another status, the tree verdicts aside."""
    return ranked(f for f in scan.findings if f.status == status and f.severity != "info")


def counts(scan: Scan) -> list[tuple[str, int]]:
    """(status, number of rules) for every status that occurs, the tree verdicts aside."""
    found = [f.status for f in scan.findings if f.severity != "info"]
    return [(status, found.count(status)) for status in STATUSES if status in found]


def count_words(scan: Scan) -> str:
    """The counts in words: ``23 present, 2 partial``."""
    return ", ".join(f"{number} {status}" for status, number in counts(scan))


def standing(judgement: Judgement, finding: Finding) -> str:
    """What the gate does with an open finding: fails, known, ignored, or counts for nothing (``""``)."""
    if finding in judgement.failing:
        return "fails"
    if finding in judgement.known:
        return "known"
    return "ignored" if finding in judgement.ignored else ""


def verdict(judgement: Judgement) -> str:
    """The gate's word on one scan in a sentence."""
    said = []
    if judgement.scan.engine is None:
        return "not examined: " + "; ".join(failure.error for failure in judgement.scan.errors)
    if judgement.scan.errors:
        said.append(f"not fully examined ({counted(len(judgement.scan.errors), 'failure')})")
    if judgement.unjudged:
        said.append("no findings to gate: the scan was made without rules")
    if judgement.failing:
        said.append(f"{counted(len(judgement.failing), 'finding')} at or above the gate")
    said += [str(unmet) for unmet in judgement.unmet]
    if judgement.known:
        said.append(f"{len(judgement.known)} known from the baseline")
    if judgement.ignored:
        said.append(f"{len(judgement.ignored)} ignored")
    passed = "nothing that fails it" if judgement.gated else "none was set"
    return "; ".join(said) or passed


def where(finding: Finding) -> str:
    """``path:line`` of the first site, or the symbol that was looked for."""
    return f"{finding.sites[0].path}:{finding.sites[0].line}" if finding.sites else finding.symbol


def tree_parts(scan: Scan) -> list[tuple[str, TreePart]]:
    """The three questions about trees with their answers."""
    if scan.tree is None:
        return []
    return [
        ("Is a tree drafted?", scan.tree.drafting),
        ("Does the target's attention mask a tree?", scan.tree.attention),
        ("Does the verifier walk a tree?", scan.tree.verification),
    ]


def search_words(search: Search) -> str:
    """A search record in a sentence."""
    return (
        f"{search.looked_at:,} looked at in {counted(search.files, 'file')} ({counted(search.bytes, 'byte')}, "
        f"SHA-256 {search.digest[:12] or 'none'}): {search.asked}"
    )


def default_paths(scan: Scan) -> list[Path]:
    """The paths of the configuration that was named, else those taken by default; all paths when no runner is known."""
    named = list(configured(scan))
    if named:
        return named
    defaults = {(runner.method, runner.runner) for runner in scan.runners if runner.default}
    found = [path for path in scan.paths if not defaults or (path.method, path.runner) in defaults]
    return found or list(scan.paths)


def landmarks(scan: Scan, path: Path) -> list[tuple[str, Hop, int]]:
    """One hop per stage, in the order of :data:`STAGES`, with the number of hops of that stage: the path at a glance.

    Shown is the hop that names what the audit found there (the method, a proposer, an accepting kernel), else the first
    one; of the runner the last one before drafting begins, which makes it.
    """
    deciding = [v for v in scan.verifiers if v.walk not in ("helper", "dispatcher")]
    named: dict[str, re.Pattern[str] | None] = {
        "proposer": _naming(proposer.name for proposer in scan.proposers),
        "sampler": _naming(v.name for v in scan.verifiers if v.role in ("function", "class")),
        "kernel": _naming(v.name for v in deciding if v.role in ("kernel", "compiled")),
    }
    named["config"] = re.compile(rf"""["']{re.escape(path.method)}["']""")
    drafting = next((n for n, hop in enumerate(path.hops) if hop.what == "proposer"), len(path.hops))
    found: list[tuple[str, Hop, int]] = []
    for stage in STAGES:
        hops = [hop for hop in path.hops if hop.what == stage]
        pattern = named.get(stage)
        if stage == "runner":
            naming = [hop for hop in path.hops[:drafting] if hop.what == stage]
        else:
            naming = [hop for hop in hops if pattern is not None and pattern.search(hop.text)]
        # A path drafts before it accepts: of several that accept, the last one has the last word.
        chosen = (naming[:1] if stage == "proposer" else naming[-1:]) or hops[:1]
        found += [(stage, hop, len(hops)) for hop in chosen]
    return found


def _naming(names: Iterable[str]) -> re.Pattern[str] | None:
    words = "|".join(re.escape(name) for name in sorted(set(names)))
    return re.compile(rf"\b(?:{words})\b") if words else None

"""The gate: severities, baseline, ignored rules, expectations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from specaudit.errors import Exit, UsageError
from specaudit.model import Evidence, Failure, Finding, Run, Scan
from specaudit.report import expect
from specaudit.report.gate import Gate, baseline, judge, severity, worst

Scanned = Callable[[str], Scan]


@pytest.fixture
def old(scanned: Scanned) -> Scan:
    return scanned("0.20.1")


def open_findings(scan: Scan, *severities: str) -> list[Finding]:
    return [f for f in scan.findings if f.status in ("present", "partial") and f.severity in severities]


def test_without_a_gate_findings_fail_nothing(old: Scan) -> None:
    judgement = judge(old, Gate())
    assert (judgement.failing, judgement.code) == ((), Exit.CLEAN)


def test_findings_at_or_above_the_severity_fail(old: Scan) -> None:
    judgement = judge(old, Gate(fail_on="high"))
    assert list(judgement.failing) == open_findings(old, "high", "critical")
    assert len(judgement.failing) > 10
    assert judgement.code is Exit.FINDINGS
    assert len(judge(old, Gate(fail_on="critical")).failing) == len(open_findings(old, "critical"))


def test_ignored_rules_do_not_count(old: Scan) -> None:
    names = frozenset(f.rule for f in open_findings(old, "critical"))
    judgement = judge(old, Gate(fail_on="critical", ignored=names))
    assert judgement.code is Exit.CLEAN
    assert {f.rule for f in judgement.ignored} == names


def test_only_what_is_new_counts(old: Scan, scanned: Scanned) -> None:
    new = scanned("0.33.0")
    assert judge(old, Gate("low", known=baseline(old))).code is Exit.CLEAN
    later = judge(new, Gate("low", known=baseline(old)))
    assert "removed-method-medusa" in {f.rule for f in later.failing}
    assert "mean-acceptance-counts-past-eos" in {f.rule for f in later.known}


def test_a_moved_line_is_no_new_finding_and_other_text_is(old: Scan) -> None:
    known = baseline(old)
    first = open_findings(old, "critical")[0]
    from specaudit.ruling.evaluate import fingerprint

    def with_sites(*sites: Evidence) -> Scan:
        print_ = fingerprint(first.rule, first.symbol, sites)
        return replace(old, findings=(replace(first, sites=sites, fingerprint=print_),))

    moved = tuple(Evidence(f"vllm/elsewhere/{n}.py", s.line + 40, s.text) for n, s in enumerate(first.sites))
    assert judge(with_sites(*moved), Gate("low", known=known)).code is Exit.CLEAN
    other = tuple(replace(s, text=s.text + " + 1") for s in first.sites)
    assert judge(with_sites(*other), Gate("low", known=known)).code is Exit.FINDINGS


def test_a_baseline_of_several_scans(old: Scan, scanned: Scanned) -> None:
    both = baseline(Run((old, scanned("0.33.0"))))
    assert both == baseline(old) | baseline(scanned("0.33.0"))


def test_incomplete_wins_over_findings(old: Scan) -> None:
    incomplete = replace(old, errors=(Failure("vllm/a.py", "cannot be parsed"),))
    judgement = judge(incomplete, Gate("low"))
    assert judgement.failing
    assert judgement.code is Exit.INCOMPLETE
    assert worst([judgement, judge(old, Gate("low"))]) is Exit.INCOMPLETE
    assert worst([judge(old, Gate("low")), judge(old, Gate())]) is Exit.FINDINGS


def test_unreachable_findings_never_fail(old: Scan) -> None:
    findings = tuple(replace(f, status="unreachable") for f in old.findings)
    assert judge(replace(old, findings=findings), Gate("low")).code is Exit.CLEAN


def test_an_unknown_severity() -> None:
    with pytest.raises(UsageError, match="no severity"):
        severity("awful")


@pytest.mark.parametrize(
    ("text", "version", "met"),
    [
        ("tree-verification=none", "0.20.1", True),
        ("tree-verification=tree-walk", "0.20.1", False),
        ("tree-drafting=static", "0.20.1", True),
        ("tree-drafting=none", "0.33.0", True),
        ("tree-attention=static", "0.33.0", False),
        ("runner=v1", "0.20.1", True),
        ("runner=v2", "0.20.1", False),
        ("runner.eagle3=v2", "0.33.0", True),
        ("runner.suffix=v2", "0.33.0", False),
        ("runner.nonsense=v2", "0.33.0", False),
        ("proposer.eagle3=EagleSpeculator", "0.33.0", True),
        ("topology.dflash=chain-parallel", "0.33.0", True),
        ("walk=linear", "0.20.1", True),
        ("walk=tree", "0.20.1", False),
        ("rule.first-prefill-lookahead-zeroed=fixed", "0.33.0", True),
        ("rule.first-prefill-lookahead-zeroed=fixed", "0.20.1", False),
        ("rule.no-such-rule=fixed", "0.33.0", False),
        ("engine=vllm", "0.33.0", True),
        ("version=0.33.0", "0.33.0", True),
        ("modified=no", "0.33.0", True),
    ],
)
def test_expectations(scanned: Scanned, text: str, version: str, met: bool) -> None:
    expectation = expect.read(text)
    judgement = judge(scanned(version), Gate(expectations=(expectation,)))
    assert judgement.code is (Exit.CLEAN if met else Exit.FINDINGS)
    assert [str(one) for one in judgement.met] == ([text] if met else [])
    assert [str(one.expectation) for one in judgement.unmet] == ([] if met else [text])


@pytest.mark.parametrize("text", ["", "runner", "runner=", "nonsense=1", "proposer=x", "engine.x=vllm", "=v2"])
def test_expectations_that_cannot_be_understood(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        expect.read(text)
    assert caught.value.hint

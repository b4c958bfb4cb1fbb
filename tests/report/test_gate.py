"""The gate: severities, baseline, ignored rules, expectations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from specaudit.errors import Exit, UsageError
from specaudit.model import Evidence, Failure, Finding, Run, Scan
from specaudit.report import expect
from specaudit.report.gate import Baseline, Gate, baseline, fit, judge, severity, worst
from specaudit.report.view import verdict
from specaudit.ruling.identity import fingerprint, normal

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

    def with_sites(*sites: Evidence) -> Scan:
        print_ = fingerprint(first.rule, first.symbol, sites)
        return replace(old, findings=(replace(first, sites=sites, fingerprint=print_),))

    moved = tuple(Evidence(f"vllm/elsewhere/{n}.py", s.line + 40, s.text) for n, s in enumerate(first.sites))
    assert judge(with_sites(*moved), Gate("low", known=known)).code is Exit.CLEAN
    other = tuple(replace(s, text=s.text + " + 1") for s in first.sites)
    assert judge(with_sites(*other), Gate("low", known=known)).code is Exit.FINDINGS


def test_a_baseline_of_several_scans(old: Scan, scanned: Scanned) -> None:
    new = scanned("0.33.0")
    both = baseline(Run((old, new)))
    assert judge(old, Gate("low", known=both)).code is judge(new, Gate("low", known=both)).code is Exit.CLEAN
    assert both.engines == {"vllm"}


def with_first(scan: Scan, severity: str, **changes: Any) -> Scan:
    """The scan with one finding alone, changed and with its fingerprint made anew."""
    first = next(f for f in open_findings(scan, severity) if len(f.sites) > 1)
    changed = replace(first, **changes)
    return replace(
        scan,
        findings=(replace(changed, fingerprint=fingerprint(changed.rule, changed.symbol, changed.sites)),),
    )


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("white space", Exit.CLEAN),
        ("another comment", Exit.CLEAN),
        ("renamed file", Exit.CLEAN),
        ("one site less", Exit.CLEAN),
        ("one site more", Exit.FINDINGS),
        ("renamed symbol", Exit.FINDINGS),
        ("renamed variable", Exit.FINDINGS),
    ],
)
def test_what_is_the_same_finding(old: Scan, what: str, code: Exit) -> None:
    before = with_first(old, "critical")
    (finding,) = before.findings
    sites = finding.sites
    changes: dict[str, dict[str, Any]] = {
        "white space": {"sites": tuple(replace(s, text=f"   {s.text.replace('=', ' = ')}") for s in sites)},
        "another comment": {"sites": tuple(replace(s, text=f"{s.text}  # see #12345 ('quoted')") for s in sites)},
        "renamed file": {"sites": tuple(replace(s, path=f"vllm/other/{n}.py") for n, s in enumerate(sites))},
        "one site less": {"sites": sites[:-1]},
        "one site more": {"sites": (*sites, Evidence("vllm/other.py", 1, "yet_another = wrong()"))},
        "renamed symbol": {"symbol": f"{finding.symbol}2"},
        "renamed variable": {"sites": tuple(replace(s, text=s.text.replace("e", "x")) for s in sites)},
    }
    after = with_first(old, "critical", **changes[what])
    assert judge(after, Gate("low", known=baseline(before))).code is code


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("x = f('# no comment')  # a comment", "x=f('#nocomment')"),
        ('x = "it\'s # in" # out', 'x="it\'s#in"'),
        ("x = 'a\\'# in' # out", "x='a\\'#in'"),
        ("# a comment alone", "#acommentalone"),
        ("x", "x"),
    ],
)
def test_lines_are_compared_without_white_space_and_comments(text: str, normalised: str) -> None:
    assert normal(text) == normalised


def test_findings_of_several_rules_are_told_apart(old: Scan) -> None:
    """Two rules may point at the same line; one that is known says nothing about the other."""
    first, second = open_findings(old, "critical", "high")[:2]
    same = replace(second, symbol=first.symbol, sites=first.sites, fingerprint=first.fingerprint)
    assert judge(replace(old, findings=(same,)), Gate("low", known=Baseline((first,)))).code is Exit.FINDINGS


def test_a_scan_without_rules_never_passes_a_gate_for_findings(old: Scan) -> None:
    bare = replace(old, findings=())
    assert judge(bare, Gate()).code is Exit.CLEAN
    judgement = judge(bare, Gate("low"))
    assert judgement.code is Exit.INCOMPLETE
    assert "made without rules" in verdict(judgement)
    with pytest.raises(UsageError, match="no findings"):
        baseline(bare)
    with pytest.raises(UsageError, match="no findings"):
        baseline(replace(old, engine=None))


def test_a_baseline_of_another_engine(old: Scan) -> None:
    assert old.engine is not None
    other = baseline(replace(old, engine=replace(old.engine, name="sglang")))
    with pytest.raises(UsageError, match="The baseline is of sglang, and this is vllm"):
        fit(other, [old])
    fit(other, [replace(old, engine=None)])
    fit(baseline(old), [old])


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


@pytest.mark.parametrize(
    "text",
    [
        "", "runner", "runner=", "nonsense=1", "proposer=x", "engine.x=vllm", "=v2", "tree-verification=yes",
        "topology.eagle=tree", "walk=linaer", "runner.eagle3=v7", "rule.v2-runner-default=absent", "modified=maybe",
    ],
)  # fmt: skip
def test_expectations_that_cannot_be_understood(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        expect.read(text)
    assert caught.value.hint

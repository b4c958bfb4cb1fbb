"""Every format, read back by its schema or by a program that consumes it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest
from junitparser import Error, Failure, JUnitXml, Skipped
from markdown_it import MarkdownIt

from specaudit import document
from specaudit.errors import UsageError
from specaudit.model import Evidence, Scan
from specaudit.model import Failure as Trouble
from specaudit.report.expect import read
from specaudit.report.formats import FORMATS, wanted
from specaudit.report.gate import Baseline, Gate, baseline
from specaudit.report.github import SUMMARY_BYTES, summary
from specaudit.report.view import Report, opened, report_of

Scanned = Callable[[str], Scan]

#: What a file under audit, or a host, may try.
HOSTILE = (
    "</code><script>alert(1)</script> | [x](http://example.com) `a` \x1b[31m \x00 ]]> & \u202e ::error::x %0A @octo #12"
    "\n::set-output name=a::b\r\n  ##[add-matcher]x\nnew line"
)


@pytest.fixture
def report(scanned: Scanned) -> Report:
    old, new = scanned("0.20.1"), scanned("0.33.0")
    known = Baseline(baseline(old).findings[:3])
    gate = Gate("high", frozenset({"v2-runner-default"}), known, (read("engine=vllm"), read("runner=v2")))
    return report_of([old, new], gate)


@pytest.fixture
def hostile(scanned: Scanned) -> Report:
    scan = scanned("0.20.1")
    findings = tuple(
        replace(
            f,
            title=HOSTILE,
            symptom=HOSTILE,
            reason=HOSTILE,
            remedy=HOSTILE,
            sites=(Evidence("vllm/ä b.py", 1, HOSTILE),),
        )
        for f in scan.findings
    )
    proposers = tuple(replace(p, name=HOSTILE, path=HOSTILE, reason=HOSTILE) for p in scan.proposers)
    assert scan.engine is not None
    assert scan.tree is not None
    drafting = replace(scan.tree.drafting, evidence=(Evidence(HOSTILE, 1, HOSTILE),))
    made = replace(
        scan,
        target=replace(scan.target, spec=HOSTILE, host=HOSTILE),
        engine=replace(scan.engine, name="::error::vllm", version=HOSTILE, modified=(HOSTILE,)),
        findings=findings,
        proposers=proposers,
        tree=replace(scan.tree, drafting=drafting),
        runners=tuple(replace(r, method=HOSTILE, runner=HOSTILE) for r in scan.runners),
        errors=(Trouble("vllm/x.py", HOSTILE), Trouble(HOSTILE, "::error::")),
    )
    return report_of([made], Gate("low"))


@pytest.mark.parametrize("name", FORMATS)
def test_a_report_depends_on_the_document_alone(name: str, report: Report) -> None:
    again = report_of([document.decode(document.encode(scan), "x") for scan in report.scans], report.gate)  # type: ignore[misc]
    assert FORMATS[name](report) == FORMATS[name](again)


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_to_report_is_a_report_too(name: str) -> None:
    assert isinstance(FORMATS[name](report_of([])), str)


def test_json_is_the_document(report: Report) -> None:
    assert document.decode(FORMATS["json"](report).encode(), "x") == document.of_scans(report.scans)


# --- SARIF ----------------------------------------------------------------------------------------------------------


def test_sarif_is_valid(report: Report, hostile: Report, sarif_tool, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    validator = jsonschema.Draft202012Validator(sarif_tool.schema, format_checker=jsonschema.FormatChecker())
    for number, one in enumerate((report, hostile, report_of([]))):
        file = tmp_path / f"{number}.sarif"
        file.write_text(FORMATS["sarif"](one))
        assert [error.message for error in validator.iter_errors(json.loads(file.read_text()))] == []
        complaints = [line for line in sarif_tool.validate(file) if "SARIF2005" not in line]  # we have no home page
        assert complaints == []


def test_sarif_says_what_the_scan_says(report: Report) -> None:
    log = json.loads(FORMATS["sarif"](report))
    for run, judgement in zip(log["runs"], report.judgements, strict=True):
        scan = judgement.scan
        assert [r["ruleId"] for r in run["results"]] == [f.rule for f in opened(scan)]
        for result in run["results"]:
            finding = next(f for f in scan.findings if f.rule == result["ruleId"])
            assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == finding.rule
            place = result["locations"][0]["physicalLocation"]
            assert place["artifactLocation"]["uri"] == finding.sites[0].path
            assert place["region"]["startLine"] == finding.sites[0].line
            assert result["partialFingerprints"] == {"specaudit/v1": finding.fingerprint}
            assert result["baselineState"] == ("unchanged" if finding in judgement.known else "new")
            assert ("suppressions" in result) == (finding.rule == "v2-runner-default")
        silent = run["properties"]["notReported"]
        assert silent.keys() == {f.rule for f in scan.findings if f.status not in ("present", "partial")}
        assert any("searched" in fact for fact in silent.values())
    assert sum(len(run["results"]) for run in log["runs"]) > 50


def test_sarif_runs_have_categories_of_their_own_that_survive_an_update(scanned: Scanned) -> None:
    old, new = scanned("0.20.1"), scanned("0.33.0")

    def categories(*scans: Scan) -> list[str]:
        log = json.loads(FORMATS["sarif"](report_of(scans)))
        return [run["automationDetails"]["id"] for run in log["runs"]]

    assert categories(old) == categories(new) == ["specaudit/vllm/"]
    hosts = [replace(new, target=replace(new.target, host=host)) for host in ("gpu1", "gpu2")]
    assert categories(*hosts) == ["specaudit/vllm/gpu1/", "specaudit/vllm/gpu2/"]
    assert len(set(categories(new, new, new))) == 3


def test_sarif_paths_are_relative_and_escaped(hostile: Report) -> None:
    log = json.loads(FORMATS["sarif"](hostile))
    place = log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place == {"uri": "vllm/%C3%A4%20b.py", "uriBaseId": "PACKAGE_PARENT"}
    assert log["runs"][0]["invocations"][0]["executionSuccessful"] is False
    assert not re.search(r"\\u(00[01]|202e)|\u202e", json.dumps(log, ensure_ascii=True))


# --- JUnit ----------------------------------------------------------------------------------------------------------


def test_junit_shows_what_was_checked_and_what_passed(report: Report) -> None:
    suites = list(JUnitXml.fromstring(FORMATS["junit"](report).encode()))
    assert len(suites) == 2
    for suite, judgement in zip(suites, report.judgements, strict=True):
        cases = {case.name: case for case in suite if case.classname.count(".expect") == 0}
        assert cases.keys() == {f.rule for f in judgement.scan.findings}
        failed = {name for name, case in cases.items() if any(isinstance(r, Failure) for r in case.result)}
        assert failed == {f.rule for f in judgement.failing}
        skipped = {name for name, case in cases.items() if any(isinstance(r, Skipped) for r in case.result)}
        assert skipped == {
            f.rule
            for f in judgement.scan.findings
            if f.status in ("not-applicable", "not-found") and f.severity != "info"
        }
        passed = [case for case in cases.values() if case.is_passed]
        assert len(passed) + len(failed) + len(skipped) == len(cases)
        expected = {case.name: case.is_passed for case in suite if ".expect" in case.classname}
        assert expected["engine=vllm"] is True
        assert expected["runner=v2"] is False
        assert (suite.tests, suite.failures) == (len(list(suite)), len(failed) + len(judgement.unmet))


def test_junit_holds_what_xml_can_hold(hostile: Report) -> None:
    text = FORMATS["junit"](hostile)
    root = ElementTree.fromstring(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e\ufffe]", text)
    assert "<script>" in root.find(".//failure").get("message", "")  # type: ignore[union-attr]
    errors = [c for s in JUnitXml.fromstring(text.encode()) for c in s if any(isinstance(r, Error) for r in c.result)]
    assert len(errors) == 2


# --- Markdown and GitHub --------------------------------------------------------------------------------------------


def cells(markdown: str) -> list[list[str]]:
    """Rows of all tables, as a GitHub-flavoured parser sees them."""
    rows: list[list[str]] = []
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and rows and token.level >= 4:
            rows[-1].append(token.content)
    return rows


def test_markdown_tables_have_whole_rows(report: Report) -> None:
    rows = [row for row in cells(FORMATS["markdown"](report)) if row[0] in ("critical", "high", "medium", "low")]
    assert len(rows) == sum(len(opened(scan)) for scan in report.scans)
    assert {len(row) for row in rows} == {5}


def test_markdown_separates_what_it_says_from_why(scanned: Scanned) -> None:
    errors = (Trouble("vllm/x.py", "cannot be parsed: invalid syntax, line 2"), Trouble("", "too slow"))
    lines = FORMATS["markdown"](report_of([replace(scanned("0.20.1"), errors=errors)])).splitlines()
    drafted, masked, walked = (line for line in lines if line.startswith(("- Is ", "- Does ")))
    assert drafted.startswith("- Is a tree drafted? **static**: <code>vllm/")
    assert masked.startswith("- Does the target's attention mask a tree? **static**: <code>vllm/")
    assert re.match(r"- Does the verifier walk a tree\? \*\*none\*\*: \d+ looked at in \d+ files", walked)
    assert "- not examined: vllm/x.py: cannot be parsed: invalid syntax, line 2" in lines
    assert "- not examined: too slow" in lines


def test_markdown_takes_no_markup_from_the_engine(hostile: Report) -> None:
    written = FORMATS["markdown"](hostile)
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(written)
    assert "<script" not in html
    assert "<a " not in html
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", written)
    spoken = re.sub(r"<code>.*?</code>", "", html)  # nobody is mentioned in code
    assert not re.search(r"@octo|#12", spoken)
    assert html.count("<h2>") == 1
    assert {len(row) for row in cells(written) if row[0] in ("critical", "high", "medium", "low")} == {5}


def test_github_annotates_at_most_ten_and_counts_the_rest(report: Report) -> None:
    lines = FORMATS["github"](report).splitlines()
    assert len(lines) == 10
    assert all(re.fullmatch(r"::(error|warning|notice) [^:]*::.+", line) for line in lines)
    assert lines[0].startswith("::error ")
    more = re.fullmatch(r"::error title=specaudit::and (\d+) more", lines[-1])
    assert more is not None
    shown = [f for j in report.judgements for f in opened(j.scan) if f not in j.known and f not in j.ignored]
    assert int(more[1]) == len(shown) + sum(len(j.unmet) for j in report.judgements) - 9


def test_github_few_are_shown_whole(scanned: Scanned) -> None:
    scan = scanned("0.33.0")
    few = replace(scan, findings=tuple(opened(scan)[:10]))
    lines = FORMATS["github"](report_of([few])).splitlines()
    assert len(lines) == 10
    assert not any("more" in line for line in lines)


def test_github_commands_cannot_be_injected(hostile: Report) -> None:
    for line in FORMATS["github"](hostile).splitlines():
        assert line.startswith(("::error ", "::warning ", "::notice "))
        assert "\x1b" not in line
    assert len(FORMATS["github"](hostile).splitlines()) == 10


def test_the_step_summary_stays_below_one_mebibyte(report: Report) -> None:
    assert summary(report) == FORMATS["markdown"](report)
    many = Report(report.judgements * 200, report.gate)
    assert len(FORMATS["markdown"](many).encode()) > SUMMARY_BYTES
    cut = summary(many)
    assert len(cut.encode()) < SUMMARY_BYTES
    assert cut.endswith("see the full report.\n")


# --- text and the choice of formats ---------------------------------------------------------------------------------


def test_text_begins_with_the_answers_and_shows_every_open_finding(report: Report) -> None:
    written = FORMATS["text"](report)
    lines = written.splitlines()
    assert lines[0].startswith("vllm 0.20.1")
    assert any(line.startswith("  runner") for line in lines[:6])
    for scan in report.scans:
        for finding in opened(scan):
            assert f"{finding.rule}: {finding.status}" in written


def test_text_writes_nothing_on_the_terminal(hostile: Report) -> None:
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", FORMATS["text"](hostile))


def test_text_gives_no_command_to_the_service_that_reads_the_log(hostile: Report) -> None:
    """GitHub obeys lines that begin with ``::name``, after white space too, and ``##[name]`` anywhere in a line."""
    written = FORMATS["text"](hostile)
    assert "error: :vllm" not in written
    assert not re.search(r"(?m)^\s*::|##\[", written)
    assert len(written.splitlines()) < 20 * len(hostile.scans[0].findings)


def test_html_shows_what_it_says(hostile: Report) -> None:
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", FORMATS["html"](hostile))


def test_open_findings_are_shown_worst_first(report: Report) -> None:
    order = ("critical", "high", "medium", "low")
    for scan in report.scans:
        shown = [order.index(finding.severity) for finding in opened(scan)]
        assert shown == sorted(shown)
        assert {finding.status for finding in opened(scan)} == {"present", "partial"}


def test_reports_say_whether_a_gate_was_set(scanned: Scanned) -> None:
    scan = scanned("0.33.0")
    assert "gate: none was set" in FORMATS["text"](report_of([scan]))
    assert "gate: nothing that fails it" in FORMATS["text"](
        report_of([scan], Gate(expectations=(read("engine=vllm"),)))
    )


def test_several_formats_from_one_run() -> None:
    found = wanted(["text", "sarif=a.sarif", "html=a.html"])
    assert [(one.name, str(one.path) if one.path else None) for one in found] == [
        ("text", None),
        ("sarif", "a.sarif"),
        ("html", "a.html"),
    ]


@pytest.mark.parametrize("specs", [["pdf"], ["text", "json"], ["sarif=a", "json=a"], ["sarif="]])
def test_formats_that_cannot_be_written(specs: list[str]) -> None:
    with pytest.raises(UsageError):
        wanted(specs)

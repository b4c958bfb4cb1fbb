"""Report -> JUnit XML: one suite per scan, one case per rule and expectation, so that what was checked is seen to pass.

A finding fails its case when the gate says so; an open finding below the gate passes with its text in ``system-out``;
rules that do not apply or find nothing to judge, and findings that a configuration cannot reach, are skipped with the
reason.
"""

from __future__ import annotations

from xml.etree import ElementTree

from specaudit import summary
from specaudit.hosts.shell import printable
from specaudit.model import Finding
from specaudit.report import view
from specaudit.report.gate import OPEN, Judgement
from specaudit.report.view import Report


def junit(report: Report) -> str:
    """The XML document."""
    root = ElementTree.Element("testsuites", name="specaudit")
    for judgement in report.judgements:
        _suite(root, judgement)
    for attribute in ("tests", "failures", "errors", "skipped"):
        root.set(attribute, str(sum(int(suite.get(attribute, "0")) for suite in root)))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(root: ElementTree.Element, judgement: Judgement) -> None:
    scan = judgement.scan
    suite = ElementTree.SubElement(root, "testsuite", name=printable(summary.title(scan)))
    owner = printable(f"{scan.engine.name}-{scan.engine.version}" if scan.engine else scan.target.spec)
    for finding in sorted(scan.findings, key=lambda f: f.rule):
        case = ElementTree.SubElement(suite, "testcase", classname=owner, name=finding.rule)
        _outcome(case, judgement, finding)
    for expectation in judgement.met:
        ElementTree.SubElement(suite, "testcase", classname=f"{owner}.expect", name=printable(str(expectation)))
    for unmet in judgement.unmet:
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"{owner}.expect", name=printable(str(unmet.expectation))
        )
        ElementTree.SubElement(case, "failure", message=printable(str(unmet)), type="expectation")
    for number, failure in enumerate(scan.errors, 1):
        name = printable(failure.path or f"failure {number}")
        case = ElementTree.SubElement(suite, "testcase", classname=f"{owner}.examination", name=name)
        ElementTree.SubElement(case, "error", message=printable(failure.error), type="not-examined")
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite)))


def _outcome(case: ElementTree.Element, judgement: Judgement, finding: Finding) -> None:
    said = "\n".join(
        part
        for part in (finding.title, *(summary.place(site) for site in finding.sites), finding.reason, finding.remedy)
        if part
    )
    if finding in judgement.failing:
        failure = ElementTree.SubElement(case, "failure", message=printable(finding.title), type=finding.severity)
        failure.text = printable(said)
    elif finding.severity == "info":
        found = view.search_words(finding.searched) if finding.searched else finding.reason
        ElementTree.SubElement(case, "system-out").text = printable(f"{finding.status}\n{said or found}")
    elif finding.status in ("not-applicable", "not-found", "unreachable"):
        ElementTree.SubElement(case, "skipped", message=printable(f"{finding.status}: {finding.reason}"))
    elif finding.status in OPEN:
        state = view.standing(judgement, finding) or "below the gate"
        ElementTree.SubElement(case, "system-out").text = printable(f"{finding.status}, {state}\n{said}")

"""Report -> SARIF 2.1.0: open findings as results; what was looked for and not found only in the run's properties.

A result's place is its first site, the other sites are related locations. Paths are relative to the folder that holds
the package (``PACKAGE_PARENT``), which a consumer may resolve.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from specaudit import summary
from specaudit.hosts.shell import printable
from specaudit.model import Evidence, Finding, Scan, Severity
from specaudit.report import view
from specaudit.report.gate import OPEN, Judgement
from specaudit.report.view import Report

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_BASE = "PACKAGE_PARENT"
_LEVELS: dict[Severity, str] = {
    "critical": "error",
    "high": "error",
    "medium": "warning",
    "low": "note",
    "info": "none",
}


def sarif(report: Report) -> str:
    """One SARIF log, one run per scan."""
    names = _categories(report.scans)
    runs = [_run(judgement, name) for judgement, name in zip(report.judgements, names, strict=True)]
    log = _printable({"$schema": SCHEMA, "version": "2.1.0", "runs": runs})
    return json.dumps(log, indent=2, ensure_ascii=False) + "\n"


def _printable(value: Any) -> Any:
    """The same without the characters with which an engine could write on the terminal of a consumer."""
    if isinstance(value, dict):
        return {_printable(key): _printable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_printable(inner) for inner in value]
    return printable(value) if isinstance(value, str) else value


def _categories(scans: Sequence[Scan]) -> list[str]:
    """What a consumer keeps each run's alerts under: the engine, without its version, so that an update closes them.

    Several scans of one engine are told apart by their targets, since no two runs of a log may share one.
    """
    engines = [scan.engine.name if scan.engine else "unknown" for scan in scans]
    names: list[str] = []
    for scan, engine in zip(scans, engines, strict=True):
        name = engine if engines.count(engine) == 1 else f"{engine}/{scan.target.host or scan.target.spec}"
        same = sum(one == name or one.startswith(f"{name}#") for one in names)
        names.append(f"{name}#{same + 1}" if same else name)
    return names


def _run(judgement: Judgement, category: str) -> dict[str, Any]:
    scan = judgement.scan
    rules = sorted((f for f in scan.findings if f.severity != "info"), key=lambda f: f.rule)
    places = {finding.rule: number for number, finding in enumerate(rules)}
    driver: dict[str, Any] = {
        "name": "specaudit",
        "version": scan.tool.version,
        "semanticVersion": scan.tool.version,
        "rules": [_rule(finding) for finding in rules],
    }
    return {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"specaudit/{category}/"},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_BASE: {"description": {"text": "The folder that holds the engine's package."}}},
        "invocations": [_invocation(scan)],
        "results": [_result(judgement, finding, places[finding.rule]) for finding in view.opened(scan)],
        "properties": _properties(scan),
    }


def _rule(finding: Finding) -> dict[str, Any]:
    level = _LEVELS[finding.severity]
    help_text = "\n\n".join(part for part in (finding.symptom, finding.remedy) if part) or finding.title
    made: dict[str, Any] = {
        "id": finding.rule,
        "name": "".join(word.capitalize() for word in finding.rule.split("-")),
        "shortDescription": {"text": finding.title or finding.rule},
        "fullDescription": {"text": finding.symptom or finding.title or finding.rule},
        "help": {"text": help_text},
        "defaultConfiguration": {"level": level},
        "properties": {"tags": sorted({*finding.methods, *finding.runner.split("+")}), "severity": finding.severity},
    }
    if finding.references:
        made["helpUri"] = finding.references[0]
    return made


def _result(judgement: Judgement, finding: Finding, index: int) -> dict[str, Any]:
    said = ". ".join(
        part.rstrip(".") for part in (finding.title or finding.rule, finding.reason, finding.remedy) if part
    )
    made: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{said}."},
        "locations": [_location(site, finding.symbol) for site in finding.sites[:1]],
        "partialFingerprints": {"specaudit/v1": finding.fingerprint},
        "baselineState": "unchanged" if finding in judgement.known else "new",
        "properties": {"status": finding.status, "severity": finding.severity},
    }
    if len(finding.sites) > 1:
        made["relatedLocations"] = [
            {"id": number, **_location(site, finding.symbol)} for number, site in enumerate(finding.sites[1:], 1)
        ]
    if finding in judgement.ignored:
        made["suppressions"] = [{"kind": "external", "justification": "ignored on the command line"}]
    return made


def _location(site: Evidence, symbol: str) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": _uri(site.path), "uriBaseId": _BASE},
            "region": {"startLine": site.line, "snippet": {"text": site.text}},
        },
        "logicalLocations": [{"fullyQualifiedName": symbol}] if symbol else [],
    }


def _uri(path: str) -> str:
    from urllib.parse import quote

    return quote(path)


def _invocation(scan: Scan) -> dict[str, Any]:
    made: dict[str, Any] = {"executionSuccessful": scan.engine is not None and not scan.errors}
    if scan.errors:
        made["toolExecutionNotifications"] = [
            {"level": "error", "message": {"text": ": ".join(part for part in (f.path, f.error) if part)}}
            for f in scan.errors
        ]
    return made


def _properties(scan: Scan) -> dict[str, Any]:
    """Facts that are no alerts: the target, the answers, and every search that found nothing."""
    made: dict[str, Any] = {"target": scan.target.spec, "answers": dict(summary.answers(scan)) if scan.engine else {}}
    if scan.engine is not None:
        made["engine"] = {"name": scan.engine.name, "version": scan.engine.version, "digest": scan.engine.digest}
    made["notReported"] = {
        finding.rule: {
            "status": finding.status,
            "reason": finding.reason,
            **({"searched": view.search_words(finding.searched)} if finding.searched else {}),
        }
        for finding in sorted(scan.findings, key=lambda f: f.rule)
        if finding.status not in OPEN
    }
    made["trees"] = {
        question: {"verdict": part.verdict, **({"searched": view.search_words(part.searched)} if part.searched else {})}
        for question, part in view.tree_parts(scan)
    }
    made["notLooked"] = [f"{item.what}: {item.why}" for item in scan.not_looked]
    return made

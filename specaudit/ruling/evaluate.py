"""Rule x Index -> Finding. A match is not a status: the subject, the tests and their order decide it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from specaudit.index import Index
from specaudit.model import Evidence, Failure, Finding, Search, Status, TreeVerdict
from specaudit.ruling import relations
from specaudit.ruling.answers import Answer, joined
from specaudit.ruling.identity import fingerprint
from specaudit.ruling.places import Ground, Place
from specaudit.ruling.rule import (
    All,
    AnyOf,
    Declares,
    Difference,
    Exists,
    Flows,
    Inherits,
    Match,
    Not,
    Order,
    Overrides,
    Passes,
    Rule,
    Some,
    Subject,
    Test,
    Uses,
    Verdict,
    Writers,
    globs,
)

MAX_SITES = 20
MAX_SYMBOLS = 5
_RELATIONS: dict[type, Callable[[Ground, Any, tuple[Place, ...]], Answer]] = {
    Match: relations.match,
    Uses: relations.uses,
    Declares: relations.declares,
    Inherits: relations.inherits,
    Overrides: relations.overrides,
    Writers: relations.writers,
    Passes: relations.passes,
    Order: relations.order,
    Flows: relations.flows,
}


def evaluate(
    rules: Iterable[Rule], index: Index, tree: TreeVerdict | None = None
) -> tuple[tuple[Finding, ...], tuple[Failure, ...]]:
    """The status of every rule on one engine.

    Returns:
        One finding per rule, in the rules' order; and one failure for each rule that could not be evaluated (its
        finding says ``not-found``, with the reason).
    """
    ground = Ground(index, tree)
    findings: list[Finding] = []
    failures: list[Failure] = []
    for rule in rules:
        try:
            findings.append(judge(rule, ground))
        except (RuntimeError, RecursionError, MemoryError) as bad:
            reason = f"could not be evaluated: {type(bad).__name__}: {str(bad).partition(chr(10))[0]}"
            failures.append(Failure(rule.name, f"rule {rule.id} {reason}"))
            findings.append(_finding(rule, ground, "not-found", reason=reason))
    return tuple(findings), tuple(failures)


def judge(rule: Rule, ground: Ground) -> Finding:
    """The status of one rule, with its sites or with the record of the search."""
    engine = ground.index.snapshot.engine.name
    if rule.engine != engine:
        return _finding(rule, ground, "not-applicable", reason=f"the rule is about {rule.engine}, this is {engine}")
    return _doubted(_judged(rule, ground), rule, ground)


def _judged(rule: Rule, ground: Ground) -> Finding:
    here = _here(ground, rule.subject)
    if rule.applies is not None:
        answer = ask(rule.applies, ground, here)
        if not answer.holds:
            reason = "what the defect needs is not in this engine"
            return _finding(rule, ground, "not-applicable", (), _search(ground, answer), _with(reason, answer))
    if rule.subject is not None and not here.places:
        return _missing(rule, ground, rule.subject)
    return _status(rule, ground, here)


def _doubted(finding: Finding, rule: Rule, ground: Ground) -> Finding:
    """The finding; that a defect is absent is not known where something that the rule reads could not be read.

    What was found where its subject names it stays: other files say nothing about it.
    """
    shown = finding.status in ("present", "partial") and finding.sites
    if shown or not ground.index.unread:
        return finding
    named = rule.subject is not None and bool(rule.subject.classes + rule.subject.functions)
    found = named and finding.status == "fixed"
    read = (rule.applies, rule.present, rule.partial, rule.fixed) if found else rule
    unread = ground.unread(tuple(globs(read)))
    if not unread:
        return finding
    reason = "; ".join(part for part in (finding.reason, f"{', '.join(unread[:3])} could not be read") if part)
    return replace(finding, status="not-found", reason=reason)


def _status(rule: Rule, ground: Ground, here: Here) -> Finding:
    home = _home(rule, ground, here)
    present = ask(rule.present, ground, here)
    if present.holds:
        return _finding(rule, ground, "present", present.sites or home, _search(ground, present), _with("", present))
    if rule.partial is not None:
        partial = ask(rule.partial, ground, here)
        if partial.holds:
            sites = partial.sites or home
            return _finding(rule, ground, "partial", sites, _search(ground, partial), _with("", partial))
    if rule.fixed is not None:
        fixed = ask(rule.fixed, ground, here)
        if not fixed.holds:
            reason = "the code is there, in neither the defective nor the corrected shape that the rule describes"
            return _finding(rule, ground, "not-found", home, _search(ground, fixed), _with(reason, fixed))
        return _finding(rule, ground, "fixed", fixed.sites or home, _search(ground, present), _with("", fixed))
    return _finding(rule, ground, rule.otherwise, present.sites or home, _search(ground, present), _with("", present))


def _home(rule: Rule, ground: Ground, here: Here) -> tuple[Evidence, ...]:
    """Where to point when a test rests on absence: nodes of the rule's ``evidence``, else the definitions."""
    shown = relations.match(ground, Match(rule.evidence), here.places).sites if rule.evidence else ()
    return shown or tuple(ground.evidence(p.path, p.line) for p in here.places if p.definition)


def _missing(rule: Rule, ground: Ground, subject: Subject) -> Finding:
    files = ground.files(subject.files)
    asked = f"{rule.id}: {subject}"
    reason = f"{subject} is not in this engine"
    return _finding(rule, ground, rule.missing, (), ground.index.searched(files, asked, len(files)), reason)


@dataclass(frozen=True, slots=True)
class Here:
    """Where a test looks when it does not say so itself."""

    places: tuple[Place, ...]
    words: str
    files: frozenset[str] = frozenset()


def _here(ground: Ground, subject: Subject | None) -> Here:
    """The places of a subject; where there are none, the files in which they were looked for."""
    if subject is None:
        return Here((), "nowhere")
    places = ground.places(subject)
    return Here(places, str(subject), frozenset() if places else frozenset(ground.files(subject.files)))


def ask(test: Test, ground: Ground, here: Here) -> Answer:
    """Answers one test."""
    if isinstance(test, All):
        answers: list[Answer] = []
        for inner in test.of:
            answers.append(ask(inner, ground, here))
            if not answers[-1].holds:
                return joined(False, answers, "and")
        return joined(True, answers, "and")
    if isinstance(test, AnyOf):
        every = [ask(inner, ground, here) for inner in test.of]
        return joined(any(answer.holds for answer in every), every, "or")
    if isinstance(test, Not):
        return ask(test.of, ground, here).negated()
    if isinstance(test, Exists):
        return _exists(ground, test.at)
    if isinstance(test, Difference):
        return relations.difference(ground, test)
    if isinstance(test, Verdict):
        return relations.verdict(ground, test)
    there = _here(ground, test.at) if test.at else here
    if isinstance(test, Some):
        return _some(test, ground, there)
    answer = _RELATIONS[type(test)](ground, test, there.places)
    return replace(answer, asked=f"{answer.asked} in {there.words}", files=answer.files | there.files)


def _some(test: Some, ground: Ground, there: Here) -> Answer:
    every = [ask(test.of, ground, Here((place,), place.symbol)) for place in there.places]
    holds = any(answer.holds for answer in every)
    answer = joined(holds, [one for one in every if one.holds == holds], "or")
    asked = f"one place in {there.words} with {every[0].asked if every else 'what is asked'}"
    return replace(answer, asked=asked, files=there.files | {place.path for place in there.places})


def _exists(ground: Ground, at: Subject) -> Answer:
    files = ground.files(at.files)
    places = ground.places(at)
    sites = tuple(ground.evidence(p.path, p.line) for p in places)
    return Answer(bool(places), sites, str(at), frozenset(files), len(files))


def _search(ground: Ground, answer: Answer) -> Search:
    """The record of what was looked through, for an answer that rests on absence."""
    return answer.searched or ground.index.searched(answer.files, answer.asked, answer.looked_at)


def _with(reason: str, answer: Answer) -> str:
    return "; ".join(part for part in (reason, *answer.notes) if part)


def _finding(
    rule: Rule,
    ground: Ground,
    status: Status,
    sites: tuple[Evidence, ...] = (),
    searched: Search | None = None,
    reason: str = "",
) -> Finding:
    shown = tuple(sorted(sites, key=lambda site: (site.path, site.line)))[:MAX_SITES]
    # Of all sites: which of them are shown depends on paths, and a moved file must not change the finding.
    symbol = _symbol(rule, ground, sites)
    return Finding(
        rule=rule.id,
        severity=rule.severity,
        status=status,
        title=rule.title,
        symbol=symbol,
        runner=rule.runner,
        methods=rule.methods,
        sites=shown,
        searched=searched if status != "present" or not shown else None,
        fingerprint=fingerprint(rule.id, symbol, sites),
        reason=reason,
        fix=rule.remedy.recipe or None,
        symptom=rule.symptom,
        remedy=str(rule.remedy),
        references=rule.references,
    )


def _symbol(rule: Rule, ground: Ground, sites: tuple[Evidence, ...]) -> str:
    """The innermost definitions that hold the sites; without sites, what the subject names."""
    # Sorted by name: a file that moves must not change the order.
    names = sorted({ground.enclosing(site.path, site.line) or _assigned(site.text) for site in sites} - {""})
    if names:
        return ", ".join(names[:MAX_SYMBOLS])
    subject = rule.subject
    parts = ("|".join(subject.classes), "|".join(subject.functions)) if subject else ()
    return ".".join(part for part in parts if part)


def _assigned(text: str) -> str:
    """The name that a line at module level assigns to."""
    found = re.match(r"(\w+)\s*(:[^=]*)?=(?!=)", text)
    return found[1] if found else ""

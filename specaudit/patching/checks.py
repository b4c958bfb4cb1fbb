"""Findings of one tree, for pre- and postconditions: the one seam between recipes and rules."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from specaudit.errors import ConfigurationError, IncompleteError
from specaudit.index import Index
from specaudit.model import Audit, Finding
from specaudit.ruling.rule import Rule

if TYPE_CHECKING:
    from specaudit.ruling.judge import RuleJudge


@cache
def _packaged(rule_id: str) -> Rule:
    """One packaged rule, without parsing the others."""
    from specaudit.ruling.store import Rulebook, rulebook

    documents = tuple(d for d in rulebook().documents if d[0] == f"rules/{rule_id}.yaml")
    if not documents:
        raise ConfigurationError(f"There is no packaged rule {rule_id}.", "Reinstall specaudit.")
    return Rulebook(documents).rule(rule_id)


@cache
def _judge() -> RuleJudge:
    """Of all packaged rules; a fleet is checked with the same ones, host after host."""
    from specaudit.ruling.judge import RuleJudge
    from specaudit.ruling.store import rulebook

    return RuleJudge(rulebook())


def findings(index: Index, rules: Iterable[str]) -> dict[str, Finding]:
    """The finding of each rule on one engine.

    Raises:
        IncompleteError: a rule could not be evaluated.
    """
    from specaudit.ruling.evaluate import evaluate

    found, failures = evaluate([_packaged(rule) for rule in rules], index)
    if failures:
        raise IncompleteError(failures[0].error, "Scan the engine to see what cannot be read.")
    return {finding.rule: finding for finding in found}


def every_finding(index: Index) -> dict[str, Finding]:
    """The findings of all packaged rules on one engine (a re-scan's); hosts with the same files are judged once."""
    found, _ = _judge().findings(index, Audit())
    return {finding.rule: finding for finding in found}

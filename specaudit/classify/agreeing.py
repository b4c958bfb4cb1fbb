"""Verdicts of single methods -> entries of the document: methods that agree share one, with evidence true for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from specaudit.model import Evidence, OptionVerdict

#: Lines of evidence per entry: where the path reads the option, and where the configuration's own file does.
_READS, _OWN = 3, 2


def entries(verdicts: Iterable[OptionVerdict], takers: Mapping[str, list[str]]) -> Iterator[OptionVerdict]:
    """One entry for all methods of a runner that agree; it names no method where these are all that take the runner.

    Args:
        verdicts: each of one method, with all of its evidence, the option's declaration first.
        takers: by runner, the methods that were looked at.
    """
    found: dict[tuple[str, str, str, str, str], list[OptionVerdict]] = {}
    for one in verdicts:
        found.setdefault((one.name, one.value, one.runner, one.status, one.reason), []).append(one)
    for same in found.values():
        for told, names in _by_evidence(same):
            known = takers[told.runner]
            named = [method for method in known if method in names]
            yield replace(told, method="" if named == known else ", ".join(named))


def _by_evidence(same: list[OptionVerdict]) -> Iterator[tuple[OptionVerdict, set[str]]]:
    """Verdicts that differ in nothing but methods and evidence: a method joins where it has the lines that are told."""
    groups: list[tuple[OptionVerdict, set[str]]] = []
    for one in sorted(same, key=lambda verdict: len(verdict.evidence)):
        mine = set(one.evidence)
        names = next((names for told, names in groups if mine.issuperset(told.evidence)), None)
        if names is None:
            groups.append((replace(one, evidence=_shortened(one)), {one.method}))
        else:
            names.add(one.method)
    yield from groups


def _shortened(verdict: OptionVerdict) -> tuple[Evidence, ...]:
    if verdict.status != "honoured" or verdict.value:
        return verdict.evidence
    declared, *rest = verdict.evidence
    reads = [line for line in rest if line.path != declared.path]
    own = [line for line in rest if line.path == declared.path]
    return (declared, *reads[:_READS], *own[:_OWN])

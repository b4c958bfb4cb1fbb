"""Scan -> what of it is taken: by the configuration that was named, as its paths say, else by default.

A document keeps every runner that a method can take, and what each of them drafts and verifies with. Where somebody
named a configuration, its paths are marked, and answers and gate ask here for what lies on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from specaudit.model import Evidence, Path, Proposer, Runner, Scan
from specaudit.narrowing import only_methods

#: A line of the engine: its file and number.
Line = tuple[str, int]


def configured(scan: Scan) -> tuple[Path, ...]:
    """The paths of the configuration that was named; none where none was."""
    return tuple(path for path in scan.paths if path.configured)


def runners(scan: Scan, method: str = "") -> tuple[str, ...]:
    """The runners that a method takes, or every method: several where the model decides, or where methods differ."""
    ways = [path.runner for path in configured(scan) if method in ("", path.method)]
    return tuple(dict.fromkeys(ways or default_runners(scan.runners, method)))


def default_runners(found: Iterable[Runner], method: str = "") -> tuple[str, ...]:
    """The runners that a method takes when nothing is set."""
    return tuple(dict.fromkeys(one.runner for one in found if one.default and method in ("", one.method)))


def decided(scan: Scan, method: str) -> bool:
    """Whether the configuration leads a method elsewhere than by default, or settles what would lead elsewhere."""
    defaults = {(one.runner, one.when) for one in scan.runners if one.default and one.method == method}
    return any((path.runner, path.when) not in defaults for path in configured(scan) if path.method == method)


def part(scan: Scan) -> Scan:
    """The scan with what its configuration takes alone; the scan itself where none was named.

    Of what drafts on a runner that is taken, that which the configuration rules out is left out, and not what depends
    on something that it does not say.
    """
    paths = configured(scan)
    if not paths:
        return scan
    shown = only_methods(scan, tuple(path.method for path in paths))
    labels = {path.runner for path in paths}
    proposers = []
    for proposer in shown.proposers:
        hops = _hops(path for path in paths if path.runner == proposer.runner and path.method in proposer.methods)
        if hops and (proposer.reachable == "conditional" or _made_on(hops, proposer)):
            proposers.append(_drafting_on(hops, proposer))
    return replace(
        shown,
        proposers=tuple(proposers),
        verifiers=tuple(one for one in shown.verifiers if not one.runner or one.runner in labels),
    )


def usually(scan: Scan, method: str) -> list[Proposer]:
    """What drafts for a method on the runner that it takes, where nothing else is set.

    Args:
        scan: as :func:`part` gives it.
    """
    labels = runners(scan, method)
    there = [p for p in scan.proposers if method in p.methods and p.reachable != "dead" and p.runner in labels]
    hops = _hops(path for path in configured(scan) if path.method == method)
    plain = [p for p in there if (_made_on(hops, p) if hops else p.reachable == "default")]
    return plain or there


def _hops(paths: Iterable[Path]) -> set[Line]:
    return {(hop.path, hop.line) for path in paths for hop in path.hops}


def _made_on(hops: set[Line], proposer: Proposer) -> bool:
    """Whether a path passes the line that makes it; of one that a special draft model gets, a path has the others."""
    return _lines(proposer.evidence[:1]) <= hops or _lines(proposer.evidence[1:]) <= hops


def _drafting_on(hops: set[Line], proposer: Proposer) -> Proposer:
    """The proposer with the topology that it has on the path, which may be one of its variants."""
    if not _made_on(hops, proposer) or _lines(proposer.evidence[2:]) <= hops:
        return proposer
    variant = next((one for one in proposer.variants if one.evidence and _lines(one.evidence) <= hops), None)
    if variant is None:
        return proposer
    lines = (*proposer.evidence[:2], *variant.evidence)
    return replace(proposer, topology=variant.topology, variants=(), evidence=lines)


def _lines(evidence: Iterable[Evidence]) -> set[Line]:
    return {(one.path, one.line) for one in evidence}

"""Finding x configuration -> Finding: a defect that a configuration cannot reach becomes ``unreachable``.

What rules it out is named with the line of the engine that decides: the method, the runner, or a condition of the rule
that the configuration is known not to meet. What a configuration does not say rules nothing out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from specaudit.classify.conditions import holds
from specaudit.model import Condition, Finding, Hop, HopKind, Path

#: In a rule's list of methods: every method.
EVERY = "all"


@dataclass(frozen=True, slots=True)
class Configuration:
    """What is known about one configuration.

    ``settings`` maps names (of the speculative configuration, of the server, of the environment) to values as text, and
    to ``None`` for what is known not to be set. ``paths`` are the ways that it takes through the engine; empty when the
    engine refuses it.
    """

    method: str
    settings: Mapping[str, str | None]
    paths: tuple[Path, ...]


def reached(
    findings: Iterable[Finding], needs: Mapping[str, tuple[Condition, ...]], configurations: Sequence[Configuration]
) -> tuple[Finding, ...]:
    """The findings as these configurations see them: unreachable is what none of them reaches.

    Args:
        findings: of one engine.
        needs: each rule's own conditions, by id.
        configurations: at least one.
    """
    return tuple(_reached(finding, needs.get(finding.rule, ()), configurations) for finding in findings)


def _reached(finding: Finding, needs: tuple[Condition, ...], configurations: Sequence[Configuration]) -> Finding:
    if finding.status not in ("present", "partial") or finding.severity == "info":
        return finding
    first: tuple[str, Hop | None] | None = None
    for configuration in configurations:
        objection = next(iter(_objections(finding, needs, configuration)), None)
        if objection is None:
            return finding
        first = first or objection
    if first is None:
        return finding
    reason, hop = first
    where = f" ({hop.path}:{hop.line} {hop.text})" if hop else ""
    said = f"the source has it ({finding.status}), but {reason}{where}"
    return replace(finding, status="unreachable", reason=said, hop=hop)


def _objections(
    finding: Finding, needs: tuple[Condition, ...], configuration: Configuration
) -> Iterator[tuple[str, Hop | None]]:
    paths = configuration.paths
    if EVERY not in finding.methods and configuration.method not in finding.methods:
        concerned = ", ".join(finding.methods)
        hop = _naming(configuration.method, paths) or _hop(paths, "proposer", "config")
        yield f"it concerns {concerned}, and the method is {configuration.method}", hop
    runners = {path.runner for path in paths}
    if runners and runners.isdisjoint(finding.runner.split("+")):
        taken = " and ".join(sorted(runners))
        hop = _hop(paths, "runner", "proposer")
        yield f"it is in the {finding.runner} runner, and this configuration takes {taken}", hop
    for need in needs:
        if need.option in configuration.settings and holds(need, configuration.settings[need.option]) is False:
            value = configuration.settings[need.option]
            state = f"is {value}" if value is not None else "is not set"
            yield f"it needs that {need.text}, and {need.option} {state}", None


def _naming(method: str, paths: tuple[Path, ...]) -> Hop | None:
    """The last line of the configuration that names the method: it chose the way."""
    hops = [hop for path in paths for hop in path.hops if hop.what == "config"]
    return next((hop for hop in reversed(hops) if re.search(rf"""["']{re.escape(method)}["']""", hop.text)), None)


def _hop(paths: tuple[Path, ...], *kinds: HopKind) -> Hop | None:
    """The first hop of the first kind that any path has."""
    for kind in kinds:
        for path in paths:
            found = next((hop for hop in path.hops if hop.what == kind), None)
            if found is not None:
                return found
    return None

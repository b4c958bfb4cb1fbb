"""Releases of an engine, one scan each, and what changed from one to the next: from the package index or a checkout."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specaudit.diff import Change, diff
from specaudit.errors import TargetError
from specaudit.model import Scan, Target
from specaudit.report import view
from specaudit.report.gate import OPEN, SEVERITIES

if TYPE_CHECKING:
    from packaging.version import Version

_VERSION = re.compile(r"v?\d+(\.\d+)+(\.post\d+)?")


@dataclass(frozen=True, slots=True)
class Row:
    """One release: what it takes by default, its three tree verdicts, its open findings, and what changed before it."""

    release: str
    runner: str
    proposers: int
    topologies: str
    walks: str
    tree: str
    open: str
    changes: tuple[Change, ...]


def rows(scans: Iterable[Scan]) -> list[Row]:
    """One row per scan, in the given order; a scan that failed has no facts."""
    found: list[Row] = []
    last: Scan | None = None
    for scan in scans:
        found.append(_row(scan, diff(last, scan) if last is not None and scan.engine is not None else ()))
        last = scan if scan.engine is not None else last
    return found


def _row(scan: Scan, changes: tuple[Change, ...]) -> Row:
    engine = scan.engine
    if engine is None:
        return Row(scan.target.spec, "not examined", 0, "", "", "", "; ".join(f.error for f in scan.errors), ())
    live = [proposer for proposer in scan.proposers if proposer.reachable != "dead"]
    kernels = [v for v in scan.verifiers if v.reachable != "dead" and v.role in ("kernel", "compiled")]
    walks = {walk for v in kernels for walk in (v.walk, *(variant.walk for variant in v.variants))}
    tree = "/".join(part.verdict for _, part in view.tree_parts(scan))
    return Row(
        release=engine.version or scan.target.spec,
        runner=_runner(scan),
        proposers=len(live),
        topologies=", ".join(sorted({proposer.topology for proposer in live})),
        walks=", ".join(sorted(walks - {"helper", "dispatcher"})),
        tree=tree,
        open=_open(scan),
        changes=tuple(change for change in changes if change.about not in ("engine", "added file", "modified file")),
    )


def _runner(scan: Scan) -> str:
    """The default runner, with the number of methods where there are several."""
    methods: dict[str, set[str]] = {}
    for runner in scan.runners:
        if runner.default:
            methods.setdefault(runner.runner, set()).add(runner.method)
    if len(methods) == 1:
        return next(iter(methods))
    return ", ".join(f"{label} ({len(m)})" for label, m in sorted(methods.items(), key=lambda item: -len(item[1])))


def _open(scan: Scan) -> str:
    found = [f.severity for f in scan.findings if f.status in OPEN and f.severity != "info"]
    worst_first = [severity for severity in reversed(SEVERITIES) if severity in found]
    return ", ".join(f"{found.count(severity)} {severity}" for severity in worst_first)


def between(names: Iterable[str], first: str | None, last: str | None, none: TargetError) -> list[str]:
    """Versions or tags that are final releases, oldest first, from ``first`` to ``last`` (both included).

    Raises:
        TargetError: a bound is no version, or nothing lies between them; ``none`` where there is no release at all.
    """
    from packaging.version import Version

    found = {name: Version(name) for name in names if _VERSION.fullmatch(name)}
    low, high = _bound(first), _bound(last)
    if low is not None and high is not None and low > high:
        raise TargetError(f"{first} is newer than {last}.", "Write --from with the older one.")
    chosen = [n for n, v in found.items() if (low is None or v >= low) and (high is None or v <= high)]
    if not found:
        raise none
    if not chosen:
        newest = ", ".join(sorted(found, key=found.__getitem__, reverse=True)[:5])
        bounds = " and ".join(f"{option} {bound}" for option, bound in (("--from", first), ("--to", last)) if bound)
        raise TargetError(f"No release lies within {bounds}.", f"The newest releases are: {newest}.")
    return sorted(chosen, key=found.__getitem__)


def _bound(text: str | None) -> Version | None:
    from packaging.version import Version

    if text is None:
        return None
    try:
        return Version(text)
    except ValueError as bad:  # InvalidVersion, or a number of thousands of digits
        raise TargetError(f"{text!r} is no version.", "Write it like 0.33.0.") from bad


def releases(engine: str, first: str | None, last: str | None) -> list[Target]:
    """Releases on the package index as targets.

    Raises:
        UnreachableError: the index did not answer.
        TargetError: see :func:`between`.
    """
    from specaudit.hosts import pipconfig
    from specaudit.hosts.find import versions
    from specaudit.hosts.http import open_client

    config = pipconfig.read()
    with open_client(config) as client:
        known = versions(client, config, engine)
    none = TargetError(
        f"The package index has no final release of {engine}.", f"See what it has: pip index versions --pre {engine}."
    )
    return [Target(f"{engine}=={version}") for version in between(known, first, last, none)]


def tagged(path: Path, first: str | None, last: str | None) -> list[Target]:
    """Tags of a checkout as targets.

    Raises:
        TargetError: no repository there; or see :func:`between`.
    """
    from specaudit.hosts.git import tags

    none = TargetError(
        f"{path} has no tag that names a release, as v0.33.0.",
        f"Fetch them: git -C {path} fetch --tags; or leave --git out to read the package index.",
    )
    return [Target(f"git:{path}@{tag}") for tag in between(tags(path), first, last, none)]


def table(found: Sequence[Row]) -> list[tuple[str, ...]]:
    """Cells of the table that is printed, one tuple a row."""
    return [(row.release, row.runner, row.open) for row in found]


def below(row: Row, *, changes: bool = False) -> Iterator[tuple[str, str]]:
    """What stands below its row, each with its lead: lists that are too long for a column, and what changed."""
    yield "", f"{row.proposers} proposers: {row.topologies or 'none'}"
    yield "", f"walks: {row.walks or 'none'}"
    yield "", f"tree drafted/masked/walked: {row.tree}"
    if changes:
        yield from ((change.lead, change.text) for change in row.changes)


#: Titles of :func:`table`.
COLUMNS = ("release", "default runner", "open findings")

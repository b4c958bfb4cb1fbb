"""Many machines side by side: which have the same engine, byte for byte, and in what the others differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from specaudit.model import Fleet, FleetDifference, FleetGroup, Scan, Server
from specaudit.scan import Outcome
from specaudit.serving import options

#: Options in which servers may differ without being configured differently.
_OWN = frozenset({"host", "port", "api_key", "served_model_name", "node_rank", "master_addr", "master_port"})


@dataclass(frozen=True, slots=True)
class Member:
    """One machine: its scan, the SHA-256 of every file of its engine, and the error that left it unexamined."""

    scan: Scan
    files: Mapping[str, str]
    error: str = ""

    @property
    def host(self) -> str:
        """How the user named it."""
        return self.scan.target.spec


def member(outcome: Outcome) -> Member:
    """The member that a scan's outcome makes."""
    return Member(outcome.scan, outcome.files, outcome.error.message if outcome.error is not None else "")


def compare(members: Sequence[Member]) -> Fleet:
    """Groups machines by the digest of their engine, the largest group first, and names the differences.

    Files are compared with the first group, versions and configurations of running servers among all.
    """
    examined = [member for member in members if member.scan.engine is not None]
    by_digest: dict[str, list[Member]] = {}
    for member in examined:
        assert member.scan.engine is not None
        by_digest.setdefault(member.scan.engine.digest, []).append(member)
    # Sorting is stable: among groups of one size the one named first stays first.
    ordered = sorted(by_digest.values(), key=len, reverse=True)
    return Fleet(
        groups=tuple(_group(number, group, ordered[0][0].files) for number, group in enumerate(ordered)),
        differences=tuple(_differences(examined)),
        failed={member.host: member.error for member in members if member.scan.engine is None},
    )


def label_of(number: int) -> str:
    """A, B, … Z, AA, AB, …"""
    letters = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return letters


def _group(number: int, members: Sequence[Member], reference: Mapping[str, str]) -> FleetGroup:
    engine = members[0].scan.engine
    assert engine is not None
    files = members[0].files
    return FleetGroup(
        label=label_of(number),
        engine=engine.name,
        version=engine.version,
        digest=engine.digest,
        files=engine.files,
        hosts=tuple(member.host for member in members),
        changed=tuple(sorted(path for path in files if reference.get(path, files[path]) != files[path])),
        added=tuple(sorted(path for path in files if path not in reference)),
        missing=tuple(sorted(path for path in reference if path not in files)),
    )


def _differences(members: Sequence[Member]) -> list[FleetDifference]:
    found = []
    for name, value in _VERSIONS.items():
        values = _by_value(members, value)
        if len(values) > 1:
            found.append(FleetDifference("version", name, values))
    serving = [member for member in members if member.scan.servers]
    settings = {member.host: _settings(member.scan) for member in serving}
    names = sorted({name for one in settings.values() for name in one})
    for name in names:
        values = _by_value(serving, _setting(settings, name))
        if len(values) > 1:
            found.append(FleetDifference("configuration", name, values))
    return found


def _setting(settings: Mapping[str, Mapping[str, str]], name: str) -> Callable[[Scan], str]:
    return lambda scan: settings[scan.target.spec].get(name, "(not set)")


def _by_value(members: Sequence[Member], value: Callable[[Scan], str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for member in members:
        key = value(member.scan)
        if key:
            found[key] = (*found.get(key, ()), member.host)
    return found


_VERSIONS: dict[str, Callable[[Scan], str]] = {
    "engine": lambda scan: f"{scan.engine.name} {scan.engine.version}" if scan.engine else "",
    "python": lambda scan: scan.environment.python,
    "torch": lambda scan: scan.environment.torch,
    "triton": lambda scan: scan.environment.triton,
    "cuda": lambda scan: scan.environment.cuda,
    "platform": lambda scan: scan.environment.platform,
    "gpus": lambda scan: gpus(scan),
    "driver": lambda scan: ", ".join(sorted({gpu.driver for gpu in scan.environment.gpus})),
}


def gpus(scan: Scan) -> str:
    """``8 x NVIDIA H200``; several kinds are listed."""
    names = [gpu.name for gpu in scan.environment.gpus]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _settings(scan: Scan) -> dict[str, str]:
    """Options and variables of the servers of one machine; of several servers all values, in the order of pids."""
    found: dict[str, list[str]] = {}
    for server in scan.servers:
        for name, value in {**server.env, **options(server.config), **options(server.argv)}.items():
            if name not in _OWN:
                found.setdefault(name, []).append(value or "")
        for name, value in _path(scan, server).items():
            found.setdefault(name, []).append(value)
    return {name: " | ".join(values) for name, values in found.items()}


def _path(scan: Scan, server: Server) -> dict[str, str]:
    if server.path is None:
        return {}
    path = scan.paths[server.path]
    return {"path": f"{path.method} on {path.runner}"}

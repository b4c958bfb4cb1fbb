"""Every data type that travels between the stages: Target -> Snapshot -> Audit -> Finding -> Report.

All of them are frozen, slotted and made of plain values, so that they can be pickled to a worker process and written as
JSON by :mod:`specaudit.document`. Field names are those of the scan document ``specaudit/scan/1``. Paths are POSIX
paths that start at the package (``vllm/v1/…``); lines count from 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Topology = Literal[
    "chain-autoregressive", "chain-parallel", "chain-lookup", "tree-static", "tree-dynamic", "none", "unknown"
]
Walk = Literal["linear", "tree", "block", "synthetic", "lossy", "helper", "dispatcher", "unknown"]
Role = Literal["kernel", "function", "class", "compiled"]
Reachable = Literal["default", "conditional", "dead"]
HopKind = Literal["config", "runner", "proposer", "otherwise", "attention", "sampler", "kernel"]
Severity = Literal["info", "low", "medium", "high", "critical"]
Status = Literal["present", "partial", "fixed", "not-applicable", "not-found", "unreachable"]
OptionStatus = Literal["honoured", "ignored", "overridden"]


# --- evidence and absence -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Evidence:
    """One line of the audited engine: ``text`` is line ``line`` of ``path``, without its indentation."""

    path: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Search:
    """What was looked through before something was called absent.

    ``digest`` is the SHA-256 over the sorted (path, SHA-256) pairs of the files read; ``looked_at`` counts the things
    (functions, calls, parameters) that were compared with what was ``asked``.
    """

    files: int
    bytes: int
    digest: str
    asked: str
    looked_at: int


@dataclass(frozen=True, slots=True)
class NotLooked:
    """Something that could hold the answer and was not read, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Condition:
    """One test that decides between paths, as data: ``option op value``; ``text`` says it in words."""

    option: str
    kind: Literal["env", "option", "model", "platform"]
    op: Literal["==", "!=", "in", "not in", "<", "<=", ">", ">=", "is set", "is not set"]
    value: str
    text: str


# --- where and what -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """What the user asked to examine, as resolved by :mod:`specaudit.targets`."""

    spec: str
    host: str | None = None
    python: str | None = None
    via: str | None = None


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of an engine: package-relative path, SHA-256 in hex, size in bytes."""

    path: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Which build of which engine: ``digest`` is the SHA-256 over the sorted (path, SHA-256) pairs of its ``.py``
    files.

    ``modified``, ``missing`` and ``added`` compare with the wheel's RECORD; ``patched`` lists the files whose
    difference was made by ``specaudit patch`` (then they are not in ``modified`` or ``added``).
    """

    name: str
    version: str
    source: str
    digest: str
    files: int
    modified: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    patched: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as ``nvidia-smi`` names it; memory in MiB."""

    name: str
    capability: str
    driver: str = ""
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class Environment:
    """Facts of the environment that can be read without importing anything (``""``: not known)."""

    python: str = ""
    torch: str = ""
    cuda: str = ""
    triton: str = ""
    platform: str = ""
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True)
class Server:
    """A running engine process. Secrets in ``argv``, ``config`` and ``env`` are replaced before they leave the host.

    ``config`` holds, as further arguments, what the file of ``--config`` says.
    """

    pid: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    python: str = ""
    path: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    config: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that could not be examined; ``path`` may be empty when it is not a file."""

    path: str
    error: str


# --- the audit ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Runner:
    """One way to a model runner for a method: it is taken where all of ``when`` holds.

    ``default``: nothing needs to be configured. Several defaults of one method differ by what they ask of the model.
    ``changes``, of a way that is no default: those of ``when`` that do not hold by themselves as long as nothing is
    configured. The others only ask that a setting stays as it is.
    """

    method: str
    runner: str
    default: bool
    when: tuple[Condition, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    changes: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class TopologyVariant:
    """Another topology that the same proposer emits under a configuration."""

    topology: Topology
    when: tuple[Condition, ...] = ()
    methods: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Proposer:
    """A concrete class that drafts; ``line`` is its ``class`` line."""

    name: str
    path: str
    line: int
    methods: tuple[str, ...]
    runner: str
    topology: Topology
    variants: tuple[TopologyVariant, ...] = ()
    reachable: Reachable = "default"
    conditions: tuple[Condition, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WalkVariant:
    """Another walk of the same verifier, behind a flag; ``line`` is the branch."""

    walk: Walk
    when: tuple[Condition, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Verifier:
    """A kernel, function, class or compiled op that accepts or rejects drafts; ``line`` is its ``def`` line.

    ``methods``: those whose drafter puts it in the place of another one; empty: it may verify for every method.
    """

    name: str
    path: str
    line: int
    role: Role
    walk: Walk
    variants: tuple[WalkVariant, ...] = ()
    runner: str = ""
    selected_by: tuple[Condition, ...] = ()
    called_from: tuple[Evidence, ...] = ()
    reachable: Reachable = "default"
    evidence: tuple[Evidence, ...] = ()
    reason: str = ""
    methods: tuple[str, ...] = ()


#: What the three questions about trees can be answered with.
VERDICTS: Mapping[str, tuple[str, ...]] = {
    "drafting": ("none", "static", "dynamic", "unknown"),
    "attention": ("none", "dead", "static", "per-request", "unknown"),
    "verification": ("none", "tree-walk", "unknown"),
}


#: What was not looked at where there is nothing to compare an engine's files with.
UNCOMPARED = "changes to the engine's files"


@dataclass(frozen=True, slots=True)
class TreePart:
    """One of the three questions about trees: found with ``evidence``, or absent after ``searched``.

    ``verdict``: drafting none | static | dynamic; attention none | dead | static | per-request;
    verification none | tree-walk; each unknown where it would be none or dead, and a file that may say otherwise
    could not be read.
    """

    verdict: str
    evidence: tuple[Evidence, ...] = ()
    searched: Search | None = None
    not_looked: tuple[NotLooked, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TreeVerdict:
    """Is a tree drafted, does the target's attention mask one, does the verifier walk one?"""

    drafting: TreePart
    attention: TreePart
    verification: TreePart


@dataclass(frozen=True, slots=True)
class OptionVerdict:
    """What a runner does with one speculative option (``value`` is empty when it is about it as such).

    ``method`` names the methods that this is about, a comma between them; empty: all that can take the runner.
    """

    name: str
    value: str
    status: OptionStatus
    method: str = ""
    runner: str = ""
    evidence: tuple[Evidence, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Hop:
    """One step from configuration to kernel; ``otherwise``: what another draft model would get for a proposer."""

    path: str
    line: int
    text: str
    what: HopKind


@dataclass(frozen=True, slots=True)
class Path:
    """The hops that one method takes on one runner, in order.

    ``configured``: it is the path of a configuration that was named, by options or variables; else it is taken where
    nothing is set, or by a running server.
    """

    method: str
    runner: str
    when: tuple[Condition, ...] = ()
    hops: tuple[Hop, ...] = ()
    configured: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """The status of one rule on one engine; ``sites`` are the places, ``fingerprint`` survives moved lines.

    ``hop`` is the step of the configuration's path that rules the finding out (status ``unreachable``). ``symptom``,
    ``remedy`` and ``references`` are the rule's own words, so that a report needs nothing but the document.
    """

    rule: str
    severity: Severity
    status: Status
    title: str = ""
    symbol: str = ""
    runner: str = ""
    methods: tuple[str, ...] = ()
    sites: tuple[Evidence, ...] = ()
    searched: Search | None = None
    fingerprint: str = ""
    reason: str = ""
    fix: str | None = None
    hop: Hop | None = None
    symptom: str = ""
    remedy: str = ""
    references: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Audit:
    """All that classification says about one engine. Depends on the engine's files alone, so it is cached by digest."""

    runners: tuple[Runner, ...] = ()
    proposers: tuple[Proposer, ...] = ()
    verifiers: tuple[Verifier, ...] = ()
    tree: TreeVerdict | None = None
    options: tuple[OptionVerdict, ...] = ()
    paths: tuple[Path, ...] = ()
    errors: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class Tool:
    """The program that wrote a document."""

    version: str


@dataclass(frozen=True, slots=True)
class Scan:
    """One scan document, ``specaudit/scan/1``: what was examined, and what was found."""

    tool: Tool
    target: Target
    engine: EngineFacts | None
    environment: Environment
    runners: tuple[Runner, ...] = ()
    proposers: tuple[Proposer, ...] = ()
    verifiers: tuple[Verifier, ...] = ()
    tree: TreeVerdict | None = None
    options: tuple[OptionVerdict, ...] = ()
    paths: tuple[Path, ...] = ()
    servers: tuple[Server, ...] = ()
    findings: tuple[Finding, ...] = ()
    not_looked: tuple[NotLooked, ...] = ()
    errors: tuple[Failure, ...] = ()
    schema: str = "specaudit/scan/1"


@dataclass(frozen=True, slots=True)
class FleetGroup:
    """Machines whose engine has the same digest.

    ``changed``, ``added`` and ``missing`` name its files as compared with the fleet's first group (none there).
    """

    label: str
    engine: str
    version: str
    digest: str
    files: int
    hosts: tuple[str, ...]
    changed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetDifference:
    """One thing in which machines differ: ``values`` maps each value to the machines that have it."""

    what: Literal["version", "configuration"]
    name: str
    values: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Fleet:
    """Several machines side by side; ``failed`` maps those that were not examined to the reason."""

    groups: tuple[FleetGroup, ...]
    differences: tuple[FleetDifference, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """Several scans in one document, ``specaudit/run/1``; ``fleet`` compares those of machines."""

    scans: tuple[Scan, ...]
    fleet: Fleet | None = None
    schema: str = "specaudit/run/1"

"""Scan -> the few sentences that answer it: which runner, which proposer, which verifier, tree or not, and why.

Pure text, no layout: the terminal and the reports both start with these lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specaudit import taken
from specaudit.classify.conditions import holds
from specaudit.model import (
    UNCOMPARED,
    Condition,
    Evidence,
    Finding,
    Proposer,
    Runner,
    Scan,
    Server,
    TreePart,
    Verifier,
)
from specaudit.words import counted

#: Walks of things that decide about acceptance; helpers and dispatchers only serve them.
_DECIDES = ("tree", "linear", "block", "lossy", "synthetic", "unknown")


@dataclass(frozen=True, slots=True)
class MethodRow:
    """What one method takes by default, or as configured: one line of the table that everybody reads first."""

    method: str
    runner: str
    proposers: tuple[str, ...]
    topology: str


@dataclass(frozen=True, slots=True)
class RunnerChoice:
    """A runner, the methods that take it, and when: one of ``ways``, ``always`` besides, and ``kept`` as it is by
    default.
    """

    runner: str
    default: bool
    methods: tuple[str, ...]
    always: tuple[str, ...]
    ways: tuple[str, ...]
    kept: tuple[str, ...] = ()


def title(scan: Scan) -> str:
    """Engine, version, origin, and whether its files are those that were published."""
    engine = scan.engine
    if engine is None:
        return f"{scan.target.spec}: not examined"
    changes = [
        f"{len(paths)} {word}"
        for word, paths in (
            ("modified", engine.modified),
            ("missing", engine.missing),
            ("added", engine.added),
            ("patched by specaudit", engine.patched),
        )
        if paths
    ]
    compared = all(item.what != UNCOMPARED for item in scan.not_looked)
    state = ", ".join(changes) or ("as installed" if engine.source == "dist" and compared else "")
    version = engine.version or "(version unknown)"
    return f"{engine.name} {version}, {counted(engine.files, 'file')}" + (f", {state}" if state else "")


def answers(scan: Scan, *, below: bool = False) -> list[tuple[str, str]]:
    """The first lines: (question, answer); ``below`` says that all they rest on follows, and refers to it."""
    told = " (told below)" if below else ""
    assert scan.engine is not None
    lines = []
    shown = taken.part(scan)
    if scan.tree is None:
        lines.append(("unknown", "all of it: the code could not be classified, for the reason told below"))
    else:
        lines += [
            ("runner", _runner_line(shown, sure=not scan.errors)),
            ("proposer", _proposer_line(shown)),
            ("verifier", _verifier_line(shown)),
            ("tree", _tree_line(shown)),
            ("why", _why_line(scan, told)),
        ]
        if scan.findings:
            lines.append(("defects", _defects_line(scan.engine.name, scan.findings) + told))
        halves = [failure.error for failure in scan.errors if failure.error.startswith("an interrupted change")]
        lines += [("but", half) for half in halves]
        if not (scan.runners or scan.proposers or scan.verifiers):
            lines.append(("but", "nothing of speculative decoding was found: is this the whole engine?"))
        elif len(scan.errors) > len(halves):
            parts = counted(len(scan.errors) - len(halves), "part")
            lines.append(("but", f"{parts} could not be examined (told below); what is there may be missing here"))
    lines.append(("source", f"{scan.target.spec} ({scan.engine.source})"))
    return lines


def _runner_line(scan: Scan, sure: bool) -> str:
    """Not sure: a file that could not be read may hold what seems to be absent."""
    if not scan.runners:
        return "no runner of speculative decoding was found"
    groups: dict[str, list[str]] = {}
    methods = sorted({runner.method for runner in scan.runners})
    for method in methods:
        groups.setdefault(_runner_of(scan, method), []).append(method)
    decided = {method for method in methods if taken.decided(scan, method)}
    manner = " as configured" if decided else " by default"
    said: list[str] = []
    for label, names in sorted(groups.items(), key=lambda item: -len(item[1])):
        open_ = " (the model decides)" if " or " in label else ""
        label = "not known" if label == "none" and not sure else label
        said.append(label + open_ + (f" for {', '.join(names)}" if said else manner))
    return "; ".join(said + _otherwise([one for one in scan.runners if one.method not in decided]))


def _runner_of(scan: Scan, method: str) -> str:
    """The runner that a method takes; several joined by "or" where the model decides."""
    return " or ".join(taken.runners(scan, method)) or "none"


def _otherwise(runners: Sequence[Runner]) -> list[str]:
    """Per other runner, the one condition that by itself leads there for most methods."""
    found: dict[str, dict[str, int]] = {}
    for runner in runners:
        told = runner.changes or runner.when
        if not runner.default and told:
            texts = found.setdefault(runner.runner, {})
            first = next((c for c in told if c.kind == "env"), told[0])
            texts[first.text] = texts.get(first.text, 0) + 1
    return [f"{label} if {max(texts, key=lambda t: texts[t])}" for label, texts in sorted(found.items())]


def _proposer_line(scan: Scan) -> str:
    live = [p for p in scan.proposers if p.reachable != "dead"]
    if not live:
        return "none was found"
    if len({p.name for p in live}) <= 2:
        return "; ".join(f"{p.name} ({_topologies(p)}) {p.path}:{p.line}" for p in live)
    counts: dict[str, int] = {}
    for proposer in live:
        counts[proposer.topology] = counts.get(proposer.topology, 0) + 1
    kinds = ", ".join(f"{count} {topology}" for topology, count in sorted(counts.items(), key=lambda i: (-i[1], i[0])))
    dead = len(scan.proposers) - len(live)
    return f"{counted(len(live), 'class')}: {kinds}" + (f"; {dead} more that nothing reaches" if dead else "")


def _topologies(proposer: Proposer) -> str:
    also = [v.topology + conditions(v.when, " if ") for v in proposer.variants if v.topology != proposer.topology]
    return "; ".join([proposer.topology, *also])


def _verifier_line(scan: Scan) -> str:
    """Accepting kernels per runner, that of most methods first; modes of a kernel after its main walk."""
    groups: dict[str, dict[str, list[str]]] = {}
    compiled = 0
    for verifier in scan.verifiers:
        if verifier.role == "compiled" and verifier.walk == "unknown":
            compiled += 1
        elif verifier.reachable != "dead" and verifier.role in ("kernel", "compiled") and verifier.walk in _DECIDES:
            groups.setdefault(verifier.runner or "any runner", {}).setdefault(_modes(verifier), []).append(
                verifier.name
            )
    if not groups:
        return "none was found"
    defaults = [label for method in {one.method for one in scan.runners} for label in taken.runners(scan, method)]
    unread = f"; {compiled} compiled (unknown)" if compiled else ""
    named = "; ".join(
        f"{label}: " + ", ".join(f"{', '.join(dict.fromkeys(names))} ({walk})" for walk, names in groups[label].items())
        for label in sorted(groups, key=lambda label: (-defaults.count(label), label))
    )
    return named + unread


def _modes(verifier: Verifier) -> str:
    others = dict.fromkeys(variant.walk for variant in verifier.variants if variant.walk != verifier.walk)
    return verifier.walk + (f"; by flag {', '.join(others)}" if others else "")


def _tree_line(scan: Scan) -> str:
    assert scan.tree is not None
    verified = scan.tree.verification.verdict
    masked = scan.tree.attention.verdict
    return "; ".join(
        (
            {"tree-walk": "yes: a verifier walks a tree", "unknown": "unknown whether a verifier walks a tree"}.get(
                verified, "no: no verifier walks a tree"
            ),
            _drafted(scan),
            "unknown whether target attention has a tree mask"
            if masked == "unknown"
            else "target attention has "
            + {"none": "no tree mask", "dead": "a tree mask that nothing passes"}.get(masked, f"a {masked} tree mask"),
        )
    )


def _drafted(scan: Scan) -> str:
    """Which tree is drafted, and when: a static one needs to be asked for."""
    assert scan.tree is not None
    verdict = scan.tree.drafting.verdict
    if verdict == "none":
        return "no tree is drafted"
    if verdict == "unknown":
        return "unknown whether a tree is drafted"
    live = [proposer for proposer in scan.proposers if proposer.reachable != "dead"]
    variants = [variant for proposer in live for variant in proposer.variants if variant.topology.startswith("tree")]
    if any(p.topology.startswith("tree") for p in live) or not all(variant.when for variant in variants):
        return f"a {verdict} tree is drafted"
    ways = dict.fromkeys(conditions(variant.when) for variant in variants)
    return f"a {verdict} tree is drafted" + (f" only if {' or if '.join(ways)}" if ways else "")


def _why_line(scan: Scan, told: str) -> str:
    assert scan.tree is not None
    part = scan.tree.verification
    if part.evidence:
        return place(part.evidence[0])
    if part.verdict == "unknown" or part.searched is None:
        return part.reason or "no search was recorded"
    search = part.searched
    unread = f"; {len(part.not_looked)} could not be looked at{told}" if part.not_looked else ""
    places = f"{counted(search.looked_at, 'candidate')} in {counted(search.files, 'file')}"
    return f"{search.asked}? None of {places} does{unread}"


def _defects_line(engine: str, findings: Sequence[Finding]) -> str:
    """How many of the known defects are there, the worst counted apart; rules that only inform are none."""
    defects = [finding for finding in findings if finding.severity != "info"]
    if all(finding.status == "not-applicable" for finding in defects):
        return f"not looked for: no rule applies to this {engine}"
    found = [finding for finding in defects if finding.status in ("present", "partial")]
    worst = [f"{n} {s}" for s in ("critical", "high") if (n := sum(finding.severity == s for finding in found))]
    return f"{len(found)} known ones of {len(defects)}" + (f", {' and '.join(worst)}" if worst else "")


def searched(part: TreePart) -> str:
    """What was looked through before something was called absent; ``""`` when nothing is recorded."""
    if part.searched is None:
        return ""
    search = part.searched
    return f"{counted(search.looked_at, 'candidate')} in {counted(search.files, 'file')}: {search.asked}"


def manner(scan: Scan) -> str:
    """How the methods of :func:`rows` come to what they take: ``by default`` or ``as configured``."""
    return "as configured" if taken.configured(scan) else "by default"


def rows(scan: Scan) -> list[MethodRow]:
    """One row per method, by name: what it takes by default, or as configured."""
    found = []
    shown = taken.part(scan)
    for method in sorted({runner.method for runner in shown.runners}):
        label = _runner_of(shown, method)
        proposers = taken.usually(shown, method)
        drafts = dict.fromkeys(_topology_of(proposer, method) for proposer in proposers)
        names = tuple(dict.fromkeys(proposer.name for proposer in proposers))
        found.append(MethodRow(method, label, names, ", ".join(drafts)))
    return found


def _topology_of(proposer: Proposer, method: str) -> str:
    """The topology that a method gets; a variant that names the method is what it gets."""
    own = [variant.topology for variant in proposer.variants if method in variant.methods and not variant.when]
    return own[0] if own else proposer.topology


def choices(runners: Iterable[Runner]) -> list[RunnerChoice]:
    """The same entries, those that differ in one condition brought together."""
    by_way: dict[tuple[str, bool, _Way], list[str]] = {}
    for runner in runners:
        by_way.setdefault((runner.runner, runner.default, _way(runner)), []).append(runner.method)
    groups: dict[tuple[str, bool, tuple[str, ...]], list[_Way]] = {}
    for (label, default, way), methods in by_way.items():
        groups.setdefault((label, default, tuple(methods)), []).append(way)
    found = []
    for (label, default, named), ways in groups.items():
        first, *others = (changes for changes, _ in ways)
        always = [c for c in first if others and all(c in other for other in others)]
        rests = dict.fromkeys(c for _, rest in ways for c in rest)
        kept = [c for c in rests if all(c in rest or _implied(c, changes) for changes, rest in ways)]
        shared = {*always, *kept}
        left = tuple(conditions(c for c in (*changes, *rest) if c not in shared) for changes, rest in ways)
        found.append(RunnerChoice(label, default, named, _texts(always), left, _texts(kept)))
    return found


#: What does not hold by itself, and what only has to stay as it is by default.
_Way = tuple[tuple[Condition, ...], tuple[Condition, ...]]


def _way(runner: Runner) -> _Way:
    if not runner.changes:  # a default, or a document that does not tell them apart
        return runner.when, ()
    return runner.changes, tuple(c for c in runner.when if c not in runner.changes)


def _implied(condition: Condition, changes: Iterable[Condition]) -> bool:
    """Whether a setting that is said to have a value satisfies a condition."""
    return any(c.op == "==" and c.option == condition.option and holds(condition, c.value) for c in changes)


def _texts(when: Iterable[Condition]) -> tuple[str, ...]:
    return tuple(condition.text for condition in when)


def conditions(when: Iterable[Condition], prefix: str = "") -> str:
    """Conditions in words, joined by "and"; ``""`` when there are none."""
    text = " and ".join(dict.fromkeys(condition.text for condition in when))
    return prefix + text if text else ""


def place(evidence: Evidence) -> str:
    """``path:line  text``."""
    return f"{evidence.path}:{evidence.line}  {evidence.text}"


def counters(server: Server) -> str:
    """What a server's metrics page counts, with the positions of the draft; empty when it was not read."""
    counts = server.metrics
    names = (("drafts", "draft"), ("draft_tokens", "draft token"))
    parts = [counted(round(counts[key]), word) for key, word in names if key in counts]
    if "accepted_tokens" in counts:
        parts.append(f"{counts['accepted_tokens']:,.0f} accepted")
    positions = sorted(
        (int(key.removeprefix("accepted_at_")), value)
        for key, value in counts.items()
        if key.startswith("accepted_at_")
    )
    if positions:
        parts.append("accepted by position " + " ".join(f"{value:,.0f}" for _, value in positions))
    if "acceptance_length" in counts:
        parts.append(f"acceptance length {counts['acceptance_length']:.2f}")
    return ", ".join(parts)

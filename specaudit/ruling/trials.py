"""A rule's own tests: its examples, and on real trees its mutations (put the defective shape back, see it flip)."""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from specaudit.index import Index
from specaudit.model import (
    EngineFacts,
    Environment,
    FileEntry,
    Finding,
    Search,
    Target,
    TreePart,
    TreeVerdict,
)
from specaudit.ruling.evaluate import judge
from specaudit.ruling.places import Ground
from specaudit.ruling.reach import EVERY
from specaudit.ruling.rule import Edit, Example, Mutation, Rule
from specaudit.ruling.shapes import find_all
from specaudit.snapshot import Snapshot
from specaudit.words import meant

if TYPE_CHECKING:
    from ast_grep_py import SgNode


@dataclass(frozen=True, slots=True)
class Trial:
    """One thing tried; ``skipped`` is a mutation for which no tree has the status that it starts from."""

    rule: str
    what: str
    outcome: Literal["passed", "failed", "skipped"]
    reason: str = ""


def examples(rule: Rule) -> Iterator[Trial]:
    """Judges each example of the rule and compares the status with the one under which it stands.

    A rule without an example that lacks the defect fails: nothing shows that it can say anything else.
    """
    if {example.status for example in rule.examples} <= {"present", "partial"}:
        yield Trial(rule.id, f"{rule.name}:{rule.examples[0].line} examples", "failed", "none is without the defect")
    for example in rule.examples:
        finding = judge(rule, Ground(_index(rule, example), _tree(example)))
        what = f"{rule.name}:{example.line} example {example.status}"
        bad = _no_python(example)
        if bad:
            yield Trial(rule.id, what, "failed", bad)
        elif finding.status == example.status:
            yield Trial(rule.id, what, "passed")
        else:
            yield Trial(rule.id, what, "failed", f"the rule says {finding.status}{_because(finding)}")


def _no_python(example: Example) -> str:
    """Where an example cannot be parsed; ``""`` when it can."""
    for path, text in example.files.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ast.parse(text)
        except SyntaxError as bad:
            return f"line {bad.lineno} of the code for {path} is no Python: {bad.msg}"
        except (ValueError, RecursionError, MemoryError) as bad:
            return f"the code for {path} is no Python: {bad}"
    return ""


def mutations(rule: Rule, trees: Iterable[tuple[str, Index]]) -> Iterator[Trial]:
    """Applies each mutation to the first and the last tree that has its first status.

    A tree to which the rule does not apply, and in which no edit finds anything, does not count: what the mutation
    changes is older or newer than it.

    Args:
        rule: the rule.
        trees: (name, index) pairs, oldest first.
    """
    known = tuple(trees)
    statuses = [judge(rule, Ground(index)).status for _, index in known] if rule.mutations else []
    for mutation in rule.mutations:
        fitting = [tree for tree, status in zip(known, statuses, strict=True) if status == mutation.before]
        if mutation.before == "not-applicable":
            fitting = [tree for tree in fitting if _changes(mutation, tree[1])]
        what = f"{rule.name} mutation {mutation.before} -> {mutation.after}"
        if not fitting:
            yield Trial(rule.id, what, "skipped", _unfit(mutation) if known else "no --tree is given")
        for name, index in dict(fitting[:1] + fitting[-1:]).items():
            yield _mutated(rule, mutation, f"{what} on {name}", index)


def strangers(rules: Iterable[Rule], methods: Mapping[str, set[str]]) -> Iterator[str]:
    """What is to be told of methods of rules that are none of ``methods`` (by engine; of all its trees).

    It may be another release's, or a slip: then every configuration rules the finding out, and nobody sees why.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for rule in rules:
        known = methods.get(rule.engine, set())
        for method in rule.methods:
            if known and method not in (EVERY, *known):
                found.setdefault((rule.engine, method), []).append(rule.id)
    for (engine, method), ids in found.items():
        yield f"no --tree given has the method {method} of {', '.join(ids)}. {meant(method, methods[engine])}".rstrip()


def _unfit(mutation: Mutation) -> str:
    """Why none of the trees serves for a mutation."""
    edited = " and the code that is edited" if mutation.before == "not-applicable" else ""
    return f"no --tree given has the status {mutation.before}{edited} to start from"


def _changes(mutation: Mutation, index: Index) -> dict[str, str]:
    """path -> new text, after all edits."""
    changed: dict[str, str] = {}
    for edit in mutation.edits:
        changed |= dict(_edited(edit, _overlay(index, changed)))
    return changed


def _mutated(rule: Rule, mutation: Mutation, what: str, index: Index) -> Trial:
    changed = _changes(mutation, index)
    if not changed:
        return Trial(rule.id, what, "failed", "no edit finds anything to change")
    finding = judge(rule, Ground(_overlay(index, changed)))
    if finding.status == mutation.after:
        return Trial(rule.id, what, "passed")
    return Trial(rule.id, what, "failed", f"after the edit the rule says {finding.status}{_because(finding)}")


def _edited(edit: Edit, index: Index) -> Iterator[tuple[str, str]]:
    """(path, new text) of every file that the edit changes."""
    ground = Ground(index)
    nodes: dict[str, list[SgNode]] = {}
    for place in ground.places(edit.at):
        nodes.setdefault(place.path, []).extend(find_all(ground.node(place), edit.shape))
    if edit.first:
        nodes = {path: found[:1] for path, found in list(nodes.items())[:1]}
    for path, found in nodes.items():
        if found:
            yield path, _replaced(index.source(path), found, edit.text)


def _replaced(source: str, nodes: list[SgNode], text: str) -> str:
    """Replaces outermost nodes, last first. An empty text takes a comma after the node with it."""
    spans = sorted({(node.range().start.index, node.range().end.index): node for node in nodes}.items())
    outer: list[tuple[int, int, SgNode]] = []
    for (start, end), node in spans:
        if not outer or start >= outer[-1][1]:
            outer.append((start, end, node))
    for start, end, node in reversed(outer):
        filled = re.sub(r"\$([A-Z_]+)", lambda m, node=node: _captured(node, m[1]), text)  # type: ignore[misc]
        if not text:
            end += len(source[end:]) - len(re.sub(r"^\s*,", "", source[end:], count=1))
        source = source[:start] + filled + source[end:]
    return source


def _captured(node: SgNode, name: str) -> str:
    found = node.get_match(name)
    return found.text() if found is not None else ""


def _because(finding: Finding) -> str:
    sites = f" at {finding.sites[0].path}:{finding.sites[0].line}" if finding.sites else ""
    asked = f"; asked was {finding.searched.asked}" if finding.searched else ""
    return sites + (f" ({finding.reason})" if finding.reason else "") + asked


# --- small engines --------------------------------------------------------------------------------------------------


def _index(rule: Rule, example: Example) -> Index:
    return Index(of_texts(rule.engine, example.files))


def of_texts(engine: str, texts: Mapping[str, str]) -> Snapshot:
    """A snapshot of source texts by package-relative path."""
    blobs = {path: text.encode() for path, text in texts.items()}
    entries = {path: FileEntry(path, hashlib.sha256(data).hexdigest(), len(data)) for path, data in blobs.items()}
    facts = EngineFacts(engine, "", "dir", "", len(entries))
    return Snapshot(Target("example"), facts, Environment(), entries, blobs.__getitem__)


def _overlay(index: Index, changed: Mapping[str, str]) -> Index:
    """The same engine with some files' texts replaced."""
    before = index.snapshot
    blobs = {path: text.encode() for path, text in changed.items()}
    entries = dict(before.files)
    for path, data in blobs.items():
        entries[path] = FileEntry(path, hashlib.sha256(data).hexdigest(), len(data))

    def read(path: str) -> bytes:
        return blobs[path] if path in blobs else before.read(path)

    return Index(Snapshot(before.target, before.engine, before.environment, entries, read, cache=before.cache))


def _tree(example: Example) -> TreeVerdict | None:
    if not example.tree:
        return None
    parts = {part: TreePart(verdict, searched=Search(0, 0, "", "", 0)) for part, verdict in example.tree.items()}
    return TreeVerdict(parts["drafting"], parts["attention"], parts["verification"])

"""Two of the three questions about trees, asked of some of an engine's proposers and verifiers: those of one method."""

from __future__ import annotations

from collections.abc import Iterable

from specaudit.index import Index
from specaudit.model import Evidence, NotLooked, Proposer, Topology, TreePart, Verifier

#: What a proposer emits -> the verdict on drafting; the stronger one first.
DRAFTED: tuple[tuple[Topology, str], ...] = (("tree-dynamic", "dynamic"), ("tree-static", "static"))


def drafting(index: Index, proposers: Iterable[Proposer], read: Iterable[str], shape: Iterable[Evidence]) -> TreePart:
    """Whether one of these proposers drafts a tree.

    Args:
        index: where they were found.
        proposers: with those of their variants that count.
        read: the files that say what they emit.
        shape: where the user's tree is declared, for one that comes from the configuration.
    """
    asked = tuple(proposers)
    found: dict[Topology, list[Evidence]] = {topology: [] for topology, _ in DRAFTED}
    for proposer in asked:
        if proposer.reachable == "dead":
            continue
        for topology, evidence in (
            (proposer.topology, proposer.evidence),
            *((v.topology, v.evidence) for v in proposer.variants),
        ):
            if topology in found:
                found[topology].extend(evidence)
    for topology, verdict in DRAFTED:
        if found[topology]:
            lines = (*dict.fromkeys(found[topology]), *(shape if verdict == "static" else ()))
            return TreePart(verdict, lines, reason="a proposer emits several candidates per position")
    unknown = tuple(NotLooked(proposer.name, proposer.reason) for proposer in asked if proposer.topology == "unknown")
    question = "does any proposer emit more than one candidate per position"
    return TreePart("none", (), index.searched(set(read), question, len(asked)), unknown)


def verification(index: Index, verifiers: Iterable[Verifier]) -> TreePart:
    """Whether one of these verifiers walks a tree."""
    asked = tuple(verifiers)
    trees = [
        v for v in asked if v.reachable != "dead" and (v.walk == "tree" or any(w.walk == "tree" for w in v.variants))
    ]
    if trees:
        lines = tuple(dict.fromkeys(e for v in trees for e in (*v.evidence, *v.called_from)))
        return TreePart("tree-walk", lines, reason="what is accepted next follows the links between drafts")
    compiled = [NotLooked(v.name, v.reason or "its body is compiled") for v in asked if v.role == "compiled"]
    unread = [n for n in index.snapshot.not_looked if n.what.startswith("compiled ops")]
    paths = {v.path for v in asked if v.path in index.snapshot.files}
    question = "does any verifier choose its next index among the children of the accepted one"
    return TreePart("none", (), index.searched(paths, question, len(asked)), (*compiled, *unread))

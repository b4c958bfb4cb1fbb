"""The three questions about trees: is one drafted, does the target's attention mask one, does the verifier walk one?"""

from __future__ import annotations

from collections.abc import Iterable

from specaudit.classify.masks import Masks
from specaudit.classify.proposers import Proposers
from specaudit.classify.symbolic import Reader
from specaudit.model import Evidence, NotLooked, TreePart, TreeVerdict, Verifier


def tree_verdict(
    reader: Reader, proposers: Proposers, verifiers: Iterable[Verifier], attending: TreePart | None = None
) -> TreeVerdict:
    """The three answers, each with evidence or with the record of the search.

    Args:
        attending: the answer of :func:`attention`, where it is known already.
    """
    masking = attention(reader) if attending is None else attending
    return TreeVerdict(_drafting(reader, proposers), masking, _verification(reader, tuple(verifiers)))


def _drafting(reader: Reader, proposers: Proposers) -> TreePart:
    index = reader.code.index
    found: dict[str, list[Evidence]] = {"tree-dynamic": [], "tree-static": []}
    read: set[str] = set()
    for entry in proposers.found:
        proposer = entry.proposer
        read.update(c.path for c in reader.code.bases(entry.site.cls)) if entry.site.cls is not None else read.add(
            proposer.path
        )
        if proposer.reachable == "dead":
            continue
        for topology, evidence in (
            (proposer.topology, proposer.evidence),
            *((v.topology, v.evidence) for v in proposer.variants),
        ):
            if topology in found:
                found[topology].extend(evidence)
    for topology, verdict in (("tree-dynamic", "dynamic"), ("tree-static", "static")):
        if found[topology]:
            shape = _configured(reader) if verdict == "static" else ()
            lines = (*dict.fromkeys(found[topology]), *shape)
            return TreePart(verdict, lines, reason="a proposer emits several candidates per position")
    unknown = tuple(
        NotLooked(entry.proposer.name, entry.proposer.reason)
        for entry in proposers.found
        if entry.proposer.topology == "unknown"
    )
    asked = "does any proposer emit more than one candidate per position"
    return TreePart("none", (), index.searched(read, asked, len(proposers.found)), unknown)


def _configured(reader: Reader) -> tuple[Evidence, ...]:
    """Where the user's tree is declared."""
    option = reader.engine.config.tree_field
    cls = reader.configuration.named(reader.engine.config.cls)
    stored = reader.code.assigns(cls.path, cls.qualname) if cls is not None and option else ()
    return tuple(
        reader.code.index.evidence(cls.path, a.line)
        for a in stored
        if cls is not None and a.target == option and a.scope == cls.qualname
    )


def attention(reader: Reader) -> TreePart:
    """Whether the target's attention masks the tokens of one step, and who says how. Needs the source alone."""
    index = reader.code.index
    masks = Masks(reader.code, reader.engine)
    applied = tuple(dict.fromkeys(index.evidence(p.path, p.line) for p in masks.pairings))
    found: dict[bool, tuple[Evidence, ...]] = {}
    for passing in masks.passings:
        once, lines = masks.built_once(passing)
        registered = reader.backends.registered(passing.path)
        shown = (*((registered,) if registered is not None else ()), *lines)
        found[once] = max(found.get(once, ()), shown, key=len)  # the one of which most is known
    if False in found:
        why = "the mask that is passed is made anew for each step"
        return TreePart("per-request", (*found[False], *applied), reason=why)
    if True in found:
        why = "one mask, made from the configuration, is passed for every request"
        return TreePart("static", (*found[True], *applied), reason=why)
    asked = "does any call pass a mask between the tokens of one step to an attention kernel"
    searched = index.searched(masks.files, asked, len(masks.pairings) + len(masks.hosts))
    unread = tuple(NotLooked(n.what, n.why) for n in index.snapshot.not_looked if n.what.startswith("compiled ops"))
    if masks.pairings:
        hosts = tuple(index.evidence(h.function.path, h.function.definition.line) for h in masks.hosts)
        why = "attention kernels take such a mask, and nothing passes one"
        return TreePart("dead", (*hosts, *applied), searched, unread, why)
    return TreePart("none", (), searched, unread)


def _verification(reader: Reader, verifiers: tuple[Verifier, ...]) -> TreePart:
    index = reader.code.index
    trees = [
        v
        for v in verifiers
        if v.reachable != "dead" and (v.walk == "tree" or any(w.walk == "tree" for w in v.variants))
    ]
    if trees:
        lines = tuple(dict.fromkeys(e for v in trees for e in (*v.evidence, *v.called_from)))
        return TreePart("tree-walk", lines, reason="what is accepted next follows the links between drafts")
    compiled = [NotLooked(v.name, v.reason or "its body is compiled") for v in verifiers if v.role == "compiled"]
    unread = [n for n in index.snapshot.not_looked if n.what.startswith("compiled ops")]
    paths = {v.path for v in verifiers if v.path in index.snapshot.files}
    searched = index.searched(
        paths, "does any verifier choose its next index among the children of the accepted one", len(verifiers)
    )
    return TreePart("none", (), searched, (*compiled, *unread))

"""The three questions about trees: is one drafted, does the target's attention mask one, does the verifier walk one?"""

from __future__ import annotations

from collections.abc import Iterable

from specaudit.classify.masks import Masks
from specaudit.classify.proposers import Proposers
from specaudit.classify.symbolic import Reader
from specaudit.classify.treeparts import drafting, verification
from specaudit.model import Evidence, NotLooked, TreePart, TreeVerdict, Verifier


def tree_verdict(
    reader: Reader, proposers: Proposers, verifiers: Iterable[Verifier], attending: TreePart | None = None
) -> TreeVerdict:
    """The three answers, each with evidence or with the record of the search.

    Args:
        attending: the answer of :func:`attention`, where it is known already.
    """
    masking = attention(reader) if attending is None else attending
    return TreeVerdict(_drafting(reader, proposers), masking, verification(reader.code.index, verifiers))


def _drafting(reader: Reader, proposers: Proposers) -> TreePart:
    read: set[str] = set()
    for entry in proposers.found:
        read.update(c.path for c in reader.code.bases(entry.site.cls)) if entry.site.cls is not None else read.add(
            entry.proposer.path
        )
    return drafting(reader.code.index, (entry.proposer for entry in proposers.found), read, _configured(reader))


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

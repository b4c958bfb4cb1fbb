"""The three questions about trees: is one drafted, does the target's attention mask one, does the verifier walk one?"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

from specaudit.classify.masks import Masks
from specaudit.classify.proposers import Proposers
from specaudit.classify.symbolic import Reader
from specaudit.classify.treeparts import drafting, verification
from specaudit.engines.base import Engine
from specaudit.model import Evidence, NotLooked, TreePart, TreeVerdict, Verifier
from specaudit.snapshot import covers


def tree_verdict(
    reader: Reader, proposers: Proposers, verifiers: Iterable[Verifier], attending: TreePart | None = None
) -> TreeVerdict:
    """The three answers, each with evidence or with the record of the search.

    Args:
        attending: the answer of :func:`attention`, where it is known already.
    """
    masking = attention(reader) if attending is None else attending
    decided = tuple(verifiers)
    drafted, walked = _drafting(reader, proposers), verification(reader.code.index, decided)
    classes = [site.cls for site in proposers.sites if site.cls is not None]
    lost = {site.lost for site in proposers.sites} | {reader.code.lost_behind(cls) for cls in classes}
    drafters = {c.path for cls in classes for c in reader.code.bases(cls)}
    imported = _read_by_runners(reader) - lost
    return TreeVerdict(
        _doubted(drafted, (lost - {""}) | _unread(reader, drafters)),
        _doubted(masking, _of_attention(reader)),
        _doubted(walked, imported | _unread(reader, {v.path for v in decided})),
    )


def _doubted(part: TreePart, unread: Collection[str]) -> TreePart:
    """The answer; that something is absent is not known where a file that may hold it could not be read."""
    if part.verdict not in ("none", "dead") or not unread:
        return part
    return replace(part, verdict="unknown", reason=f"{', '.join(sorted(unread))} could not be read")


def _of_attention(reader: Reader) -> set[str]:
    return {path for path in reader.code.index.unread if _named(path, reader.engine.attention)}


def _named(path: str, patterns: Iterable[str]) -> bool:
    """Whether one of them names a file, or something that a folder may hold."""
    return any(fnmatchcase(path, pattern) or covers(path, pattern) for pattern in patterns)


def _unread(reader: Reader, near: Iterable[str]) -> set[str]:
    """Files that could not be read, of those on which drafting and verification rest: the runners, the configuration,
    and what lies beside ``near``.
    """
    engine = reader.engine
    folders = {os.path.dirname(path) for path in near}
    unconfigured = reader.configuration.named(engine.config.cls) is None

    def counts(path: str) -> bool:
        if _named(path, _starts(engine)) or os.path.dirname(path) in folders:
            return True
        return unconfigured and _named(path, engine.config.paths)

    return {path for path in reader.code.index.unread if counts(path)}


def _read_by_runners(reader: Reader) -> set[str]:
    """Files that could not be read and that a runner imports; those of attention have their own question."""
    found = {
        path
        for path in reader.code.index.unread
        if any(reader.code.imports(start, path) for start in _starts(reader.engine))
    }
    return found - _of_attention(reader)


def _starts(engine: Engine) -> frozenset[str]:
    return frozenset({*(anchor.path for anchor in engine.runners), *(anchor.path for anchor in engine.workers)})


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

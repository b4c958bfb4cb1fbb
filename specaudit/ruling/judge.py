"""The rules as a scan uses them: which files they read, and their findings, kept between runs.

Findings depend on the rule documents, on the files in the snapshot, on the tree verdict and on this package's code; all
of that is in the key under which they are kept. A second scan of the same build parses no rule.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import msgspec

from specaudit import __version__
from specaudit.cache import DerivedCache, NoCache
from specaudit.index import Index, digest_of
from specaudit.model import Audit, Condition, Failure, Finding
from specaudit.ruling.places import glob_regex
from specaudit.ruling.rule import globs
from specaudit.ruling.store import Rulebook

VERSION = 1
Kept = TypeVar("Kept")


@dataclass(frozen=True, slots=True)
class Summary:
    """What a scan must know about a rulebook without parsing it: files read, and each rule's own conditions."""

    globs: tuple[str, ...]
    needs: dict[str, tuple[Condition, ...]]


@dataclass(frozen=True, slots=True)
class Judged:
    """What is kept of an evaluation."""

    findings: tuple[Finding, ...]
    failures: tuple[Failure, ...]


class RuleJudge:
    """Evaluates a rulebook; the :class:`specaudit.scan.Judge` of the command line.

    Args:
        book: the documents.
        cache: where the summary of the documents is kept.
    """

    def __init__(self, book: Rulebook, cache: DerivedCache | None = None) -> None:
        self.book = book
        self.cache = cache or NoCache()

    @cached_property
    def summary(self) -> Summary:
        """Globs and conditions of all rules.

        Raises:
            DocumentError: a document is wrong.
        """
        key = self._key()
        kept = _decoded(self.cache.get("rulebook", key, VERSION), Summary)
        if kept is not None:
            return kept
        rules = self.book.rules
        made = Summary(
            tuple(sorted({glob for rule in rules for glob in globs(rule)})),
            {rule.id: rule.reach for rule in rules if rule.reach},
        )
        self.cache.put("rulebook", key, VERSION, msgspec.msgpack.encode(made))
        return made

    @cached_property
    def _files(self) -> re.Pattern[str]:
        return _any_of(self.summary.globs)

    def wants(self, path: str) -> bool:
        """Whether a rule reads that file."""
        return self._files.fullmatch(path) is not None

    def findings(self, index: Index, audit: Audit) -> tuple[tuple[Finding, ...], tuple[Failure, ...]]:
        """One finding per rule, and what could not be evaluated.

        Raises:
            DocumentError: a document is wrong.
        """
        snapshot = index.snapshot
        tree = msgspec.msgpack.encode(audit.tree).hex()
        unread = sorted(failure.path for failure in snapshot.errors)
        key = self._key(snapshot.engine.name, digest_of(snapshot.files.values()), tree, *unread)
        kept = _decoded(snapshot.cache.get("findings", key, VERSION), Judged)
        if kept is not None:
            return kept.findings, kept.failures
        from specaudit.ruling.evaluate import evaluate

        made = Judged(*evaluate(self.book.rules, index, audit.tree))
        snapshot.cache.put("findings", key, VERSION, msgspec.msgpack.encode(made))
        return made.findings, made.failures

    def _key(self, *parts: str) -> str:
        return hashlib.sha256(
            "\n".join((self.book.digest, code_fingerprint(), *parts)).encode("utf-8", "backslashreplace")
        ).hexdigest()


class TrialJudge(RuleJudge):
    """Reads also what the mutations of the rules change: for `rules test`."""

    @cached_property
    def _files(self) -> re.Pattern[str]:
        edits = [edit.at for rule in self.book.rules for mutation in rule.mutations for edit in mutation.edits]
        return _any_of((*self.summary.globs, *globs(tuple(edits))))


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(glob_regex(glob).pattern for glob in patterns))


def _decoded(kept: bytes | None, kind: type[Kept]) -> Kept | None:
    """What was kept; a damaged value counts as absent."""
    try:
        return None if kept is None else msgspec.msgpack.decode(kept, type=kind)
    except msgspec.DecodeError:
        return None


def code_fingerprint() -> str:
    """Changes with the code that evaluates rules, so that an edited program never answers from the cache."""
    package = Path(__file__).parent
    files = [*sorted(package.glob("*.py")), package.parent / "model.py"]
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr((__version__, facts)).encode()).hexdigest()

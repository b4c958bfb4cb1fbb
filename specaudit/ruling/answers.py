"""What a test found: whether it holds, where, and what was looked through to say so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from specaudit.model import Evidence, Search


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of one test.

    ``sites`` are places that show why it holds (or, negated, why not); ``asked`` says in words what was looked for;
    ``files`` were searched; ``looked_at`` counts the things compared; ``notes`` are facts for the reason; ``searched``
    is the record of a search that somebody else made.
    """

    holds: bool
    sites: tuple[Evidence, ...] = ()
    asked: str = ""
    files: frozenset[str] = frozenset()
    looked_at: int = 0
    notes: tuple[str, ...] = ()
    searched: Search | None = None

    def negated(self) -> Answer:
        """The opposite; what spoke for the inner test speaks against this one, so it is no site of it."""
        sites = () if not self.holds else self.sites
        return replace(self, holds=not self.holds, sites=sites, asked=f"not ({self.asked})")


def joined(holds: bool, answers: Iterable[Answer], word: str) -> Answer:
    """Several answers as one: sites of those that hold (all of them when none does)."""
    parts = tuple(answers)
    speaking = [part for part in parts if part.holds == holds] or list(parts)
    return Answer(
        holds,
        tuple(dict.fromkeys(site for part in speaking for site in part.sites)),
        f" {word} ".join(part.asked for part in parts),
        frozenset().union(*(part.files for part in parts)),
        sum(part.looked_at for part in parts),
        tuple(dict.fromkeys(note for part in speaking for note in part.notes)),
        next((part.searched for part in parts if part.searched), None),
    )

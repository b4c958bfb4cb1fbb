"""Counted things in words, and words that were mistyped."""

from __future__ import annotations

from collections.abc import Iterable


def counted(number: int, noun: str) -> str:
    """A number with its noun: ``0 files``, ``1 file``, ``3,231 files``, ``2 classes``, ``2 more hard links``.

    Args:
        number: how many.
        noun: its singular; the last word takes the plural, as regular nouns do.
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"


def meant(word: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> str:
    """``Did you mean scan?``, with the known words that this one is most like; ``""`` when it is like none.

    Args:
        word: what was written.
        known: what there is.
        most: how many are named at most.
        cutoff: likeness from which on one counts, 0 to 1.
    """
    import difflib

    close = difflib.get_close_matches(word, list(known), most, cutoff)
    return f"Did you mean {' or '.join(close)}?" if close else ""

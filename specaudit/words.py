"""Counted things in words, words that were mistyped, and what a message is about."""

from __future__ import annotations

import re
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


def about(spec: str, message: str) -> str:
    """A message about one of several targets: it says about which, unless it does already."""
    named = re.search(rf"(?<![\w.:@/-]){re.escape(spec)}(?![\w@/-])", message)  # as a word: gpu1 is not gpu12
    return message if named else f"{spec}: {message}"


def one_line(text: str) -> str:
    """Text as one line that can be printed; each character that is no such text is replaced."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


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

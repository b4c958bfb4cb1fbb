"""Counted things in words."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number with its noun: ``0 files``, ``1 file``, ``3,231 files``, ``2 classes``, ``2 more hard links``.

    Args:
        number: how many.
        noun: its singular; the last word takes the plural, as regular nouns do.
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"

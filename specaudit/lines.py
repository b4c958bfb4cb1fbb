"""Text for people as lines with a style each, 80 columns wide; nothing is printed here."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

#: Columns of what is printed, on a terminal and in a pipe.
WIDTH = 80
#: A line and its style, as `console` shows them.
Line = tuple[str, str | None]


def hanging(lead: str, text: str, style: str | None = None) -> Iterator[Line]:
    """A paragraph that hangs behind its lead.

    Words stay whole, so that paths can be copied: one that is too long for its place hangs less far, and one that is
    longer than a line gets a line of its own.
    """
    longest = max(map(len, text.split()), default=0)
    if longest > WIDTH - len(lead) and lead.strip():
        yield lead.rstrip(), style
        lead = " " * max(4, WIDTH - longest)
    parts = textwrap.wrap(text, WIDTH - len(lead), break_long_words=False, break_on_hyphens=False) or [""]
    for at, part in enumerate(parts):
        yield (lead if at == 0 else " " * len(lead)) + part, style

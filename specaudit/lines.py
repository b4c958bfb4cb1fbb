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

    Words stay whole, so that paths can be copied: where one is too long, all hang less far, and one that is longer than
    a line gets a line of its own.
    """
    words = text.split()
    longest, indent = max(map(len, words), default=0), len(lead)
    if longest > WIDTH - indent and lead.strip():
        indent = max(4, WIDTH - longest)
        if len(lead) + len(words[0] if words else "") > WIDTH:
            yield lead.rstrip(), style
            lead = " " * indent
    wrapped = textwrap.wrap(
        text, WIDTH, initial_indent=lead, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    yield from ((part, style) for part in wrapped or [lead])

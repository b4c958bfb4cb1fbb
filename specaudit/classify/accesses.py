"""Where a file reads a field of the speculative configuration, and with which constants it compares it. Read off the
text.

Nearly two hundred files handle the configuration of a recent release, most of them for one line: a pass over their
text costs a tenth of their outlines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from specaudit.engines.base import ConfigAnchor
from specaudit.index import Index


@dataclass(frozen=True, slots=True)
class Access:
    """``configuration.name`` somewhere outside the configuration's class, with the constants it is compared with.

    ``asked`` are those that a branch is taken for (``==``, ``in``), ``known`` also those that one is taken against
    (``!=``).
    """

    path: str
    line: int
    asked: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()


def accesses(index: Index, anchors: ConfigAnchor, own_path: str, valued: set[str]) -> dict[str, list[Access]]:
    """By field: every ``configuration.field`` outside the configuration's own file.

    Args:
        own_path: that file. valued: fields whose comparisons matter.
    """
    carriers = [name for name, cls in anchors.objects.items() if cls == anchors.cls]
    out: dict[str, list[Access]] = {}
    for path in index.mentioning_any([*(c.encode() for c in carriers), anchors.cls.encode()]):
        if path != own_path:
            for name, access in _in_text(path, index.source(path), carriers, anchors.cls, valued):
                out.setdefault(name, []).append(access)
    return out


def _in_text(path: str, text: str, carriers: list[str], cls: str, valued: set[str]) -> Iterator[tuple[str, Access]]:
    names = {*carriers, *_other_names(text, carriers, cls)}
    either = "|".join(map(re.escape, sorted(names)))
    direct = re.compile(rf"\b(?:{either})\s*\.\s*(\w+)|getattr\(\s*(?:\w+\.)*(?:{either}),\s*\"(\w+)\"")
    line, at = 1, 0
    for found in direct.finditer(text):
        line, at = line + text.count("\n", at, found.end()), found.end()
        name = found.group(1) or found.group(2)
        compared = list(_compared(text, at)) if name in valued else []
        asked = frozenset(value for value, wanted in compared if wanted)
        yield name, Access(path, line, asked, frozenset(value for value, _ in compared))


def _other_names(text: str, carriers: list[str], cls: str) -> set[str]:
    """Other names under which a file handles the configuration: locals it is assigned to, parameters of its class, and
    locals that these are assigned to.
    """
    typed = re.compile(rf"(\w+)\s*:\s*\"?(?:\w+\.)*{re.escape(cls)}\b")
    found = {name for line in _lines_with(text, cls) for name in typed.findall(line)}
    left = [*carriers, *found]
    while left:
        known = re.escape(left[-1])
        stored = re.compile(rf"(\w+)\s*(?::[^=]+)?:?=\s*\(?\s*(?:\w+\.)*{known}\s*\)?\s*(?:#.*)?$")
        named = re.compile(rf"(\w+)\s*:=\s*(?:\w+\.)*{known}\b(?!\s*[.(\[])")  # inside a test
        for line in _lines_with(text, left.pop()):
            new = {*stored.findall(line), *named.findall(line)} - found
            found |= new
            left += new
    return found


def _lines_with(text: str, word: str) -> Iterator[str]:
    """The lines of a text that contain a word; searching those alone is a hundred times cheaper than the whole text."""
    at = text.find(word)
    while at >= 0:
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        yield text[text.rfind("\n", 0, at) + 1 : end]
        at = text.find(word, end)


def _compared(text: str, at: int) -> Iterator[tuple[str, bool]]:
    """Constants that a value read at ``at`` is compared with, there or through what keeps it; whether a branch asks
    for it.
    """
    yield from _constants(text[at : at + 200])
    start = text.rfind("\n", 0, at) + 1
    kept = re.match(r"\s*((?:self\.)?\w+)(?:\s*:[^=]+)?\s*=\s", text[start:at] + " ")
    if kept is not None:
        for use in re.finditer(rf"(?<![\w.]){re.escape(kept.group(1))}\b(?!\s*=[^=])", text):
            yield from _constants(text[use.end() : use.end() + 200])


def _constants(tail: str) -> Iterator[tuple[str, bool]]:
    """The constants of a comparison that starts a piece of text: ``== "x"``, ``in ("x", "y")``."""
    found = re.match(r"\s*\)?\s*(==|!=)\s*\"(\w+)\"|\s*(not\s+)?in\s*[\(\[\{]([^)\]}]*)[\)\]\}]", tail)
    if found is None:
        return
    if found.group(1):
        yield found.group(2), found.group(1) == "=="
    else:
        yield from ((value, not found.group(3)) for value in re.findall(r"\"(\w+)\"", found.group(4)))

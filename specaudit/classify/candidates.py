"""The functions of a file that may accept or reject drafts: a first cut on text, a second on shape."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from specaudit.classify import sequences, shapes, slices
from specaudit.classify.slices import Parsed, Slice

_COMPARES = re.compile(r"[=!<>]=|(?<![-<>])[<>](?![<>])")


def candidates(source: str, pieces: tuple[Slice, ...]) -> Iterator[Parsed]:
    """The functions of a file that may accept or reject drafts; one that has two forms comes twice."""
    loads = tuple(f"{alias}.load(" for alias in slices.language(source))
    device = slices.has(source, loads)
    tensors, loops = slices.has(source, slices.PREFIXES), slices.has(source, slices.ELEMENTS)
    local = frozenset(piece.name for piece in pieces if slices.has(piece.text, loads)) if device else frozenset()
    functions = frozenset(piece.name for piece in pieces if "." not in piece.qualname)
    for piece in pieces:
        text = piece.text
        if device and slices.has(text, loads):
            if slices.has(text, slices.LOOPS) or slices.has(text, slices.REDUCES):
                parsed = slices.parse(piece)
                if parsed is not None and shapes.Device(parsed, local, functions).tests_draft:
                    yield parsed
            continue
        tensor = tensors and slices.has(text, slices.PREFIXES) and _COMPARES.search(text) is not None
        loop = (
            loops
            and slices.has(text, slices.LOOPS)
            and slices.has(text, slices.LEAVES)
            and slices.has(text, slices.ELEMENTS)
            and slices.has(text, slices.EQUALS)
        )
        parsed = slices.parse(piece) if tensor or loop else None
        if parsed is not None and tensor and sequences.of_tensors(parsed, functions):
            yield replace(parsed, form="tensor")
        if parsed is not None and loop and sequences.of_loop(parsed.node):
            yield replace(parsed, form="loop")

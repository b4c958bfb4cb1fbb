"""Source text -> its functions, cut out by their indentation, each with ``ast``'s reading of it.

Reading 3,000 files whole would take seconds; cutting them on text takes 0.1 s, and few of the pieces are worth more.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

#: What begins with literal characters is found ten times as fast as what begins with a line.
_DEFINITION = re.compile(r"def[ \t]+(\w+)"), re.compile(r"class[ \t]+(\w+)")
_BEFORE = re.compile(r"([ \t]*)(?:async[ \t]+)?")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_LANGUAGE = re.compile(r"\btriton\.language as (\w+)|\bimport\b[^\n]*\b(tl)\b|\btriton import language as (\w+)")
_IMPORTS = 12_000  # imports stand in the first characters of a file
LOOPS = ("for ", "while ")
REDUCES = ("max(", "min(", "sum(", "cumprod(", "reduce(", "_scan(")
LEAVES = ("break", "while ", "return")
ELEMENTS = ("] == ", "] != ", "zip(")
EQUALS = ("==", "!=")
PREFIXES = ("cumprod(", "cummin(", "argmin(", "argmax(", "cumsum(", ".indices")

_SIGNS = tuple(needle.encode() for needle in (*PREFIXES, *ELEMENTS))

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Slice:
    """One function's text. ``first`` is the line of ``def`` in the file, counted from 1; decorators are not in it."""

    qualname: str
    first: int
    text: str

    @property
    def name(self) -> str:
        """The last part of the qualified name."""
        return self.qualname.rpartition(".")[2]


#: What a candidate is read as: a kernel or a part of one, a loop over single tokens, or work on whole tensors.
Form = Literal["device", "loop", "tensor"]


@dataclass(frozen=True, slots=True)
class Parsed:
    """A slice with ``ast``'s reading of it; ``text`` is what was read: an indented slice stands in a block of its
    own.
    """

    slice: Slice
    node: Function
    text: str
    form: Form = "device"

    @property
    def nested(self) -> bool:
        """The text begins with the block around the function."""
        return self.node.lineno > 1

    @property
    def own(self) -> str:
        """The text without what follows the function in the slice: what libcst is given."""
        return "\n".join(self.text.split("\n")[: self.node.end_lineno]) + "\n"

    @property
    def shift(self) -> int:
        """What to add to a line of the text to get the line of the file."""
        return self.slice.first - self.node.lineno


def worth_reading(data: bytes) -> bool:
    """Whether a file can hold a candidate at all: something loaded by a kernel, or a running product and its like."""
    return (b".load(" in data and b"jit" in data) or any(needle in data for needle in _SIGNS)


def effort(data: bytes) -> int:
    """How long a file will take, roughly: kernels are run, and run for longer the more they load."""
    return len(data) + 2_000 * data.count(b".load(")


def functions(source: str) -> tuple[Slice, ...]:
    """Every function of a file, methods and nested ones included, cut out by indentation."""
    found: list[tuple[str, int, int] | None] = []  # of a function: its name, its line, where it starts
    ends: list[int] = []
    scopes: list[tuple[int, str, int]] = []  # what is open: its indentation, its name, its place in ``found``
    line, at = 1, 0
    for start, indent, name, is_function in sorted(_definitions(source)):
        while scopes and scopes[-1][0] >= indent:
            ends[scopes.pop()[2]] = start
        line, at = line + source.count("\n", at, start), start
        scopes.append((indent, f"{scopes[-1][1]}.{name}" if scopes else name, len(found)))
        found.append((scopes[-1][1], line, start) if is_function else None)
        ends.append(len(source))
    return tuple(Slice(f[0], f[1], source[f[2] : end]) for f, end in zip(found, ends, strict=True) if f is not None)


def _definitions(source: str) -> Iterator[tuple[int, int, str, bool]]:
    """Where the line of a definition starts, its indentation, its name, and whether it is a function."""
    for pattern in _DEFINITION:
        for match in pattern.finditer(source):
            start = source.rfind("\n", 0, match.start()) + 1
            before = _BEFORE.fullmatch(source, start, match.start())
            if before is not None:
                yield start, len(before[1].expandtabs()), match[1], pattern is _DEFINITION[0]


def parse(piece: Slice) -> Parsed | None:
    """``ast`` of one slice; ``None`` when the slice is no function after all (a ``def`` inside a string)."""
    indent = len(piece.text) - len(piece.text.lstrip(" \t"))
    # A block around it keeps multi-line strings as they are, which dedenting would not.
    text = f"if 1:\n{piece.text}" if indent else piece.text
    for _ in range(2):
        try:
            body = ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError):
            # What follows may be decorators, whose function was cut off.
            text = text[: text.find(f"\n{piece.text[:indent]}@") + 1]
            continue
        node = body[0].body[0] if body and isinstance(body[0], ast.If) else body[0] if body else None
        return Parsed(piece, node, text) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
    return None


def words(text: str) -> tuple[str, ...]:
    """The names in a text that stand on their own, in order."""
    return tuple(dict.fromkeys(_WORD.findall(text)))


def language(source: str) -> frozenset[str]:
    """The names under which a file knows Triton's language module; empty when it has no kernels."""
    if "jit" not in source or ".load(" not in source:
        return frozenset()
    return frozenset(name for found in _LANGUAGE.findall(source, 0, _IMPORTS) for name in found if name)


def has(text: str, needles: tuple[str, ...]) -> bool:
    """One of these stands in the text."""
    for needle in needles:  # noqa: SIM110 (``any`` takes four times as long, and this is asked of every function)
        if needle in text:
            return True
    return False

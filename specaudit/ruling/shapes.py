"""The one seam to ast-grep: shapes are checked when a document is read, and matched inside a place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from specaudit.ruling.document import Node
from specaudit.ruling.rule import Shape

if TYPE_CHECKING:
    from ast_grep_py import Config, SgNode

_RELATIONAL = ("inside", "has", "precedes", "follows")
_KEYS = ("pattern", "kind", "regex", "nthChild", *_RELATIONAL, "not", "all", "any")
_PATTERN_KEYS = ("context", "selector", "strictness")
_STRICTNESS = ("cst", "smart", "ast", "relaxed", "signature")
#: Searches inside one another: each multiplies the time by the size of a file.
MAX_FAR = 2
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]{3,}")


def read_shape(node: Node) -> Shape:
    """Checks one rule object of ast-grep's language and returns it as plain data.

    Raises:
        DocumentError: an unknown key, a wrong type, an unknown node kind, a bad regular expression, or a pattern that
            is no Python.
    """
    shape = _walk(node)
    try:
        found = find_all(_probe(), shape)
    except RuntimeError as bad:
        raise node.wrong(f"ast-grep rejects the shape: {_reason(bad)}") from bad
    if {(one.kind(), one.text()) for one in found} >= _everything():
        raise node.wrong("the shape matches everything, so it can tell nothing")
    return shape


@cache
def _probe() -> SgNode:
    """A little code of many kinds."""
    return parse("def f(a, b=1):\n    return g(a)[0] + 'x'\n")


@cache
def _everything() -> frozenset[tuple[str, str]]:
    return frozenset((one.kind(), one.text()) for one in find_all(_probe(), {"pattern": "$X"}))


def _walk(node: Node, more: tuple[str, ...] = (), far: int = 0) -> dict[str, Any]:
    """Checks one level; ``far`` counts the searches to the end around it."""
    if far > MAX_FAR:
        raise node.wrong(f"more than {MAX_FAR} searches with `stopBy` lie inside one another; each takes a file anew")
    made: dict[str, Any] = {}
    for key, value in node.mapping((*_KEYS, *more)).items():
        if key == "pattern":
            made[key] = _pattern(value)
        elif key in _RELATIONAL:
            made[key] = _walk(value, ("stopBy", "field"), far + _searches(value))
        elif key == "not":
            made[key] = _walk(value, (), far)
        elif key in ("all", "any"):
            made[key] = [_walk(item, (), far) for item in value.items("shapes")]
        elif key == "stopBy":
            made[key] = value.choice(("end", "neighbor")) if isinstance(value.value, str) else _walk(value, (), far)
        elif key == "nthChild":
            if isinstance(value.value, bool) or not isinstance(value.value, (int, str)):
                raise value.wrong(f"expected a number or a formula such as 2n+1, found {value.kind}")
            made[key] = str(value.value)
        else:
            made[key] = value.text(f"a {key}")
    if not set(made) - {"stopBy", "field"}:
        raise node.wrong(f"a shape needs at least one of {', '.join(_KEYS)}")
    return made


def _searches(node: Node) -> bool:
    """Whether a relation looks further than one step."""
    stop = node.value.get("stopBy") if isinstance(node.value, dict) else None
    return stop is not None and stop.value != "neighbor"


def _pattern(node: Node) -> str | dict[str, str]:
    if isinstance(node.value, str):
        _parses(node, node.text("a pattern"))
        return node.value
    parts = node.mapping(_PATTERN_KEYS, ("context",))
    _parses(parts["context"], parts["context"].text("a context"))
    if "strictness" in parts:
        parts["strictness"].choice(_STRICTNESS)
    return {key: value.text(f"a {key}") for key, value in parts.items()}


def _parses(node: Node, pattern: str) -> None:
    """ast-grep takes patterns with syntax errors and then matches nothing, or something else."""
    # ast-grep reads `$NAME` in Python as an identifier that begins with a letter nobody uses.
    error = parse(pattern.replace("$", "µ")).find(kind="ERROR")
    if error is not None:
        raise node.wrong(f"the pattern {pattern!r} is no Python (near {error.text()[:40]!r}), so it can match nothing")


def _reason(bad: Exception) -> str:
    """The innermost cause of ast-grep's error chain, without its stack."""
    lines = [line.strip() for line in str(bad).partition("Stack backtrace")[0].splitlines() if line.strip()]
    causes = [re.sub(r"^\d+: ", "", line) for line in lines if line != "Caused by:"]
    return "; ".join(causes[1:] or causes)[:300].rstrip(". ")


def parse(source: str) -> SgNode:
    """The syntax tree of Python text; errors become nodes of kind ``ERROR``."""
    from ast_grep_py import SgRoot

    return SgRoot(source, "python").root()


def find_all(node: SgNode, shape: Shape) -> list[SgNode]:
    """All nodes of that shape in and below ``node``, in source order."""
    return node.find_all(cast("Config", {"rule": shape}))


def needles(shape: Shape) -> frozenset[bytes]:
    """Words that a file must hold for the shape to match in it: a sound first cut before parsing."""
    return frozenset(word.encode() for word in _words(shape))


def _words(shape: Shape) -> Iterator[str]:
    for key, value in shape.items():
        if key == "pattern":
            text = value if isinstance(value, str) else ""
            yield from _WORD.findall(re.sub(r"\$+\w+", " ", text))
        elif key == "regex":
            plain = re.fullmatch(r"\^?([A-Za-z_][A-Za-z_0-9]{3,})\$?", value)
            if plain:
                yield plain[1]
        elif key in ("has", "inside", "precedes", "follows"):
            yield from _words(value)
        elif key == "all":
            for item in value:
                yield from _words(item)

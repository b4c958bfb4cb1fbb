"""What code does with an attribute that it reads: acts on it, or only refuses or complains because of it.

Reads inside a test that leads to an exception, a log line or words for people alone change nothing in what runs.
"""

from __future__ import annotations

import ast
from collections.abc import Container
from dataclasses import dataclass

from specaudit import nodes
from specaudit.classify.accesses import Access
from specaudit.classify.code import Code, Symbol, dotted
from specaudit.classify.uses import is_sentence, only_refuse, only_refuses

_Accesses = dict[str, list[Access]]
#: The line on which the name of an attribute ends, and that name.
Spot = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Reads:
    """Where one function reads attributes to act on them, and where only to check them."""

    acting: frozenset[Spot]
    checking: frozenset[Spot]


def told_apart(code: Code, found: _Accesses, names: Container[str]) -> tuple[_Accesses, _Accesses]:
    """Accesses that act, and those that only check.

    Those that read nothing (an assignment, a comment) are in neither. What is not in ``names``, or in no function that
    can be parsed, is taken to act.
    """
    reads: dict[Symbol, Reads | None] = {}
    acting: _Accesses = {}
    checking: _Accesses = {}
    for name, accesses in found.items():
        for access in accesses:
            function = around(code, access.path, access.line) if name in names else None
            if function is not None and function not in reads:
                node = code.function(function)
                reads[function] = reads_of(node) if node is not None else None
            known = reads[function] if function is not None else None
            if known is None or (access.line, name) in known.acting:
                acting.setdefault(name, []).append(access)
            elif (access.line, name) in known.checking:
                checking.setdefault(name, []).append(access)
    return acting, checking


def around(code: Code, path: str, line: int) -> Symbol | None:
    """The outermost function around a line."""
    for definition in code.index.outline(path).definitions:
        if definition.kind == "function" and definition.line <= line <= definition.end:
            return Symbol(path, definition)
    return None


def reads_of(function: ast.AST) -> Reads:
    """The reads inside one function."""
    found: dict[bool, set[Spot]] = {True: set(), False: set()}
    left: list[tuple[ast.AST, bool]] = [(function, False)]
    while left:
        node, checks = left.pop()
        # what is kept for a refusal may serve later, too
        checks = (checks and not isinstance(node, ast.Assign)) or _for_people(node)
        spot = read_by(node)
        if spot is not None:
            found[checks].add(spot)
        told = node.test if isinstance(node, ast.If) and only_refuse(node.body) else None
        left.extend((child, checks or child is told) for child in nodes.children(node))
    return Reads(frozenset(found[False]), frozenset(found[True]))


def _for_people(node: ast.AST) -> bool:
    """A statement that only refuses, or a test beside the words that say what is wrong, as tables of checks have."""
    match node:
        case ast.stmt():
            return only_refuses(node)
        case ast.Tuple(elts=[_, told]):
            return is_sentence(told)
    return False


def read_by(node: ast.AST) -> Spot | None:
    """The attribute that an expression reads itself, by a dot or by name."""
    match node:
        case ast.Attribute(attr=attr, ctx=ast.Load(), end_lineno=int(line)):
            return line, attr
        case ast.Call(func=func, args=[_, ast.Constant(value=str(attr), end_lineno=int(line)), *_]):
            return (line, attr) if dotted(func) == "getattr" else None
    return None

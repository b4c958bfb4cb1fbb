"""Anchors as syntax: where a piece of code occurs (``ast``, fast), and lossless surgery on one statement (libcst).

In an anchor, a name of two leading underscores stands for any expression.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import libcst

    Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    Captured = dict[str, Any]

# --- anchors --------------------------------------------------------------------------------------------------------

_IGNORED = ("ctx", "kind", "type_comment", "type_params")


def pattern_of(anchor: str) -> ast.AST:
    (statement,) = ast.parse(textwrap.dedent(anchor).strip()).body
    return statement.value if isinstance(statement, ast.Expr) and is_expression(anchor) else statement


def same(pattern: object, node: object) -> bool:
    """Whether two pieces of syntax are alike; a name of two leading underscores is like any expression."""
    if isinstance(pattern, ast.Name) and _stands_for_anything(pattern.id):
        return isinstance(node, ast.expr)
    if isinstance(pattern, list):
        return (
            isinstance(node, list)
            and len(pattern) == len(node)
            and all(same(one, other) for one, other in zip(pattern, node, strict=True))
        )
    if not isinstance(pattern, ast.AST):
        return pattern == node
    return type(pattern) is type(node) and all(
        same(getattr(pattern, name, None), getattr(node, name, None))
        for name in pattern._fields
        if name not in _IGNORED
    )


def _stands_for_anything(name: str) -> bool:
    return name.startswith("__") and not name.endswith("__")


def definitions(tree: ast.AST, scope: str = "") -> Iterator[tuple[str, Definition]]:
    """Functions and classes with their qualified names, also those under an ``if`` or ``try``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{scope}.{node.name}" if scope else node.name
            yield name, node
            yield from definitions(node, name)
        elif isinstance(node, (ast.stmt, ast.ExceptHandler)):
            yield from definitions(node, scope)


def _within(inner: ast.AST, outer: ast.stmt) -> bool:
    """Whether one node lies in another, by their places in the text."""
    start, end = ("lineno", "col_offset"), ("end_lineno", "end_col_offset")
    return _place(outer, start) <= _place(inner, start) and _place(inner, end) <= _place(outer, end)


def _place(node: ast.AST, names: tuple[str, str]) -> tuple[int, int]:
    return getattr(node, names[0]), getattr(node, names[1])


def statement_around(tree: ast.AST, wanted: ast.AST) -> tuple[int, int]:
    """First and last line of the innermost statement that holds a node; an ``elif`` belongs to its ``if``."""
    best = tree
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and _within(wanted, node):
            inside_elif = isinstance(best, ast.If) and node in best.orelse and node.col_offset == best.col_offset
            best = best if inside_elif else node
    decorators = getattr(best, "decorator_list", [])
    first = min([best.lineno, *(d.lineno for d in decorators)])  # type: ignore[attr-defined]
    return first, best.end_lineno  # type: ignore[attr-defined]


# --- libcst ---------------------------------------------------------------------------------------------------------

#: Fields that carry no meaning: an anchor matches whatever they hold.
_LAYOUT = re.compile(
    "whitespace|leading_lines|header|footer|lines_after|lpar|rpar|comma|semicolon|lbra|rbra|equal|indent"
)


def is_expression(code: str) -> bool:
    try:
        ast.parse(code.strip(), mode="eval")
    except SyntaxError:
        return False
    return True


def expression(code: str) -> libcst.CSTNode:
    import libcst

    return libcst.parse_expression(code.strip())


def statement(code: str) -> libcst.CSTNode:
    (statement,) = statements(code)
    return statement


def statements(code: str) -> list[libcst.CSTNode]:
    """Statements with the comments above each; libcst keeps those above the first one in the module's header."""
    import libcst

    module = libcst.parse_module(textwrap.dedent(code).strip("\n") + "\n")
    first, *others = module.body
    return [first.with_changes(leading_lines=[*module.header, *first.leading_lines]), *others]


def nodes_of(node: libcst.CSTNode) -> Iterator[libcst.CSTNode]:
    """A node and every node below it."""
    yield node
    for child in node.children:
        yield from nodes_of(child)


def occurrences(tree: libcst.Module, pattern: libcst.CSTNode) -> list[tuple[libcst.CSTNode, Captured]]:
    """Nodes that are like a pattern, each with what the pattern's ``__names`` stand for there."""
    found = []
    for node in nodes_of(tree):
        captured: Captured = {}
        if alike(pattern, node, captured):
            found.append((node, captured))
    return found


def alike(pattern: object, node: object, captured: Captured) -> bool:
    """As :func:`_same`, on lossless trees: layout does not count, a string may be written otherwise."""
    import libcst

    if isinstance(pattern, libcst.Name) and _stands_for_anything(pattern.value):
        captured[pattern.value] = node
        return isinstance(node, libcst.BaseExpression)
    if isinstance(pattern, (list, tuple)):
        return (
            isinstance(node, (list, tuple))
            and len(pattern) == len(node)
            and all(alike(one, other, captured) for one, other in zip(pattern, node, strict=True))
        )
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, libcst.SimpleString) and isinstance(node, libcst.SimpleString):
        return pattern.evaluated_value == node.evaluated_value
    if not isinstance(pattern, libcst.CSTNode):
        return not isinstance(pattern, str) or pattern == node
    names = [field.name for field in dataclasses.fields(pattern) if not _LAYOUT.search(field.name)]
    return all(alike(getattr(pattern, name), getattr(node, name), captured) for name in names)


def filled(node: libcst.CSTNode, captured: Captured) -> libcst.CSTNode:
    """A replacement with what the anchor matched put in for its ``__names``."""
    import libcst

    class Fill(libcst.CSTTransformer):
        def leave_Name(self, original_node: libcst.Name, updated_node: libcst.Name) -> libcst.BaseExpression:
            found = captured.get(original_node.value)
            return found if isinstance(found, libcst.BaseExpression) else updated_node

    result = node.visit(Fill())
    assert isinstance(result, libcst.CSTNode)
    return result


def below(tree: libcst.Module, depth: int) -> libcst.CSTNode:
    """The one statement under ``depth`` nested ``if``s."""
    import libcst

    (statement,) = tree.body
    for _ in range(depth):
        assert isinstance(statement, libcst.If)
        (statement,) = statement.body.body  # type: ignore[assignment]
    return statement


def swap(tree: libcst.Module, node: libcst.CSTNode, new: Sequence[libcst.CSTNode]) -> libcst.Module:
    """``tree`` with ``node`` replaced; comments and blank lines above it stay above what takes its place."""
    import libcst

    class Swap(libcst.CSTTransformer):
        def on_leave(self, original_node: libcst.CSTNodeT, updated_node: libcst.CSTNodeT) -> Any:
            if original_node is not node:
                return super().on_leave(original_node, updated_node)
            return libcst.FlattenSentinel(new) if len(new) > 1 else _with_layout(node, new[0])

    return tree.visit(Swap())


def _with_layout(old: libcst.CSTNode, new: libcst.CSTNode) -> libcst.CSTNode:
    lines = getattr(old, "leading_lines", ())
    if lines and hasattr(new, "leading_lines"):
        return new.with_changes(leading_lines=[*lines, *new.leading_lines])
    return new

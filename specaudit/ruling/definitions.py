"""Classes, functions and imports, read off the syntax tree in which shapes are matched anyway.

A second parser for them would cost four times as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specaudit.index import Definition
from specaudit.ruling.shapes import find_all

if TYPE_CHECKING:
    from ast_grep_py import SgNode

_DEFINITIONS = {"any": [{"kind": "function_definition"}, {"kind": "class_definition"}]}
_PARAMETERS = frozenset({"identifier", "default_parameter", "typed_parameter", "typed_default_parameter"})


def definitions(root: SgNode) -> tuple[tuple[Definition, SgNode], ...]:
    """Every class and function in source order, with its node; names as :class:`specaudit.index.Outline` has them."""
    made: list[tuple[Definition, SgNode]] = []
    open_scopes: list[tuple[int, str]] = []
    for node in find_all(root, _DEFINITIONS):
        name = node.field("name")
        if name is None:
            continue
        span = node.range()
        while open_scopes and open_scopes[-1][0] <= span.start.index:
            open_scopes.pop()
        scope = open_scopes[-1][1] if open_scopes else ""
        qualname = f"{scope}.{name.text()}" if scope else name.text()
        open_scopes.append((span.end.index, qualname))
        made.append((_definition(node, qualname), node))
    return tuple(made)


def imports(root: SgNode) -> tuple[tuple[str, str, str], ...]:
    """(module, name, alias) of every import.

    ``from module import name as alias``: the name is ``*`` where all are taken, ``""`` for ``import module as alias``.
    """
    made: list[tuple[str, str, str]] = []
    for node in root.find_all(kind="import_statement"):
        for child in node.children():
            name, alias = child.field("name"), child.field("alias")
            if name is not None and alias is not None:
                made.append((name.text(), "", alias.text()))
            elif child.kind() == "dotted_name":
                made.append((child.text(), "", child.text()))
    for node in root.find_all(kind="import_from_statement"):
        named = [child for child in node.children() if child.is_named()]
        for child in named[1:]:
            name, alias = child.field("name"), child.field("alias")
            if name is not None and alias is not None:
                made.append((named[0].text(), name.text(), alias.text()))
            elif child.kind() == "dotted_name":
                made.append((named[0].text(), child.text(), child.text()))
            elif child.kind() == "wildcard_import":
                made.append((named[0].text(), "*", "*"))
    return tuple(made)


def _definition(node: SgNode, qualname: str) -> Definition:
    span = node.range()
    parent = node.parent()
    decorated = parent is not None and parent.kind() == "decorated_definition"
    first = parent.range().start.line + 1 if parent is not None and decorated else span.start.line + 1
    is_class = node.kind() == "class_definition"
    return Definition(
        qualname=qualname,
        kind="class" if is_class else "function",
        first=first,
        line=span.start.line + 1,
        end=span.end.line + 1,
        bases=_bases(node) if is_class else (),
        params=() if is_class else _params(node),
    )


def _bases(node: SgNode) -> tuple[str, ...]:
    listed = node.field("superclasses")
    if listed is None:
        return ()
    return tuple(base.text() for base in listed.children() if base.is_named() and base.kind() != "keyword_argument")


def _params(node: SgNode) -> tuple[str, ...]:
    listed = node.field("parameters")
    names: list[str] = []
    for param in listed.children() if listed is not None else []:
        if param.kind() in _PARAMETERS:
            named = param.field("name") or param
            names.append(named.text().partition(":")[0].lstrip("*").strip())
    return tuple(names)

"""Walks over ``ast`` trees: those of ``ast`` ask every node for every field, most of which hold no node at all."""

from __future__ import annotations

import ast

#: Fields that hold no node, or one that says nothing by itself (``Load()``, ``Add()``): those are not visited.
_PLAIN = frozenset(
    {
        *("ctx", "op", "ops", "id", "attr", "arg", "level", "module", "kind", "conversion", "is_async", "simple"),
        *("type_comment", "type_ignores", "kwd_attrs", "rest"),
    }
)
_LEAVES = (ast.Constant, ast.Name, ast.Pass, ast.Break, ast.Continue, ast.Global, ast.Nonlocal, ast.alias)


class _Fields(dict[type[ast.AST], tuple[str, ...]]):
    """The fields of each class of nodes that may hold nodes."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        found = () if issubclass(kind, _LEAVES) else tuple(name for name in kind._fields if name not in _PLAIN)
        self[kind] = found
        return found


_FIELDS = _Fields()


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes right below one, in the order of ``ast.iter_child_nodes``, without contexts and operators."""
    out: list[ast.AST] = []
    for name in _FIELDS[node.__class__]:
        value = getattr(node, name, None)
        if value.__class__ is list:
            out.extend([item for item in value if isinstance(item, ast.AST)])
        elif isinstance(value, ast.AST):
            out.append(value)
    return out


def walk(node: ast.AST) -> list[ast.AST]:
    """The node and everything below, in the order of ``ast.walk``, without contexts and operators."""
    found = [node]
    for here in found:  # which grows meanwhile
        for name in _FIELDS[here.__class__]:
            value = getattr(here, name, None)
            if value.__class__ is list:
                found.extend([item for item in value if isinstance(item, ast.AST)])
            elif isinstance(value, ast.AST):
                found.append(value)
    return found

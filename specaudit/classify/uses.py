"""What a statement of the configuration's class does with its own attributes: acts on them, checks them, fills them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from specaudit import nodes
from specaudit.classify.code import dotted


def used(statement: ast.stmt) -> Iterator[ast.Attribute]:
    """``self.x`` in a statement, unless the statement only refuses, logs, or guards such."""
    match statement:
        case ast.Raise() | ast.Assert():
            return
        case ast.If(test=test, body=body, orelse=orelse):
            parts: list[ast.AST] = [] if only_refuse(body) and only_refuse(orelse) else [test]
        case ast.For(iter=it):
            parts = [it]
        case ast.Expr() if only_refuses(statement):
            return
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value) | ast.Return(value=ast.expr() as value):
            parts = [value]
        case ast.Expr(value=value):
            parts = [value]
        case _:
            return
    for part in parts:
        yield from _own(part)


def checked(statement: ast.stmt) -> Iterator[ast.Attribute]:
    """``self.x`` in the test of a statement that refuses."""
    match statement:
        case ast.If(test=test, body=body) if any(isinstance(s, ast.Raise) for s in body):
            yield from _own(test)
        case ast.Assert(test=test):
            yield from _own(test)


def _own(node: ast.AST) -> Iterator[ast.Attribute]:
    for inner in nodes.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == "self":
            yield inner


def filled(statement: ast.stmt) -> frozenset[str]:
    """Attributes of the object that a statement sets, if that and refusals are all it does; ``?`` for anything else."""
    match statement:
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=attr)]):
            return frozenset({attr})
        case ast.If(body=body, orelse=orelse):
            return frozenset().union(*(filled(s) for s in (*body, *orelse)))
    return frozenset() if only_refuses(statement) else frozenset({"?"})


def only_refuses(statement: ast.stmt) -> bool:
    """Whether all that a statement does is to raise, to log, or to note words that say what is wrong."""
    match statement:
        case ast.Raise() | ast.Assert() | ast.Pass():
            return True
        case ast.Expr(value=ast.Call(func=func)) if dotted(func).startswith(("logger.", "warnings.")):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="append"), args=[noted])):
            return is_sentence(noted)
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.If(body=body, orelse=orelse):
            return only_refuse(body) and only_refuse(orelse)
    return False


def only_refuse(block: Sequence[ast.stmt]) -> bool:
    """Whether that is all that a block does, beside keeping values that the refusals in it need."""
    refusals = [s for s in block if only_refuses(s)]
    needed = {n.id for s in refusals for n in nodes.walk(s) if isinstance(n, ast.Name)}
    return all(_kept(s) in needed for s in block if s not in refusals)


def _kept(statement: ast.stmt) -> str:
    """The local name that a statement stores a value under, if that is all that it does."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name
    return ""


def is_sentence(node: ast.expr) -> bool:
    """Text of more than one word: that is for people, where one word may be a name that code asks for."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    text = "".join(part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))
    return " " in text.strip()

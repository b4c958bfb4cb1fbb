"""Which functions that are no kernels are worth running: work on whole tensors, and loops over single tokens."""

from __future__ import annotations

import ast

from specaudit import nodes
from specaudit.classify.shapes import WORD, last_name, names
from specaudit.classify.slices import Function, Parsed, has

_FIRSTS = frozenset(("cumprod", "cummin", "argmin", "argmax"))
#: Without these, the greatest or least of some truth values says nothing of a place.
_PLACES = (".indices", "where(", "arange")


def of_tensors(parsed: Parsed, functions: frozenset[str]) -> bool:
    """A running product of truth values, or the place of the first of them: what a batch of rows is cut by.

    Args:
        functions: those of the module. Where one of them may be called, what it does with a value is not known.
    """
    node = parsed.node
    calls = not functions.isdisjoint(WORD.findall(parsed.text.partition("(")[2]))
    counted = _FIRSTS | ({"max", "min"} if calls or has(parsed.text, _PLACES) else set())
    below = nodes.walk(node)
    if calls or _compares_sums(below):
        counted |= {"cumsum"}
    truths = {
        name.id
        for child in below
        if isinstance(child, ast.Assign) and _is_truth(child.value)
        for target in child.targets
        for name in nodes.walk(target)
        if isinstance(name, ast.Name)
    }
    for child in below:
        if isinstance(child, ast.Call) and last_name(child.func) in counted:
            operands = [child.func.value] if isinstance(child.func, ast.Attribute) else []
            for operand in (*operands, *child.args[:1]):
                if _is_truth(operand) or any(isinstance(n, ast.Name) and n.id in truths for n in nodes.walk(operand)):
                    return True
    return False


def _compares_sums(below: list[ast.AST]) -> bool:
    """A running sum, or a name that holds one, is tested for being equal to something."""
    sums: set[str] = set()

    def holds(node: ast.AST) -> bool:
        return any(
            (isinstance(n, ast.Name) and n.id in sums) or (isinstance(n, ast.Call) and last_name(n.func) == "cumsum")
            for n in nodes.walk(node)
        )

    stores = [n for n in below if isinstance(n, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr))]
    size = -1
    while size != len(sums):
        size = len(sums)
        for store in stores:
            if store.value is not None and holds(store.value):
                targets = store.targets if isinstance(store, ast.Assign) else [store.target]
                sums |= {n.id for target in targets for n in nodes.walk(target) if isinstance(n, ast.Name)}
    return any(
        (isinstance(n, ast.Compare) and any(isinstance(op, ast.Eq) for op in n.ops) and holds(n))
        or (isinstance(n, ast.Call) and last_name(n.func) == "eq" and holds(n))
        for n in below
    )


def of_loop(node: Function) -> bool:
    """Single elements of two sequences are compared in a loop that can be left."""
    for loop in nodes.walk(node):
        if not isinstance(loop, (ast.For, ast.While)):
            continue
        inside = [child for statement in loop.body for child in nodes.walk(statement)]
        elements = {
            n
            for child in inside
            if isinstance(child, ast.Assign) and _is_element(child.value)
            for n in _assigned(child)
        }
        if isinstance(loop, ast.For) and isinstance(loop.target, ast.Tuple):
            elements |= names(loop.target)
        leaves = isinstance(loop, ast.While) or any(isinstance(c, (ast.Break, ast.Return)) for c in inside)
        tests = [*inside, *(nodes.walk(loop.test) if isinstance(loop, ast.While) else ())]
        for child in tests if leaves else ():
            if isinstance(child, ast.Compare) and isinstance(child.ops[0], (ast.Eq, ast.NotEq)):
                sides = (child.left, child.comparators[0])
                if all(_is_element(side) or (isinstance(side, ast.Name) and side.id in elements) for side in sides):
                    return True
    return False


def _is_element(node: ast.expr) -> bool:
    """``x[i]``, possibly cast: no slice, no literal index."""
    if isinstance(node, ast.Call):
        return len(node.args) == 1 and _is_element(node.args[0])
    return isinstance(node, ast.Subscript) and not isinstance(node.slice, (ast.Slice, ast.Constant, ast.Tuple))


def _assigned(statement: ast.Assign) -> set[str]:
    return {name for target in statement.targets for name in names(target)}


def _is_truth(node: ast.AST) -> bool:
    """A comparison, possibly negated, cast or combined."""
    if isinstance(node, ast.Compare):
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)):
        return _is_truth(node.left) or _is_truth(node.right)
    if isinstance(node, ast.UnaryOp):
        return _is_truth(node.operand)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("eq", "ne", "lt", "gt", "le", "ge"):
            return True
        return node.func.attr in ("int", "to", "long", "float", "bool", "view", "reshape") and _is_truth(
            node.func.value
        )
    return False

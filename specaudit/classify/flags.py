"""Compile-time flags of a kernel: which of them can change its walk, and where.

One kernel may hold several walks behind ``tl.constexpr`` parameters. Each is read with all of them off, and with each
one on.
"""

from __future__ import annotations

from specaudit.classify import ir
from specaudit.classify.ir import Assign, Compare, Const, Expr, Function, If, Jump, Loop, Name, Op


def switches(function: Function) -> dict[str, int]:
    """Compile-time parameters that a branch tests by themselves and that can change a walk, each with a value that is
    on.

    A branch can change a walk when it holds a comparison, a loop or a jump, or assigns something that a test depends
    on.
    """
    known = function.flags
    steering = _steering(function)
    out: dict[str, int] = {}
    for statement in ir.walk(function.body):
        if isinstance(statement, If) and _can_steer(statement, steering):
            _collect(statement.test, known, out)
        if isinstance(statement, Assign) and ir.assigned((statement,)) & steering:
            for part in ir.walk_expr(statement.value):
                if isinstance(part, Op) and part.op == "if":
                    _collect(part.args[0], known, out)
    return dict(sorted(out.items()))


def _steering(function: Function) -> frozenset[str]:
    """Names on which some comparison or test of the function depends."""
    made_of: dict[str, set[str]] = {}
    todo: list[str] = []
    for statement in ir.walk(function.body):
        if isinstance(statement, Assign):
            for name in ir.assigned((statement,)):
                made_of.setdefault(name, set()).update(ir.names(statement.value))
        elif isinstance(statement, (If, Loop)) and statement.test is not None:
            todo.extend(ir.names(statement.test))
        for expression in ir.expressions(statement):
            for part in ir.walk_expr(expression):
                if isinstance(part, Compare):
                    todo.extend(ir.names(part))
    found: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo.extend(made_of.get(name, ()))
    return frozenset(found)


def _can_steer(branch: If, steering: frozenset[str]) -> bool:
    inside = (*branch.body, *branch.orelse)
    if ir.assigned(inside) & steering:
        return True
    for statement in ir.walk(inside):
        if isinstance(statement, (Loop, Jump)):
            return True
        if any(
            isinstance(part, Compare) for expression in ir.expressions(statement) for part in ir.walk_expr(expression)
        ):
            return True
    return False


def _collect(test: Expr, known: frozenset[str], out: dict[str, int]) -> None:
    match test:
        case Name(id=name) if name in known:
            out.setdefault(name, 1)
        case Op(op="and" | "or" | "not" | "if" | "&" | "|", args=args):
            for arg in args:
                _collect(arg, known, out)
        case Compare(left=left, right=right):
            for one, other in ((left, right), (right, left)):
                if isinstance(one, Name) and one.id in known and isinstance(other, Const):
                    value = other.value if isinstance(other.value, int) else 0
                    out[one.id] = max(out.get(one.id, 0), int(value), 1) if test.op == "==" else int(value) + 1


def branch(function: Function, flag: str, line: int) -> int:
    """The test of the flag that a walk stands under: the innermost one around its comparison, else the last one that
    assigns something (a flag that changes what a miss does, not what is compared)."""
    around = last = 0
    for statement in ir.walk(function.body):
        tested: dict[str, int] = {}
        if isinstance(statement, If):
            _collect(statement.test, frozenset((flag,)), tested)
        if isinstance(statement, If) and tested:
            if any(inner.line == line for inner in ir.walk(statement.body)):
                around = statement.line
            if ir.assigned(statement.body):
                last = statement.line
    return around or last


def compared(block: ir.Block) -> frozenset[int]:
    """The comparisons in a block, by identity; those with a literal test no draft."""
    return frozenset(
        id(part)
        for statement in ir.walk(block)
        for expression in ir.expressions(statement)
        for part in ir.walk_expr(expression)
        if isinstance(part, Compare) and not isinstance(part.left, Const) and not isinstance(part.right, Const)
    )


def compared_behind(function: Function, flag: str) -> frozenset[int]:
    """The comparisons in branches that test the flag."""
    branches = (s for s in ir.walk(function.body) if isinstance(s, If) and flag in ir.names(s.test))
    return frozenset(site for branch in branches for site in compared((*branch.body, *branch.orelse)))

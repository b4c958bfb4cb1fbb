"""libcst slice of one function -> the small tree of :mod:`.ir`.

Line numbers come from ``ast``, which reads the same text in the same order: libcst's position provider would double the
cost of a slice.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from specaudit.classify.ir import (
    Assign,
    Block,
    Call,
    Compare,
    Const,
    Effect,
    Expr,
    Function,
    If,
    Jump,
    Loop,
    Name,
    Op,
    Param,
    Scalar,
    Stmt,
)

if TYPE_CHECKING:
    import libcst as cst

_OPERATORS = {
    "Add": "+", "Subtract": "-", "Multiply": "*", "Divide": "/", "FloorDivide": "//", "Modulo": "%", "Power": "**",
    "MatrixMultiply": "@", "BitAnd": "&", "BitOr": "|", "BitXor": "^", "LeftShift": "<<", "RightShift": ">>",
    "And": "and", "Or": "or", "Not": "not", "BitInvert": "~", "Minus": "neg", "Plus": "pos",
    "Equal": "==", "NotEqual": "!=", "LessThan": "<", "LessThanEqual": "<=", "GreaterThan": ">",
    "GreaterThanEqual": ">=", "Is": "is", "IsNot": "is not", "In": "in", "NotIn": "not in",
    "AddAssign": "+", "SubtractAssign": "-", "MultiplyAssign": "*", "DivideAssign": "/", "FloorDivideAssign": "//",
    "ModuloAssign": "%", "PowerAssign": "**", "BitAndAssign": "&", "BitOrAssign": "|", "BitXorAssign": "^",
    "LeftShiftAssign": "<<", "RightShiftAssign": ">>", "MatrixMultiplyAssign": "@",
}  # fmt: skip


def function(node: cst.FunctionDef, outline: ast.FunctionDef | ast.AsyncFunctionDef, first_line: int) -> Function:
    """The tree of one function.

    Args:
        node: the libcst function. outline: ``ast``'s reading of the same text, for line numbers.
        first_line: what to add to ``outline``'s lines to get lines of the file (0 when they already are).
    """
    params = [
        Param(p.name.value, _is_constexpr(p), _expr(p.default, 0) if p.default is not None else None)
        for p in (*node.params.posonly_params, *node.params.params, *node.params.kwonly_params)
    ]
    body = _block(node.body, outline.body, first_line)
    return Function(node.name.value, tuple(params), body, outline.lineno + first_line)


def _is_constexpr(param: cst.Param) -> bool:
    if param.annotation is None:
        return False
    return _dotted(param.annotation.annotation).rpartition(".")[2] == "constexpr"


def _block(suite: cst.BaseSuite, nodes: Sequence[ast.stmt], shift: int) -> Block:
    out: list[Stmt] = []
    for small, node in zip(_statements(suite), nodes, strict=True):
        out.extend(_statement(small, node, shift))
    return tuple(out)


def _statements(suite: cst.BaseSuite) -> Iterator[cst.CSTNode]:
    """The statements of a suite as ``ast`` counts them: simple statements on one line are separate."""
    import libcst as cst

    if isinstance(suite, cst.SimpleStatementSuite):
        yield from suite.body
        return
    for statement in suite.body:
        if isinstance(statement, cst.SimpleStatementLine):
            yield from statement.body
        else:
            yield statement


def _statement(node: cst.CSTNode, outline: ast.stmt, shift: int) -> Iterator[Stmt]:
    import libcst as cst

    line = outline.lineno + shift
    match node:
        case cst.Assign():
            value = _expr(node.value, line)
            for assigned in node.targets:
                yield Assign(_expr(assigned.target, line), value, line)
        case cst.AnnAssign(value=value) if value is not None:
            yield Assign(_expr(node.target, line), _expr(value, line), line)
        case cst.AugAssign():
            target = _expr(node.target, line)
            yield Assign(target, Op(_OPERATORS[type(node.operator).__name__], (target, _expr(node.value, line))), line)
        case cst.Expr():
            yield Effect(_expr(node.value, line), line)
        case cst.If():
            assert isinstance(outline, ast.If)
            yield If(
                _expr(node.test, line), _block(node.body, outline.body, shift), _orelse(node, outline, shift), line
            )
        case cst.For():
            assert isinstance(outline, (ast.For, ast.AsyncFor))
            body = _block(node.body, outline.body, shift)
            yield Loop(_expr(node.target, line), _expr(node.iter, line), None, body, line)
        case cst.While():
            assert isinstance(outline, ast.While)
            yield Loop(None, None, _expr(node.test, line), _block(node.body, outline.body, shift), line)
        case cst.With():
            assert isinstance(outline, (ast.With, ast.AsyncWith))
            yield from _block(node.body, outline.body, shift)
        case cst.Try():
            assert isinstance(outline, ast.Try)
            yield from _block(node.body, outline.body, shift)
        case cst.Break() | cst.Continue():
            yield Jump(type(node).__name__.lower(), None, line)
        case cst.Return():
            yield Jump("return", _expr(node.value, line) if node.value is not None else None, line)
        case cst.Raise():
            yield Jump("raise", None, line)


def _orelse(node: cst.If, outline: ast.If, shift: int) -> Block:
    import libcst as cst

    match node.orelse:
        case cst.If() as branch:
            return tuple(_statement(branch, outline.orelse[0], shift))
        case cst.Else(body=body):
            return _block(body, outline.orelse, shift)
        case _:
            return ()


def _dotted(node: cst.CSTNode) -> str:
    """``a.b.c`` for a chain of names, ``""`` for anything else."""
    import libcst as cst

    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if not isinstance(node, cst.Name):
        return ""
    parts.append(node.value)
    return ".".join(reversed(parts))


_CONSTANTS: dict[str, Scalar] = {"True": True, "False": False, "None": None}


def _expr(node: cst.CSTNode, line: int) -> Expr:
    import libcst as cst

    match node:
        case cst.Name(value=name):
            return Const(_CONSTANTS[name]) if name in _CONSTANTS else Name(name)
        case cst.Integer() | cst.Float():
            return Const(ast.literal_eval(node.value))
        case cst.SimpleString():
            raw = node.raw_value
            return Const(raw)
        case cst.UnaryOperation():
            inner = _expr(node.expression, line)
            op = _OPERATORS[type(node.operator).__name__]
            if op == "neg" and isinstance(inner, Const) and isinstance(inner.value, (int, float)):
                return Const(-inner.value)
            return Op(op, (inner,))
        case cst.BinaryOperation() | cst.BooleanOperation():
            return Op(_OPERATORS[type(node.operator).__name__], (_expr(node.left, line), _expr(node.right, line)))
        case cst.Comparison():
            return _comparison(node, line)
        case cst.IfExp():
            return Op("if", (_expr(node.test, line), _expr(node.body, line), _expr(node.orelse, line)))
        case cst.Call():
            return _call(node, line)
        case cst.Attribute():
            return Op(f".{node.attr.value}", (_expr(node.value, line),))
        case cst.Subscript():
            index = tuple(part for element in node.slice for part in _subscript(element.slice, line))
            return Op("[]", (_expr(node.value, line), *index))
        case cst.Tuple() | cst.List():
            return Op("tuple", tuple(_expr(element.value, line) for element in node.elements))
        case cst.NamedExpr():
            return Op(":=", (_expr(node.target, line), _expr(node.value, line)))
        case cst.StarredElement() | cst.Await():
            return _expr(node.value if isinstance(node, cst.StarredElement) else node.expression, line)
        case cst.GeneratorExp() | cst.ListComp() | cst.SetComp():
            clause = node.for_in
            tests = tuple(_expr(test.test, line) for test in clause.ifs)
            return Op("comp", (_expr(node.elt, line), _expr(clause.target, line), _expr(clause.iter, line), *tests))
        case _:
            return Op("?", ())


def _subscript(node: cst.BaseSlice, line: int) -> Iterator[Expr]:
    import libcst as cst

    if isinstance(node, cst.Index):
        yield _expr(node.value, line)
        return
    assert isinstance(node, cst.Slice)
    bounds = (node.lower, node.upper, node.step)
    yield Op("slice", tuple(Const(None) if b is None else _expr(b, line) for b in bounds))


def _comparison(node: cst.Comparison, line: int) -> Expr:
    left = _expr(node.left, line)
    parts: list[Expr] = []
    for target in node.comparisons:
        right = _expr(target.comparator, line)
        parts.append(Compare(_OPERATORS[type(target.operator).__name__], left, right, line))
        left = right
    out = parts[0]
    for part in parts[1:]:
        out = Op("and", (out, part))
    return out


def _call(node: cst.Call, line: int) -> Expr:
    import libcst as cst

    args = tuple(_expr(a.value, line) for a in node.args if a.keyword is None)
    keywords = tuple((a.keyword.value, _expr(a.value, line)) for a in node.args if a.keyword is not None)
    base: Expr | None = None
    if isinstance(node.func, cst.Attribute):
        base = _expr(node.func.value, line)
    func = _dotted(node.func)
    if not func:
        func = node.func.attr.value if isinstance(node.func, cst.Attribute) else ""
        base = base if base is not None else _expr(node.func, line)
    return Call(func, base, args, keywords, line)

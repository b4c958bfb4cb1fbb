"""Which functions are worth running: their shape, by ``ast`` and by the words of their statements.

A walk needs something loaded, compared with something else that varies, and a reason to stop, to count or to reduce.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from specaudit import nodes
from specaudit.classify.slices import REDUCES, Function, Parsed, has

_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_COMPARES = re.compile(r"[=!<>]=|(?<![-<>])[<>](?![<>])")


@dataclass(slots=True)
class _Line:
    """One statement (or the head of one): its words, what it assigns, whether it compares, the loops around it."""

    node: ast.AST
    words: frozenset[str]
    targets: frozenset[str]
    compares: bool
    loads: int
    steers: bool
    loops: tuple[int, ...]


class Device:
    """Reads a function by statements: which names hold something loaded, and where two such things are compared.

    Words are taken from the text: walking every expression node would take three times as long.
    """

    def __init__(self, parsed: Parsed, local: frozenset[str]) -> None:
        self.text = parsed.text.split("\n")
        self.local = local
        self.lines: list[_Line] = []
        self.leaving: set[int] = set()
        self.made: set[str] = set()
        self.loops = 0
        self._block(parsed.node.body, ())
        self.loaded = self._loaded()

    @property
    def tests_draft(self) -> bool:
        """Two loaded things are compared: in a loop that loads one of them and that the outcome can steer, or in
        lanes.
        """
        tests = [line for line in self.lines if line.compares and self._loaded_in(line) >= 2]
        lanes = any(has(text, REDUCES) for text in self.text)
        steered: set[int] | None = None
        for line in tests:
            if lanes and self._compares(line.node, self.loaded, (ast.Eq, ast.NotEq)):
                return True
            if steered is None:
                steered = self.leaving | {
                    loop for one in self.lines if one.loops and self._steers(one) for loop in one.loops
                }
            for loop in line.loops:
                if loop in steered and self._compares(line.node, self._loaded(loop), (ast.cmpop,)):
                    return True
        return any(line.loops and line.compares and self._compares_draw(line.node) for line in self.lines)

    def _steers(self, line: _Line) -> bool:
        return line.steers and not self._assigned(line.loops[-1]).isdisjoint(line.words)

    def _assigned(self, loop: int) -> set[str]:
        return {name for line in self.lines if loop in line.loops for name in line.targets}

    def _loaded(self, loop: int = 0) -> set[str]:
        """Names that hold something loaded, in one loop or anywhere."""
        found: set[str] = set()
        size = -1
        while size != len(found):
            size = len(found)
            for line in self.lines:
                if (
                    line.targets
                    and (line.loads or not found.isdisjoint(line.words))
                    and (not loop or loop in line.loops)
                ):
                    found |= line.targets
        return found

    def _compares(self, node: ast.AST, fresh: set[str], operators: tuple[type[ast.cmpop], ...]) -> bool:
        """A comparison in it has something loaded on either side, on one of them something ``fresh``."""
        for child in nodes.walk(node):
            if isinstance(child, ast.Compare) and isinstance(child.ops[0], operators):
                sides = (child.left, *child.comparators)
                if any(isinstance(side, ast.Attribute) for side in sides) or ast.dump(sides[0]) == ast.dump(sides[1]):
                    continue  # types, or a test for NaN
                if sum(self._holds(s, self.loaded) for s in sides) >= 2 and any(self._holds(s, fresh) for s in sides):
                    return True
        return False

    def _compares_draw(self, node: ast.AST) -> bool:
        """A comparison of what some function of another file made: it may be a random number against a given rate."""
        for child in nodes.walk(node):
            if isinstance(child, ast.Compare) and isinstance(child.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
                sides = (child.left, child.comparators[0])
                if not any(isinstance(side, (ast.Constant, ast.UnaryOp)) for side in sides):
                    return any(
                        isinstance(n, ast.Name) and n.id in self.made for side in sides for n in nodes.walk(side)
                    )
        return False

    def _holds(self, node: ast.expr, loaded: set[str]) -> bool:
        for child in nodes.walk(node):
            if isinstance(child, ast.Name) and (child.id in loaded or child.id in self.local):
                return True
            if isinstance(child, ast.Attribute) and (child.attr == "load" or "rand" in child.attr):
                return True
        return False

    def _loaded_in(self, line: _Line) -> int:
        return line.loads + len(self.loaded & line.words)

    def _block(self, block: list[ast.stmt], loops: tuple[int, ...]) -> None:
        for node in block:
            self._statement(node, loops)

    def _statement(self, node: ast.stmt, loops: tuple[int, ...]) -> None:
        if isinstance(node, ast.If):
            self._line(node, node.test, frozenset(), True, loops)
            self._block(node.body, loops)
            self._block(node.orelse, loops)
        elif isinstance(node, (ast.For, ast.While)):
            self.loops += 1
            inner = (*loops, self.loops)
            if isinstance(node, ast.While):
                self.leaving.add(self.loops)
                self._line(node, node.test, frozenset(), True, inner)
            else:
                self._line(node, node.iter, _names(node.target), False, inner)
            self._block(node.body, inner)
        elif isinstance(node, (ast.Break, ast.Return)):
            self.leaving.update(loops)
            if isinstance(node, ast.Return) and node.value is not None:
                self._line(node, node, frozenset(), False, loops)
        elif isinstance(node, ast.Assign):
            if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
                self.made.update(n for t in node.targets for n in _names(t))
            self._line(node, node, frozenset(n for t in node.targets for n in _names(t)), True, loops)
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            self._line(node, node, _names(node.target), True, loops)
        elif isinstance(node, ast.Expr):
            if not isinstance(node.value, ast.Constant):
                self._line(node, node, frozenset(), True, loops)
        elif isinstance(node, (ast.With, ast.Try)):
            self._block(node.body, loops)

    def _line(
        self, first: ast.stmt, last: ast.stmt | ast.expr, targets: frozenset[str], steers: bool, loops: tuple[int, ...]
    ) -> None:
        text = "\n".join(self.text[first.lineno - 1 : last.end_lineno])
        words = frozenset(_WORD.findall(text))
        loads = text.count(".load(") + text.count("rand") + len(self.local & words)
        self.lines.append(_Line(last, words, targets, bool(_COMPARES.search(text)), loads, steers, loops))


def _names(node: ast.expr) -> frozenset[str]:
    if isinstance(node, ast.Name):
        return frozenset((node.id,))
    if isinstance(node, (ast.Tuple, ast.List)):
        return frozenset(name for element in node.elts for name in _names(element))
    return frozenset()


def of_tensors(node: Function) -> bool:
    """A running product of truth values, or the place of the first of them: what a batch of rows is cut by."""
    truths = {
        name.id
        for child in nodes.walk(node)
        if isinstance(child, ast.Assign) and _is_truth(child.value)
        for target in child.targets
        for name in nodes.walk(target)
        if isinstance(name, ast.Name)
    }
    for child in nodes.walk(node):
        if isinstance(child, ast.Call) and _name(child.func) in (
            "cumprod",
            "cummin",
            "argmin",
            "argmax",
            "cumsum",
            "max",
            "min",
        ):
            operands = [child.func.value] if isinstance(child.func, ast.Attribute) else []
            for operand in (*operands, *child.args[:1]):
                if _is_truth(operand) or any(isinstance(n, ast.Name) and n.id in truths for n in nodes.walk(operand)):
                    return True
    return False


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
            elements |= _names(loop.target)
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
    return {name for target in statement.targets for name in _names(target)}


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


def _name(func: ast.expr) -> str:
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""

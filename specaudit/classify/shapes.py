"""Which kernels are worth running: their shape, by ``ast`` and by the words of their statements.

A walk needs something loaded, compared with something else that varies, and a reason to stop, to count or to reduce.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass

from specaudit import nodes
from specaudit.classify.slices import REDUCES, Parsed, has

WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_COMPARES = re.compile(r"[=!<>]=|(?<![-<>])[<>](?![<>])")


@dataclass(slots=True)
class _Line:
    """One statement (or the head of one): its words, what it assigns, whether it compares, the loops around it.

    ``counts``: what it assigns is the index of a range, nothing loaded. ``spreads``: one value per lane may begin in
    it, with a range of lanes or in another function of the file.
    """

    node: ast.AST
    words: frozenset[str]
    targets: frozenset[str]
    compares: bool
    loads: int
    steers: bool
    loops: tuple[int, ...]
    counts: bool
    spreads: bool


class Device:
    """Reads a function by statements: which names hold something loaded, and where two such things are compared.

    Words are taken from the text: walking every expression node would take three times as long.
    """

    def __init__(self, parsed: Parsed, local: frozenset[str], functions: frozenset[str]) -> None:
        """``functions`` are those of the module, ``local`` all of the file that load something."""
        self.text = parsed.text.split("\n")
        self.local = local
        self.functions = functions
        self.lines: list[_Line] = []
        self.leaving: set[int] = set()
        self.made: set[str] = set()
        self.loops = 0
        self._block(parsed.node.body, ())
        self.loaded = self._loaded()
        self.lanes = self._lanes() if has(parsed.text, REDUCES) else set()

    @property
    def tests_draft(self) -> bool:
        """Two loaded things are compared: in a loop that loads one of them and that the outcome can steer, or in
        lanes.
        """
        tests = [line for line in self.lines if line.compares and self._loaded_in(line) >= 2]
        steered: set[int] | None = None
        for line in tests:
            spread = bool(self.lanes) and (line.spreads or not self.lanes.isdisjoint(line.words))
            if spread and self._compares(line.node, self.loaded, (ast.Eq, ast.NotEq)):
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
        lines = [line for line in self.lines if not line.counts and (not loop or loop in line.loops)]
        return _flowing(lines, lambda line: line.loads > 0)

    def _lanes(self) -> set[str]:
        """Names that may hold one value per lane."""
        return _flowing(self.lines, lambda line: line.spreads)

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
                self._line(node, node.iter, names(node.target), False, inner, counts=_is_range(node.iter))
            self._block(node.body, inner)
        elif isinstance(node, (ast.Break, ast.Return)):
            self.leaving.update(loops)
            if isinstance(node, ast.Return) and node.value is not None:
                self._line(node, node, frozenset(), False, loops)
        elif isinstance(node, ast.Assign):
            if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
                self.made.update(n for t in node.targets for n in names(t))
            self._line(node, node, frozenset(n for t in node.targets for n in names(t)), True, loops)
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            self._line(node, node, names(node.target), True, loops)
        elif isinstance(node, ast.Expr):
            if not isinstance(node.value, ast.Constant):
                self._line(node, node, frozenset(), True, loops)
        elif isinstance(node, (ast.With, ast.Try)):
            self._block(node.body, loops)

    def _line(
        self,
        first: ast.stmt,
        last: ast.stmt | ast.expr,
        targets: frozenset[str],
        steers: bool,
        loops: tuple[int, ...],
        *,
        counts: bool = False,
    ) -> None:
        text = "\n".join(self.text[first.lineno - 1 : last.end_lineno])
        words = frozenset(WORD.findall(text))
        loads = text.count(".load(") + text.count("rand") + len(self.local & words)
        # what a walrus names is not followed: it may be anything
        spreads = "arange" in text or ":=" in text or not self.functions.isdisjoint(words)
        compares = bool(_COMPARES.search(text))
        self.lines.append(_Line(last, words, targets, compares, loads, steers, loops, counts, spreads))


def _flowing(lines: list[_Line], starts: Callable[[_Line], bool]) -> set[str]:
    """Names that something flows into which begins in some of the lines, through any number of assignments."""
    found: set[str] = set()
    left = [line for line in lines if line.targets]
    more = True
    while more:
        reached: list[_Line] = []
        kept: list[_Line] = []
        for line in left:
            (reached if starts(line) or not found.isdisjoint(line.words) else kept).append(line)
        left = kept
        found.update(name for line in reached for name in line.targets)
        more = bool(reached)
    return found


def _is_range(node: ast.expr) -> bool:
    """What a loop goes through is a range of numbers."""
    return isinstance(node, ast.Call) and last_name(node.func) in ("range", "static_range", "persistent_range")


def names(node: ast.expr) -> frozenset[str]:
    """The names that an assignment to this target stores."""
    if isinstance(node, ast.Name):
        return frozenset((node.id,))
    if isinstance(node, (ast.Tuple, ast.List)):
        return frozenset(name for element in node.elts for name in names(element))
    return frozenset()


def last_name(func: ast.expr) -> str:
    """The last part of what is called."""
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""

"""Source text -> the functions worth reading: cut out by their indentation, kept by what their text and shape hold.

A release has thousands of kernels; a walk needs something loaded, compared with something else that varies, and a reason to
stop, to count or to reduce. The first cut is on text (0.3 s for 3,000 files), the second on ``ast`` of the slice alone.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

_DEFINITION = re.compile(r"^([ \t]*)(?:async[ \t]+)?(def|class)[ \t]+(\w+)", re.MULTILINE)
_DECORATOR = re.compile(r"^[ \t]*@", re.MULTILINE)
_COMPARES = re.compile(r"[=!<>]=|(?<![-<>])[<>](?![<>])")
_LANGUAGE = re.compile(r"\btriton\.language as (\w+)|\bimport\b[^\n]*\b(tl)\b|\btriton import language as (\w+)")
_IMPORTS = 12_000  # imports stand in the first characters of a file
_LOOPS = ("for ", "while ")
_REDUCES = ("max(", "min(", "sum(", "cumprod(", "reduce(", "_scan(")
_PREFIXES = ("cumprod(", "cummin(", "argmin(", "argmax(", "cumsum(", ".indices")
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Slice:
    """One function's text. ``first`` is the line of ``def`` in the file, counted from 1; decorators are not in it."""

    qualname: str
    first: int
    text: str

    @property
    def name(self) -> str:
        """The last part of the qualified name."""
        return self.qualname.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Parsed:
    """A slice with ``ast``'s reading of it; add ``shift`` to its lines to get lines of the file."""

    slice: Slice
    node: ast.FunctionDef | ast.AsyncFunctionDef
    text: str

    @property
    def own(self) -> str:
        """The function's own text, dedented, without what follows it in the slice: what libcst is given."""
        return "\n".join(self.text.split("\n")[: self.node.end_lineno]) + "\n"

    @property
    def shift(self) -> int:
        """What to add to a line of the slice."""
        return self.slice.first - 1


def worth_reading(data: bytes) -> bool:
    """Whether a file can hold a candidate at all: something loaded by a kernel, or a running product and its like."""
    return (b".load(" in data and b"jit" in data) or any(needle.encode() in data for needle in _PREFIXES)


def functions(source: str) -> tuple[Slice, ...]:
    """Every function of a file, methods and nested ones included, cut out by indentation."""
    found = list(_DEFINITION.finditer(source))
    out: list[Slice] = []
    scopes: list[tuple[int, str]] = []
    line, at = 1, 0
    for position, match in enumerate(found):
        indent = len(match[1].expandtabs())
        while scopes and scopes[-1][0] >= indent:
            scopes.pop()
        qualname = ".".join([*(name for _, name in scopes), match[3]])
        scopes.append((indent, match[3]))
        line, at = line + source.count("\n", at, match.start()), match.start()
        if match[2] == "def":
            end = next((m.start() for m in found[position + 1 :] if len(m[1].expandtabs()) <= indent), len(source))
            out.append(Slice(qualname, line, source[match.start() : end]))
    return tuple(out)


def parse(piece: Slice) -> Parsed | None:
    """``ast`` of one slice; ``None`` when the slice is no function after all (a ``def`` inside a string)."""
    text = textwrap.dedent(piece.text) if piece.text[:1] in " \t" else piece.text
    for _ in range(2):
        try:
            body = ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError):
            # What follows may be decorators, whose function was cut off.
            text = text[: next((m.start() for m in _DECORATOR.finditer(text)), 0)]
            continue
        if body and isinstance(body[0], (ast.FunctionDef, ast.AsyncFunctionDef)):
            return Parsed(piece, body[0], text)
        break
    return None


def candidates(source: str, pieces: tuple[Slice, ...]) -> Iterator[Parsed]:
    """The functions of a file that may accept or reject drafts."""
    loads = tuple(f"{alias}.load(" for alias in language(source))
    device = _has(source, loads)
    tensors = _has(source, _PREFIXES)
    local = frozenset(piece.name for piece in pieces if _has(piece.text, loads)) if device else frozenset()
    for piece in pieces:
        if device and _has(piece.text, loads):
            if _has(piece.text, _LOOPS) or _has(piece.text, _REDUCES):
                parsed = parse(piece)
                if parsed is not None and _Shape(parsed, local).tests_draft:
                    yield parsed
        elif tensors and _has(piece.text, _PREFIXES) and _COMPARES.search(piece.text):
            parsed = parse(piece)
            if parsed is not None and _tensor_shape(parsed.node):
                yield parsed


def words(text: str) -> tuple[str, ...]:
    """The names in a text that stand on their own, in order."""
    return tuple(dict.fromkeys(_WORD.findall(text)))


def language(source: str) -> frozenset[str]:
    """The names under which a file knows Triton's language module; empty when it has no kernels."""
    if "jit" not in source or ".load(" not in source:
        return frozenset()
    return frozenset(name for found in _LANGUAGE.findall(source, 0, _IMPORTS) for name in found if name)


def _has(text: str, needles: tuple[str, ...]) -> bool:
    return any(needle in text for needle in needles)


# --- shapes ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Line:
    """One statement (or the head of one): the words in it, what it assigns, whether it compares, the loops around it."""

    node: ast.AST
    words: frozenset[str]
    targets: frozenset[str]
    compares: bool
    loads: int
    steers: bool
    loops: tuple[int, ...]


class _Shape:
    """Reads a function by statements: which names hold something loaded, and where two such things are compared.

    Words are taken from the text: walking every expression node would take three times as long.
    """

    def __init__(self, parsed: Parsed, local: frozenset[str]) -> None:
        self.text = parsed.text.split("\n")
        self.local = local
        self.lines: list[_Line] = []
        self.leaving: set[int] = set()
        self.loops = 0
        self._block(parsed.node.body, ())
        self.loaded = self._loaded()

    @property
    def tests_draft(self) -> bool:
        """Two loaded things are compared: in a loop that loads one of them and that the outcome can steer, or in lanes."""
        tests = [line for line in self.lines if line.compares and self._loaded_in(line) >= 2]
        lanes = any(_has(text, _REDUCES) for text in self.text)
        steered: set[int] | None = None
        for line in tests:
            if lanes and self._compares(line.node, self.loaded, (ast.Eq, ast.NotEq)):
                return True
            if steered is None:
                steered = self.leaving | {loop for one in self.lines if one.loops and self._steers(one) for loop in one.loops}
            for loop in line.loops:
                if loop in steered and self._compares(line.node, self._loaded(loop), (ast.cmpop,)):
                    return True
        return False

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
                if line.targets and (line.loads or not found.isdisjoint(line.words)) and (not loop or loop in line.loops):
                    found |= line.targets
        return found

    def _compares(self, node: ast.AST, fresh: set[str], operators: tuple[type[ast.cmpop], ...]) -> bool:
        """A comparison in it has something loaded on either side, on one of them something ``fresh``."""
        for child in ast.walk(node):
            if isinstance(child, ast.Compare) and isinstance(child.ops[0], operators):
                sides = (child.left, *child.comparators)
                if any(isinstance(side, ast.Attribute) for side in sides) or ast.dump(sides[0]) == ast.dump(sides[1]):
                    continue  # types, or a test for NaN
                if sum(self._holds(s, self.loaded) for s in sides) >= 2 and any(self._holds(s, fresh) for s in sides):
                    return True
        return False

    def _holds(self, node: ast.expr, loaded: set[str]) -> bool:
        for child in ast.walk(node):
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


def _tensor_shape(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A running product of truth values, or the place of the first of them: what a batch of rows is cut by."""
    truths = {
        name.id
        for child in ast.walk(node)
        if isinstance(child, ast.Assign) and _is_truth(child.value)
        for target in child.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    for child in ast.walk(node):
        if isinstance(child, ast.Call) and _name(child.func) in ("cumprod", "cummin", "argmin", "argmax", "cumsum", "max", "min"):
            operands = [child.func.value] if isinstance(child.func, ast.Attribute) else []
            for operand in (*operands, *child.args[:1]):
                if _is_truth(operand) or any(isinstance(n, ast.Name) and n.id in truths for n in ast.walk(operand)):
                    return True
    return False


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
        return node.func.attr in ("int", "to", "long", "float", "bool", "view", "reshape") and _is_truth(node.func.value)
    return False


def _name(func: ast.expr) -> str:
    if isinstance(func, ast.Attribute):
        return func.attr
    return func.id if isinstance(func, ast.Name) else ""

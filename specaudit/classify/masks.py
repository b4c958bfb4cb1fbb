"""Does attention take a mask between the tokens of one step, and who passes one?

A score bias is told by what a kernel does: a value loaded through a row pointer per query and a column per key is
added to the scores that a dot product filled. The parameter behind that pointer is followed outwards: to the function
that launches the kernel, to those who call it with that parameter, and to where the passed tensor is made.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from specaudit.classify.code import Code, Symbol, dotted, expression
from specaudit.engines.base import Engine
from specaudit.index import Call
from specaudit.model import Evidence

# ``name += name``, ``name += function(…)`` or ``name += tl.load(…)`` on a line of its own: the first, cheap cut
_ADDED = re.compile(r"^\s+\w+ \+= (?:\w+\s*$|\w+\(|\w+\.load\()", re.MULTILINE)
# ``name = pointer + row[:, None] * stride``
_ROWS = re.compile(r"=\s*\(?\s*\w+\s*\+\s*\w+\[:, None\]\s*\*")


@dataclass(frozen=True, slots=True)
class Bias:
    """A kernel parameter whose loaded values are added to scores; ``line`` is where they are added."""

    kernel: Symbol
    param: str
    line: int


@dataclass(frozen=True, slots=True)
class Host:
    """A function of the host and the parameter of it that ends in a bias."""

    function: Symbol
    param: str


@dataclass(frozen=True, slots=True)
class Passing:
    """A call that passes a tensor to a host's bias parameter."""

    host: Host
    path: str
    call: Call
    value: str


class Masks:
    """All score biases of one engine."""

    def __init__(self, code: Code, engine: Engine) -> None:
        self.code = code
        self.index = code.index
        self.files = tuple(p for p in self.index.paths if any(fnmatchcase(p, g) for g in engine.attention))
        self.biases = tuple(self._biases())
        self.hosts, self.passings = self._follow()

    # --- kernels

    def _biases(self) -> Iterator[Bias]:
        for path in self.index.mentioning(b".dot(", self.index.mentioning(b".jit", self.files)):
            source = self.index.source(path)
            if _ADDED.search(source) is None or _ROWS.search(source) is None:
                continue
            for definition in self.index.outline(path).definitions:
                if definition.kind == "function" and any(
                    d.partition("(")[0].endswith("jit") for d in definition.decorators
                ):
                    yield from self._in_kernel(Symbol(path, definition))

    def _in_kernel(self, kernel: Symbol) -> Iterator[Bias]:
        node = self.code.function(kernel)
        if node is None:
            return
        stored: dict[str, ast.expr] = {}
        scores: set[str] = set()
        for inner in _in_order(node):
            match inner:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    stored.setdefault(name, value)
                    if _calls(value, "dot") or _names(value) & scores:
                        scores.add(name)
                case ast.AugAssign(target=ast.Name(id=name), value=value) if (
                    _calls(value, "dot") or _names(value) & scores
                ):
                    scores.add(name)
        for statement in _in_order(node):
            match statement:
                case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value) if name in scores:
                    pointer = self._loaded(kernel, value, stored)
                    param = _root(pointer, stored) if pointer is not None else ""
                    if param in kernel.definition.params:
                        yield Bias(kernel, param, statement.lineno)

    def _loaded(self, kernel: Symbol, value: ast.expr, stored: dict[str, ast.expr]) -> ast.expr | None:
        """The pointer that a value is loaded through, when it has a row per query and a column per key."""
        if isinstance(value, ast.Name):
            value = stored.get(value.id, value)
        if not isinstance(value, ast.Call) or not value.args:
            return None
        pointer = value.args[0]
        if dotted(value.func).endswith(".load"):
            columns = ast.unparse(pointer)
        else:
            helper = self.code.resolve(kernel.path, kernel.qualname, dotted(value.func))
            node = self.code.function(helper) if helper is not None else None
            loads = (
                [c for c in ast.walk(node) if isinstance(c, ast.Call) and dotted(c.func).endswith(".load")]
                if node
                else []
            )
            columns = ast.unparse(loads[0].args[0]) if len(loads) == 1 else ""
        rows = ast.unparse(stored.get(pointer.id, pointer)) if isinstance(pointer, ast.Name) else ast.unparse(pointer)
        rows += "".join(
            ast.unparse(stored[n.id]) for n in ast.walk(pointer) if isinstance(n, ast.Name) and n.id in stored
        )
        return pointer if "[None, :]" in columns and "[:, None]" in rows else None

    # --- hosts

    def _follow(self) -> tuple[tuple[Host, ...], tuple[Passing, ...]]:
        hosts: dict[tuple[str, str, str], Host] = {}
        passings: list[Passing] = []
        todo: list[tuple[Symbol, str]] = [(b.kernel, b.param) for b in self.biases]
        done: set[tuple[str, str, str]] = set()
        while todo:
            target, param = todo.pop()
            if (target.path, target.qualname, param) in done:
                continue
            done.add((target.path, target.qualname, param))
            for path, call, value in self._calls_with(target, param):
                caller = self.code.definition(path, call.scope)
                name = value.partition(".")[0].partition("[")[0]
                if caller is not None and name == value and name in caller.definition.params:
                    hosts.setdefault((path, call.scope, name), Host(caller, name))
                    todo.append((caller, name))
                elif value != "None":
                    passings.append(Passing(Host(target, param), path, call, value))
        return tuple(hosts.values()), tuple(passings)

    def _calls_with(self, target: Symbol, param: str) -> Iterator[tuple[str, Call, str]]:
        """Calls or launches of the target that pass the parameter by name, with the passed text."""
        for path in self.index.mentioning(f"{param}=".encode(), self.index.mentioning(target.name.encode())):
            for call in self.index.outline(path).calls:
                if call.name == target.name:
                    yield from ((path, call, value) for name, value in call.keywords if name == param)

    # --- where the passed tensor is made

    def built_once(self, passing: Passing) -> tuple[bool, tuple[Evidence, ...]]:
        """Whether the tensor is made when the object is made (not for each step), and the lines from there to the
        call.
        """
        lines: list[Evidence] = []
        once = False
        for field in self._stored_as(passing.path, passing.value):
            lines.extend(self.index.evidence(path, line) for path, line, _ in field)
            once = once or any(scope.endswith("__init__") for _, _, scope in field)
        lines.append(self.index.evidence(passing.path, self._keyword_line(passing)))
        return once, tuple(dict.fromkeys(lines))

    def _keyword_line(self, passing: Passing) -> int:
        lines = self.index.lines(passing.path)
        wanted = f"{passing.host.param}="
        for number in range(passing.call.line, min(passing.call.line + 40, len(lines) + 1)):
            if lines[number - 1].strip().startswith(wanted):
                return number
        return passing.call.line

    def _stored_as(self, path: str, value: str) -> Iterable[list[tuple[str, int, str]]]:
        """For ``x.name``: where ``name`` is filled in that file (as a keyword), and where what fills it is stored."""
        name = value.rpartition(".")[2]
        outline = self.index.outline(path)
        for call in outline.calls:
            for keyword, text in call.keywords:
                if keyword == name and text != "None":
                    kept = [
                        (path, a.line, a.scope)
                        for a in outline.assigns
                        if a.target == text and expression(a.value) is not None
                    ]
                    yield [*kept, (path, self._line_of(path, call.line, f"{keyword}="), call.scope)]

    def _line_of(self, path: str, start: int, text: str) -> int:
        lines = self.index.lines(path)
        return next(
            (n for n in range(start, min(start + 40, len(lines) + 1)) if lines[n - 1].strip().startswith(text)), start
        )


def _in_order(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a function in source order, nested ones included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
            yield from _in_order(child)


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _calls(node: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Call) and dotted(n.func).rpartition(".")[2] == name for n in ast.walk(node))


def _root(node: ast.expr, stored: dict[str, ast.expr]) -> str:
    """The name that a pointer expression starts from."""
    for _ in range(8):
        while isinstance(node, ast.BinOp):
            node = node.left
        if not isinstance(node, ast.Name):
            return ""
        if node.id not in stored:
            return node.id
        node = stored[node.id]
    return ""

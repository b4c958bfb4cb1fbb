"""Compiled operators that stand in an accepting function's place: their bodies are not in the source.

Two ways lead to them. A platform replaces an accepting kernel by a function (by assignment, or by the kernel's dotted
name in a table), and that function calls an operator. Or a dispatcher calls an operator beside accepting code, or
hands it the links of a tree: then what the caller passes tells how it walks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from specaudit import nodes
from specaudit.classify.arguments import meet
from specaudit.classify.callers import Callers
from specaudit.classify.code import Symbol, dotted, expression
from specaudit.index import Call
from specaudit.model import Evidence

_NAMESPACE = "torch.ops."
#: Words by which operators call the links between the nodes of a tree. They are part of an operator's interface.
LINKS = ("parent", "child", "sibling", "ancestor", "next_token")
_OF_TARGET = re.compile(r"(?<![a-z])(?:argmax|softmax|multinomial)\(")
_LIBRARIES = frozenset(("torch", "numpy", "math", "typing", "triton", "logging", "functools", "itertools"))
_FEW = 3
_DEEP = 3
_STEPS = 6


@dataclass(frozen=True, slots=True)
class Replacement:
    """A function that a platform puts in the place of an accepting kernel, and the operator that it calls."""

    kernel: Symbol
    function: Symbol
    operator: str
    call: Evidence
    registered: Evidence


class Replacements:
    """Finds what replaces accepting kernels."""

    def __init__(self, callers: Callers) -> None:
        self.callers = callers
        self.code = callers.code
        self.index = callers.index

    def of(self, kernel: Symbol) -> Iterator[Replacement]:
        """Everything that is put in the place of that kernel."""
        module = kernel.path.removesuffix(".py").replace("/", ".")
        name = f"{module}.{kernel.qualname}"
        seen: set[tuple[str, int]] = set()
        for path, line, scope, value in (*self._assigned(kernel, name), *self._listed(name)):
            function = self._function(path, scope, value)
            if function is None or (function.path, function.definition.line) in seen:
                continue
            seen.add((function.path, function.definition.line))
            found = self._operator(function)
            if found is not None:
                registered = self.index.evidence(path, line)
                yield Replacement(kernel, function, found[0], self.index.evidence(function.path, found[1]), registered)

    def _assigned(self, kernel: Symbol, name: str) -> Iterator[tuple[str, int, str, str]]:
        """``package.module.kernel = other``."""
        for path in self.callers.mentions.of(f".{kernel.name}"):
            for assign in self.index.outline(path).assigns:
                if assign.target == name:
                    yield path, assign.line, assign.scope, assign.value

    def _listed(self, name: str) -> Iterator[tuple[str, int, str, str]]:
        """``{"package.module.kernel": other}``."""
        for path in self.callers.mentions.of(f'"{name}"'):
            for definition in self.index.outline(path).definitions:
                function = self.code.definition(path, definition.qualname)
                if definition.kind != "function" or function is None or not self._mentions(path, function, name):
                    continue
                node = self.code.function(function)
                for table in nodes.walk(node) if node is not None else ():
                    if isinstance(table, ast.Dict):
                        yield from self._entries(path, function.qualname, table, name)

    def _mentions(self, path: str, function: Symbol, name: str) -> bool:
        lines = range(function.definition.line, function.definition.end + 1)
        return any(f'"{name}"' in self.index.line(path, number) for number in lines)

    def _entries(self, path: str, scope: str, table: ast.Dict, name: str) -> Iterator[tuple[str, int, str, str]]:
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == name:
                yield path, key.lineno, scope, ast.unparse(value)

    def _function(self, path: str, scope: str, value: str, depth: int = 0) -> Symbol | None:
        """The function behind a value: itself, or what a wrapper object was made from."""
        node = expression(value)
        name = dotted(node.func) if isinstance(node, ast.Call) else dotted(node) if node is not None else ""
        found = self.code.resolve(path, scope, name) if name and not isinstance(node, ast.Call) else None
        if found is not None and found.definition.kind == "function":
            return found
        if isinstance(node, ast.Call) and node.args and depth < 3:
            return self._function(path, scope, ast.unparse(node.args[0]), depth + 1)
        return self._variable(path, scope, name, depth) if depth < 3 else None

    def _variable(self, path: str, scope: str, name: str, depth: int) -> Symbol | None:
        """A module's variable that holds a wrapper object."""
        module, _, variable = name.rpartition(".")
        where = self.code.module_path(self.code.imported_from(path, scope, module), path) if module else path
        for assign in self.index.outline(where).assigns if where is not None else ():
            if assign.scope == "" and assign.target == variable and where is not None:
                return self._function(where, "", assign.value, depth + 1)
        return None

    def _operator(self, function: Symbol) -> tuple[str, int] | None:
        """The compiled operator that a function calls: its name and line."""
        for call in self.index.outline(function.path).calls:
            if call.scope == function.qualname and call.func.startswith(_NAMESPACE):
                return call.func, call.line
        return None


@dataclass(frozen=True, slots=True)
class Operator:
    """A call of something whose body is in no file of the engine. ``links``: the arguments that tie nodes to a tree."""

    name: str
    function: Symbol
    call: Evidence
    links: tuple[str, ...]


class Operators:
    """Finds operators that verify: those that are handed a tree's links and the target's choice, and those beside
    acceptance.
    """

    def __init__(self, callers: Callers) -> None:
        self.callers = callers
        self.code = callers.code
        self.index = callers.index

    def of_trees(self) -> Iterator[Operator]:
        """Operators that are handed the links between nodes together with what the target made of them."""
        return (operator for operator, verifies in self._linked(self.index.paths) if verifies)

    def of_links(self, paths: Iterable[str]) -> Iterator[Operator]:
        """Operators that are handed the links between nodes and nothing of the target: they build a tree."""
        return (operator for operator, verifies in self._linked(paths) if not verifies)

    def _linked(self, paths: Iterable[str]) -> Iterator[tuple[Operator, bool]]:
        """Operators that are handed links, and whether they are handed the target's choice or distribution, too."""
        for path in paths:
            if not self._names_links(path):
                continue
            for call in self.index.outline(path).calls:
                links = _links(call)
                function = self.code.definition(path, call.scope) if call.scope else None
                if len({word for _, word in links}) < 2 or function is None:
                    continue
                names = tuple(dict.fromkeys(name for name, _ in links))
                given = (*call.args, *(v for _, v in call.keywords))
                for called in self._called(path, call):
                    operator = Operator(called, function, self.index.evidence(path, call.line), names)
                    yield operator, any(self._of_target(function, text) for text in given)

    def _names_links(self, path: str) -> bool:
        data = self.index.read(path)
        return sum(word.encode() in data for word in LINKS) >= 2

    def _called(self, path: str, call: Call) -> list[str]:
        """The names of what a call may run that is defined in no file of the engine; a local name stands for what it
        was set to.
        """
        name = call.func.partition("[")[0]
        assigns = self.index.outline(path).assigns if name.isidentifier() else ()
        meant = [a.value for a in assigns if (a.target, a.scope) == (name, call.scope)]
        meant = [value for value in meant if value.replace(".", "").isidentifier()] or [name]
        outside = [value for value in meant if self._is_outside(path, call.scope, value)]
        return list(dict.fromkeys(call.name if value == name else value.rpartition(".")[2] for value in outside))

    def _is_outside(self, path: str, scope: str, name: str) -> bool:
        if name.startswith(_NAMESPACE) or "(" in name:
            return True
        if name.partition(".")[0] in ("self", "cls"):
            return False
        return self.code.resolve(path, scope, name) is None

    def _of_target(self, function: Symbol, text: str, depth: int = 0) -> bool:
        """A value is the target's choice or distribution, made here or by whoever calls this function."""
        name = text.partition(".")[0]
        if not name.isidentifier() or depth > _STEPS:
            return False
        for assign in self.index.outline(function.path).assigns:
            if assign.target == name and assign.scope == function.qualname and self._chooses(function, assign.value):
                return True
        if name not in function.definition.params:
            return False
        for site in self.callers.sites(function):
            above = self.callers.enclosing(site)
            given = (
                meet([p for p in function.definition.params if p not in ("self", "cls")], site.call)
                if site.call
                else {}
            )
            if above is not None and name in given and self._of_target(above, given[name], depth + 1):
                return True
        return False

    def _chooses(self, function: Symbol, value: str, depth: int = 0) -> bool:
        """An expression computes probabilities or a token from them, itself or in a function of the engine."""
        if _OF_TARGET.search(value):
            return True
        name, bracket, _ = value.partition("(")
        called = self.code.resolve(function.path, function.qualname, name) if bracket and depth < _DEEP else None
        if called is None or called.definition.kind != "function":
            return False
        calls = self.index.outline(called.path).calls
        return any(self._chooses(called, f"{c.func}(", depth + 1) for c in calls if c.scope == called.qualname)

    def beside(self, function: Symbol, accepts: Callable[[Symbol], bool]) -> Iterator[Operator]:
        """Operators in the branch that is taken instead of accepting code."""
        node = self.code.function(function)
        for branch in nodes.walk(node) if node is not None else ():
            if not isinstance(branch, ast.If) or not branch.orelse:
                continue
            for taken, other in ((branch.body, branch.orelse), (branch.orelse, branch.body)):
                if any(accepts(target) for target in self._targets(function, taken)):
                    yield from self._outside(function, other)

    def _targets(self, function: Symbol, block: list[ast.stmt]) -> Iterator[Symbol]:
        cls = self.callers.objects.class_of(function.path, function.qualname)
        for call in _calls(block):
            name = dotted(call.func.value if isinstance(call.func, ast.Subscript) else call.func)
            if name.startswith("self.") and cls is not None:
                found = self.code.method(cls, name[5:])
            else:
                found = self.code.resolve(function.path, function.qualname, name)
            if found is not None:
                yield found

    def _outside(self, function: Symbol, block: list[ast.stmt]) -> Iterator[Operator]:
        for call in _calls(block):
            name = dotted(call.func)
            module = self.code.imported_from(function.path, function.qualname, name)
            outside = name.startswith(_NAMESPACE) or (
                module and module.partition(".")[0] not in (*_LIBRARIES, self.code.package)
            )
            if outside and len(call.args) + len(call.keywords) >= _FEW:
                evidence = self.index.evidence(function.path, call.lineno)
                yield Operator(name.rpartition(".")[2], function, evidence, ())


def _calls(block: list[ast.stmt]) -> Iterator[ast.Call]:
    return (node for statement in block for node in nodes.walk(statement) if isinstance(node, ast.Call))


def _links(call: Call) -> list[tuple[str, str]]:
    """The arguments whose names, on either side, say that they link nodes; with the word that says so."""
    names = [(name, name) for name, _ in call.keywords]
    names += [(text, text.rpartition(".")[2]) for text in call.args if text.replace(".", "").isidentifier()]
    return [(shown, word) for shown, name in names for word in LINKS if word in name.lower()]

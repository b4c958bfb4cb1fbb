"""Where the links of a draft tree are computed, and whether a drafter gets there.

Two forms: a kernel that climbs the nodes that it links (an index is replaced, turn by turn, by what is loaded through
it), and a compiled operator that is handed links between nodes without the target's choice. A loop that also compares
two loaded values walks a tree that exists, or probes a table; it builds none.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator

from specaudit import nodes
from specaudit.classify.arguments import meet
from specaudit.classify.callers import Callers
from specaudit.classify.code import Code, Symbol, dotted, expression
from specaudit.classify.compiled import LINKS, Operators
from specaudit.classify.members import Members
from specaudit.index import Call
from specaudit.model import Evidence

# ``x = load(… x …)``: the first, cheap cut
_CHASE = re.compile(rb"^[ \t]+(\w+) = \w+\.load\((?:[^()]|\([^()]*\))*?\b\1\b", re.MULTILINE)
# two arguments of one call that say, in different words, that they link nodes: the same
_LINKED = re.compile(
    rf"({'|'.join(LINKS)})\w*\s*[,=)](?:[^()]|\([^()]*\)){{0,600}}?(?!\1)({'|'.join(LINKS)})\w*\s*[,=)]".encode()
)
_STATEMENT = re.compile(r"[\w.]+(?:\(\)\.\w+)?\($")
_DRAWN = re.compile(r"(?:rand|rand_like|uniform_|exponential_)\(")
_STEPS = 6
_WORDS = tuple(word.encode() for word in LINKS)
_MOST = 600  # functions looked through from one entry


class Building:
    """The tree builders of one engine, and the ways to them."""

    def __init__(self, code: Code, members: Members) -> None:
        self.code = code
        self.index = code.index
        self.members = members
        self.found: dict[tuple[str, str], Evidence] = {}
        for symbol, line in (*self._kernels(), *self._operators()):
            self.found.setdefault((symbol.path, symbol.qualname), self.index.evidence(symbol.path, line))

    # --- kernels

    def _kernels(self) -> Iterator[tuple[Symbol, int]]:
        for path in self.index.mentioning(b".jit"):
            if _CHASE.search(self.index.read(path)) is None:
                continue
            for definition in self.index.outline(path).definitions:
                if any(d.partition("(")[0].endswith("jit") for d in definition.decorators):
                    line = self._climbs(Symbol(path, definition))
                    if line:
                        yield Symbol(path, definition), line

    def _climbs(self, kernel: Symbol) -> int:
        """The line where an index is replaced by what is loaded through it, in a loop that compares nothing loaded."""
        node = self.code.function(kernel)
        loaded = {n for s in nodes.walk(node) for n in _loaded_names(s)} if node is not None else set()
        for loop in nodes.walk(node) if node is not None else ():
            if isinstance(loop, (ast.For, ast.While)) and not _compares(loop, loaded):
                for statement in nodes.walk(loop):
                    match statement:
                        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as value) if _is_load(value):
                            if name in _names(value.args[0]) and _carried(loop, name, statement):
                                return statement.lineno
        return 0

    # --- compiled operators

    def _operators(self) -> Iterator[tuple[Symbol, int]]:
        """Called for what they write: an operator whose result is used makes no links in place. One that is handed
        numbers drawn at random accepts along links that exist.
        """
        near = [path for path in self.index.paths if _links_near(self.index.read(path))]
        if not near:
            return
        callers = Callers(self.code)
        for operator in Operators(callers).of_links(near):
            function, line = operator.function, operator.call.line
            if not _STATEMENT.match(operator.call.text) or operator.name in dir(builtins):
                continue
            calls = (c for c in self.index.outline(function.path).calls if (c.line, c.name) == (line, operator.name))
            given = [text for c in calls for text in (*c.args, *(value for _, value in c.keywords))]
            if not any(self._drawn(callers, function, text) for text in given):
                yield function, line

    def _drawn(self, callers: Callers, function: Symbol, text: str, depth: int = 0) -> bool:
        """A value was drawn at random, here or by whoever calls this function."""
        for stored in self.index.outline(function.path).assigns:
            if stored.target == text and stored.scope == function.qualname and _DRAWN.search(stored.value):
                return True
        if text not in function.definition.params or depth > _STEPS:
            return False
        params = [p for p in function.definition.params if p not in ("self", "cls")]
        for site in callers.sites(function):
            above = callers.enclosing(site)
            value = meet(params, site.call).get(text) if site.call is not None else None
            if above is not None and value is not None and self._drawn(callers, above, value, depth + 1):
                return True
        return False

    # --- ways

    def reached(self, cls: Symbol, entry: str) -> tuple[Evidence, ...]:
        """The lines of the builders that an entry leads to, each with the call that leads to it; nothing when none."""
        method = self.code.method(cls, entry) if self.found else None
        if method is None:
            return ()
        lines: dict[Evidence, None] = {}
        todo: list[tuple[Symbol, Symbol | None]] = [(method, cls)]
        seen: set[tuple[Symbol, Symbol | None]] = set()
        while todo and len(seen) < _MOST:
            function, owner = todo.pop(0)
            if (function, owner) in seen:
                continue
            seen.add((function, owner))
            known = self.found.get((function.path, function.qualname))
            if known is not None:
                lines[known] = None
            for call, target, kept in self._calls(function, owner):
                if (target.path, target.qualname) in self.found:
                    lines.setdefault(self.index.evidence(function.path, call.line))
                todo.append((target, kept))
        return tuple(lines)

    def _calls(self, function: Symbol, cls: Symbol | None) -> Iterator[tuple[Call, Symbol, Symbol | None]]:
        """What a function calls, launches or hands on: the call, the function, and the class of the object."""
        inner = f"{function.qualname}."
        for call in self.index.outline(function.path).calls:
            if call.scope != function.qualname and not call.scope.startswith(inner):
                continue
            for text in (call.func.partition("[")[0], *(a for a in call.args if a.startswith("self."))):
                yield from ((call, *found) for found in self._meant(function, cls, text))

    def _meant(self, function: Symbol, cls: Symbol | None, text: str) -> Iterator[tuple[Symbol, Symbol | None]]:
        if text.startswith(("self.", "super().")):
            if cls is not None:
                yield from self._of_object(function, cls, text)
            return
        found = self.code.resolve(function.path, function.qualname, text) if text else None
        if found is not None and found.definition.kind == "function":
            owner = self.code.owner(found)
            yield found, owner if owner is not None and owner.definition.kind == "class" else None

    def _of_object(self, function: Symbol, cls: Symbol, text: str) -> Iterator[tuple[Symbol, Symbol | None]]:
        head, *rest = text.split(".")[:-1] if text.count(".") > 1 else [text.partition(".")[0]]
        name = text.rpartition(".")[2]
        if head == "super()" and not rest:
            after = self.code.owner(function)
            method = self.code.method(cls, name, after=after) if after is not None else None
        elif not rest:
            method = self.code.method(cls, name)
        else:
            kept = self._kept(cls, rest[0]) if len(rest) == 1 else None
            method, cls = (self.code.method(kept, name), kept) if kept is not None else (None, cls)
        if method is not None:
            yield method, cls

    def _kept(self, cls: Symbol, attr: str) -> Symbol | None:
        """The class of ``self.attr``, where it is made in the class, directly or behind a property."""
        node = expression(f"self.{attr}")
        behind = self.code.method(cls, attr)
        tree = self.code.function(behind) if behind is not None else None
        if tree is not None:
            returns = [n.value for n in nodes.walk(tree) if isinstance(n, ast.Return)]
            node = returns[0] if len(returns) == 1 else node
        return self.members.kept_class(node, cls) if node is not None else None


def _links_near(data: bytes) -> bool:
    return sum(word in data for word in _WORDS) > 1 and _LINKED.search(data) is not None


def _is_load(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and bool(node.args) and dotted(node.func).endswith(".load")


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in nodes.walk(node) if isinstance(n, ast.Name)}


def _carried(loop: ast.For | ast.While, name: str, chase: ast.stmt) -> bool:
    """The index comes from the turn before: nothing stores it in the loop but the chase itself."""
    stores = [n for n in nodes.walk(loop) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)]
    return all(store.lineno == chase.lineno for store in stores)


def _loaded_names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_load(value):
            yield name


def _compares(loop: ast.For | ast.While, loaded: set[str]) -> bool:
    """Two loaded values are compared with each other."""
    return any(
        isinstance(n, ast.Compare)
        and isinstance(n.ops[0], (ast.Eq, ast.NotEq))
        and bool(_names(n.left) & loaded)
        and bool(_names(n.comparators[0]) & loaded)
        for n in nodes.walk(loop)
    )

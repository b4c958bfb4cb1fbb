"""What can be seen a drafter do, and what a value is made of."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from specaudit import nodes
from specaudit.classify.code import Symbol, dotted
from specaudit.classify.conditions import Formula
from specaudit.classify.walking import Function, Walk

#: What a value is made of: ``given`` (handed in by the caller), ``picked`` (one token per position), ``several`` (more
#: than one candidate per position), ``ranked`` (chosen among candidates by their scores), ``kept`` and ``.name`` (state
#: of the object), ``made`` (computed otherwise). Of a run, ``pair``: its result is taken apart at once. Of a test: the
#: settings that it asks for.
Origin = frozenset[str]
NOTHING: Origin = frozenset()

#: ``run`` of the draft model, ``return`` of a value, step ``loop``, ``write`` into kept state, ``unpack`` of a run's
#: result; and what only a trace shows: ``enter`` (a call), ``def`` (what it enters), ``kernel`` (a launch), ``test``
#: (on a
#: setting), ``value`` (a step towards what is returned).
Kind = Literal["run", "return", "loop", "write", "unpack", "enter", "def", "kernel", "test", "value"]

#: Methods and functions that hand a tensor or a list on and keep its values.
KEEPING = frozenset({
    "append", "astype", "cat", "clone", "contiguous", "copy", "cpu", "cuda", "detach", "expand", "flatten", "int",
    "long", "narrow", "reshape", "squeeze", "stack", "to", "tolist", "transpose", "type_as", "unsqueeze", "view",
    "view_as",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """Something the entry does under ``when``.

    ``loop`` is the step loop around it; ``aside`` says that it stands in a branch off the main path (an early exit that
    only the running program decides).
    """

    kind: Kind
    when: Formula
    path: str
    line: int
    loop: tuple[str, int] | None = None
    origin: Origin = NOTHING
    aside: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """What one method does and returns."""

    events: tuple[Event, ...] = ()
    origin: Origin = NOTHING


@dataclass(slots=True)
class Frame:
    """One method of an object, being read: what its names hold, and what was seen.

    Attributes:
        names: what the value of a name is made of. modules: names of kept objects. bound: names of own methods.
        ran: names that hold the result of a run. towards: lines that lead to what is returned.
    """

    cls: Symbol
    method: Symbol
    walk: Walk
    depth: int
    loops: tuple[tuple[int, int], ...]
    towards: frozenset[int]
    names: dict[str, Origin]
    modules: set[str] = field(default_factory=set)
    bound: dict[str, list[Symbol]] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)
    returned: set[str] = field(default_factory=set)

    def event(self, kind: Kind, when: Formula, line: int, origin: Origin = NOTHING) -> Event:
        """An event of this method."""
        around = [first for first, last in self.loops if first < line <= last]
        loop = (self.method.path, around[0]) if around else None
        return Event(kind, when, self.method.path, line, loop, origin, self.walk.aside)

    def see(self, kind: Kind, when: Formula, line: int, origin: Origin = NOTHING) -> None:
        """Adds an event of this method."""
        self.events.append(self.event(kind, when, line, origin))


def step_loops(node: Function) -> Iterator[tuple[int, int]]:
    """First and last line of every loop over steps."""
    for inner in nodes.walk(node):
        if is_step_loop(inner):
            yield inner.lineno, inner.end_lineno or inner.lineno  # type: ignore[attr-defined]


def is_step_loop(node: ast.AST) -> bool:
    """``for … in range(…)`` or ``while``; a loop over things that exist already is none."""
    match node:
        case ast.While():
            return True
        case ast.For(iter=ast.Call(func=func)):
            return dotted(func) == "range"
    return False


def leading(node: Function) -> frozenset[int]:
    """Lines of the statements that the returned value comes from, followed through what keeps a value as it is."""
    stored: dict[str, list[tuple[int, ast.expr]]] = {}
    wanted: set[str] = set()
    for inner in nodes.walk(node):
        match inner:
            case ast.Assign(targets=targets, value=value):
                names = (n.id for t in targets for n in nodes.walk(t) if isinstance(n, ast.Name) and _is_stored(n))
                for name in names:
                    stored.setdefault(name, []).append((inner.lineno, value))
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value])):
                stored.setdefault(name, []).append((inner.lineno, value))
            case ast.Return(value=ast.expr() as value):
                wanted |= _kept_names(value)
    lines: set[int] = set()
    seen: set[str] = set()
    while wanted - seen:
        name = min(wanted - seen)
        seen.add(name)
        for line, value in stored.get(name, ()):
            lines.add(line)
            wanted |= _kept_names(value)
    return frozenset(lines)


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _kept_names(node: ast.expr) -> set[str]:
    """Names whose value reaches the result unchanged."""
    match node:
        case ast.Name(id=name):
            return {name}
        case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Starred(value=inner):
            return _kept_names(inner)
        case ast.ListComp(elt=inner):
            return _kept_names(inner)
        case ast.List(elts=elts) | ast.Tuple(elts=elts):
            return set().union(*(_kept_names(e) for e in elts))
        case ast.IfExp(body=body, orelse=orelse):
            return _kept_names(body) | _kept_names(orelse)
        case ast.Call(func=ast.Attribute(value=inner, attr=attr), args=args) if attr in KEEPING:
            return _kept_names(inner) | set().union(*(_kept_names(a) for a in args[:1]))
    return set()

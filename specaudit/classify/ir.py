"""The small tree of one function that the machine can run: statements, expressions, and questions about them.

Only what acceptance code uses is kept apart; every other expression is an :class:`Op` over its parts, so that data
still flows through it. :mod:`.reading` makes the tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

Scalar = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Const:
    """A literal."""

    value: Scalar


@dataclass(frozen=True, slots=True)
class Name:
    """A variable, parameter or global."""

    id: str


@dataclass(frozen=True, slots=True)
class Op:
    """An operator over its operands: ``+``, ``and``, ``not``, ``if`` (test, then, else), ``tuple``, ``[]`` (base,
    index …), …
    """

    op: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Compare:
    """One comparison of two operands; a chain becomes an ``and`` of these. ``line`` is the statement's line."""

    op: str
    left: Expr
    right: Expr
    line: int


@dataclass(frozen=True, slots=True)
class Call:
    """A call. ``func`` is the dotted name when it is one (``tl.load``); ``base`` is what a method is called on."""

    func: str
    base: Expr | None
    args: tuple[Expr, ...]
    keywords: tuple[tuple[str, Expr], ...]
    line: int

    def argument(self, position: int, name: str) -> Expr | None:
        """The argument at that position or with that keyword."""
        if position < len(self.args):
            return self.args[position]
        return next((value for key, value in self.keywords if key == name), None)


Expr = Const | Name | Op | Compare | Call


@dataclass(frozen=True, slots=True)
class Assign:
    """``target = value``; a tuple target has several names, an attribute or subscript target is written as an
    expression.
    """

    target: Expr
    value: Expr
    line: int


@dataclass(frozen=True, slots=True)
class If:
    """A branch."""

    test: Expr
    body: Block
    orelse: Block
    line: int


@dataclass(frozen=True, slots=True)
class Loop:
    """``for target in iterable`` (no ``test``) or ``while test`` (no ``target`` and no ``iterable``)."""

    target: Expr | None
    iterable: Expr | None
    test: Expr | None
    body: Block
    line: int


@dataclass(frozen=True, slots=True)
class Jump:
    """``break``, ``continue`` or ``return``."""

    kind: str
    value: Expr | None
    line: int


@dataclass(frozen=True, slots=True)
class Effect:
    """An expression evaluated for what it does: a store, a call."""

    value: Expr
    line: int


Stmt = Assign | If | Loop | Jump | Effect
Block = tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter; ``constexpr`` when its annotation says that it is known at compile time."""

    name: str
    constexpr: bool
    default: Expr | None


@dataclass(frozen=True, slots=True)
class Function:
    """One function; ``line`` is its ``def`` line in the file."""

    name: str
    params: tuple[Param, ...]
    body: Block
    line: int

    @property
    def flags(self) -> frozenset[str]:
        """Names of the parameters that are known at compile time."""
        return frozenset(p.name for p in self.params if p.constexpr)


def walk_expr(expr: Expr) -> Iterator[Expr]:
    """The expression and everything in it."""
    yield expr
    match expr:
        case Op(args=args):
            for arg in args:
                yield from walk_expr(arg)
        case Compare(left=left, right=right):
            yield from walk_expr(left)
            yield from walk_expr(right)
        case Call(base=base, args=args, keywords=keywords):
            if base is not None:
                yield from walk_expr(base)
            for arg in args:
                yield from walk_expr(arg)
            for _, value in keywords:
                yield from walk_expr(value)


def walk(block: Block) -> Iterator[Stmt]:
    """Every statement of a block, nested ones included, in source order."""
    for statement in block:
        yield statement
        match statement:
            case If(body=body, orelse=orelse):
                yield from walk(body)
                yield from walk(orelse)
            case Loop(body=body):
                yield from walk(body)


def expressions(statement: Stmt) -> tuple[Expr, ...]:
    """The expressions that a statement evaluates itself (not those of nested statements)."""
    match statement:
        case Assign(target=target, value=value):
            return (target, value)
        case If(test=test):
            return (test,)
        case Loop(target=target, iterable=iterable, test=test):
            return tuple(e for e in (target, iterable, test) if e is not None)
        case Jump(value=value):
            return (value,) if value is not None else ()
        case Effect(value=value):
            return (value,)


def assigned(block: Block) -> frozenset[str]:
    """Names that the block assigns, loop targets included."""
    names: set[str] = set()
    for statement in walk(block):
        if isinstance(statement, (Assign, Loop)) and statement.target is not None:
            names.update(e.id for e in _targets(statement.target))
    return frozenset(names)


def _targets(target: Expr) -> Iterator[Name]:
    match target:
        case Name():
            yield target
        case Op(op="tuple", args=args):
            for arg in args:
                yield from _targets(arg)


def written(function: Function) -> frozenset[str]:
    """Names that may hold a pointer to what the function stores into, through any number of ``base = pointer +
    offset``.
    """
    made_of: dict[str, set[str]] = {}
    todo: list[str] = []
    for statement in walk(function.body):
        if isinstance(statement, Assign) and isinstance(statement.target, Name):
            made_of.setdefault(statement.target.id, set()).update(names(statement.value))
        for expression in expressions(statement):
            for part in walk_expr(expression):
                if isinstance(part, Call) and part.args and _stores(part.func.rpartition(".")[2]):
                    todo.extend(names(part.args[0]))
    found: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo.extend(made_of.get(name, ()))
    return frozenset(found)


def _stores(name: str) -> bool:
    return name == "store" or name.startswith("atomic_")


def label_of(expr: Expr) -> str:
    """``self.x`` for an attribute of a name, ``""`` for what is neither name nor attribute."""
    if isinstance(expr, Name):
        return expr.id
    if isinstance(expr, Op) and expr.op.startswith("."):
        base = label_of(expr.args[0])
        return base + expr.op if base else ""
    return ""


def names(expr: Expr) -> frozenset[str]:
    """All names in an expression."""
    return frozenset(part.id for part in walk_expr(expr) if isinstance(part, Name))

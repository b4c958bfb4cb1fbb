"""One file -> what its functions accept, and how. Depends on the file's text alone, so it is cached under the blob's hash."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from specaudit.cache import recall
from specaudit.classify import ir, slices, vectorised, walks
from specaudit.classify.ir import Assign, Compare, Const, Function, If, Jump, Loop, Name, Op
from specaudit.classify.machine import Machine
from specaudit.classify.oracle import discover
from specaudit.classify.terms import Terms
from specaudit.index import Index
from specaudit.model import Walk

FACTS_VERSION = 1


@dataclass(frozen=True, slots=True)
class WalkFact:
    """One walk of a function: the line of its comparison, and the flag (a compile-time parameter) that turns it on.

    ``branch`` is the line of the test of that flag (0 without a flag); ``rewrites`` the parameter that a pre-pass overwrites;
    ``draws`` the functions of other files that must draw random numbers for this to hold; ``reads`` the parameters that the
    comparison rests on.
    """

    walk: Walk
    line: int
    flag: str = ""
    branch: int = 0
    rewrites: str = ""
    draws: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FunctionFacts:
    """What one function accepts: its walks without flags first, then those that a flag adds.

    ``form`` says what it was read as: a kernel (or a part of one), a loop over single tokens, or work on whole tensors.
    """

    qualname: str
    line: int
    form: slices.Form
    params: tuple[str, ...]
    walks: tuple[WalkFact, ...]

    @property
    def device(self) -> bool:
        """It is a kernel, or is called by one."""
        return self.form == "device"

    @property
    def reads(self) -> frozenset[str]:
        """The parameters that any of its comparisons rests on."""
        return frozenset(name for walk in self.walks for name in walk.reads)

    @property
    def draws(self) -> tuple[str, ...]:
        """The functions of other files on whose randomness a walk rests."""
        return tuple(dict.fromkeys(name for walk in self.walks for name in walk.draws))


def facts_of(index: Index) -> dict[str, tuple[FunctionFacts, ...]]:
    """What the functions of every file accept, by path; files in which nothing does are left out."""
    out: dict[str, tuple[FunctionFacts, ...]] = {}
    for path in index.paths:
        if slices.worth_reading(index.snapshot.read(path)):
            found = _cached(index, path)
            if found:
                out[path] = found
    return out


def _cached(index: Index, path: str) -> tuple[FunctionFacts, ...]:
    cache, key = index.snapshot.cache, index.snapshot.files[path].sha256
    stored = recall(cache, "walks", key, FACTS_VERSION, tuple[FunctionFacts, ...])
    if stored is not None:
        return stored
    found = analyse(index.source(path))
    cache.put("walks", key, FACTS_VERSION, msgspec.msgpack.encode(found))
    return found


def analyse(source: str) -> tuple[FunctionFacts, ...]:
    """The accepting functions of one file, in source order. A file that is no Python gives none (the index reports it)."""
    pieces = slices.functions(source)
    local = Locals(pieces)
    found: dict[str, FunctionFacts] = {}
    for parsed in slices.candidates(source, pieces):
        facts = _function(parsed, local)
        if facts is not None:
            found.setdefault(facts.qualname, facts)
    return tuple(found.values())


class Locals(Mapping[str, Function]):
    """The other functions of the file, turned into trees when they are asked for."""

    def __init__(self, pieces: tuple[slices.Slice, ...]) -> None:
        self._pieces = {piece.name: piece for piece in pieces if "." not in piece.qualname}
        self._made: dict[str, Function] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._pieces

    def __getitem__(self, name: str) -> Function:
        if name not in self._made:
            parsed = slices.parse(self._pieces[name])
            self._made[name] = tree(parsed) if parsed is not None else Function(name, (), (), self._pieces[name].first)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)


def tree(parsed: slices.Parsed) -> Function:
    """The small tree of one parsed slice, read by libcst."""
    import libcst

    node = libcst.parse_module(parsed.own).body[0]
    assert isinstance(node, libcst.FunctionDef)
    return ir.function(node, parsed.node, parsed.shift)


def _function(parsed: slices.Parsed, local: Mapping[str, Function]) -> FunctionFacts | None:
    function = tree(parsed)
    tensors = parsed.form == "tensor"
    flags = _flags(function)
    off = {flag: Const(0) for flag in flags}
    behind = {flag: _compared_behind(function, flag) for flag in flags}
    always = _compared(function.body) - frozenset(site for sites in behind.values() for site in sites)
    base = _walks(Machine(function, local, Terms(), off, tensors=tensors), always)
    found = [_fact(v, "", 0) for v in base]
    for flag, value in flags.items():
        machine = Machine(function, local, Terms(), {**off, flag: Const(value)}, tensors=tensors)
        for verdict in _walks(machine, behind[flag]):
            if all((verdict.walk, verdict.rewrites) != (known.walk, known.rewrites) for known in base):
                found.append(_fact(verdict, flag, _branch(function, flag, verdict.line)))
    if not found:
        return None
    params = tuple(p.name for p in function.params)
    ordered = tuple(sorted(set(found), key=lambda f: (f.flag, f.line, f.walk)))
    return FunctionFacts(parsed.slice.qualname, function.line, parsed.form, params, ordered)


def _walks(machine: Machine, sites: frozenset[int]) -> frozenset[walks.Verdict]:
    runs = discover(machine, sites)
    return walks.verdicts(machine, runs) or vectorised.verdicts(runs, machine.lines)


def _compared(block: ir.Block) -> frozenset[int]:
    """The comparisons in a block, by identity; those with a literal test no draft."""
    return frozenset(
        id(part)
        for statement in ir.walk(block)
        for expression in ir.expressions(statement)
        for part in ir.walk_expr(expression)
        if isinstance(part, Compare) and not isinstance(part.left, Const) and not isinstance(part.right, Const)
    )


def _compared_behind(function: Function, flag: str) -> frozenset[int]:
    """The comparisons in branches that test the flag."""
    branches = (s for s in ir.walk(function.body) if isinstance(s, If) and flag in ir.names(s.test))
    return frozenset(site for branch in branches for site in _compared((*branch.body, *branch.orelse)))


def _fact(verdict: walks.Verdict, flag: str, branch: int) -> WalkFact:
    return WalkFact(verdict.walk, verdict.line, flag, branch, verdict.rewrites, verdict.draws, verdict.reads)


def _flags(function: Function) -> dict[str, int]:
    """Compile-time parameters that a branch tests by themselves and that can change a walk, each with a value that is on.

    A branch can change a walk when it holds a comparison, a loop or a jump, or assigns something that a test depends on.
    """
    known = function.flags
    steering = _steering(function)
    out: dict[str, int] = {}
    for statement in ir.walk(function.body):
        if isinstance(statement, If) and _can_steer(statement, steering):
            _collect(statement.test, known, out)
        for expression in ir.expressions(statement):
            for part in ir.walk_expr(expression):
                if isinstance(part, Op) and part.op == "if" and isinstance(statement, Assign):
                    if ir.assigned((statement,)) & steering:
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
        if any(isinstance(part, Compare) for expression in ir.expressions(statement) for part in ir.walk_expr(expression)):
            return True
    return False


def _collect(test: ir.Expr, known: frozenset[str], out: dict[str, int]) -> None:
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


def _branch(function: Function, flag: str, line: int) -> int:
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

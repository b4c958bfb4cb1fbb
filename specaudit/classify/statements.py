"""The statements of a function -> closures that run them.

Loops run two turns: the first shows what the comparisons of a turn do to the carried names, the second whether the
loop goes on, that is, whether it compares again. Paths are never merged; the oracle decides every branch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from specaudit.classify import ir
from specaudit.classify.evaluator import Code, Evaluator, Step, Stop
from specaudit.classify.ir import Assign, Block, Call, Effect, Expr, Function, If, Jump, Loop, Stmt
from specaudit.classify.lowering import expression, target
from specaudit.classify.runs import UNKNOWN, Turns, Value

TURNS = 2


@dataclass(frozen=True, slots=True)
class Program:
    """A function that can be run: its body, and the default of each parameter by name."""

    function: Function
    body: Step
    params: tuple[tuple[str, Code | None], ...]


def program(function: Function) -> Program:
    """The closures of one function."""
    params = tuple((p.name, expression(p.default) if p.default is not None else None) for p in function.params)
    return Program(function, block(function.body), params)


def block(statements: Block) -> Step:
    """The closure of some statements. It gives what ends them early (``break``, ``continue``, ``return``) or
    nothing.
    """
    steps = [_statement(statement) for statement in statements]
    count = len(steps)

    def run(machine: Evaluator) -> str:
        machine.steps += count
        if machine.steps > machine.ends:
            raise Stop
        for step in steps:
            signal = step(machine)
            if signal:
                return signal
        return ""

    return run


def _statement(statement: Stmt) -> Step:
    match statement:
        case Assign(target=to, value=value, line=line):
            return _assign(target(to), expression(value), line)
        case If():
            return _if(statement)
        case Loop():
            return _loop(statement)
        case Effect(value=value):
            return _effect(expression(value))
        case Jump():
            return _jump(statement)


def _assign(to: Callable[[Evaluator, Value, int], None], code: Code, line: int) -> Step:
    def run(machine: Evaluator) -> str:
        to(machine, code(machine), line)
        return ""

    return run


def _effect(code: Code) -> Step:
    def run(machine: Evaluator) -> str:
        code(machine)
        return ""

    return run


def _if(statement: If) -> Step:
    test, body, orelse = expression(statement.test), block(statement.body), block(statement.orelse)
    last = statement.body[-1] if statement.body and not statement.orelse else None
    leaves = isinstance(last, Jump) and last.kind in ("return", "raise")

    def run(machine: Evaluator) -> str:
        if leaves and _leaves_early(machine):
            return ""
        return body(machine) if machine.truth(test(machine)) else orelse(machine)

    return run


def _leaves_early(machine: Evaluator) -> bool:
    """``if …: return`` before anything was compared: a row that is not ours. The run is about the rows that are."""
    return machine.depth == 0 and not machine.open and not any(seen.kind != "none" for seen in machine.run.seen)


def _jump(statement: Jump) -> Step:
    kind, line = statement.kind, statement.line
    code = expression(statement.value) if statement.value is not None else None

    def run(machine: Evaluator) -> str:
        if kind == "return" and machine.depth == 0:
            if code is not None:
                nowhere = machine.terms.const(None)
                machine.store("return", nowhere, code(machine), None, line)
            raise Stop
        if kind == "return":
            machine.env["return"] = machine.constant(None) if code is None else code(machine)
        if kind == "raise":
            raise Stop
        return kind

    return run


# --- loops ------------------------------------------------------------------------------------------------------------


def _loop(loop: Loop) -> Step:
    key, names, turn = id(loop), sorted(ir.assigned(loop.body)), _turns(loop)

    def run(machine: Evaluator) -> str:
        number = machine.numbers.setdefault(key, len(machine.numbers))
        head: dict[str, Value] = {}
        for name in names:
            before = machine.env.get(name)
            if before is not None:
                head[name] = Value(before.known, machine.terms.carried(name, number, before.term))
                machine.env[name] = head[name]
        turns = Turns(number, head)
        machine.run.loops.setdefault(number, turns)
        machine.open.append(turns)
        signal = turn(machine, turns)
        machine.open.pop()
        return signal

    return run


def _turns(loop: Loop) -> Callable[[Evaluator, Turns], str]:
    body = block(loop.body)
    test = expression(loop.test) if loop.test is not None else None
    to = target(loop.target) if loop.target is not None else None
    element = _element(loop.iterable) if loop.iterable is not None else None

    def run(machine: Evaluator, turns: Turns) -> str:
        for turn in range(TURNS):
            if to is not None and element is not None:
                # The next turn's index is another one, so that its comparisons are asked anew.
                index = Value(UNKNOWN, machine.terms.leaf("loop", f"{turns.loop}+{turn}"))
                to(machine, element(machine, index), loop.line)
            turns.compared.append([])
            turns.stores.append([])
            if test is not None and not _goes_on(machine, test):
                break
            signal = body(machine)
            turns.after.append({name: machine.env[name] for name in turns.head})
            if signal == "break":
                break
            if signal == "return":
                return signal
        return ""

    return run


def _goes_on(machine: Evaluator, test: Code) -> bool:
    """A ``while`` test: what only counts turns holds."""
    machine.testing = True
    truth = machine.truth(test(machine))
    machine.testing = False
    return truth


def _element(iterable: Expr) -> Callable[[Evaluator, Value], Value]:
    """What a ``for`` loop hands out: its index, or elements of what it goes through."""
    if isinstance(iterable, Call):
        name = iterable.func.rpartition(".")[2]
        if name in ("range", "static_range", "persistent_range"):
            return lambda machine, index: index
        if name == "zip":
            parts = [expression(arg) for arg in iterable.args]
            return lambda machine, index: machine.together([_at(machine, part(machine), index) for part in parts])
        if name == "enumerate" and iterable.args:
            inner = _element(iterable.args[0])
            return lambda machine, index: machine.together([index, inner(machine, index)])
    code = expression(iterable)
    return lambda machine, index: _at(machine, code(machine), index)


def _at(machine: Evaluator, value: Value, index: Value) -> Value:
    return Value(UNKNOWN, machine.terms.load(machine.terms.op("+", value.term, index.term)))

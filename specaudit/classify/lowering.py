"""The expressions of a function -> closures that evaluate them.

A function is run hundreds of times: what an expression does is decided once, here, and not again by each run. In which
order terms are made is part of what an expression does: the oracle tells them apart by it.
"""

from __future__ import annotations

from collections.abc import Callable

from specaudit.classify import calls
from specaudit.classify.arithmetic import BINARY
from specaudit.classify.evaluator import Code, Evaluator
from specaudit.classify.ir import Call, Compare, Const, Expr, Name, Op, label_of
from specaudit.classify.runs import UNKNOWN, Value
from specaudit.classify.terms import label

#: Gives a value to a target; the number is the line.
Target = Callable[[Evaluator, Value, int], None]


def expression(expr: Expr) -> Code:
    """The closure of one expression."""
    match expr:
        case Name(id=name):
            return _name(name)
        case Const():
            return _const(expr)
        case Op():
            return _op(expr)
        case Compare():
            return _compare(expr)
        case Call():
            return calls.call(expr, expression)


def _name(name: str) -> Code:
    def get(machine: Evaluator) -> Value:
        found = machine.env.get(name)
        return found if found is not None else Value(UNKNOWN, machine.terms.leaf("global", name))

    return get


def _const(expr: Const) -> Code:
    key = id(expr)

    def get(machine: Evaluator) -> Value:
        found = machine.constants.get(key)
        if found is None:
            found = machine.constants[key] = machine.constant(expr.value)
        return found

    return get


def _compare(expr: Compare) -> Code:
    op, line, site = expr.op, expr.line, id(expr)
    left, right = expression(expr.left), expression(expr.right)
    return lambda machine: machine.compare(op, left(machine), right(machine), site, line)


def _op(expr: Op) -> Code:
    op = expr.op
    if op in BINARY and len(expr.args) == 2:
        left, right = expression(expr.args[0]), expression(expr.args[1])
        return lambda machine: machine.binary(op, left(machine), right(machine))
    if op in ("and", "or"):
        return _logical(op, expression(expr.args[0]), expression(expr.args[1]))
    if op == "if":
        test, then, other = (expression(arg) for arg in expr.args)
        return lambda machine: machine.choose(test(machine), then, other)
    if op == "[]":
        return _subscript(expr)
    if op == ":=":
        return _walrus(target(expr.args[0]), expression(expr.args[1]))
    if op.startswith("."):
        return _attribute(expr)
    args = [expression(arg) for arg in expr.args]
    if op == "tuple":
        return lambda machine: machine.together([arg(machine) for arg in args])
    if len(args) == 1 and op in ("not", "~", "neg"):
        (only,) = args
        return lambda machine: machine.negated(op, only(machine))
    return lambda machine: Value(UNKNOWN, machine.terms.op(op, *[arg(machine).term for arg in args]))


def _logical(op: str, first: Code, second: Code) -> Code:
    decisive = op == "or"

    def get(machine: Evaluator) -> Value:
        left = first(machine)
        if left.known is UNKNOWN and left.term.vector:
            return Value(UNKNOWN, machine.terms.op(op, left.term, second(machine).term))
        truth = machine.truth(left)
        if truth is decisive:
            return left if left.known is not UNKNOWN else Value(truth, left.term)
        return second(machine)

    return get


def _walrus(to: Target, code: Code) -> Code:
    def get(machine: Evaluator) -> Value:
        value = code(machine)
        to(machine, value, 0)
        return value

    return get


def _attribute(expr: Op) -> Code:
    name, attr, base = label_of(expr), expr.op, expression(expr.args[0])

    def get(machine: Evaluator) -> Value:
        known = machine.env.get(name)
        if known is not None:
            return known
        value = base(machine)
        if value.known is UNKNOWN and value.term.kind in ("global", "param"):
            return Value(UNKNOWN, machine.terms.leaf(value.term.kind, value.term.name + attr))
        return Value(UNKNOWN, machine.terms.op(attr, value.term))

    return get


def _subscript(expr: Op) -> Code:
    base, *indices = (expression(arg) for arg in expr.args)
    keeps_lanes = all(_keeps_lanes(index) for index in expr.args[1:])
    shape = "[" + ",".join("None" if index == Const(None) else ":" for index in expr.args[1:]) + "]"

    def get(machine: Evaluator) -> Value:
        value = base(machine)
        index = [code(machine) for code in indices]
        if isinstance(value.known, tuple) and len(index) == 1:
            place = index[0].known
            if isinstance(place, int) and -len(value.known) <= place < len(value.known):
                return value.known[place]
            if value.known and place is UNKNOWN:
                return value.known[0]
        if value.term.vector or (keeps_lanes and not machine.tensors):
            return Value(UNKNOWN, machine.terms.op(shape, value.term))
        return Value(UNKNOWN, machine.terms.load(machine.terms.op("+", value.term, *[i.term for i in index])))

    return get


def _keeps_lanes(index: Expr) -> bool:
    """``None`` or a whole slice: another shape of the same lanes."""
    return index == Const(None) or (isinstance(index, Op) and index.op == "slice" and set(index.args) == {Const(None)})


# --- targets ----------------------------------------------------------------------------------------------------------


def target(expr: Expr) -> Target:
    """The closure of what stands left of an assignment."""
    match expr:
        case Name(id=name):
            return _set(name)
        case Op(op="tuple", args=args):
            return _unpack([target(arg) for arg in args])
        case Op(op="[]", args=args):
            return _place(expression(args[0]), [expression(arg) for arg in args[1:]])
        case Op(op=op) if op.startswith("."):
            return _set(label_of(expr))
    return lambda machine, value, line: None


def _set(name: str) -> Target:
    def put(machine: Evaluator, value: Value, line: int) -> None:
        machine.env[name] = value

    return put


def _unpack(parts: list[Target]) -> Target:
    def put(machine: Evaluator, value: Value, line: int) -> None:
        for position, part in enumerate(parts):
            part(machine, machine.item(value, position), line)

    return put


def _place(base: Code, indices: list[Code]) -> Target:
    def put(machine: Evaluator, value: Value, line: int) -> None:
        pointer = base(machine)
        address = machine.terms.op("+", pointer.term, *[index(machine).term for index in indices])
        machine.store(label(address), address, value, None, line)

    return put

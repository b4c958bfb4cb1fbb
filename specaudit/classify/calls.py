"""What calls mean to the machine: Triton's language, the tensor methods that acceptance code uses, local functions.

Everything else is an unknown function: its result is a term of its own, into which its arguments flow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specaudit.classify.ir import Call, Const, Function, label_of
from specaudit.classify.runs import UNKNOWN, Value
from specaudit.classify.terms import RESHAPED, label

if TYPE_CHECKING:
    from specaudit.classify.evaluator import Evaluator

_DEPTH = 5
_SCANS = frozenset({"cumsum", "cumprod", "cummax", "cummin", "associative_scan", "sort"})
_REDUCTIONS = _SCANS | {"max", "min", "sum", "argmax", "argmin", "any", "all", "xor_sum", "reduce", "prod"}
_KERNEL_DRAWS = frozenset({"rand", "randn", "randint", "rand4x", "randn4x", "randint4x", "philox", "philox_impl"})
_TENSOR_DRAWS = frozenset(
    {"rand_like", "randn_like", "randint_like", "uniform_", "exponential_", "bernoulli", "multinomial", "random_"}
)
_DRAWS = _KERNEL_DRAWS | _TENSOR_DRAWS
#: Calls after which a value is still the same value, in another type, shape or place.
_SAME = frozenset(
    (
        *("to", "cast", "to_tensor", "int", "float", "bool", "long", "int32", "int64", "item", "tolist", "numpy"),
        *("view", "reshape", "contiguous", "unsqueeze", "squeeze", "flatten", "clone", "detach", "cpu", "cuda"),
        *("expand", "expand_dims", "broadcast_to", "multiple_of", "max_contiguous", "max_constancy"),
    )
)
_QUIET = frozenset({"static_assert", "device_assert", "static_print", "device_print", "debug_barrier", "assume"})
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_APPENDS = frozenset({"append", "extend", "add", "appendleft"})
_PAIRS = frozenset({"maximum", "minimum", "max", "min"})
_PURE = _PAIRS | {"abs", "exp", "log", "exp2", "log2", "sqrt", "cdiv", "softmax", "len"}


def call(machine: Evaluator, expr: Call) -> Value:
    """The value of a call, after what it does (a store, the body of a local function)."""
    name = expr.func.rpartition(".")[2]
    if expr.func in machine.local and machine.depth < _DEPTH and expr.func not in machine.env:
        return _inline(machine, machine.local[expr.func], expr)
    if name == "load" and (expr.args or expr.base is not None):
        return _load(machine, expr)
    if name == "store" or name.startswith("atomic_"):
        return _write(machine, expr, name)
    if name in _QUIET:
        return machine.constant(None)
    if name == "where":
        return _where(machine, expr)
    args = [machine.evaluate(a) for a in expr.args]
    for _, keyword in expr.keywords:
        machine.evaluate(keyword)
    if _is_method(machine, expr):
        assert expr.base is not None
        args = [machine.evaluate(expr.base), *args]
    return _known_call(machine, expr, name, args)


def _is_method(machine: Evaluator, expr: Call) -> bool:
    """Called on a value, not on a module: ``x.to(…)``, not ``tl.max(…)``."""
    if expr.base is None:
        return False
    module = label_of(expr.base).partition(".")[0]
    return not module or module in machine.env


def _known_call(machine: Evaluator, expr: Call, name: str, args: list[Value]) -> Value:
    terms = tuple(a.term for a in args)
    if name in _DRAWS:
        return Value(UNKNOWN, machine.terms.random(terms))
    if name in ("program_id", "num_programs"):
        return Value(UNKNOWN, machine.terms.leaf("pid", name + str(args[0].known if args else "")))
    if name == "arange":
        return Value(UNKNOWN, machine.terms.leaf("arange", ",".join(str(t.id) for t in terms)))
    if name in ("zeros", "zeros_like", "full"):
        return args[1] if name == "full" and len(args) > 1 else machine.constant(0)
    if name in ("reshape", "view") and args and args[0].term.vector:
        return Value(UNKNOWN, machine.terms.op(RESHAPED, args[0].term))
    if name in _SAME and args:
        return args[0]
    if name in _PAIRS and len(terms) == 2 and not isinstance(args[1].known, int):
        return Value(UNKNOWN, machine.terms.op(name, *terms))
    if name in _COMPARISONS and len(args) == 2:
        return machine.compare(_COMPARISONS[name], args[0], args[1], id(expr), expr.line)
    if name == "logical_not" and args:
        return machine.negated("~", args[0])
    if name in _APPENDS and _is_method(machine, expr):
        machine.store(label(terms[0]), terms[0], args[-1], None, expr.line)
        return machine.constant(None)
    if name in _REDUCTIONS and args:
        return _reduce(machine, expr, name, args)
    if name in _PURE:
        return Value(UNKNOWN, machine.terms.op(name, *terms))
    return Value(UNKNOWN, machine.terms.call(expr.func or name, terms))


def _reduce(machine: Evaluator, expr: Call, name: str, args: list[Value]) -> Value:
    term = args[0].term
    for keyword, value in expr.keywords:
        if keyword == "return_indices" and value == Const(True):
            return machine.together([Value(UNKNOWN, machine.terms.reduced(n, term)) for n in (name, f"arg{name}")])
    if name in _SCANS:
        return Value(UNKNOWN, machine.terms.op(name, term))
    if not term.vector and args[0].known is not UNKNOWN:
        return args[0]
    along = any(keyword in ("axis", "dim") for keyword, _ in expr.keywords) or len(args) > 1
    return Value(UNKNOWN, machine.terms.reduced(name, term, along=along))


def _load(machine: Evaluator, expr: Call) -> Value:
    method = _is_method(machine, expr)
    positional = [machine.evaluate(a) for a in (*([expr.base] if method and expr.base is not None else []), *expr.args)]
    if not positional:
        return Value(UNKNOWN, machine.terms.call(expr.func, ()))
    pointer, *rest = positional
    keywords = {key: machine.evaluate(value) for key, value in expr.keywords}
    mask = keywords.get("mask", rest[0] if rest and not method else None)
    if mask is not None and mask.known is not UNKNOWN and not machine.truth(mask):
        other = keywords.get("other", rest[1] if len(rest) > 1 else None)
        if other is not None:
            return other
    address = machine.terms.op("+", pointer.term, *(r.term for r in rest)) if method and rest else pointer.term
    return Value(UNKNOWN, machine.terms.load(address))


def _write(machine: Evaluator, expr: Call, name: str) -> Value:
    method = _is_method(machine, expr)
    args = [machine.evaluate(a) for a in expr.args]
    if method and expr.base is not None:
        args = [machine.evaluate(expr.base), *args]
    keywords = {key: machine.evaluate(value) for key, value in expr.keywords}
    mask = keywords.get("mask", args[2] if len(args) > 2 and not method else None)
    value = keywords.get("value", args[1] if len(args) > 1 else machine.constant(None))
    if args and not (mask is not None and mask.known is not UNKNOWN and not machine.truth(mask)):
        machine.store(label(args[0].term), args[0].term, value, mask.term if mask else None, expr.line)
    return Value(UNKNOWN, machine.terms.load(args[0].term)) if name != "store" and args else machine.constant(None)


def _where(machine: Evaluator, expr: Call) -> Value:
    if len(expr.args) != 3:
        return Value(UNKNOWN, machine.terms.op("where", *(machine.evaluate(a).term for a in expr.args)))
    test = machine.evaluate(expr.args[0])
    if test.known is UNKNOWN and test.term.kind == "op" and not test.term.vector and test.term.loads:
        # A tensor of truth values (torch): no single one.
        yes, no = machine.evaluate(expr.args[1]), machine.evaluate(expr.args[2])
        return Value(UNKNOWN, machine.terms.op("where", test.term, yes.term, no.term))
    return machine.choose(test, expr.args[1], expr.args[2])


def _inline(machine: Evaluator, callee: Function, expr: Call) -> Value:
    values: dict[str, Value] = {}
    for param, arg in zip(callee.params, expr.args, strict=False):
        values[param.name] = machine.evaluate(arg)
    for key, arg in expr.keywords:
        values[key] = machine.evaluate(arg)
    for param in callee.params:
        if param.name not in values:
            values[param.name] = (
                machine.evaluate(param.default) if param.default is not None else machine.constant(None)
            )
    outer, machine.env = machine.env, values
    machine.depth += 1
    machine.block(callee.body)
    result = machine.env.get("return", machine.constant(None))
    machine.depth -= 1
    machine.env = outer
    return result

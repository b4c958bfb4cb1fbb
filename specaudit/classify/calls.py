"""What calls mean to the machine: Triton's language, the tensor methods that acceptance code uses, local functions.

Everything else is an unknown function: its result is a term of its own, into which its arguments flow.
"""

from __future__ import annotations

from collections.abc import Callable

from specaudit.classify.evaluator import Code, Evaluator
from specaudit.classify.ir import Call, Const, Expr, label_of
from specaudit.classify.runs import UNKNOWN, Value
from specaudit.classify.terms import RESHAPED, Term, label

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

#: Makes the closure of an expression.
Lower = Callable[[Expr], Code]
#: The value of a known call, from those of its arguments (what a method is called on is the first).
Known = Callable[[Evaluator, list[Value]], Value]


def call(expr: Call, lower: Lower) -> Code:
    """The closure of a call: its value, after what it does (a store, the body of a local function)."""
    plain = _plain(expr, lower)
    if not expr.func.isidentifier():
        return plain
    name, enter = expr.func, _inline(expr, lower)

    def get(machine: Evaluator) -> Value:
        if name in machine.local and machine.depth < _DEPTH and name not in machine.env:
            return enter(machine)
        return plain(machine)

    return get


def _plain(expr: Call, lower: Lower) -> Code:
    """The closure of a call of something that is no function of the same file."""
    name = expr.func.rpartition(".")[2]
    if name == "load" and (expr.args or expr.base is not None):
        return _load(expr, lower)
    if name == "store" or name.startswith("atomic_"):
        return _write(expr, name, lower)
    if name in _QUIET:
        return lambda machine: machine.constant(None)
    if name == "where":
        return _where(expr, lower)
    codes, keywords = [lower(a) for a in expr.args], [lower(value) for _, value in expr.keywords]
    is_method, base = _is_method(expr), lower(expr.base) if expr.base is not None else None
    finish = _known_call(expr, name, is_method)

    def get(machine: Evaluator) -> Value:
        args = [code(machine) for code in codes]
        for keyword in keywords:
            keyword(machine)
        if base is not None and is_method(machine):
            args.insert(0, base(machine))
        return finish(machine, args)

    return get


def _is_method(expr: Call) -> Callable[[Evaluator], bool]:
    """Called on a value, not on a module: ``x.to(…)``, not ``tl.max(…)``."""
    if expr.base is None:
        return lambda machine: False
    module = label_of(expr.base).partition(".")[0]
    return lambda machine: not module or module in machine.env


def _known_call(expr: Call, name: str, is_method: Callable[[Evaluator], bool]) -> Known:
    """What the call comes to, by its name."""
    if name in _DRAWS:
        return lambda machine, args: Value(UNKNOWN, machine.terms.random(_terms(args)))
    if name in ("program_id", "num_programs"):
        return lambda machine, args: Value(
            UNKNOWN, machine.terms.leaf("pid", name + str(args[0].known if args else ""))
        )
    if name == "arange":
        return lambda machine, args: Value(
            UNKNOWN, machine.terms.leaf("arange", ",".join([str(a.term.id) for a in args]))
        )
    if name in ("zeros", "zeros_like", "full"):
        return lambda machine, args: args[1] if name == "full" and len(args) > 1 else machine.constant(0)
    if name in _SAME:
        return _same(expr, name)
    if name in _COMPARISONS:
        return _comparison(expr, name)
    if name == "logical_not":
        other = _unknown(expr, name)
        return lambda machine, args: machine.negated("~", args[0]) if args else other(machine, args)
    if name in _APPENDS:
        return _append(expr, name, is_method)
    if name in _REDUCTIONS:
        return _reduction(expr, name)
    return _pure(name) if name in _PURE else _unknown(expr, name)


def _terms(args: list[Value]) -> tuple[Term, ...]:
    return tuple([a.term for a in args])


def _unknown(expr: Call, name: str) -> Known:
    func = expr.func or name
    return lambda machine, args: Value(UNKNOWN, machine.terms.call(func, _terms(args)))


def _pure(name: str) -> Known:
    return lambda machine, args: Value(UNKNOWN, machine.terms.op(name, *_terms(args)))


def _same(expr: Call, name: str) -> Known:
    other, shapes = _unknown(expr, name), name in ("reshape", "view")

    def finish(machine: Evaluator, args: list[Value]) -> Value:
        if not args:
            return other(machine, args)
        if shapes and args[0].term.vector:
            return Value(UNKNOWN, machine.terms.op(RESHAPED, args[0].term))
        return args[0]

    return finish


def _comparison(expr: Call, name: str) -> Known:
    other, op, site, line = _unknown(expr, name), _COMPARISONS[name], id(expr), expr.line
    return lambda machine, args: (
        machine.compare(op, args[0], args[1], site, line) if len(args) == 2 else other(machine, args)
    )


def _append(expr: Call, name: str, is_method: Callable[[Evaluator], bool]) -> Known:
    other, line = _unknown(expr, name), expr.line

    def finish(machine: Evaluator, args: list[Value]) -> Value:
        if not is_method(machine):
            return other(machine, args)
        machine.store(label(args[0].term), args[0].term, args[-1], None, line)
        return machine.constant(None)

    return finish


def _reduction(expr: Call, name: str) -> Known:
    other = _pure(name) if name in _PURE else _unknown(expr, name)
    pair, reduce = name in _PAIRS, _reduce(expr, name)

    def finish(machine: Evaluator, args: list[Value]) -> Value:
        if not args or (pair and len(args) == 2 and not isinstance(args[1].known, int)):
            return other(machine, args)
        return reduce(machine, args)

    return finish


def _reduce(expr: Call, name: str) -> Known:
    indices = any(keyword == "return_indices" and value == Const(True) for keyword, value in expr.keywords)
    axis, scans = any(keyword in ("axis", "dim") for keyword, _ in expr.keywords), name in _SCANS

    def finish(machine: Evaluator, args: list[Value]) -> Value:
        term = args[0].term
        if indices:
            return machine.together([Value(UNKNOWN, machine.terms.reduced(n, term)) for n in (name, f"arg{name}")])
        if scans:
            return Value(UNKNOWN, machine.terms.op(name, term))
        if not term.vector and args[0].known is not UNKNOWN:
            return args[0]
        return Value(UNKNOWN, machine.terms.reduced(name, term, along=axis or len(args) > 1))

    return finish


# --- memory -----------------------------------------------------------------------------------------------------------


def _load(expr: Call, lower: Lower) -> Code:
    codes, keywords = [lower(a) for a in expr.args], [(key, lower(value)) for key, value in expr.keywords]
    is_method, base = _is_method(expr), lower(expr.base) if expr.base is not None else None

    def get(machine: Evaluator) -> Value:
        method = base is not None and is_method(machine)
        args = [base(machine)] if method and base is not None else []
        args += [code(machine) for code in codes]
        if not args:
            return Value(UNKNOWN, machine.terms.call(expr.func, ()))
        pointer, *rest = args
        given = {key: code(machine) for key, code in keywords}
        mask = given.get("mask", rest[0] if rest and not method else None)
        if mask is not None and mask.known is not UNKNOWN and not machine.truth(mask):
            other = given.get("other", rest[1] if len(rest) > 1 else None)
            if other is not None:
                return other
        address = pointer.term
        if method and rest:
            address = machine.terms.op("+", address, *[r.term for r in rest])
        return Value(UNKNOWN, machine.terms.load(address))

    return get


def _write(expr: Call, name: str, lower: Lower) -> Code:
    codes, keywords = [lower(a) for a in expr.args], [(key, lower(value)) for key, value in expr.keywords]
    is_method, base, line = _is_method(expr), lower(expr.base) if expr.base is not None else None, expr.line

    def get(machine: Evaluator) -> Value:
        method = base is not None and is_method(machine)
        args = [code(machine) for code in codes]
        if method and base is not None:
            args.insert(0, base(machine))
        given = {key: code(machine) for key, code in keywords}
        mask = given.get("mask", args[2] if len(args) > 2 and not method else None)
        value = given.get("value", args[1] if len(args) > 1 else machine.constant(None))
        if args and not (mask is not None and mask.known is not UNKNOWN and not machine.truth(mask)):
            address = args[0].term
            machine.store(label(address), address, value, mask.term if mask else None, line)
        return Value(UNKNOWN, machine.terms.load(args[0].term)) if name != "store" and args else machine.constant(None)

    return get


# --- choices and local functions --------------------------------------------------------------------------------------


def _where(expr: Call, lower: Lower) -> Code:
    codes = [lower(a) for a in expr.args]
    if len(codes) != 3:
        return lambda machine: Value(UNKNOWN, machine.terms.op("where", *[code(machine).term for code in codes]))
    first, then, other = codes

    def get(machine: Evaluator) -> Value:
        test = first(machine)
        term = test.term
        if test.known is UNKNOWN and term.kind == "op" and not term.vector and term.loads:
            # A tensor of truth values (torch): no single one.
            yes, no = then(machine), other(machine)
            return Value(UNKNOWN, machine.terms.op("where", term, yes.term, no.term))
        return machine.choose(test, then, other)

    return get


def _inline(expr: Call, lower: Lower) -> Code:
    codes, keywords = [lower(a) for a in expr.args], [(key, lower(value)) for key, value in expr.keywords]

    def get(machine: Evaluator) -> Value:
        callee = machine.local[expr.func]
        values = {name: code(machine) for (name, _), code in zip(callee.params, codes, strict=False)}
        for key, code in keywords:
            values[key] = code(machine)
        for name, default in callee.params:
            if name not in values:
                values[name] = default(machine) if default is not None else machine.constant(None)
        outer, machine.env = machine.env, values
        machine.depth += 1
        callee.body(machine)
        result = machine.env.get("return", machine.constant(None))
        machine.depth -= 1
        machine.env = outer
        return result

    return get

"""Runs one function over symbolic values, with an oracle that gives every open comparison a truth value.

A value is what is known of it (``known``, a Python value or ``UNKNOWN``) and where it comes from (a term). Loops run two
turns: the first shows what the comparisons of a turn do to the carried names, the second whether the loop goes on, that
is, whether it compares again. Paths are never merged; the oracle decides every branch, and the same expression always
the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from specaudit.classify import ir
from specaudit.classify.ir import Assign, Block, Call, Compare, Const, Effect, Expr, Function, If, Jump, Loop, Name, Op
from specaudit.classify.terms import Kind, Term, Terms, kind, root, tensor_kind


class _Unknown:
    """Marks a value that is only known by its term."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()
Known = bool | int | float | str | None | tuple["Value", ...] | _Unknown

TURNS = 2
_DEPTH = 5
_REDUCTIONS = frozenset(
    "max min sum argmax argmin any all xor_sum reduce cumsum cumprod cummax cummin associative_scan sort prod".split()
)
_SCANS = frozenset(("cumsum", "cumprod", "cummax", "cummin", "associative_scan", "sort"))
_RANDOM = frozenset("rand randn randint rand4x randn4x randint4x philox philox_impl pair_uniform_to_normal".split())
_TORCH_RANDOM = frozenset("rand_like randn_like randint_like uniform_ exponential_ bernoulli multinomial random_".split())
_SAME = frozenset(
    "to cast int float bool long int32 int64 item view reshape contiguous unsqueeze squeeze flatten clone detach cpu cuda "
    "multiple_of max_contiguous max_constancy tolist numpy expand expand_dims broadcast_to make_tensor".split()
)
_QUIET = frozenset("static_assert device_assert static_print device_print debug_barrier assume".split())
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_APPEND = frozenset(("append", "extend", "add", "appendleft"))


@dataclass(frozen=True, slots=True)
class Value:
    """``known`` when the run has fixed it, and the term that says where it comes from."""

    known: Known
    term: Term

    @property
    def open(self) -> bool:
        """Only known by its term."""
        return self.known is UNKNOWN


def differs(one: Value, other: Value) -> bool:
    """The two runs hold something else here."""
    if one.open or other.open:
        return one.open is not other.open or one.term is not other.term
    return one.known != other.known


@dataclass(frozen=True, slots=True)
class Seen:
    """One evaluation of an open comparison: its key, what it tests, and where it stands.

    ``equal`` is the truth of ``==`` when it is one; ``ascending`` says that the key, when true, means ``left < right``
    (or ``left <= right``).
    """

    key: int
    kind: Kind
    equal: bool
    ascending: bool
    site: int
    line: int
    left: Term
    right: Term


@dataclass(slots=True)
class Turns:
    """One loop's first execution in a run: what each turn compared, and the carried names before and after."""

    loop: int
    head: dict[str, Value]
    compared: list[list[Seen]] = field(default_factory=list)
    after: list[dict[str, Value]] = field(default_factory=list)
    stores: list[list[Store]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Store:
    """Something written: where, which value (what is known of it, or its term), under which mask term."""

    root: str
    address: int
    value: Known | int
    term: Term
    mask: Term | None
    line: int


@dataclass(slots=True)
class Run:
    """All that one run of the function did."""

    seen: list[Seen] = field(default_factory=list)
    loops: dict[int, Turns] = field(default_factory=dict)
    stores: list[Store] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Asked:
    """One question to the oracle, whether every loop around it was in its first turn, and the answer."""

    key: int
    first: bool
    answer: bool


Oracle = Callable[[Term], bool]


class _Stop(Exception):
    """The function returned."""


@dataclass(slots=True)
class Machine:
    """Runs ``function``; ``local`` are the other functions of its file, which it may call; ``flags`` are fixed values.

    ``tensors``: it works on whole tensors (torch), so that no comparison of two of them is one truth value.
    """

    function: Function
    local: Mapping[str, Function]
    terms: Terms
    flags: Mapping[str, Const]
    tensors: bool = False
    kinds: dict[int, Kind] = field(default_factory=dict)
    compared: set[int] = field(default_factory=set)
    steps: int = 0
    run: Run = field(default_factory=Run)
    oracle: Oracle = lambda term: False
    _env: dict[str, Value] = field(default_factory=dict)
    _loops: dict[int, int] = field(default_factory=dict)
    _depth: int = 0
    _testing: bool = False
    _open: list[Turns] = field(default_factory=list)

    def execute(self, oracle: Oracle) -> Run:
        """One run from top to bottom."""
        self.run = Run()
        self.oracle = oracle
        self._depth = 0
        self._open = []
        self._env = {}
        for param in self.function.params:
            if param.name in self.flags:
                self._env[param.name] = self._const(self.flags[param.name].value)
            else:
                self._env[param.name] = Value(UNKNOWN, self.terms.leaf("param", param.name))
        try:
            self._block(self.function.body)
        except _Stop:
            pass
        return self.run

    # --- statements ---------------------------------------------------------------------------------------------

    def _block(self, block: Block) -> str:
        self.steps += len(block)
        for statement in block:
            signal = self._statement(statement)
            if signal:
                return signal
        return ""

    def _statement(self, statement: ir.Stmt) -> str:
        form = type(statement)
        if form is Assign:
            assert isinstance(statement, Assign)
            self._assign(statement.target, self._eval(statement.value), statement.line)
        elif form is If:
            assert isinstance(statement, If)
            if self._leaves_early(statement):
                return ""
            return self._block(statement.body if self._truth(self._eval(statement.test)) else statement.orelse)
        elif form is Loop:
            assert isinstance(statement, Loop)
            return self._loop(statement)
        elif form is Effect:
            assert isinstance(statement, Effect)
            self._eval(statement.value)
        else:
            assert isinstance(statement, Jump)
            return self._jump(statement)
        return ""

    def _jump(self, statement: Jump) -> str:
        if statement.kind == "return" and self._depth == 0:
            if statement.value is not None:
                self._store("return", self.terms.const(None), self._eval(statement.value), None, statement.line)
            raise _Stop
        if statement.kind == "return":
            self._env["return"] = self._const(None) if statement.value is None else self._eval(statement.value)
        if statement.kind == "raise":
            raise _Stop
        return statement.kind

    def _leaves_early(self, statement: If) -> bool:
        """``if …: return`` before anything was compared: a row that is not ours. The run is about the rows that are."""
        return (
            self._depth == 0
            and not self._open
            and not statement.orelse
            and bool(statement.body)
            and isinstance(statement.body[-1], Jump)
            and statement.body[-1].kind in ("return", "raise")
            and not any(seen.kind != "none" for seen in self.run.seen)
        )

    def _assign(self, target: Expr, value: Value, line: int) -> None:
        if isinstance(target, Name):
            self._env[target.id] = value
        elif isinstance(target, Op) and target.op == "tuple":
            for position, part in enumerate(target.args):
                self._assign(part, self._item(value, position), line)
        elif isinstance(target, Op) and target.op == "[]":
            base = self._eval(target.args[0])
            index = [self._eval(a).term for a in target.args[1:]]
            address = self.terms.op("+", base.term, *index)
            self._store(_label(address), address, value, None, line)
        elif isinstance(target, Op) and target.op.startswith("."):
            self._env[_path(target)] = value

    def _item(self, value: Value, position: int) -> Value:
        if isinstance(value.known, tuple):
            return value.known[position] if position < len(value.known) else Value(UNKNOWN, value.term)
        return Value(UNKNOWN, self.terms.op("item", value.term, self.terms.const(position)))

    def _store(self, name: str, address: Term, value: Value, mask: Term | None, line: int) -> None:
        known = value.term.id if value.known is UNKNOWN else value.known
        store = Store(name, address.id, known, value.term, mask, line)
        self.run.stores.append(store)
        for turns in self._open:
            turns.stores[-1].append(store)

    # --- loops --------------------------------------------------------------------------------------------------

    def _loop(self, loop: Loop) -> str:
        number = self._loops.setdefault(id(loop), len(self._loops))
        head: dict[str, Value] = {}
        for name in sorted(ir.assigned(loop.body)):
            before = self._env.get(name)
            if before is not None:
                head[name] = Value(before.known, self.terms.carried(name, number, before.term))
                self._env[name] = head[name]
        turns = Turns(number, head)
        first = number not in self.run.loops
        if first:
            self.run.loops[number] = turns
        self._open.append(turns)
        signal = self._turn(loop, number, turns)
        self._open.pop()
        return signal

    def _turn(self, loop: Loop, number: int, turns: Turns) -> str:
        for turn in range(TURNS):
            if loop.target is not None and loop.iterable is not None:
                # The next turn's index is another one, so that its comparisons are asked anew.
                index = Value(UNKNOWN, self.terms.leaf("loop", f"{number}+{turn}"))
                self._assign(loop.target, self._element(loop.iterable, index), loop.line)
            turns.compared.append([])
            turns.stores.append([])
            if loop.test is not None and not self._goes_on(loop.test):
                break
            signal = self._block(loop.body)
            turns.after.append({name: self._env[name] for name in turns.head})
            if signal == "break":
                break
            if signal == "return":
                return signal
        return ""

    def _goes_on(self, test: Expr) -> bool:
        """A ``while`` test: what only counts turns holds."""
        self._testing = True
        truth = self._truth(self._eval(test))
        self._testing = False
        return truth

    def _element(self, iterable: Expr, index: Value) -> Value:
        """What a ``for`` loop hands out: its index, or elements of what it goes through."""
        if not isinstance(iterable, Call):
            return self._at(self._eval(iterable), index)
        name = iterable.func.rpartition(".")[2]
        if name in ("range", "static_range", "persistent_range"):
            return index
        if name == "zip":
            return self._tuple([self._at(self._eval(a), index) for a in iterable.args])
        if name == "enumerate" and iterable.args:
            return self._tuple([index, self._element(iterable.args[0], index)])
        return self._at(self._eval(iterable), index)

    def _at(self, value: Value, index: Value) -> Value:
        return Value(UNKNOWN, self.terms.load(self.terms.op("+", value.term, index.term)))

    # --- expressions --------------------------------------------------------------------------------------------

    def _const(self, value: ir.Scalar) -> Value:
        return Value(value, self.terms.const(value))

    def _tuple(self, parts: list[Value]) -> Value:
        return Value(tuple(parts), self.terms.op("tuple", *(p.term for p in parts)))

    def _eval(self, expr: Expr) -> Value:
        form = type(expr)
        if form is Name:
            assert isinstance(expr, Name)
            found = self._env.get(expr.id)
            return found if found is not None else Value(UNKNOWN, self.terms.leaf("global", expr.id))
        if form is Const:
            assert isinstance(expr, Const)
            return self._const(expr.value)
        if form is Op:
            assert isinstance(expr, Op)
            return self._op(expr)
        if form is Compare:
            assert isinstance(expr, Compare)
            return self._compare(expr)
        assert isinstance(expr, Call)
        return self._call(expr)

    def _truth(self, value: Value) -> bool:
        known = value.known
        if known is UNKNOWN:
            return self._ask(value.term)
        return bool(known)

    def _ask(self, term: Term) -> bool:
        truth = self.oracle(term)
        first = all(len(turns.compared) == 1 for turns in self._open)
        self.run.asked.append(Asked(term.id, first, truth))
        return truth

    def _op(self, expr: Op) -> Value:
        op = expr.op
        if op == "and" or op == "or":
            left = self._eval(expr.args[0])
            if left.known is UNKNOWN and left.term.vector:
                return Value(UNKNOWN, self.terms.op(op, left.term, self._eval(expr.args[1]).term))
            truth = self._truth(left)
            if truth is (op == "or"):
                return left if left.known is not UNKNOWN else Value(truth, left.term)
            return self._eval(expr.args[1])
        if op == "if":
            return self._choose(self._eval(expr.args[0]), expr.args[1], expr.args[2])
        if op == "tuple":
            return self._tuple([self._eval(a) for a in expr.args])
        if op == "[]":
            return self._subscript(expr)
        if op == ":=":
            value = self._eval(expr.args[1])
            self._assign(expr.args[0], value, 0)
            return value
        if op.startswith("."):
            return self._attribute(expr)
        args = [self._eval(a) for a in expr.args]
        if len(args) == 2:
            return self._binary(op, args[0], args[1])
        if len(args) == 1 and op in ("not", "~", "neg"):
            return self._unary(op, args[0])
        return Value(UNKNOWN, self.terms.op(op, *(a.term for a in args)))

    def _choose(self, test: Value, then: Expr, other: Expr) -> Value:
        if test.known is UNKNOWN and test.term.vector:
            yes, no = self._eval(then), self._eval(other)
            return Value(UNKNOWN, self.terms.op("where", test.term, yes.term, no.term))
        return self._eval(then if self._truth(test) else other)

    def _attribute(self, expr: Op) -> Value:
        known = self._env.get(_path(expr))
        if known is not None:
            return known
        base = self._eval(expr.args[0])
        if base.term.kind in ("global", "param") and base.known is UNKNOWN:
            return Value(UNKNOWN, self.terms.leaf(base.term.kind, base.term.name + expr.op))
        return Value(UNKNOWN, self.terms.op(expr.op, base.term))

    def _subscript(self, expr: Op) -> Value:
        base = self._eval(expr.args[0])
        index = [self._eval(a) for a in expr.args[1:]]
        if isinstance(base.known, tuple) and len(index) == 1:
            if isinstance(index[0].known, int) and -len(base.known) <= index[0].known < len(base.known):
                return base.known[index[0].known]
            if base.known and index[0].known is UNKNOWN:
                return base.known[0]
        if base.term.vector:
            shape = ",".join("None" if i == Const(None) else ":" for i in expr.args[1:])
            return Value(UNKNOWN, self.terms.op(f"[{shape}]", base.term))
        return Value(UNKNOWN, self.terms.load(self.terms.op("+", base.term, *(i.term for i in index))))

    def _unary(self, op: str, arg: Value) -> Value:
        known = arg.known
        term = self.terms.op(op, arg.term)
        if isinstance(known, bool):
            return Value(-known if op == "neg" else not known, term)
        if isinstance(known, (int, float)):
            return Value(not known if op == "not" else (-known if op == "neg" else ~int(known)), term)
        if op == "not" and not arg.term.vector:
            return Value(not self._truth(arg), term)
        return Value(UNKNOWN, term)

    def _binary(self, op: str, left: Value, right: Value) -> Value:
        a, b = left.known, right.known
        if isinstance(a, tuple) and isinstance(b, tuple) and op == "+":
            return self._tuple([*a, *b])
        if isinstance(a, (bool, int, float)) and isinstance(b, (bool, int, float)):
            return Value(_arithmetic(op, a, b), self.terms.op(op, left.term, right.term))
        for one, other in ((left, right), (right, left)):
            simple = self._simplify(op, one, other)
            if simple is not None:
                return simple
        return Value(UNKNOWN, self.terms.op(op, left.term, right.term))

    def _simplify(self, op: str, one: Value, other: Value) -> Value | None:
        """A truth value beside something open: ``match * index``, ``valid & found``, ``0 + x``."""
        known = one.known
        if op == "*" and isinstance(known, bool):
            return other if known else self._const(0)
        if op == "&" and isinstance(known, bool):
            return other if known else one
        if op == "|" and isinstance(known, bool):
            return one if known else other
        if op == "+" and known == 0 and known is not False and one.term.kind == "const":
            return other
        return None

    def _compare(self, expr: Compare) -> Value:
        return self._open_compare(expr.op, self._eval(expr.left), self._eval(expr.right), id(expr), expr.line)

    def _open_compare(self, op: str, left: Value, right: Value, site: int, line: int) -> Value:
        self.compared.add(site)
        term = self.terms.op(op, left.term, right.term)
        a, b = left.known, right.known
        if a is not UNKNOWN and b is not UNKNOWN and not isinstance(a, tuple) and not isinstance(b, tuple):
            return Value(_decide(op, a, b), term)
        if op in ("is", "is not") and (isinstance(a, (int, float, tuple)) or isinstance(b, (int, float, tuple))):
            return Value(op == "is not", term)
        if term.vector or self.tensors or op in ("in", "not in"):
            return self._lanes(op, left.term, right.term, term)
        key, flipped = self._key(op, left.term, right.term)
        tested = self._kind(op, left.term, right.term, term)
        if self._testing and tested == "none" and not (left.term.loads or right.term.loads):
            return Value(True, term)
        truth = self._ask(key) is not flipped
        ascending = (op in ("<", "<=")) is not flipped
        seen = Seen(key.id, tested, truth is (op == "=="), ascending, site, line, left.term, right.term)
        self.run.seen.append(seen)
        for turns in self._open:
            turns.compared[-1].append(seen)
        return Value(truth, term)

    def _lanes(self, op: str, left: Term, right: Term, term: Term) -> Value:
        """A comparison in every lane (or of whole tensors): remembered where it tests drafts."""
        tested = tensor_kind(op, left, right) if self.tensors else self._kind(op, left, right, term)
        if tested != "none":
            term.matches = frozenset((term,))
        return Value(UNKNOWN, term)

    def _kind(self, op: str, left: Term, right: Term, term: Term) -> Kind:
        found = self.kinds.get(term.id)
        if found is None:
            found = self.kinds[term.id] = kind(op, left, right)
        return found

    def _key(self, op: str, left: Term, right: Term) -> tuple[Term, bool]:
        """One key for ``a == b``, ``b == a`` and ``a != b``; for ``a < b``, ``b > a`` and ``a >= b``; and whether it flips."""
        if op in ("==", "!=", "is", "is not"):
            first, second = (left, right) if left.id <= right.id else (right, left)
            return self.terms.op("==", first, second), op in ("!=", "is not")
        if op in ("<", ">="):
            return self.terms.op("<", left, right), op == ">="
        return self.terms.op("<", right, left), op == "<="

    # --- calls --------------------------------------------------------------------------------------------------

    def _call(self, expr: Call) -> Value:
        name = expr.func.rpartition(".")[2]
        if expr.func in self.local and self._depth < _DEPTH and expr.func not in self._env:
            return self._inline(self.local[expr.func], expr)
        if name == "load":
            return self._load(expr)
        if name == "store" or name.startswith("atomic_"):
            return self._write(expr, name)
        if name in _QUIET:
            return self._const(None)
        if name == "where":
            return self._where(expr)
        args = [self._eval(a) for a in expr.args]
        for _, keyword in expr.keywords:
            self._eval(keyword)
        if self._is_method(expr):
            assert expr.base is not None
            args = [self._eval(expr.base), *args]
        return self._known_call(expr, name, args)

    def _is_method(self, expr: Call) -> bool:
        """Called on a value, not on a module: ``x.to(…)``, not ``tl.max(…)``."""
        if expr.base is None:
            return False
        module = _path(expr.base).partition(".")[0]
        return not module or module in self._env

    def _known_call(self, expr: Call, name: str, args: list[Value]) -> Value:
        terms = tuple(a.term for a in args)
        if name in _RANDOM or (name in _TORCH_RANDOM):
            return Value(UNKNOWN, self.terms.random(terms))
        if name in ("program_id", "num_programs"):
            return Value(UNKNOWN, self.terms.leaf("pid", name + str(args[0].known if args else "")))
        if name == "arange":
            return Value(UNKNOWN, self.terms.leaf("arange", ",".join(str(t.id) for t in terms)))
        if name in ("zeros", "zeros_like"):
            return self._const(0)
        if name == "full":
            return args[1] if len(args) > 1 else self._const(0)
        if name in ("cast", "to_tensor") or (name in _SAME and args):
            return args[0]
        if name in ("maximum", "minimum", "max", "min") and len(terms) == 2 and not isinstance(args[1].known, int):
            return Value(UNKNOWN, self.terms.op(name, *terms))
        if name in _COMPARISONS and len(args) == 2:
            return self._open_compare(_COMPARISONS[name], args[0], args[1], id(expr), expr.line)
        if name == "logical_not" and args:
            return self._unary("~", args[0])
        if name in _APPEND and self._is_method(expr):
            self._store(_label(terms[0]), terms[0], args[-1], None, expr.line)
            return self._const(None)
        if name in _REDUCTIONS and args:
            return self._reduce(expr, name, args)
        if name in ("maximum", "minimum", "max", "min", "abs", "exp", "log", "exp2", "log2", "sqrt", "cdiv", "softmax", "len"):
            return Value(UNKNOWN, self.terms.op(name, *terms))
        return Value(UNKNOWN, self.terms.call(expr.func or name, terms))

    def _reduce(self, expr: Call, name: str, args: list[Value]) -> Value:
        term = args[0].term
        for keyword, value in expr.keywords:
            if keyword == "return_indices" and value == Const(True):
                return self._tuple([Value(UNKNOWN, self.terms.reduced(n, term)) for n in (name, "arg" + name)])
        if name in _SCANS:
            return Value(UNKNOWN, self.terms.op(name, term))
        if not term.vector and args[0].known is not UNKNOWN:
            return args[0]
        return Value(UNKNOWN, self.terms.reduced(name, term))

    def _load(self, expr: Call) -> Value:
        method = self._is_method(expr)
        assert expr.base is not None or expr.args
        pointer = self._eval(expr.base) if method and expr.base is not None else self._eval(expr.args[0])
        rest = [self._eval(a) for a in (expr.args if method else expr.args[1:])]
        keywords = {key: self._eval(value) for key, value in expr.keywords}
        mask = keywords.get("mask", rest[0] if rest and not method else None)
        if mask is not None and mask.known is not UNKNOWN and not self._truth(mask):
            other = keywords.get("other", rest[1] if len(rest) > 1 else None)
            if other is not None:
                return other
        address = self.terms.op("+", pointer.term, *(r.term for r in rest)) if method and rest else pointer.term
        return Value(UNKNOWN, self.terms.load(address))

    def _write(self, expr: Call, name: str) -> Value:
        method = self._is_method(expr)
        args = [self._eval(a) for a in expr.args]
        if method and expr.base is not None:
            args = [self._eval(expr.base), *args]
        keywords = {key: self._eval(value) for key, value in expr.keywords}
        mask = keywords.get("mask", args[2] if len(args) > 2 and not method else None)
        value = keywords.get("value", args[1] if len(args) > 1 else self._const(None))
        if args and not (mask is not None and mask.known is not UNKNOWN and not self._truth(mask)):
            self._store(_label(args[0].term), args[0].term, value, mask.term if mask else None, expr.line)
        return Value(UNKNOWN, self.terms.load(args[0].term)) if name != "store" and args else self._const(None)

    def _where(self, expr: Call) -> Value:
        if len(expr.args) != 3:
            return Value(UNKNOWN, self.terms.op("where", *(self._eval(a).term for a in expr.args)))
        test = self._eval(expr.args[0])
        if test.known is UNKNOWN and test.term.kind == "op" and not test.term.vector and test.term.loads:
            # A tensor of truth values (torch): no single one.
            yes, no = self._eval(expr.args[1]), self._eval(expr.args[2])
            return Value(UNKNOWN, self.terms.op("where", test.term, yes.term, no.term))
        return self._choose(test, expr.args[1], expr.args[2])

    def _inline(self, callee: Function, expr: Call) -> Value:
        values: dict[str, Value] = {}
        for param, arg in zip(callee.params, expr.args, strict=False):
            values[param.name] = self._eval(arg)
        for key, arg in expr.keywords:
            values[key] = self._eval(arg)
        for param in callee.params:
            if param.name not in values:
                values[param.name] = self._eval(param.default) if param.default is not None else self._const(None)
        outer, self._env = self._env, values
        self._depth += 1
        self._block(callee.body)
        result = self._env.get("return", self._const(None))
        self._depth -= 1
        self._env = outer
        return result


def _label(address: Term) -> str:
    found = root(address)
    return found.name if found is not None else ""


def _path(expr: Expr) -> str:
    """``self.x`` for an attribute of a name, ``""`` otherwise."""
    if isinstance(expr, Name):
        return expr.id
    if isinstance(expr, Op) and expr.op.startswith("."):
        base = _path(expr.args[0])
        return base + expr.op if base else ""
    return ""


def _arithmetic(op: str, a: bool | int | float, b: bool | int | float) -> Known:
    try:
        return _ARITHMETIC[op](a, b) if op in _ARITHMETIC else UNKNOWN
    except (ZeroDivisionError, TypeError, ValueError, OverflowError):
        return UNKNOWN


_ARITHMETIC: dict[str, Callable[[bool | int | float, bool | int | float], Known]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "&": lambda a, b: bool(a and b) if isinstance(a, bool) or isinstance(b, bool) else int(a) & int(b),
    "|": lambda a, b: bool(a or b) if isinstance(a, bool) or isinstance(b, bool) else int(a) | int(b),
    "^": lambda a, b: int(a) ^ int(b),
    "<<": lambda a, b: int(a) << min(int(b), 64),
    ">>": lambda a, b: int(a) >> int(b),
}


def _decide(op: str, a: object, b: object) -> bool | _Unknown:
    try:
        return _DECIDE[op](a, b)
    except (TypeError, KeyError):
        return UNKNOWN


_DECIDE: dict[str, Callable[..., bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "is": lambda a, b: a is b,
    "is not": lambda a, b: a is not b,
}

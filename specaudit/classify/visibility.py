"""What decides, for each pair of a query and a key, whether or how much the key counts: data, or positions alone?

An attention kernel fills scores by a dot product and turns them into weights by an exponential. A *pairing* is a kernel
parameter through which data is loaded that differs by query *and* key, and that is added to the scores or selects among
them: a bias or a mask with one element per pair, or packed bits of a query of which the key picks one. Lengths, windows
and causal order are compared with positions, differ by one of the two only, and are none.

Kernels are evaluated over what their values depend on, helper functions included; nothing is judged by its name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from specaudit.classify.code import Code, Symbol, dotted
from specaudit.classify.walking import Function

_QUERY, _KEY, _FLAT = "query", "key", "flat"
_BOTH = frozenset((_QUERY, _KEY))
_REDUCING = frozenset({"max", "sum", "min", "argmax", "argmin", "reduce", "xor_sum"})
_EXPONENTIALS = frozenset({"exp", "exp2", "expf", "fast_exp"})
_DEPTH = 5
_SPREAD = {"[:, None]": _QUERY, "[None, :]": _KEY}


@dataclass(frozen=True, slots=True)
class Pairing:
    """A kernel parameter whose data pairs queries with keys; ``path`` and ``line`` are where it meets the scores."""

    kernel: Symbol
    param: str
    path: str
    line: int


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a value depends on.

    Attributes:
        axes: the axes of a tile that it differs along.
        root: the parameter that a pointer starts from.
        loaded: parameters that it was loaded through, and the axis that the loaded data differs along.
        pair: those whose data differs by query and key.
        score: a product of queries and keys.
        weight: it went through an exponential.
        met: pairings that were applied to it.
        bit: a single bit, moved to the place that an axis says.
    """

    axes: frozenset[str] = frozenset()
    root: str = ""
    loaded: frozenset[tuple[str, str]] = frozenset()
    pair: frozenset[str] = frozenset()
    score: bool = False
    weight: bool = False
    met: frozenset[tuple[str, str, int]] = frozenset()
    bit: bool = False

    def __or__(self, other: _Seen) -> _Seen:
        if other is _NOTHING or other is self:
            return self
        if self is _NOTHING:
            return other
        return _Seen(
            self.axes | other.axes,
            self.root or other.root,
            self.loaded | other.loaded,
            self.pair | other.pair,
            self.score or other.score,
            self.weight or other.weight,
            self.met | other.met,
            self.bit or other.bit,
        )


_NOTHING = _Seen()
_Value = _Seen | tuple["_Value", ...]
_Names = dict[str, _Value]


class Visibility:
    """Evaluates the kernels of one engine."""

    def __init__(self, code: Code) -> None:
        self.code = code
        self._returned: dict[tuple[str, str, tuple[_Value, ...]], _Value] = {}
        self._found: dict[Pairing, None] = {}

    def pairings(self, kernel: Symbol) -> tuple[Pairing, ...]:
        """The pairings of one kernel, by where they meet the scores."""
        self._found = {}
        self._returned = {}  # pairings are recorded while a helper is evaluated, so nothing is kept between kernels
        self._run(kernel, tuple(_Seen(root=name) for name in kernel.definition.params), kernel, 0)
        return tuple(self._found)

    def _run(self, function: Symbol, given: tuple[_Value, ...], kernel: Symbol, depth: int) -> _Value:
        """What a function returns for those arguments."""
        key = function.path, function.qualname, given
        if key not in self._returned:
            self._returned[key] = _NOTHING
            node = self.code.function(function)
            if node is not None and depth <= _DEPTH:
                body = _Body(self, function, kernel, depth, dict(zip(function.definition.params, given, strict=False)))
                self._returned[key] = body.run(node)
        return self._returned[key]

    def weighted(self, kernel: Symbol, scores: _Seen) -> None:
        """Records what was applied to scores that become weights."""
        for param, path, line in sorted(scores.met):
            self._found.setdefault(Pairing(kernel, param, path, line))


class _Body:
    """One function under evaluation."""

    def __init__(self, all_: Visibility, function: Symbol, kernel: Symbol, depth: int, names: _Names) -> None:
        self.all = all_
        self.function = function
        self.kernel = kernel
        self.depth = depth
        self.names = names
        self.result: _Value = _NOTHING

    def run(self, node: Function) -> _Value:
        """What the function returns."""
        self._block(node.body)
        return self.result

    # --- statements

    def _block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign(targets=targets, value=value):
                found = self._value(value)
                for target in targets:
                    self._store(target, found)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._store(target, self._value(value))
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                left = _one(self.names.get(name, _NOTHING))
                self.names[name] = self._operation(left, op, _one(self._value(value)), statement.lineno)
            case ast.If(body=body, orelse=orelse):
                before = dict(self.names)
                self._block(body)
                taken, self.names = self.names, dict(before)
                self._block(orelse)
                self._join(taken)
            case ast.For(body=body) | ast.While(body=body):
                for _ in range(2):  # what a turn leaves behind is seen by the next
                    before = dict(self.names)
                    self._block(body)
                    self._join(before)
            case ast.Return(value=ast.expr() as value):
                self.result = _both(self.result, self._value(value))
            case ast.Expr(value=value):
                self._value(value)

    def _store(self, target: ast.expr, value: _Value) -> None:
        match target:
            case ast.Name(id=name):
                self.names[name] = value
            case ast.Tuple(elts=elts):
                for i, element in enumerate(elts):
                    part = value[i] if isinstance(value, tuple) and i < len(value) else value
                    self._store(element, part)

    def _join(self, other: _Names) -> None:
        for name, value in other.items():
            self.names[name] = _both(self.names[name], value) if name in self.names else value

    # --- values

    def _value(self, node: ast.expr) -> _Value:
        match node:
            case ast.Name(id=name):
                return self.names.get(name, _NOTHING)
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                return tuple(self._value(e) for e in elts)
            case ast.BinOp(left=left, op=op, right=right):
                shifted = _one(self._operation(_one(self._value(left)), op, _one(self._value(right)), node.lineno))
                return replace(shifted, bit=True) if isinstance(op, ast.LShift) else shifted
            case ast.Compare(left=left, comparators=comparators):
                found = _one(self._value(left))
                for other in comparators:
                    found |= _one(self._value(other))
                return _Seen(found.axes, pair=found.pair)
            case ast.BoolOp(values=values):
                return _union(self._value(v) for v in values)
            case ast.UnaryOp(operand=operand):
                return self._value(operand)
            case ast.IfExp(body=body, orelse=orelse):
                return _both(self._value(body), self._value(orelse))
            case ast.Subscript(value=inner, slice=index):
                return self._spread(_one(self._value(inner)), index)
            case ast.Call():
                return self._call(node)
        return _NOTHING

    def _spread(self, value: _Seen, index: ast.expr) -> _Seen:
        axis = _SPREAD.get(f"[{ast.unparse(index).strip('()')}]")
        if axis is None or _FLAT not in value.axes:
            return value
        loaded = frozenset((param, axis if along == _FLAT else along) for param, along in value.loaded)
        return replace(value, axes=(value.axes - {_FLAT}) | {axis}, loaded=loaded)

    def _operation(self, left: _Seen, op: ast.operator, right: _Seen, line: int) -> _Seen:
        both = left | right
        match op:
            case ast.Add():
                for scores, other in ((left, right), (right, left)):
                    if scores.score and other.pair and not other.score:
                        return self._applied(both, other.pair, line)
            case ast.RShift():
                return replace(both, root="", pair=both.pair | _across(left, right))
            case ast.BitAnd():
                for word, mask in ((left, right), (right, left)):
                    if mask.bit and _across(word, mask):
                        return replace(both, root="", pair=both.pair | _across(word, mask), bit=False)
            case ast.Sub():
                pass
            case _:
                return replace(both, root="")
        return both

    # --- calls

    def _call(self, node: ast.Call) -> _Value:
        func = node.func
        name = func.attr if isinstance(func, ast.Attribute) else dotted(func)
        given = [self._value(a) for a in node.args]
        given_by_name = {k.arg: self._value(k.value) for k in node.keywords if k.arg is not None}
        match name:
            case "load" if given:
                return _loaded(_one(given[0]))
            case "arange":
                return _Seen(frozenset((_FLAT,)))
            case "dot" if len(given) > 1:
                weighted = any(_one(g).weight for g in given)
                return _Seen(_BOTH, score=not weighted, weight=weighted)
            case "where" if len(given) > 2:
                return self._where(_one(given[0]), _one(given[1]), _one(given[2]), node.lineno)
        if name in _EXPONENTIALS:
            found = _union(given)
            self.all.weighted(self.kernel, found)
            return replace(found, weight=found.score)
        if name in _REDUCING and given:
            return _Seen(frozenset((_FLAT,)), loaded=_one(given[0]).loaded)
        function = self.all.code.resolve(self.function.path, self.function.qualname, dotted(func))
        if function is not None and function.definition.kind == "function":
            return self.all._run(function, _arranged(function, given, given_by_name), self.kernel, self.depth + 1)
        if isinstance(func, ast.Attribute):
            given.append(self._value(func.value))
        return replace(_union(given), root="") if name != "to" else _union(given)

    def _where(self, chosen: _Seen, one: _Seen, other: _Seen, line: int) -> _Seen:
        both = one | other
        if both.score:
            return self._applied(both, chosen.pair, line)
        return replace(both, axes=both.axes | chosen.axes, pair=both.pair | chosen.pair)

    def _applied(self, scores: _Seen, params: frozenset[str], line: int) -> _Seen:
        met = frozenset((param, self.function.path, line) for param in params)
        return replace(scores, met=scores.met | met, pair=frozenset())


def _loaded(address: _Seen) -> _Seen:
    if not address.root:
        return _Seen(address.axes)
    if address.axes >= _BOTH:
        return _Seen(address.axes, pair=frozenset((address.root,)))
    return _Seen(address.axes, loaded=frozenset((address.root, axis) for axis in address.axes))


def _across(word: _Seen, place: _Seen) -> frozenset[str]:
    """The parameters of words that were loaded along one axis, of which the other axis picks a bit."""
    return frozenset(p for p, along in word.loaded if along != _FLAT and (_BOTH - {along}) <= place.axes)


def _arranged(function: Symbol, given: list[_Value], by_name: Mapping[str, _Value]) -> tuple[_Value, ...]:
    params = function.definition.params
    return tuple(given[i] if i < len(given) else by_name.get(name, _NOTHING) for i, name in enumerate(params))


def _one(value: _Value) -> _Seen:
    return value if isinstance(value, _Seen) else _union(value)


def _union(values: Iterator[_Value] | list[_Value] | tuple[_Value, ...]) -> _Seen:
    found = _NOTHING
    for value in values:
        found |= _one(value)
    return found


def _both(one: _Value, other: _Value) -> _Value:
    """Either of two values, part by part where both are tuples."""
    if one is other or other is _NOTHING:
        return one
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return tuple(_both(a, b) for a, b in zip(one, other, strict=True))
    if one == _NOTHING:
        return other
    return _one(one) | _one(other)

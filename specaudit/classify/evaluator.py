"""Expressions over symbolic values: an evaluator, and what it knows.

A value is what is known of it and where it comes from. Every open comparison gets its truth value from an oracle, and
the same expression always the same one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specaudit.classify import calls, ir
from specaudit.classify.arithmetic import BINARY, compute, decide
from specaudit.classify.ir import Block, Call, Compare, Const, Expr, Function, Name, Op
from specaudit.classify.runs import UNKNOWN, Asked, Oracle, Run, Seen, Store, Turns, Value
from specaudit.classify.terms import Kind, Term, Terms, kind, label, tensor_kind


@dataclass(slots=True)
class Evaluator:
    """Evaluates the expressions of ``function``; ``local`` are the other functions of its file, which it may call;
    ``flags`` are fixed values.

    ``tensors``: it works on whole tensors (torch), so that no comparison of two of them is one truth value.
    ``compared`` collects the comparisons that any run made, ``lines`` where those of lanes or tensors stand, by the
    id of their term. ``depth`` counts the functions entered, ``open`` are the loops around what is evaluated, and
    ``testing`` is on while the test of one is.
    """

    function: Function
    local: Mapping[str, Function]
    terms: Terms
    flags: Mapping[str, Const]
    tensors: bool = False
    kinds: dict[int, Kind] = field(default_factory=dict)
    compared: set[int] = field(default_factory=set)
    lines: dict[int, int] = field(default_factory=dict)
    run: Run = field(default_factory=Run)
    oracle: Oracle = lambda term: False
    env: dict[str, Value] = field(default_factory=dict)
    depth: int = 0
    testing: bool = False
    open: list[Turns] = field(default_factory=list)
    _constants: dict[int, Value] = field(default_factory=dict)

    def block(self, block: Block) -> str:
        """Runs statements; what ends them early (``break``, ``continue``, ``return``) or nothing."""
        raise NotImplementedError

    def assign(self, target: Expr, value: Value, line: int) -> None:
        if isinstance(target, Name):
            self.env[target.id] = value
        elif isinstance(target, Op) and target.op == "tuple":
            for position, part in enumerate(target.args):
                self.assign(part, self._item(value, position), line)
        elif isinstance(target, Op) and target.op == "[]":
            base = self.evaluate(target.args[0])
            index = [self.evaluate(a).term for a in target.args[1:]]
            address = self.terms.op("+", base.term, *index)
            self.store(label(address), address, value, None, line)
        elif isinstance(target, Op) and target.op.startswith("."):
            self.env[ir.label_of(target)] = value

    def _item(self, value: Value, position: int) -> Value:
        if isinstance(value.known, tuple):
            return value.known[position] if position < len(value.known) else Value(UNKNOWN, value.term)
        return Value(UNKNOWN, self.terms.op("item", value.term, self.terms.const(position)))

    def store(self, name: str, address: Term, value: Value, mask: Term | None, line: int) -> None:
        known = value.term.id if value.known is UNKNOWN else value.known
        store = Store(name, address.id, known, value.term, mask, line)
        self.run.stores.append(store)
        for turns in self.open:
            turns.stores[-1].append(store)

    def constant(self, value: ir.Scalar) -> Value:
        return Value(value, self.terms.const(value))

    def together(self, parts: list[Value]) -> Value:
        return Value(tuple(parts), self.terms.op("tuple", *(p.term for p in parts)))

    def evaluate(self, expr: Expr) -> Value:
        form = type(expr)
        if form is Name:
            assert isinstance(expr, Name)
            found = self.env.get(expr.id)
            return found if found is not None else Value(UNKNOWN, self.terms.leaf("global", expr.id))
        if form is Const:
            assert isinstance(expr, Const)
            found = self._constants.get(id(expr))
            if found is None:
                found = self._constants[id(expr)] = self.constant(expr.value)
            return found
        if form is Op:
            assert isinstance(expr, Op)
            return self._op(expr)
        if form is Compare:
            assert isinstance(expr, Compare)
            return self._compare(expr)
        assert isinstance(expr, Call)
        return calls.call(self, expr)

    def truth(self, value: Value) -> bool:
        known = value.known
        if known is UNKNOWN:
            return self._ask(value.term)
        return bool(known)

    def _ask(self, term: Term) -> bool:
        truth = self.oracle(term)
        first = all(len(turns.compared) == 1 for turns in self.open)
        self.run.asked.append(Asked(term.id, first, truth))
        return truth

    def _op(self, expr: Op) -> Value:
        op = expr.op
        if op in BINARY and len(expr.args) == 2:
            return self._binary(op, self.evaluate(expr.args[0]), self.evaluate(expr.args[1]))
        if op == "and" or op == "or":
            left = self.evaluate(expr.args[0])
            if left.known is UNKNOWN and left.term.vector:
                return Value(UNKNOWN, self.terms.op(op, left.term, self.evaluate(expr.args[1]).term))
            truth = self.truth(left)
            if truth is (op == "or"):
                return left if left.known is not UNKNOWN else Value(truth, left.term)
            return self.evaluate(expr.args[1])
        if op == "if":
            return self.choose(self.evaluate(expr.args[0]), expr.args[1], expr.args[2])
        if op == "tuple":
            return self.together([self.evaluate(a) for a in expr.args])
        if op == "[]":
            return self._subscript(expr)
        if op == ":=":
            value = self.evaluate(expr.args[1])
            self.assign(expr.args[0], value, 0)
            return value
        if op.startswith("."):
            return self._attribute(expr)
        args = [self.evaluate(a) for a in expr.args]
        if len(args) == 1 and op in ("not", "~", "neg"):
            return self.negated(op, args[0])
        return Value(UNKNOWN, self.terms.op(op, *(a.term for a in args)))

    def choose(self, test: Value, then: Expr, other: Expr) -> Value:
        if test.known is UNKNOWN and test.term.vector:
            yes, no = self.evaluate(then), self.evaluate(other)
            return Value(UNKNOWN, self.terms.op("where", test.term, yes.term, no.term))
        return self.evaluate(then if self.truth(test) else other)

    def _attribute(self, expr: Op) -> Value:
        known = self.env.get(ir.label_of(expr))
        if known is not None:
            return known
        base = self.evaluate(expr.args[0])
        if base.term.kind in ("global", "param") and base.known is UNKNOWN:
            return Value(UNKNOWN, self.terms.leaf(base.term.kind, base.term.name + expr.op))
        return Value(UNKNOWN, self.terms.op(expr.op, base.term))

    def _subscript(self, expr: Op) -> Value:
        base = self.evaluate(expr.args[0])
        index = [self.evaluate(a) for a in expr.args[1:]]
        if isinstance(base.known, tuple) and len(index) == 1:
            if isinstance(index[0].known, int) and -len(base.known) <= index[0].known < len(base.known):
                return base.known[index[0].known]
            if base.known and index[0].known is UNKNOWN:
                return base.known[0]
        if base.term.vector or (not self.tensors and all(_keeps_lanes(i) for i in expr.args[1:])):
            shape = ",".join("None" if index == Const(None) else ":" for index in expr.args[1:])
            return Value(UNKNOWN, self.terms.op(f"[{shape}]", base.term))
        return Value(UNKNOWN, self.terms.load(self.terms.op("+", base.term, *(i.term for i in index))))

    def negated(self, op: str, arg: Value) -> Value:
        known = arg.known
        term = self.terms.op(op, arg.term)
        if isinstance(known, bool):
            return Value(-known if op == "neg" else not known, term)
        if isinstance(known, (int, float)):
            return Value(not known if op == "not" else (-known if op == "neg" else ~int(known)), term)
        if op == "not" and not arg.term.vector:
            return Value(not self.truth(arg), term)
        return Value(UNKNOWN, term)

    def _binary(self, op: str, left: Value, right: Value) -> Value:
        a, b = left.known, right.known
        if a is UNKNOWN and b is UNKNOWN:
            return Value(UNKNOWN, self.terms.op(op, left.term, right.term))
        if isinstance(a, tuple) and isinstance(b, tuple) and op == "+":
            return self.together([*a, *b])
        if isinstance(a, (bool, int, float)) and isinstance(b, (bool, int, float)):
            return Value(compute(op, a, b), self.terms.op(op, left.term, right.term))
        for one, other in ((left, right), (right, left)):
            simple = self._simplify(op, one, other)
            if simple is not None:
                return simple
        return Value(UNKNOWN, self.terms.op(op, left.term, right.term))

    def _simplify(self, op: str, one: Value, other: Value) -> Value | None:
        """A truth value beside something open: ``match * index``, ``valid & found``, ``0 + x``."""
        known = one.known
        if op == "*" and isinstance(known, bool):
            return other if known else self.constant(0)
        if op == "&" and isinstance(known, bool):
            return other if known else one
        if op == "|" and isinstance(known, bool):
            return one if known else other
        if op == "+" and known == 0 and known is not False and one.term.kind == "const":
            return other
        return None

    def _compare(self, expr: Compare) -> Value:
        return self.compare(expr.op, self.evaluate(expr.left), self.evaluate(expr.right), id(expr), expr.line)

    def compare(self, op: str, left: Value, right: Value, site: int, line: int) -> Value:
        self.compared.add(site)
        term = self.terms.op(op, left.term, right.term)
        a, b = left.known, right.known
        if a is not UNKNOWN and b is not UNKNOWN and not isinstance(a, tuple) and not isinstance(b, tuple):
            return Value(decide(op, a, b), term)
        if op in ("is", "is not") and (isinstance(a, (int, float, tuple)) or isinstance(b, (int, float, tuple))):
            return Value(op == "is not", term)
        if term.vector or self.tensors or op in ("in", "not in"):
            self.lines.setdefault(term.id, line)
            return self._lanes(op, left.term, right.term, term)
        key, flipped = self._key(op, left.term, right.term)
        tested = self._kind(op, left.term, right.term, term)
        if self.testing and tested == "none" and not (left.term.loads or right.term.loads):
            return Value(True, term)
        truth = self._ask(key) is not flipped
        ascending = (op in ("<", "<=")) is not flipped
        seen = Seen(key.id, tested, truth is (op == "=="), ascending, site, line, left.term, right.term)
        self.run.seen.append(seen)
        for turns in self.open:
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
        """One key for ``a == b``, ``b == a`` and ``a != b``; for ``a < b``, ``b > a`` and ``a >= b``; and whether it
        flips.
        """
        if op in ("==", "!=", "is", "is not"):
            first, second = (left, right) if left.id <= right.id else (right, left)
            return self.terms.op("==", first, second), op in ("!=", "is not")
        if op in ("<", ">="):
            return self.terms.op("<", left, right), op == ">="
        return self.terms.op("<", right, left), op == "<="


def _keeps_lanes(index: Expr) -> bool:
    """``None`` or a whole slice: another shape of the same lanes."""
    return index == Const(None) or (isinstance(index, Op) and index.op == "slice" and set(index.args) == {Const(None)})

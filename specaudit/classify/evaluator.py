"""What is known while expressions are evaluated over symbolic values.

A value is what is known of it and where it comes from. Every open comparison gets its truth value from an oracle, and
the same expression always the same one. What each expression does is made once, by :mod:`.lowering`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specaudit.classify import ir
from specaudit.classify.arithmetic import compute, decide
from specaudit.classify.ir import Const
from specaudit.classify.runs import UNKNOWN, Asked, Oracle, Run, Seen, Store, Turns, Value
from specaudit.classify.terms import Kind, Term, Terms, kind, tensor_kind

if TYPE_CHECKING:
    from specaudit.classify.statements import Program


class Stop(Exception):
    """The function returned, or ran for too long."""


@dataclass(slots=True)
class Evaluator:
    """Evaluates the expressions of ``program``; ``local`` are the other functions of its file, which it may call;
    ``flags`` are fixed values.

    ``tensors``: it works on whole tensors (torch), so that no comparison of two of them is one truth value.
    ``compared`` collects the comparisons that any run made, ``lines`` where those of lanes or tensors stand, by the
    id of their term. ``depth`` counts the functions entered, ``open`` are the loops around what is evaluated, and
    ``testing`` is on while the test of one is. ``steps`` counts statements over all runs, ``ends`` is where this run
    has to.
    """

    program: Program
    local: Mapping[str, Program]
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
    constants: dict[int, Value] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    steps: int = 0
    ends: int = 0

    # --- making values

    def constant(self, value: ir.Scalar) -> Value:
        return Value(value, self.terms.const(value))

    def together(self, parts: Sequence[Value]) -> Value:
        return Value(tuple(parts), self.terms.op("tuple", *[p.term for p in parts]))

    def item(self, value: Value, position: int) -> Value:
        if isinstance(value.known, tuple):
            return value.known[position] if position < len(value.known) else Value(UNKNOWN, value.term)
        return Value(UNKNOWN, self.terms.op("item", value.term, self.terms.const(position)))

    def store(self, name: str, address: Term, value: Value, mask: Term | None, line: int) -> None:
        known = value.term.id if value.known is UNKNOWN else value.known
        store = Store(name, address.id, known, value.term, mask, line)
        self.run.stores.append(store)
        for turns in self.open:
            turns.stores[-1].append(store)

    # --- truth

    def truth(self, value: Value) -> bool:
        known = value.known
        if known is UNKNOWN:
            return self._ask(value.term)
        return bool(known)

    def _ask(self, term: Term) -> bool:
        truth = self.oracle(term)
        first = True
        for turns in self.open:
            if len(turns.compared) != 1:
                first = False
                break
        self.run.asked.append(Asked(term.id, first, truth))
        return truth

    def choose(self, test: Value, then: Code, other: Code) -> Value:
        if test.known is UNKNOWN and test.term.vector:
            yes, no = then(self), other(self)
            return Value(UNKNOWN, self.terms.op("where", test.term, yes.term, no.term))
        return then(self) if self.truth(test) else other(self)

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

    # --- two operands

    def binary(self, op: str, left: Value, right: Value) -> Value:
        a, b = left.known, right.known
        if a is UNKNOWN and b is UNKNOWN:
            return Value(UNKNOWN, self.terms.op(op, left.term, right.term))
        if isinstance(a, tuple) and isinstance(b, tuple) and op == "+":
            return self.together([*a, *b])
        if isinstance(a, (bool, int, float)) and isinstance(b, (bool, int, float)):
            return Value(compute(op, a, b), self.terms.op(op, left.term, right.term))
        simple = self._simplify(op, left, right) or self._simplify(op, right, left)
        return simple if simple is not None else Value(UNKNOWN, self.terms.op(op, left.term, right.term))

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

    def compare(self, op: str, left: Value, right: Value, site: int, line: int) -> Value:
        self.compared.add(site)
        ours, theirs = left.term, right.term
        term = self.terms.op(op, ours, theirs)
        a, b = left.known, right.known
        if a is not UNKNOWN and b is not UNKNOWN and not isinstance(a, tuple) and not isinstance(b, tuple):
            return Value(decide(op, a, b), term)
        if op in ("is", "is not") and (isinstance(a, (int, float, tuple)) or isinstance(b, (int, float, tuple))):
            return Value(op == "is not", term)
        if term.vector or self.tensors or op in ("in", "not in"):
            self.lines.setdefault(term.id, line)
            return self._lanes(op, ours, theirs, term)
        key, flipped = self._key(op, ours, theirs)
        tested = self._kind(op, ours, theirs, term)
        if self.testing and tested == "none" and not (ours.loads or theirs.loads):
            return Value(True, term)
        truth = self._ask(key) is not flipped
        ascending = (op in ("<", "<=")) is not flipped
        seen = Seen(key.id, tested, truth is (op == "=="), ascending, site, line, ours, theirs)
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


#: Evaluates one expression.
Code = Callable[[Evaluator], Value]
#: Runs one statement, or some; what ends them early, or nothing.
Step = Callable[[Evaluator], str]

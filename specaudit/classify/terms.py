"""Symbolic values with their provenance, and from it the kind of a comparison.

Terms are hash-consed: the same expression is the same object, so that an oracle can give it one value. What a term says
about where it comes from is computed once, when it is made:

- ``loads``: the loads that flow into it *by value* (through arithmetic, casts, ``where``), not through an address;
- ``atoms``: every atom in it, addresses included;
- ``vector``: it holds one element per lane (a range is in it), so that it is no single truth value;
- ``matches``: the lane-wise comparisons of tokens that flow into it by value;
- ``axes``: the ways in which lanes were spread over axes (``x[:, None]``); two of them make a table of lanes;
- ``twin``: the id of the same expression one turn earlier (its own in a first turn).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from specaudit.classify.ir import Scalar

Kind = Literal["exact", "ratio", "rate", "none"]


RESHAPED = "[reshaped]"


@dataclass(slots=True, eq=False)
class Term:
    """One symbolic value, never changed once :class:`Terms` has made it.

    ``kind`` is const, param, global, loop, carried, load, random, call, arange, or op.
    """

    id: int
    kind: str
    name: str
    args: tuple[Term, ...]
    value: Scalar = None
    loads: frozenset[Term] = frozenset()
    atoms: frozenset[Term] = frozenset()
    vector: bool = False
    random: bool = False
    matches: frozenset[Term] = frozenset()
    axes: frozenset[str] = frozenset()
    twin: int = 0

    @property
    def varies(self) -> bool:
        """It changes from turn to turn: a loop variable or something carried is in it."""
        return any(atom.kind in ("loop", "carried") for atom in self.atoms)


@dataclass(slots=True)
class Terms:
    """The table that makes terms."""

    _all: list[Term] = field(default_factory=list)
    _known: dict[tuple[object, ...], Term] = field(default_factory=dict)
    _ops: dict[tuple[str, tuple[Term, ...]], Term] = field(default_factory=dict)
    _loads: dict[Term, Term] = field(default_factory=dict)
    _twins: dict[tuple[object, ...], int] = field(default_factory=dict)

    def _make(self, kind: str, name: str, args: tuple[Term, ...], value: Scalar = None) -> Term:
        loads: frozenset[Term] = frozenset()
        atoms: frozenset[Term] = frozenset()
        matches: frozenset[Term] = frozenset()
        axes: frozenset[str] = frozenset((name,)) if kind == "op" and name.startswith("[") else frozenset()
        vector = kind == "arange"
        random = kind == "random"
        for arg in args:
            matches = matches | arg.matches if matches else arg.matches
            axes = axes | arg.axes if axes else arg.axes
            atoms = atoms | arg.atoms if atoms else arg.atoms
            loads = loads | arg.loads if loads else arg.loads
            vector = vector or arg.vector
            random = random or (arg.random and kind != "load")
        term = Term(len(self._all), kind, name, args, value, loads, atoms, vector, random, matches, axes)
        if kind == "load":
            term.loads, term.matches = frozenset((term,)), frozenset()
        if kind != "op" and kind != "const":
            term.atoms = atoms | {term}
        self._all.append(term)
        plain = name.partition("+")[0] if kind == "loop" else name
        same = (type(value), value) if kind == "const" else value
        term.twin = self._twins.setdefault((kind, plain, same, *[arg.twin for arg in args]), term.id)
        return term

    def all(self) -> tuple[Term, ...]:
        """Every term made so far."""
        return tuple(self._all)

    def close(self) -> None:
        """Parts the terms, which are among their own atoms, so that they are gone at once; nothing can be asked."""
        for term in self._all:
            term.loads = term.atoms = term.matches = frozenset()

    def at(self, id: int) -> Term:
        """The term of that number."""
        return self._all[id]

    def const(self, value: Scalar) -> Term:
        """A literal."""
        key = ("const", type(value), value)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._make("const", "", (), value)
        return found

    def leaf(self, kind: str, name: str) -> Term:
        """A parameter, a global, a loop variable, a range, a random draw without arguments."""
        key = (kind, name)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._make(kind, name, ())
        return found

    def carried(self, name: str, loop: int, initial: Term) -> Term:
        """The value of ``name`` at the head of a loop; what flows into its first value flows into it."""
        key = ("carried", name, loop, initial)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._make("carried", name, (initial,), loop)
        return found

    def load(self, address: Term) -> Term:
        """What is in memory at an address (or in a tensor at an index)."""
        found = self._loads.get(address)
        if found is None:
            found = self._loads[address] = self._make("load", "", (address,))
        return found

    def op(self, name: str, *args: Term) -> Term:
        """An operator or a pure function over its arguments."""
        found = self._ops.get((name, args))
        if found is None:
            found = self._ops[name, args] = self._make("op", name, args)
        return found

    def call(self, name: str, args: tuple[Term, ...]) -> Term:
        """A function whose body is not known here."""
        key = ("call", name, args)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._make("call", name, args)
        return found

    def random(self, args: tuple[Term, ...]) -> Term:
        """A random draw."""
        key = ("random", args)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._make("random", "", args)
        return found

    def reduced(self, name: str, arg: Term, *, along: bool = False) -> Term:
        """A reduction of a vector to one value, or ``along`` one axis of a table of lanes, which leaves a vector."""
        key = ("reduce", name, along, arg)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._make("op", name, (arg,))
        found.vector = along and (len(arg.axes) > 1 or RESHAPED in arg.axes)
        found.axes = frozenset()
        return found


def root(term: Term) -> Term | None:
    """The pointer (or tensor) at the bottom of an address: the leftmost parameter, global or made tensor of a sum."""
    while True:
        if term.kind in ("param", "global", "call"):
            return term
        if term.kind == "carried" or (term.kind == "op" and term.args and term.name in _ADDRESS):
            for arg in term.args[1:] if term.kind == "op" and term.name == "if" else ():
                found = root(arg)
                if found is not None:
                    return found
            term = term.args[0]
            continue
        return None


_ADDRESS = {"+", "-", "cast", "if", "[]", "where", "advance"}


def label(address: Term) -> str:
    """The name of the pointer (or tensor) at the bottom of an address, ``""`` when there is none."""
    found = root(address)
    return found.name if found is not None else ""


def roots(term: Term) -> frozenset[Term]:
    """The pointers from which a value was loaded."""
    return frozenset(r for load in term.loads if (r := root(load.args[0])) is not None)


def constant(term: Term) -> bool:
    """Nothing that is loaded, drawn, carried or looped flows into it: literals, globals, sizes."""
    return not any(a.kind in ("load", "random", "carried", "loop", "call", "param") for a in term.atoms)


def by_token(term: Term) -> bool:
    """A load flows into it whose address has, beside a place that varies, something that was itself loaded for this
    turn.

    That is a row of a table, looked up by token; an address made of one loaded number alone is any indirection.
    """
    for load in term.loads:
        parts = list(_addends(load.args[0]))
        loaded = [part for part in parts if any(inner.varies for inner in part.loads)]
        others = [part for part in parts if part.varies and part not in loaded]
        if loaded and (others or len(loaded) > 1):
            return True
    return False


def _addends(address: Term) -> Iterator[Term]:
    todo = [address]
    while todo:
        here = todo.pop()
        if here.kind == "op" and here.name == "+":
            todo.extend(here.args)
        else:
            yield here


def table(term: Term) -> bool:
    """It is loaded from a table that is indexed by the loop variable alone: the same for every request."""
    return any(_stepped(load.args[0]) for load in term.loads)


def _stepped(address: Term) -> bool:
    others = [a for a in address.atoms if a is not root(address) and a.kind not in ("loop", "const", "global")]
    # A counter kept by hand (``step += 1``) is carried, and starts at a constant.
    return address.varies and all(a.kind == "carried" and constant(a.args[0]) for a in others)


def given(term: Term) -> bool:
    """A number that the caller gives, or that is made from such: nothing loaded, drawn or made elsewhere is in it."""
    return not term.loads and not term.random and not made_elsewhere(term) and not constant(term)


def steps_with(term: Term, loop: int) -> bool:
    """It is loaded from a table that is indexed by the variable of that loop alone, or a given rate."""
    if given(term):
        return True
    steps = (a for load in term.loads if _stepped(load.args[0]) for a in load.args[0].atoms)
    return any(
        (a.kind == "loop" and a.name.partition("+")[0] == str(loop)) or (a.kind == "carried" and a.value == loop)
        for a in steps
    )


def kind(op: str, left: Term, right: Term) -> Kind:
    """What a comparison tests, by the provenance of its sides.

    exact: two tokens, loaded from different places, are the same. ratio: a probability looked up by the token, or a
    random number, against something that varies. rate: a draw against a table of rates per step,
    or against a number that the caller gives.
    """
    if (left.matches or right.matches) and not (left.vector or right.vector):
        return "exact"
    if op in ("==", "!="):
        ours, theirs = roots(left), roots(right)
        if ours and theirs and not ours & theirs and (left.varies or right.varies or left.vector or right.vector):
            return "exact"
        return "none"
    if op not in ("<", "<=", ">", ">=") or constant(left) or constant(right):
        return "none"
    for one, other in ((left, right), (right, left)):
        if table(one) and not by_token(one) and (other.random or _drawn(other)):
            return "rate"
        if given(one) and (other.random or made_elsewhere(other)):
            return "rate"
    if (by_token(left) or by_token(right)) and all(s.loads or s.random or made_elsewhere(s) for s in (left, right)):
        return "ratio"
    for one, other in ((left, right), (right, left)):
        if (one.random or made_elsewhere(one)) and other.loads and other.varies:
            return "ratio"
    return "none"


def tensor_kind(op: str, left: Term, right: Term) -> Kind:
    """The same for whole tensors: parameters are the tensors themselves, a lookup by token is an index or a gather."""
    if left.vector or right.vector or constant(left) or constant(right):
        return "none"
    ours, theirs = sources(left), sources(right)
    if op in ("==", "!="):
        return "exact" if ours and theirs and not ours & theirs else "none"
    if op not in ("<", "<=", ">", ">="):
        return "none"
    looked_up = any(_gathered(side) for side in (left, right))
    return "ratio" if looked_up or left.random or right.random else "none"


def sources(term: Term) -> frozenset[Term]:
    """The tensors that flow into a value: parameters, attributes, results of unknown functions, bases of what is
    indexed.
    """
    found: set[Term] = set()
    todo = [term]
    while todo:
        here = todo.pop()
        if here.kind in ("param", "global", "call"):
            found.add(here)
        elif here.kind == "load":
            todo.append(here.args[0].args[0])
        else:
            todo.extend(here.args)
    return frozenset(found)


def _gathered(term: Term) -> bool:
    """Something is taken from it at indices that are themselves a tensor, or where tokens are equal."""
    if term.matches:
        return True
    todo = [term]
    while todo:
        here = todo.pop()
        if here.kind == "load" and any(_is_tensor(index) for index in here.args[0].args[1:]):
            return True
        if here.kind == "call" and here.name.rpartition(".")[2] in ("gather", "take_along_dim", "index_select"):
            return True
        todo.extend(here.args if here.kind != "load" else here.args[0].args[:1])
    return False


def _is_tensor(index: Term) -> bool:
    return not index.vector and not constant(index) and index.name != "slice"


def made_elsewhere(term: Term) -> tuple[str, ...]:
    """Functions whose bodies are not known here and that make this value."""
    todo, names = [term], set()
    while todo:
        here = todo.pop()
        if here.kind == "call":
            names.add(here.name)
        elif here.kind == "op":
            todo.extend(here.args)
    return tuple(sorted(names))


def draw(term: Term) -> bool:
    """A draw is in this side: a random number, a function from elsewhere, or a load per row that is no lookup by
    token.
    """
    if term.random or made_elsewhere(term):
        return True
    rows = (load for load in term.loads if load.varies and not load.vector)
    return any(not any(inner.varies for inner in load.args[0].loads) for load in rows)


def _drawn(term: Term) -> bool:
    """It may be a draw: one number handed in per row (no sum over many), or made by a function from elsewhere."""
    if any(load.vector for load in term.loads):
        return False
    return bool(made_elsewhere(term)) or any(load.varies and not table(load) for load in term.loads)

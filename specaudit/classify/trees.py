"""The forms of a tree walk: descent through loaded child indices, search among children, and lookup of a parent's
outcome.

A hash-table probe also loads its next index through the current one; it differs in that a hit *ends* it. A tree walk
goes on after a hit, so callers ask :func:`descends` only for loops that do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from specaudit.classify.runs import Seen, Turns, differs
from specaudit.classify.terms import Term, Terms, root

_COMPARISONS = frozenset(("==", "!=", "<", "<=", ">", ">=", "and", "or", "not"))


class Result(Protocol):
    """What is needed of one run's first turn (see :class:`specaudit.classify.walks.Outcome`)."""

    @property
    def goes(self) -> bool:
        """The loop compares again."""
        ...

    @property
    def turns(self) -> Turns:
        """What its turns did."""
        ...

    @property
    def stores(self) -> tuple[tuple[str, int, object, int], ...]:
        """What its first turn stored."""
        ...


def descends(seen: Sequence[Seen], pairs: Iterable[tuple[Result, Result]]) -> bool:
    """The index that the comparison reads at is carried, and a hit makes it a child of what it was.

    Args:
        seen: what the comparison saw. pairs: (hit, miss) results of runs that differ in the comparison alone.
    """
    atoms = frozenset(atom for one in seen for side in (one.left, one.right) for atom in side.atoms)
    for hit, miss in pairs:
        if not hit.goes or not hit.turns.after:
            continue
        for name, head in hit.turns.head.items():
            if head.term not in atoms:
                continue
            after = hit.turns.after[0][name]
            decides = not miss.goes or (bool(miss.turns.after) and differs(after, miss.turns.after[0][name]))
            if decides and _is_child(after.term, head.term, hit.turns.compared[0]):
                return True
    return False


def _is_child(after: Term, head: Term, compared: list[Seen]) -> bool:
    """Loaded through the current index, or found by comparing stored parents with it."""
    if after is head:
        return False
    if any(head in part.args[0].atoms for part in parts(after) if part.kind == "load"):
        return True
    if after.matches and any(_compares_with(part, head) for part in parts(after)):
        return True
    searched = any(a.kind == "loop" for a in after.atoms)
    return searched and any(s.equal and _is_parent_test(s, head) for s in compared)


def _is_parent_test(seen: Seen, head: Term) -> bool:
    """A stored index is compared with the current one itself."""
    sides = (seen.left, seen.right)
    return any(one is head and other.loads for one, other in (sides, sides[::-1]))


def _compares_with(term: Term, head: Term) -> bool:
    return term.kind == "op" and term.name in ("==", "!=") and any(a is head for a in term.args)


def parts(term: Term) -> Iterator[Term]:
    """The term and everything that flows into it, addresses included."""
    todo, done = [term], set()
    while todo:
        here = todo.pop()
        if here.id in done:
            continue
        done.add(here.id)
        yield here
        todo.extend(here.args)


def topological(terms: Terms, pairs: Iterable[tuple[Result, Result]]) -> bool:
    """Nodes in order: what was decided for an ancestor is looked up in what the loop writes or carries.

    Through a loaded parent index, along a loaded mask row (in memory, or as bits against a carried word).
    """
    looked_up = set(_looked_up(terms))
    for hit, miss in pairs:
        changed = {entry[0] for entry in set(hit.stores) ^ set(miss.stores) if entry[0]}
        if changed & looked_up:
            return True
        if not hit.turns.after or not miss.turns.after:
            continue
        for name, head in hit.turns.head.items():
            ours, theirs = hit.turns.after[0].get(name), miss.turns.after[0].get(name)
            if ours is not None and theirs is not None and differs(ours, theirs) and _selected(terms, head.term):
                return True
    return False


def _looked_up(terms: Terms) -> Iterator[str]:
    """Pointers that are read at an index that was itself loaded for this turn."""
    for term in terms.all():
        if term.kind == "load" and any(inner.varies for inner in term.args[0].loads):
            found = root(term.args[0])
            if found is not None:
                yield found.name


def _selected(terms: Terms, head: Term) -> bool:
    """A carried word of which bits are taken: at a position that was loaded for this turn, or where a loaded row has
    them.
    """
    for term in terms.all():
        if term.kind != "op" or len(term.args) != 2 or term.name not in (">>", "&"):
            continue
        for bits, chosen in (term.args, term.args[::-1]) if term.name == "&" else (term.args,):
            if head in bits.atoms and not bits.loads and _number(chosen) and any(load.varies for load in chosen.loads):
                return True
    return False


def _number(term: Term) -> bool:
    """No truth value: no comparison flows in."""
    return not any(part.kind == "op" and part.name in _COMPARISONS for part in parts(term))

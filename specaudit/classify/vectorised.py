"""Acceptance without a loop: the index of the first miss along the step axis, or nodes whose whole ancestor row is
good.

Both are read off what is written or returned: a reduction over lane-wise comparisons of drafts. A reduction that
finds the first *hit* is a search, not an acceptance, and says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from specaudit.classify.runs import Run
from specaudit.classify.terms import RESHAPED, Term, root
from specaudit.classify.trees import parts
from specaudit.classify.walks import Verdict

_CASTS = frozenset(("cast", "to", "int", "float", "pos"))


def verdicts(runs: Sequence[Run], lines: Mapping[int, int]) -> frozenset[Verdict]:
    """The walk of a function that compares whole rows at once; empty when it does not accept.

    Args:
        runs: of one function. lines: where its comparisons of lanes stand, by the id of their term.
    """
    told: dict[tuple[int, int], Verdict | None] = {}
    found = {verdict for run in runs if (verdict := _of_run(run, lines, told)) is not None}
    trees = frozenset(verdict for verdict in found if verdict.walk == "tree")
    return trees or frozenset(found)


def _of_run(run: Run, lines: Mapping[int, int], told: dict[tuple[int, int], Verdict | None]) -> Verdict | None:
    linear: Verdict | None = None
    for store in run.stores:
        for term in (store.term, store.mask):
            if term is None:
                continue
            key = term.id, store.line
            if key not in told:
                told[key] = _of_term(term, lines, store.line)
            verdict = told[key]
            if verdict is not None and verdict.walk == "tree":
                return verdict
            linear = linear or verdict
    return linear


def _of_term(written: Term, lines: Mapping[int, int], line: int) -> Verdict | None:
    linear: Verdict | None = None
    for term in parts(written):
        if _whole_row(term):
            return Verdict("tree", _line(term, lines, line), reads=_reads(term))
        if linear is None and _first_miss(term):
            linear = Verdict("linear", _line(term, lines, line), reads=_reads(term))
    return linear


def _line(term: Term, lines: Mapping[int, int], otherwise: int) -> int:
    """Where the drafts are compared."""
    return min((lines[match.id] for match in term.matches if match.id in lines), default=otherwise)


def _reads(term: Term) -> tuple[str, ...]:
    """The tensors that are compared, or the mask that was handed in."""
    compared = [side for match in term.matches for side in match.args] or [term]
    loads = (part for side in compared for part in parts(side) if part.kind == "load")
    names = {found.name for load in loads if (found := root(load.args[0])) is not None}
    return tuple(sorted(names or {part.name for side in compared for part in parts(side) if part.kind == "param"}))


# --- the first miss -------------------------------------------------------------------------------------------------


def _first_miss(term: Term) -> bool:
    """The number of leading hits, or the place of the first miss."""
    if term.kind != "op" or not term.args:
        return False
    arg = term.args[0]
    match term.name:
        case "cumprod" | "cummin":
            return _truth(arg) is True
        case "argmin":
            return _truth(arg) is True
        case "argmax" | ".indices" if term.name == "argmax" or (arg.kind == "op" and arg.name == "max"):
            inner = arg if term.name == "argmax" else arg.args[0]
            return _truth(inner) is False or _missing(inner)
        case ".indices" if arg.kind == "op" and arg.name == "min":
            return _truth(arg.args[0]) is True
        case "==" if arg.kind == "op" and arg.name == "cumsum":
            return _truth(arg.args[0]) is False
        case "min" if arg.kind == "op" and arg.name == "where":
            return _place_of_miss(arg)
        case _:
            return False


def _truth(term: Term) -> bool | None:
    """Whether a lane is true on a hit (True) or on a miss (False); ``None`` when it is no comparison of drafts."""
    while term.kind == "op" and term.name in _CASTS and term.args:
        term = term.args[0]
    if term.kind != "op" or not term.matches:
        return None
    if term in term.matches:
        return term.name != "!="
    if term.name in ("~", "not"):
        inner = _truth(term.args[0])
        return None if inner is None else not inner
    if term.name == "==" and term.args[1].kind == "const":
        inner = _truth(term.args[0])
        return None if inner is None else (inner if term.args[1].value else not inner)
    if term.name in ("&", "and", "*"):
        inners = [inner for arg in term.args if (inner := _truth(arg)) is not None]
        return inners[0] if len(set(inners)) == 1 else None
    if term.name in ("|", "or"):
        inners = [inner for arg in term.args if (inner := _truth(arg)) is not None]
        return False if inners == [False] else None
    return None


def _missing(term: Term) -> bool:
    """A mask handed in, taken where it is false: ``(accepted == 0)``."""
    while term.kind == "op" and term.name in _CASTS and term.args:
        term = term.args[0]
    if term.kind != "op":
        return False
    if term.name == "==":
        mask, value = term.args
        return mask.kind == "param" and value.kind == "const" and not value.value
    return term.name in ("~", "not") and term.args[0].kind == "param"


def _place_of_miss(where: Term) -> bool:
    """``where(hit, size, position)`` or ``where(miss, position, size)``, of which the least is taken."""
    if len(where.args) != 3:
        return False
    truth = _truth(where.args[0])
    if truth is None:
        return False
    position, size = (where.args[2], where.args[1]) if truth else (where.args[1], where.args[2])
    return position.vector and not position.loads and not size.vector


# --- whole ancestor rows --------------------------------------------------------------------------------------------


def _whole_row(term: Term) -> bool:
    """A node's mask row is held against what was accepted: as bits, or lane by lane along a second axis."""
    if term.kind != "op" or not term.args:
        return False
    if term.name == "&" and len(term.args) == 2:
        return any(_bits(one) and _mask_row(other) for one, other in (term.args, term.args[::-1]))
    if term.name in ("min", "all", "prod", "sum", "max", "any", "reduce", "xor_sum"):
        lanes = list(_truths(term.args[0]))
        return any(lane.matches for lane in lanes) and any(lane.kind == "load" and _two_axes(lane) for lane in lanes)
    return False


def _bits(term: Term) -> bool:
    """Hits gathered into the bits of a word: the sum (or the or) of ``hit << position``."""
    for part in parts(term):
        if (
            part.kind == "op"
            and part.name in ("sum", "reduce", "xor_sum", "max")
            and part.args
            and part.args[0].matches
        ):
            inner = part.args[0].args[0] if part.args[0].name == RESHAPED else part.args[0]
            shifts = inner.name in ("where", "<<", "*") and any(arg.name == "<<" for arg in (inner, *inner.args))
            if shifts and any(arg.matches for arg in inner.args):
                return True
    return False


def _mask_row(term: Term) -> bool:
    return not term.matches and any(load.vector or load.varies for load in term.loads)


def _truths(term: Term) -> Iterator[Term]:
    """The truth values that a truth value is made of: comparisons and loads under and, or, not, ``where``."""
    if term in term.matches or term.kind == "load":
        yield term
    elif term.kind == "op" and (term.name in _LOGIC or term.name in _CASTS or term.name.startswith("[")):
        for arg in term.args:
            yield from _truths(arg)


_LOGIC = frozenset(("&", "|", "~", "not", "and", "or", "where", "*", "==", "!="))


def _two_axes(load: Term) -> bool:
    return len(load.axes) > 1

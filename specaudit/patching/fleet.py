"""The same change on many hosts: planned everywhere first, refused unless all agree, one failure reverts that host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from specaudit.errors import Exit, IncompleteError, PatchError, RefusedError, SpecauditError, UsageError
from specaudit.model import Target
from specaudit.patching.model import Plan
from specaudit.patching.operations import Prepared, Verification, carry_out, prepare, take_back, verify
from specaudit.patching.place import Place
from specaudit.patching.recipes.base import Recipe
from specaudit.threads import in_order
from specaudit.words import about, counted

#: What ends a change that was begun: the agent undoes it, and says so, but may not have come to the end of that.
_BEGUN = ("os", "terminated")
#: Files in which a host differs that are named.
_TOLD = 3
#: Hosts at a time: each costs a connection and a thread.
WIDTH = 8

Open = Callable[[Target], AbstractContextManager[Place]]
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Planned:
    """One host's plan, or why there is none."""

    target: Target
    prepared: Prepared | None = None
    error: SpecauditError | None = None

    @property
    def code(self) -> Exit:
        """Clean, or that of the error."""
        return _code(self.error)


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of one host. ``reverted``: its change failed, and was taken back."""

    target: Target
    verification: Verification | None = None
    notes: tuple[str, ...] = ()
    error: SpecauditError | None = None
    reverted: bool = False

    @property
    def code(self) -> Exit:
        """Clean, or that of the error."""
        return _code(self.error)


def _code(error: SpecauditError | None) -> Exit:
    return Exit.CLEAN if error is None else error.code


def plan_all(targets: Sequence[Target], recipes: Sequence[Recipe], open_place: Open) -> tuple[Planned, ...]:
    """A plan for each host; an error is that host's result, and so is that it is another name of one before."""

    def one(target: Target) -> Planned:
        try:
            with open_place(target) as place:
                return Planned(target, prepare(place, recipes))
        except SpecauditError as bad:
            return Planned(target, error=bad)

    return tuple(_named_once(_each(one, targets)))


def _named_once(planned: Sequence[Planned]) -> Iterator[Planned]:
    seen: dict[str, str] = {}
    for p in planned:
        standing = p.prepared.standing if p.prepared is not None else None
        if standing is not None and standing.identity in seen:
            first = seen[standing.identity]
            twice = UsageError(f"{p.target.spec} leads to the same engine as {first}.", "Name it once.")
            yield Planned(p.target, error=twice)
            continue
        if standing is not None:
            seen[standing.identity] = p.target.spec
        yield p


def agree(planned: Sequence[Planned]) -> None:
    """Checks that every host has a plan, and that all hold the same engine, byte for byte.

    Files that no recipe edits count, too: the findings and the checks after a change rest on the whole engine.

    Raises:
        IncompleteError: not all hosts have one, some because they could not be reached or examined.
        PatchError: not all hosts have one, or their engines differ.
    """
    failed = {p.target.spec: p.error for p in planned if p.error is not None}
    if failed:
        which = "; ".join(about(spec, error.message.rstrip(".")) for spec, error in failed.items())
        others = "Repair them, leave them out, or change the others with --allow-partial."
        kind = IncompleteError if any(error.code == Exit.INCOMPLETE for error in failed.values()) else PatchError
        raise kind(
            f"{len(failed)} of {counted(len(planned), 'host')} cannot be changed, so none was. {which}.",
            others if len(failed) < len(planned) else next(iter(failed.values())).hint,
        )
    groups: dict[object, list[tuple[str, Prepared]]] = {}
    for p in planned:
        assert p.prepared is not None
        groups.setdefault(_content(p.prepared.plan), []).append((p.target.spec, p.prepared))
    if len(groups) > 1:
        sides = list(groups.values())
        first = sides[0][0][1]
        told = ["", *(f" ({_difference(first, side[0][1])})" for side in sides[1:])]
        shown = " / ".join(", ".join(spec for spec, _ in side) + why for side, why in zip(sides, told, strict=True))
        raise PatchError(
            f"The hosts do not hold the same engine, so none was changed: {shown}.",
            "Change each group alone, or all of them with --allow-partial.",
        )


def _content(plan: Plan) -> object:
    files = tuple((s.recipe, s.version, c.path, c.before_sha, c.after_sha) for s in plan.steps for c in s.changes)
    return plan.engine, plan.version, plan.digest, plan.already, files


def _difference(first: Prepared, other: Prepared) -> str:
    """In what a host is unlike the first one: another release, else what specaudit did there, else files."""
    if (other.plan.engine, other.plan.version) != (first.plan.engine, first.plan.version):
        return f"{other.plan.engine} {other.plan.version or 'of unknown version'}"
    if _stands(first) != _stands(other):  # which is why files differ, and what can be undone
        return f"has {', '.join(_stands(other)) or 'no change'} by specaudit"
    paths = sorted({path for path, _ in set(first.files.items()) ^ set(other.files.items())})
    more = f" and {counted(len(paths) - _TOLD, 'more file')}" if len(paths) > _TOLD else ""
    return f"differs in {', '.join(paths[:_TOLD])}{more}" if paths else "has another change by specaudit"


def _stands(prepared: Prepared) -> tuple[str, ...]:
    applied = prepared.standing.applied if prepared.standing is not None else ()
    return tuple(f"{one['recipe']} {one['version']}" for one in applied)


def apply_all(
    planned: Sequence[Planned], open_place: Open, imports: bool = False, journals: Path | None = None
) -> tuple[Applied, ...]:
    """Applies, verifies and, where that fails, takes back; hosts without a plan keep their error."""

    def one(p: Planned) -> Applied:
        if p.prepared is None or p.error is not None:
            return Applied(p.target, error=p.error)
        return _one(p.target, p.prepared, open_place, imports, journals)

    return _each(one, planned)


def _one(target: Target, prepared: Prepared, open_place: Open, imports: bool, journals: Path | None) -> Applied:
    plan, notes = prepared.plan, tuple[str, ...]()
    ours = tuple(step.recipe for step in plan.steps)
    try:
        if plan.steps:
            try:
                with open_place(target) as place:
                    notes = carry_out(place, plan, journals)
            except RefusedError as bad:
                ours = ()  # what stands there is someone else's
                if bad.kind != "already":
                    raise
                notes = (f"{bad.message} Someone else has done it meanwhile.",)
        with open_place(target) as place:  # opened again: a host remembers what it saw
            found = verify(place, imports)
        if not found.problems:
            return Applied(target, found, notes)
        error: SpecauditError = PatchError(
            f"{target.spec}: the change does not do what it should: {'; '.join(found.problems).rstrip('.')}.",
            found.advice or "Report it.",
        )
    except SpecauditError as bad:
        error = bad
    undone_badly = isinstance(error, RefusedError) and error.kind in _BEGUN
    if not ours and not undone_badly:
        return Applied(target, notes=notes, error=error)
    return _reverted(target, prepared.asked, ours, open_place, error, notes, journals)


def _reverted(
    target: Target,
    asked: str,
    recipes: tuple[str, ...],
    open_place: Open,
    error: SpecauditError,
    notes: tuple[str, ...],
    journals: Path | None,
) -> Applied:
    try:
        with open_place(target) as place:
            if place.client is None:  # nothing can be changed there, so nothing was
                return Applied(target, None, notes, error)
            standing = place.agent().status()
            ours = [name for name in recipes if name in standing.recipes]
            if ours or standing.state == "interrupted":
                _, more = take_back(place, ours, journals)
                return Applied(target, None, (*notes, *more), error, reverted=True)
            return Applied(target, None, notes, error)
    except SpecauditError as bad:
        left = f"{target.spec} could not be taken back: {bad.message} Run: specaudit patch revert {asked}"
        return Applied(target, None, (*notes, left), error)


def _each(one: Callable[[Item], Result], items: Sequence[Item]) -> tuple[Result, ...]:
    if len(items) == 1:
        return (one(items[0]),)
    with ThreadPoolExecutor(max_workers=min(WIDTH, max(1, len(items)))) as pool:
        return tuple(in_order(pool, one, items))

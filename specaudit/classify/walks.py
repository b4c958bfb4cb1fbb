"""From runs to walks: what each comparison of a turn does to "go on?", to the carried names and to what is stored.

- a miss always stops: ``linear`` (``synthetic`` when a rate is tested);
- a miss stops more often than a hit, not always: ``lossy``; so does a miss that overwrites what it was compared with;
- it moves the accepted count and never stops, or the search runs from the end: ``block``;
- the next index is a child of the current one, or the parent's outcome is looked up: ``tree`` (:mod:`.trees`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from specaudit.classify import ir, trees
from specaudit.classify.machine import Machine
from specaudit.classify.oracle import Path, Trial, bases, rests_on, trials
from specaudit.classify.runs import Run, Seen, Store, Turns, differs
from specaudit.classify.terms import made_elsewhere, steps_with
from specaudit.model import Walk

_SECOND = 6

Signature = tuple[tuple[str, int, object, int], ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One comparison's walk and its line.

    ``rewrites``: the pointer that a pre-pass overwrites (its walk holds for whoever reads that pointer next);
    ``draws``: functions from elsewhere that must draw random numbers for the verdict to hold;
    ``reads``: the pointers (or tensors) that the comparison rests on.
    """

    walk: Walk
    line: int
    rewrites: str = ""
    draws: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run, seen from one loop: whether it compares again, what its turns did, what the first turn stored."""

    goes: bool
    turns: Turns
    stores: Signature


def verdicts(machine: Machine, paths: Sequence[Path]) -> frozenset[Verdict]:
    """The walks of one function under fixed flags, one verdict per place that compares drafts."""
    found = (_of_trial(trial) for trial in trials(machine, paths))
    return frozenset(verdict for verdict in found if verdict is not None)


def _of_trial(trial: Trial) -> Verdict | None:
    numbers = {
        number for case in trial.cases for number, turns in case.true.run.loops.items() if _has(turns, case.seen.key)
    }
    searched = False
    for number in sorted(numbers, reverse=True):  # inner loops first
        view = View.of(trial, number)
        found = _of_loop(view)
        if found is None:
            # A loop that a hit ends and a miss keeps going looks for something; around it only a descent is a walk.
            searched = searched or (trial.kind == "exact" and not view.hit_goes and view.miss_goes)
        elif not searched or found.walk == "tree":
            reads = tuple(sorted({name for case in trial.cases for name in rests_on(case.seen)}))
            return replace(found, reads=reads) if found.rewrites or _emits(view, found.walk) else None
    return None


def _has(turns: Turns, key: int) -> bool:
    return bool(turns.compared) and any(s.key == key for s in turns.compared[0])


def signature(stores: list[Store]) -> Signature:
    """What was written, in a form in which two runs can be held against each other."""
    return tuple((s.root, s.address, s.value, s.mask.id if s.mask is not None else -1) for s in stores)


@dataclass(frozen=True, slots=True)
class View:
    """A trial seen from one loop: (hit, miss) pairs of runs, and their outcomes."""

    trial: Trial
    number: int
    paths: tuple[tuple[Path, Path], ...]
    outcomes: tuple[tuple[Outcome, Outcome], ...]

    @classmethod
    def of(cls, trial: Trial, number: int) -> View:
        """Where a comparison does not say which truth is a hit, it is the one after which the loop goes on more
        often.
        """
        cases = [c for c in trial.cases if number in c.true.run.loops and number in c.false.run.loops]
        goes = [[_outcome(path.run, number).goes for path in (case.true, case.false)] for case in cases]
        hit = sum(one for one, _ in goes) >= sum(other for _, other in goes)
        paths = tuple(case.pair(hit) for case in cases)
        outcomes = tuple((_outcome(one.run, number), _outcome(other.run, number)) for one, other in paths)
        return cls(trial, number, paths, outcomes)

    @property
    def hit_goes(self) -> bool:
        """The loop goes on after some hit."""
        return any(outcome.goes for outcome in self.hits)

    @property
    def miss_goes(self) -> bool:
        """The loop goes on after some miss."""
        return any(outcome.goes for outcome in self.misses)

    @property
    def hits(self) -> list[Outcome]:
        """Outcomes after a hit."""
        return [hit for hit, _ in self.outcomes]

    @property
    def misses(self) -> list[Outcome]:
        """Outcomes after a miss."""
        return [miss for _, miss in self.outcomes]

    def explore_misses(self) -> Iterator[Path]:
        """Further runs after a miss that reach this loop's comparison."""
        for start in bases([miss for _, miss in self.paths]):
            for path in self.trial.explore(start):
                if self.number in path.run.loops and _has(path.run.loops[self.number], path.key):
                    yield path


def _outcome(run: Run, number: int) -> Outcome:
    turns = run.loops[number]
    goes = len(turns.compared) > 1 and any(s.kind != "none" for s in turns.compared[1])
    return Outcome(goes, turns, signature(turns.stores[0]) if turns.stores else ())


def _of_loop(view: View) -> Verdict | None:
    """The walk that one comparison gives one loop."""
    trial, line = view.trial, view.trial.line
    if not view.outcomes:
        return None
    hit_goes, miss_goes = view.hit_goes, view.miss_goes
    if trial.kind == "rate":
        return Verdict("synthetic", line, "", _draws(trial)) if hit_goes and not miss_goes and _per_step(view) else None
    seen = [case.seen for case in trial.cases]
    if trees.topological(trial.machine.terms, view.outcomes) or (hit_goes and trees.descends(seen, view.outcomes)):
        return Verdict("tree", line)
    if hit_goes and not miss_goes:
        return _stopping(view)
    if hit_goes and any(hit.goes and not miss.goes for hit, miss in view.outcomes):
        return Verdict("lossy", line)
    if hit_goes and _spent(view):
        return _stopping(view)
    if trial.kind == "ratio" and (_moves(view.hits, view.misses) or _moves(view.misses, view.hits)):
        return Verdict("block", line)
    rewritten = _rewrites(view)
    return Verdict("lossy", line, rewritten) if rewritten else None


def _per_step(view: View) -> bool:
    """The rate is one for every turn of this loop, not for every row of a loop around it."""
    sides = [side for case in view.trial.cases for side in (case.seen.left, case.seen.right)]
    return any(steps_with(side, view.number) for side in sides)


def _stopping(view: View) -> Verdict:
    """A miss stopped in every run so far: linear, or lossy when some rarer path goes on after it."""
    trial = view.trial
    if any(_matters(view, path) for path in view.explore_misses()):
        return Verdict("lossy", trial.line)
    return Verdict("linear", trial.line)


def _spent(view: View) -> bool:
    """It compares again after a miss, but without any effect: a carried flag blocks it as data (``alive &= match``)."""
    paths = [pair for pair, (hit, _) in zip(view.paths, view.outcomes, strict=True) if hit.goes][:_SECOND]
    return any(_matters(view, hit) for hit, _ in paths) and not any(_matters(view, miss) for _, miss in paths)


def _matters(view: View, path: Path) -> bool:
    """In this run the second turn makes a comparison of drafts, and its answer changes something."""
    turns = path.run.loops.get(view.number)
    if turns is None or len(turns.compared) < 2:
        return False
    for later in turns.compared[1]:
        if later.kind != "none" and later.key != path.key:
            ends = [view.trial.run(path, {later.key: answer}).run for answer in (True, False)]
            if _second_turn(ends[0], view.number) != _second_turn(ends[1], view.number):
                return True
    return False


def _second_turn(run: Run, number: int) -> object:
    turns = run.loops.get(number)
    if turns is None or len(turns.after) < 2:
        return None
    carried = tuple((name, v.term.id if v.open else v.known) for name, v in sorted(turns.after[1].items()))
    return carried, signature(turns.stores[1])


def _emits(view: View, walk: Walk) -> bool:
    """What leaves the function depends on the comparison, and on how many hits came before the miss.

    What is stored only where the comparison itself reads does not count, nor does a test that all were hits.
    """
    if walk in ("linear", "synthetic"):
        going = [pair for pair, (hit, _) in zip(view.paths, view.outcomes, strict=True) if hit.goes]
        return any(_how_far(view, hit, miss) for hit, miss in going[:_SECOND])
    read = {name for case in view.trial.cases for name in rests_on(case.seen)}
    for one, other in view.paths:
        for later in (None, *_later(view, one)):
            ends = [one, other] if later is None else [view.trial.run(path, {later.key: True}) for path in (one, other)]
            ours, theirs = ([entry for entry in signature(end.run.stores) if entry[0] not in read] for end in ends)
            if ours != theirs:
                return True
    return False


def _later(view: View, path: Path) -> list[Seen]:
    """The same comparison, made again in the second turn."""
    turns = path.run.loops.get(view.number)
    if turns is None or len(turns.compared) < 2:
        return []
    return [s for s in turns.compared[1] if s.site == view.trial.site and s.key != path.key]


def _how_far(view: View, hit: Path, miss: Path) -> bool:
    """A hit and then a miss leave something else behind than a miss at once."""
    return any(
        signature(view.trial.run(hit, {later.key: miss.forced[miss.key]}).run.stores) != signature(miss.run.stores)
        for later in _later(view, hit)
    )


def _draws(trial: Trial) -> tuple[str, ...]:
    sides = [side for case in trial.cases for side in (case.seen.left, case.seen.right)]
    if any(side.random for side in sides):
        return ()
    return tuple(sorted({name for side in sides for name in made_elsewhere(side)}))


def _moves(hits: Iterable[Outcome], misses: Iterable[Outcome]) -> bool:
    """A hit sets a carried name to its place in the sequence; a miss leaves the name alone. Either may end the
    search.
    """
    for hit, miss in zip(hits, misses, strict=True):
        if not hit.turns.after or not miss.turns.after:
            continue
        for name, head in hit.turns.head.items():
            ours, theirs = hit.turns.after[0].get(name), miss.turns.after[0].get(name)
            if ours is None or theirs is None or not differs(ours, theirs) or differs(theirs, head):
                continue
            if not ours.term.loads and any(a.kind in ("loop", "carried") for a in ours.term.atoms):
                return True
    return False


def _rewrites(view: View) -> str:
    """A pointer that the comparison reads and that a miss overwrites: the miss is made a hit for whoever reads it
    next.
    """
    read = {name for case in view.trial.cases for name in rests_on(case.seen)}
    if not read & ir.written(view.trial.machine.function):
        return ""
    kept = {entry for hit in view.hits for entry in hit.stores}
    more = (_outcome(path.run, view.number) for path in view.explore_misses())
    for miss in chain(view.misses, more):
        for entry in miss.stores:
            if entry[0] in read and entry not in kept:
                return entry[0]
    return ""

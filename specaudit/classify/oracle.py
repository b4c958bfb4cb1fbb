"""Answers for open comparisons, and the runs that put one of them on trial.

First every branch is taken each way. A comparison's part in a loop is then found by pairs of runs that differ in its
answer alone; what is rarely reached after it (a long conjunction) by changing the answers after it one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from specaudit.classify.machine import Machine
from specaudit.classify.runs import Oracle, Run, Seen
from specaudit.classify.terms import Kind, Term, draw, root

NO_KEY = -1
_SEEDS, _FEW, _RUNS, _CASES = 8, 8, 96, 16
_BASES, _PATHS, _STEPS, _IDLE = 4, 24, 16_000, 5_000
_WORD = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True, slots=True)
class Path:
    """One run and how to repeat it: its seed, the key under test and its answer in later turns, the answers given."""

    seed: int
    key: int
    later: bool
    forced: Mapping[int, bool]
    run: Run


@dataclass(frozen=True, slots=True)
class Case:
    """One seed in which the comparison is made: what it saw, and the runs with its key true and false, else alike."""

    seen: Seen
    true: Path
    false: Path

    def pair(self, hit: bool) -> tuple[Path, Path]:
        """The two runs as (hit, miss), when a hit means that ``==`` holds, or that the draw is the smaller side.

        Where that cannot be told from the comparison, ``hit`` says which truth of its key to take for one.
        """
        accept = accepting(self.seen)
        return (self.true, self.false) if (hit if accept is None else accept) else (self.false, self.true)


@dataclass(frozen=True, slots=True)
class Trial:
    """One place in the code where drafts are compared, and the cases in which it is reached in a first turn."""

    machine: Machine
    site: int
    kind: Kind
    line: int
    cases: tuple[Case, ...]

    def run(self, path: Path, forced: Mapping[int, bool]) -> Path:
        """The same run once more with further answers given (the same run, when enough was run)."""
        return path if exhausted(self.machine) else again(self.machine, path, forced)

    def explore(self, start: Path) -> Iterator[Path]:
        """Runs in which the comparison keeps its truth and what is asked after it is answered otherwise, one by one."""
        return _explore(self.machine, start, after=True)


def _explore(machine: Machine, start: Path, *, after: bool) -> Iterator[Path]:
    """Runs with other answers to what is asked in first turns, ``after`` the key under test or anywhere."""
    todo: list[Mapping[int, bool]] = [start.forced if after else {start.key: start.forced[start.key]}]
    for _ in range(_PATHS):
        if not todo or exhausted(machine):
            return
        path = _path(machine, start.seed, start.key, start.later, todo.pop())
        yield path
        kept, open_to_change = dict(path.forced), not after
        for asked in path.run.asked:
            if open_to_change and asked.first and asked.key not in kept:
                todo.append({**kept, asked.key: not asked.answer})
                kept[asked.key] = asked.answer
            open_to_change = open_to_change or asked.key == start.key


def exhausted(machine: Machine) -> bool:
    """So much was run that no more will be."""
    return machine.steps > _STEPS


def bases(paths: list[Path]) -> list[Path]:
    """The few runs from which it is worth exploring."""
    return paths[:_BASES]


def _path(machine: Machine, seed: int, key: int, later: bool, forced: Mapping[int, bool]) -> Path:
    return Path(seed, key, later, forced, machine.execute(answers(seed, forced, key, later=later)))


def again(machine: Machine, path: Path, forced: Mapping[int, bool]) -> Path:
    """A run once more, with further answers given."""
    return _path(machine, path.seed, path.key, path.later, {**path.forced, **forced})


def answers(seed: int, forced: Mapping[int, bool], alone: int = NO_KEY, *, later: bool = False) -> Oracle:
    """A truth for every key: all true, all false, then mixtures with a half, three quarters and a quarter true.

    The second turn's questions are answered as the first turn's were, unless their own answer is forced; what is
    forced on the key ``alone`` holds for the first turn only, and ``later`` is its answer from then on.
    """
    threshold = (0, 256, 128, 64, 192)[seed if seed < 2 else 2 + seed % 3]

    def answer(term: Term) -> bool:
        if term.id in forced:
            return forced[term.id]
        if term.twin == alone and term.id != alone:
            return later
        if term.twin in forced:
            return forced[term.twin]
        return _mixed(term.twin, seed) >= threshold

    return answer


@lru_cache(maxsize=1 << 15)  # the same few are asked for in every run of every function
def _mixed(key: int, seed: int) -> int:
    """A byte for each key and seed, without visible relation between them (the finish of splitmix64)."""
    word = ((key + 1) * 0x9E3779B97F4A7C15 + (seed + 1) * 0xD1342543DE82EF95) & _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return (word ^ (word >> 31)) & 0xFF


def discover(machine: Machine, sites: Collection[int] = (), *, thorough: bool = True) -> list[Path]:
    """Runs that together take every branch of the first turns, each way, and some under mixed answers.

    Args:
        machine: what to run.
        sites: comparisons that must be made before it may stop early.
        thorough: never stop early; otherwise a few runs do when all of ``sites`` were made and none tests a draft.
    """
    todo: list[tuple[int, dict[int, bool]]] = [(seed, {}) for seed in reversed(range(_SEEDS))]
    known: set[tuple[int, bool]] = set()
    out: list[Path] = []
    while todo and len(out) < _RUNS and not exhausted(machine):
        idle = len(out) >= _FEW and (machine.compared.issuperset(sites) or machine.steps > _IDLE)
        if idle and not thorough:
            break
        seed, forced = todo.pop()
        path = _path(machine, seed, NO_KEY, False, forced)
        out.append(path)
        thorough = thorough or tests_drafts(path)
        kept: dict[int, bool] = {}
        for asked in path.run.asked:
            known.add((asked.key, asked.answer))
            other = asked.key, not asked.answer
            if asked.first and other not in known:
                known.add(other)
                todo.append((seed, {**kept, asked.key: not asked.answer}))
            kept[asked.key] = asked.answer
    return out


def tests_drafts(path: Path) -> bool:
    """A run compared drafts in a first turn."""
    return any(_held_against(seen) for seen in first_turn(path.run))


def trials(machine: Machine, paths: Sequence[Path]) -> Iterator[Trial]:
    """One trial for each place that compares drafts in some first turn of some loop.

    Args:
        paths: the runs of :func:`discover`.
    """
    reached: dict[int, list[tuple[Path, Seen]]] = {}
    for path in paths:
        here: set[int] = set()
        for seen in first_turn(path.run):
            if seen.site not in here and _held_against(seen):
                here.add(seen.site)
                reached.setdefault(seen.site, []).append((path, seen))
    for site, found in sorted(reached.items(), key=lambda item: item[1][0][1].line):
        # A row whose offset is zero makes a lookup per row look like one per step: what other runs say of the place
        # holds.
        kinds = {seen.kind for _, seen in found}
        kind: Kind = next(k for k in ("ratio", "exact", "rate") if k in kinds)
        alike = _spread([(path, seen) for path, seen in found if seen.kind == kind])
        cases = [
            _case(machine, path, seen, later)
            for path, seen in alike
            for later in (False, True)
            if not exhausted(machine)
        ]
        if not any(_goes_on(path) for case in cases for path in (case.true, case.false)):
            cases.extend(_reaching(machine, cases))
        yield Trial(machine, site, kind, found[0][1].line, tuple(cases))


def _spread(found: list[tuple[Path, Seen]]) -> list[tuple[Path, Seen]]:
    """Some of them, from first to last: neighbours differ in one answer, which may be one that stops everything."""
    step = max(1, len(found) // _CASES)
    return found[::step][:_CASES]


def _goes_on(path: Path) -> bool:
    """Some loop compares drafts in its second turn."""
    loops = path.run.loops.values()
    return any(len(turns.compared) > 1 and any(s.kind != "none" for s in turns.compared[1]) for turns in loops)


def _reaching(machine: Machine, cases: list[Case]) -> Iterator[Case]:
    """Cases under answers that let a loop go on, where several must hold together and no run so far had them so."""
    for case in cases[:_BASES]:
        for start in (case.true, case.false):
            for path in _explore(machine, start, after=False):
                if _goes_on(path) and any(seen.key == start.key for seen in first_turn(path.run)):
                    yield from (_case(machine, path, case.seen, later) for later in (False, True))
                    return


def _case(machine: Machine, path: Path, seen: Seen, later: bool) -> Case:
    given = [{**path.forced, seen.key: truth} for truth in (True, False)]
    ends = [_path(machine, path.seed, seen.key, later, forced) for forced in given]
    return Case(seen, ends[0], ends[1])


def first_turn(run: Run) -> Iterator[Seen]:
    """The comparisons of drafts in the first turn of every loop of a run."""
    for turns in run.loops.values():
        if turns.compared:
            yield from (seen for seen in turns.compared[0] if seen.kind != "none")


def _held_against(seen: Seen) -> bool:
    """A draft is held against something else: one pointer alone, without a draw, is no test of a draft."""
    return seen.kind == "rate" or seen.left.random or seen.right.random or len(rests_on(seen)) > 1


def rests_on(seen: Seen) -> tuple[str, ...]:
    """Everything that is loaded for this turn to make the two sides: what is compared, and the tokens that address
    it.
    """
    loads = (atom for side in (seen.left, seen.right) for atom in side.atoms if atom.kind == "load")
    fresh = (load for load in loads if load.varies or load.vector)
    return tuple(sorted({found.name for load in fresh if (found := root(load.args[0])) is not None}))


def accepting(seen: Seen) -> bool | None:
    """The truth of the key that accepts: tokens are equal, the draw is the smaller side; ``None`` when it cannot be
    told.
    """
    if seen.kind == "exact":
        return None if seen.left.matches or seen.right.matches else True
    left, right = draw(seen.left), draw(seen.right)
    return None if left == right else left is seen.ascending

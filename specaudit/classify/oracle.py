"""Answers for open comparisons, and the runs that put one of them on trial.

A comparison's part in a loop is found by pairs of runs that differ in its answer alone. Where a random answer is
unlikely to reach something (a long conjunction), the answers after it are changed one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from specaudit.classify.machine import Machine
from specaudit.classify.runs import Oracle, Run, Seen
from specaudit.classify.terms import Kind, Term, draw, root

_SEEDS, _FEW = 24, 8
_BASES, _PATHS, _STEPS = 4, 24, 20_000
_PRIME, _MIX, _WORD = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True, slots=True)
class Path:
    """One run and how to repeat it: its seed, the key under test, and the answers that were given."""

    seed: int
    key: int
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

    @property
    def exhausted(self) -> bool:
        """So much was run that no more will be."""
        return self.machine.steps > _STEPS

    def run(self, path: Path, forced: Mapping[int, bool]) -> Path:
        """The same run once more with further answers given."""
        if self.exhausted:
            return path
        return _path(self.machine, path.seed, path.key, {**path.forced, **forced})

    def explore(self, start: Path) -> Iterator[Path]:
        """Runs in which the comparison keeps its truth and what is asked after it is answered the other way, one by
        one.
        """
        todo: list[Mapping[int, bool]] = [start.forced]
        for _ in range(_PATHS):
            if not todo or self.exhausted:
                return
            path = _path(self.machine, start.seed, start.key, todo.pop())
            yield path
            kept, reached = dict(path.forced), False
            for asked in path.run.asked:
                if reached and asked.first and asked.key not in kept:
                    todo.append({**kept, asked.key: not asked.answer})
                    kept[asked.key] = asked.answer
                reached = reached or asked.key == start.key


def bases(paths: list[Path]) -> list[Path]:
    """The few runs from which it is worth exploring."""
    return paths[:_BASES]


def _path(machine: Machine, seed: int, key: int, forced: Mapping[int, bool]) -> Path:
    return Path(seed, key, forced, machine.execute(answers(seed, forced, key)))


def answers(seed: int, forced: Mapping[int, bool], alone: int = -1) -> Oracle:
    """A truth for every key: all true, all false, then mixtures with one half, three quarters and one quarter true.

    The second turn's questions are answered as the first turn's were, unless their own answer is forced; what is
    forced on the key ``alone`` holds for the first turn only.
    """
    threshold = (0, 256, 128, 64, 192)[seed if seed < 2 else 2 + seed % 3]

    def answer(term: Term) -> bool:
        if term.id in forced:
            return forced[term.id]
        if term.twin in forced and term.twin != alone:
            return forced[term.twin]
        mixed = ((term.twin + 1) * _PRIME + seed * _MIX) & _WORD
        mixed = ((mixed ^ (mixed >> 29)) * _MIX) & _WORD
        return (mixed >> 40 & 0xFF) >= threshold

    return answer


def discover(machine: Machine, sites: Collection[int]) -> list[Run]:
    """Runs under mixed answers; few of them when those have made every comparison of ``sites`` and none tests a
    draft.
    """
    runs: list[Run] = []
    drafts = False
    for seed in range(_SEEDS):
        if seed >= _FEW and not drafts and machine.compared.issuperset(sites):
            break
        runs.append(machine.execute(answers(seed, {})))
        drafts = drafts or any(_held_against(seen) for seen in first_turn(runs[-1]))
    return runs


def trials(machine: Machine, runs: Sequence[Run]) -> Iterator[Trial]:
    """One trial for each place that compares drafts in some first turn of some loop; ``runs`` are those of
    :func:`discover`.
    """
    reached: dict[int, list[tuple[int, Seen]]] = {}
    for seed, run in enumerate(runs):
        here: set[int] = set()
        for seen in first_turn(run):
            if seen.site not in here and _held_against(seen):
                here.add(seen.site)
                reached.setdefault(seen.site, []).append((seed, seen))
    for site, found in sorted(reached.items(), key=lambda item: item[1][0][1].line):
        # A row whose offset is zero makes a lookup per row look like one per step: what other runs say of the place
        # holds.
        kinds = {seen.kind for _, seen in found}
        kind: Kind = next(k for k in ("ratio", "exact", "rate") if k in kinds)
        cases = [
            Case(seen, *(_path(machine, seed, seen.key, {seen.key: truth}) for truth in (True, False)))
            for seed, seen in found
            if seen.kind == kind and not machine.steps > _STEPS
        ]
        yield Trial(machine, site, kind, found[0][1].line, tuple(cases))


def first_turn(run: Run) -> Iterator[Seen]:
    """The comparisons of drafts in the first turn of every loop of a run."""
    for turns in run.loops.values():
        if turns.compared:
            yield from (seen for seen in turns.compared[0] if seen.kind != "none")


def _held_against(seen: Seen) -> bool:
    """A draft is held against something else: one pointer alone, without a draw, is no test of a draft."""
    return seen.left.random or seen.right.random or len(rests_on(seen)) > 1


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

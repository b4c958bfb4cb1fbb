"""Snapshot + recipes -> Plan: what would be written, proven on a tree in memory, before anything is touched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from specaudit.errors import RecipeRefused
from specaudit.index import Index
from specaudit.model import Finding
from specaudit.patching.checks import findings
from specaudit.patching.model import Flip, Plan, Step
from specaudit.patching.recipes.base import Recipe
from specaudit.patching.workspace import Workspace, overlay
from specaudit.snapshot import Snapshot

_DEFECTIVE = ("present", "partial")
_RIGHT = ("fixed", "not-applicable")


def plan(
    snapshot: Snapshot,
    recipes: Sequence[Recipe],
    standing: Mapping[str, str] | None = None,
    known: Mapping[str, Recipe] | None = None,
) -> Plan:
    """Plans recipes, one on top of the other, in an order in which each finds what it needs.

    Args:
        snapshot: the engine.
        recipes: as asked for.
        standing: recipes applied already, name -> version.
        known: all recipes by name, to add what the asked ones require.

    Raises:
        RecipeRefused: a recipe does not fit this engine; the message says why, and nothing is planned.
    """
    standing, known = standing or {}, known or {recipe.name: recipe for recipe in recipes}
    ordered = _ordered(recipes, known)
    asked = {recipe.name for recipe in recipes}
    notes: list[str] = []
    steps: list[Step] = []
    already: list[str] = []
    current = snapshot
    for recipe in ordered:
        if recipe.name in standing:
            _same_version(recipe, standing[recipe.name])
            already.append(recipe.name)
            continue
        index = Index(current)
        if recipe.name not in asked and (satisfied := _satisfied(recipe, index)):
            notes.append(f"{recipe.name}, which {_needing(recipe, ordered)} needs, has no work here: {satisfied}")
            continue
        if recipe.name not in asked:
            notes.append(f"{recipe.name} is planned too: {_needing(recipe, ordered)} needs it")
        try:
            step = _step(recipe, index)
        except RecipeRefused as bad:
            stand = [name for name in recipe.siblings if name in standing]
            done = f"{' and '.join(stand)}, which fits this engine, is applied already." if stand else ""
            bad.hint = done or _unread(index) or _instead(recipe, index, known) or bad.hint
            raise
        steps.append(step)
        current = overlay(current, {change.path: change.after for change in step.changes})
    made = Plan(snapshot.engine.name, snapshot.engine.version, snapshot.engine.digest, tuple(steps), tuple(already))
    foreign = sorted(set(made.paths) & {*snapshot.engine.modified, *snapshot.engine.missing})
    notes += [f"{path} is not as its wheel shipped it: the change is made on top" for path in foreign]
    return Plan(made.engine, made.version, made.digest, made.steps, made.already, tuple(notes))


def _unread(index: Index) -> str:
    """What a refused recipe may have looked for in vain."""
    unread = index.unread
    return f"Could not be read: {', '.join(unread[:3])}. Allow it for this account, or repair it." if unread else ""


def _satisfied(recipe: Recipe, index: Index) -> str:
    """Why a recipe that another one requires has nothing to do here: all it repairs is right; else nothing."""
    found = findings(index, recipe.repairs)
    right = bool(found) and all(finding.status in _RIGHT for finding in found.values())
    return _nothing(found, recipe.repairs) if right else ""


def _step(recipe: Recipe, index: Index) -> Step:
    engine = index.snapshot.engine
    if engine.name != recipe.engine:
        raise _refused(recipe, f"it is for {recipe.engine}, this is {engine.name}", "Name another target.")
    rules = (*recipe.repairs, *recipe.also)
    before = findings(index, rules)
    present = frozenset(rule for rule in recipe.repairs if before[rule].status in _DEFECTIVE)
    if recipe.repairs and not present:
        raise _refused(recipe, _nothing(before, recipe.repairs), "Nothing needs to be done here.")
    work = Workspace(index)
    try:
        recipe.write(work, present)
    except RecipeRefused as bad:
        raise _refused(recipe, bad.message, bad.hint) from bad
    changes = work.changes()
    if not changes:
        raise _refused(recipe, "it would change nothing", "Nothing needs to be done here.")
    then = work.after()
    after = findings(then, rules)
    wrong = [f"{rule} would still be {after[rule].status}" for rule in sorted(present) if after[rule].status != "fixed"]
    wrong += [
        f"{rule} would turn {after[rule].status}"
        for rule in rules
        if after[rule].status in _DEFECTIVE and before[rule].status not in _DEFECTIVE
    ]
    wrong += recipe.check(index, then)
    if wrong:
        raise _refused(recipe, "; ".join(wrong), "This release has another shape; report it.")
    unseen = [rule for rule in recipe.repairs if before[rule].status not in (*_DEFECTIVE, *_RIGHT)]
    notes = [f"{_judged(before[rule])}, so nothing is repaired there." for rule in unseen]
    return Step(
        recipe.name, recipe.version, recipe.summary, changes, _flips(before, after), recipe.requires,
        (*notes, *recipe.notes),
    )  # fmt: skip


def _instead(recipe: Recipe, index: Index, known: Mapping[str, Recipe]) -> str:
    """The siblings of a refused recipe that fit the engine, as a hint; nothing where none does."""
    fitting = [name for name in recipe.siblings if name in known and _fits(known[name], index)]
    options = " or ".join(f"--recipe {name}" for name in fitting)
    return f"Use {options} instead, which fits this engine." if fitting else ""


def _fits(recipe: Recipe, index: Index) -> bool:
    """Whether there is something for it to do, and every anchor of its edits is found."""
    if index.snapshot.engine.name != recipe.engine:
        return False
    present = {rule for rule, finding in findings(index, recipe.repairs).items() if finding.status in _DEFECTIVE}
    try:
        recipe.write(Workspace(index), frozenset(present))
    except RecipeRefused:
        return False
    return bool(present) or not recipe.repairs


def _flips(before: Mapping[str, Finding], after: Mapping[str, Finding]) -> tuple[Flip, ...]:
    return tuple(Flip(r, before[r].status, after[r].status) for r in before if before[r].status != after[r].status)


def _nothing(found: Mapping[str, Finding], rules: Iterable[str]) -> str:
    """Why there is nothing to repair, per finding."""
    return "nothing to repair: " + "; ".join(_judged(found[rule]) for rule in rules)


def _judged(finding: Finding) -> str:
    where = f" ({finding.sites[0].path}:{finding.sites[0].line})" if finding.sites else ""
    return f"{finding.rule} is {finding.status}{where}" + (f": {finding.reason}" if finding.reason else "")


def _refused(recipe: Recipe, why: str, hint: str) -> RecipeRefused:
    return RecipeRefused(f"{recipe.name}: {why.rstrip('.')}.", hint)


def _same_version(recipe: Recipe, applied: str) -> None:
    if applied != recipe.version:
        raise _refused(
            recipe,
            f"version {applied} is applied, this program has version {recipe.version}",
            f"Take the old one back first: specaudit patch revert TARGET --recipe {recipe.name}.",
        )


def _ordered(recipes: Sequence[Recipe], known: Mapping[str, Recipe]) -> list[Recipe]:
    """The recipes with what they require, requirements first."""
    ordered: dict[str, Recipe] = {}

    def add(recipe: Recipe) -> None:
        for name in recipe.requires:
            if name not in known:
                raise _refused(recipe, f"it requires {name}, which is not known", "Reinstall specaudit.")
            add(known[name])
        ordered.setdefault(recipe.name, recipe)

    for recipe in recipes:
        add(recipe)
    return list(ordered.values())


def _needing(recipe: Recipe, ordered: Sequence[Recipe]) -> str:
    return " and ".join(other.name for other in ordered if recipe.name in other.requires)


def as_document(made: Plan) -> dict[str, Any]:
    """The plan as JSON values: what would be written where, on what it rests, what it repairs."""
    return {
        "schema": "specaudit/plan/1",
        "engine": {"name": made.engine, "version": made.version, "digest": made.digest},
        "recipes": [
            {
                **application(step),
                "anchors": [asdict(anchor) for change in step.changes for anchor in change.anchors],
                "findings": [asdict(flip) for flip in step.flips],
                "notes": list(step.notes),
            }
            for step in made.steps
        ],
        "already": list(made.already),
        "notes": list(made.notes),
    }


def application(step: Step) -> dict[str, Any]:
    """One step as the agent takes it."""
    changes = [{"path": c.path, "before": c.before_sha, "after": c.after_sha} for c in step.changes]
    head = {"recipe": step.recipe, "version": step.version, "summary": step.summary, "requires": list(step.requires)}
    return {**head, "changes": changes}

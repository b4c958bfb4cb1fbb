"""Plans, standings and verifications as lines of text with a style each; pure functions, nothing is printed here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from specaudit.lines import Line, hanging
from specaudit.model import Failure
from specaudit.patching.client import Standing
from specaudit.patching.diff import counts, difference
from specaudit.patching.model import Change, Plan, Step
from specaudit.patching.operations import Prepared, Verification
from specaudit.patching.place import Surroundings
from specaudit.patching.recipes.base import Recipe
from specaudit.words import counted

#: Foreign files that are shown one by one.
SHOWN = 12
_DIFF = {"+": "green", "-": "red", "@": "cyan"}


def plan_lines(place: str, prepared: Prepared, *, diffs: bool = True) -> Iterator[Line]:
    """A plan: what, where, on what it rests, the diff, who else is concerned, what must be restarted."""
    plan = prepared.plan
    yield f"{place}: {plan.engine} {plan.version or '(version unknown)'}", "bold"
    for name in plan.already:
        yield f"  {name} is applied already", "green"
    for step in plan.steps:
        yield from _step(step)
    if not plan.steps:
        yield "  nothing is to be changed", None
        return
    yield "", None
    yield "Files, in the order in which they are replaced", "bold underline"
    for change in plan.total:
        added, removed = counts(change)
        yield f"  {'new' if change.before is None else 'edit':<5} {change.path}  +{added} -{removed}", None
    if diffs:
        yield "", None
        for change in plan.total:
            yield from _diff(change)
    yield from _around(prepared.surroundings)
    for note in plan.notes:
        yield from hanging("note: ", note, "yellow")


def _step(step: Step) -> Iterator[Line]:
    yield "", None
    yield f"{step.recipe} {step.version}", "bold underline"
    yield from hanging("  ", step.summary)
    for flip in step.flips:
        yield f"  repairs  {flip.rule}  ({flip.before} -> {flip.after})", "green"
    for change in step.changes:
        for anchor in change.anchors:
            yield from hanging("  anchor   ", f"{anchor.path}:{anchor.line}  {anchor.text}", "dim")
    for note in step.notes:
        yield from hanging("  note     ", note, "yellow")


def recipe_lines(recipe: Recipe) -> Iterator[Line]:
    """What a recipe is for."""
    yield f"{recipe.name} {recipe.version}", "bold"
    yield from hanging("  ", recipe.summary)
    for rule in recipe.repairs:
        yield f"  repairs  {rule}", "dim"
    for note in recipe.notes:
        yield from hanging("  note     ", note, "yellow")


def _diff(change: Change) -> Iterator[Line]:
    for line in difference(change).decode("utf-8", "replace").split("\n")[:-1]:
        style = "bold" if line.startswith(("diff ", "--- ", "+++ ", "new file")) else _DIFF.get(line[:1])
        yield line.rstrip("\r"), style


def _around(around: Surroundings) -> Iterator[Line]:
    if around.aliases or around.shared:
        yield "", None
        yield "Who else sees these files", "bold underline"
    for alias in around.aliases:
        yield from hanging("  ", f"{alias} leads to the same folder: it changes too", "yellow")
    for shared in around.shared:
        if shared.symlink:
            stays = f"{shared.path} is a link to {shared.symlink}: a file takes the link's place, that one stays"
            yield from hanging("  ", stays)
        for other in shared.others:
            yield from hanging("  ", f"{other} shares {shared.path}: it keeps the old content")
        if shared.unknown:
            links = counted(shared.unknown, "more hard link")
            yield from hanging("  ", f"{shared.path}: {links}, not found; the old content stays there")
    if around.processes:
        yield "", None
        yield "Processes that run the old code until they are restarted", "bold underline"
    yield from process_lines(around)


def process_lines(around: Surroundings, lead: str = "  ") -> Iterator[Line]:
    """Processes that have the engine in memory: a name, or a command line, which may be long and have line ends."""
    for pid, name in around.processes:
        yield from hanging(f"{lead}{pid}  ", name, "yellow")


def standing_lines(
    place: str, standing: Standing, foreign: Mapping[str, str] | None = None, unread: Iterable[Failure] = ()
) -> Iterator[Line]:
    """What stands: clean, patched by which recipe and version, drifted, foreign or interrupted.

    ``foreign`` maps paths that differ from the wheel, and not by specaudit, to ``changed``, ``missing`` or ``added``;
    of what is ``unread`` nobody knows.
    """
    others = list((foreign or {}).items())
    yield f"{place}: {state_word(standing, foreign)}", "bold"
    yield from _applications(standing.applied)
    yield from _pending(standing, "; take it back with revert")
    for file in standing.files:
        yield f"  {file.word:<9} {file.path}", None if file.word in ("patched", "original") else "red"
    for path, kind in others[:SHOWN]:
        yield from hanging("  foreign   ", f"{path}  ({kind} against its wheel, not by specaudit)", "yellow")
    if len(others) > SHOWN:
        yield f"  foreign   and {counted(len(others) - SHOWN, 'more file')}", "yellow"
    for failure in unread:
        yield from hanging("  unread    ", f"{failure.path}  ({failure.error})", "red")
    yield from _leftovers(standing)


def reverting_lines(place: str, standing: Standing, recipes: Collection[str] | None = None) -> Iterator[Line]:
    """What a revert of some recipes (all by default) takes back: which of them stand, and what becomes of each file."""
    yield f"{place}: {state_word(standing)}, to be taken back", "bold"
    yield from _applications(standing.going(recipes))
    yield from _pending(standing)
    files, drifted = {file.path: file for file in standing.files}, {file.path for file in standing.drifted}
    for path, sha in sorted(standing.goal(recipes).items()):
        if path in drifted:
            yield f"  {files[path].word:<9} {path}", "red"
        elif files[path].now != sha:
            yield f"  {'delete' if sha is None else 'restore':<9} {path}", None
    yield from _leftovers(standing)


def reverted_lines(place: str, answer: Mapping[str, Any]) -> Iterator[Line]:
    """The outcome of a revert, as the agent answers it."""
    parts = [f"{counted(len(answer['restored']), 'file')} restored"] if answer["restored"] else []
    parts += [f"{counted(len(answer['deleted']), 'file')} deleted"] if answer["deleted"] else []
    words = ", ".join(answer["reverted"]) or "the interrupted change"
    yield from hanging("", f"{place}: {words} taken back, {', '.join(parts) or 'no file had to be changed'}", "green")


def _applications(applied: Iterable[Mapping[str, Any]]) -> Iterator[Line]:
    for application in applied:
        yield from hanging(f"  {application['recipe']} {application['version']}  ", application.get("summary", ""))


def _pending(standing: Standing, advice: str = "") -> Iterator[Line]:
    if standing.pending is not None:
        word = "apply" if standing.pending["op"] == "apply" else "undo"
        yield f"  an {word} was interrupted{advice}", "red"


def _leftovers(standing: Standing) -> Iterator[Line]:
    if standing.leftovers:
        yield from hanging("  ", f"{standing.folder} was left by an interrupted run; revert removes it", "yellow")


def state_word(standing: Standing, foreign: Mapping[str, str] | None = None) -> str:
    """clean | patched | drifted | foreign | interrupted | busy."""
    if standing.state == "patched" and standing.drifted:
        return "drifted"
    if standing.state == "clean" and foreign:
        return "foreign"
    return standing.state


def verification_lines(place: str, found: Verification) -> Iterator[Line]:
    """The outcome of a verification."""
    word = "verified" if found.recipes else "no change by specaudit stands there, nothing is to be verified"
    yield f"{place}: {'NOT as promised' if found.problems else word}", "bold"
    yield from hanging("  recipes   ", ", ".join(found.recipes) or "none")
    yield from hanging("  repaired  ", ", ".join(found.repaired) or "no finding")
    imported = f", {found.imported} imported" if found.imported else ""
    yield f"  checked   {counted(found.compiled, 'file')} compiled{imported} by {found.python}", None
    for problem in found.problems:
        yield from hanging("  problem   ", problem, "red")
    if found.advice:
        yield from hanging("  try       ", found.advice, "yellow")


def outcome(plan: Plan) -> str:
    """One line after an application."""
    names = ", ".join(f"{step.recipe} {step.version}" for step in plan.steps)
    return f"applied {names}: {counted(len(plan.paths), 'file')} changed" if names else "nothing was changed"

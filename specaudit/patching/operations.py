"""Plan, apply, verify and take back on one place: the machine's agent does it, the user's journal remembers it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from specaudit.advice import TARGET
from specaudit.errors import ChangedError, PatchError
from specaudit.index import Index
from specaudit.model import Finding
from specaudit.patching import importing
from specaudit.patching.checks import every_finding
from specaudit.patching.client import AgentClient, Standing
from specaudit.patching.journal import Journal
from specaudit.patching.model import Plan
from specaudit.patching.place import Place, Surroundings
from specaudit.patching.plan import application, as_document, plan
from specaudit.patching.recipes.base import Recipe
from specaudit.patching.recipes.registry import recipes as all_recipes
from specaudit.patching.workspace import overlay

_DEFECTIVE = ("present", "partial")
#: One thread parses at a time: CPython 3.11 counts the depth of syntax trees once for all threads, and then finds it
#: wrong ("AST constructor recursion depth mismatch"). Nothing is lost, parsing holds the interpreter lock anyway.
_PARSING = threading.Lock()
#: Seconds that one import of an engine's module may take on a cold machine.
IMPORT_SECONDS = 300.0
#: Seconds that another run may take at most for a change of the same engine, before this one says that it is busy.
PATIENCE = 20.0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A plan for one place, what stands there, what it touches beside its files, and how the place was asked for.

    ``files`` holds the SHA-256 of every file of the engine as planned on.
    """

    plan: Plan
    standing: Standing | None
    surroundings: Surroundings
    asked: str
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Verification:
    """What a re-scan says about what stands. ``problems`` empty: all is as the recipes promise.

    ``compiled`` counts files, ``imported`` modules that could be imported by ``python``; ``advice`` says what to do
    about those that could not, and about files that are not as they were patched.
    """

    recipes: tuple[str, ...]
    problems: tuple[str, ...]
    repaired: tuple[str, ...]
    compiled: int
    imported: int
    python: str
    advice: str = ""


def prepare(place: Place, recipes: Sequence[Recipe]) -> Prepared:
    """Plans recipes on a place.

    Raises:
        RecipeRefused: a recipe does not fit.
        PatchError: an earlier change was interrupted, or has drifted, or a file is changed meanwhile.
    """
    standing = place.client.status() if place.client is not None else None
    if standing is not None:
        _sound(place, standing)
    versions = {str(a["recipe"]): str(a["version"]) for a in standing.applied} if standing else {}
    snapshot = place.snapshot()
    with _PARSING, _unchanged(place, "Plan again: specaudit patch TARGET --recipe NAME."):
        made = plan(snapshot, recipes, versions, all_recipes())
    around = place.surroundings(made.paths) if made.steps else Surroundings()
    return Prepared(made, standing, around, place.asked, snapshot.hashes)


@contextmanager
def _unchanged(place: Place, hint: str) -> Iterator[None]:
    """Says that a file is no longer what it was when the examination began, because of another run above all."""
    try:
        yield
    except ChangedError as bad:
        where = place.target.spec
        raise PatchError(f"{where}: {bad.message}", hint) from bad


def _sound(place: Place, standing: Standing) -> None:
    where, hint = place.target.spec, _way_out(place, standing)
    if standing.state == "interrupted":
        raise PatchError(f"{where}: an earlier change was interrupted.", hint)
    if standing.state == "busy":
        raise PatchError(f"{where}: another specaudit is changing this engine now.", hint)
    if standing.drifted:
        files = ", ".join(f"{f.path} ({f.word})" for f in standing.drifted)
        raise PatchError(f"{where}: patched files have changed since: {files}.", hint)


def _way_out(place: Place, standing: Standing) -> str:
    """What to do about what stands, where that is not as a change left it; ``""`` where it is."""
    if standing.state == "interrupted":
        return "Undo it first: specaudit patch revert TARGET."
    if standing.state == "busy":
        return "Wait until it has finished."
    return "Look at specaudit patch status TARGET." if standing.drifted else ""


def carry_out(place: Place, made: Plan, journals: Path | None = None) -> tuple[str, ...]:
    """Applies a plan and records it, before and after; returns notes for the user.

    Raises:
        PatchError: it was refused or failed; everything was undone.
    """
    agent, names = place.agent(), ", ".join(f"{step.recipe} {step.version}" for step in made.steps)
    blobs = {change.after_sha: change.after for step in made.steps for change in step.changes}
    before = {change.path: change.before for change in made.total if change.before is not None}
    notes: list[str] = []
    found = cache(lambda: journal_of(place, journals))

    def planned() -> str:
        journal = found()
        # What was recorded of applications that do not stand any more would only be confusing.
        kept = bool(place.agent().status().applied)
        originals = {**before, **(journal.contents("originals") if kept else {})}
        files = {**(journal.contents("files") if kept else {}), **before}
        return journal.record(f"planned: {names}", plan=as_document(made), originals=originals, files=files)

    _note(notes, planned)
    agent.apply([application(step) for step in made.steps], blobs)
    body = "\n".join(f"{change.path} {change.after_sha[:12]}" for change in made.total)
    _note(notes, lambda: _record(place, found(), f"applied: {names}", body))
    return tuple(dict.fromkeys(notes))  # a journal that cannot be kept fails twice, and is told once


def take_back(
    place: Place, recipes: Sequence[str] | None = None, journals: Path | None = None
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Reverts applications (all by default) and records it; returns the agent's answer and notes for the user.

    Raises:
        PatchError: someone else changed a file, or a later application is in the way.
    """
    answer = place.agent().revert(recipes)
    notes = _left(answer)
    paths = sorted(path for what in ("restored", "deleted", "untouched") for path in answer[what])
    if paths:
        names = ", ".join(answer["reverted"]) or "an interrupted change"
        _note(notes, lambda: _record(place, journal_of(place, journals), f"reverted: {names}", "\n".join(paths)))
    return answer, tuple(notes)


def forget(place: Place, journals: Path | None = None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Drops the machine's journal and records that; returns the recipes that were forgotten and notes for the user."""
    answer = place.agent().forget()
    names, notes = tuple(answer["forgotten"]), _left(answer)
    subject = f"forgotten: {', '.join(names) or 'what was there'}"
    _note(notes, lambda: journal_of(place, journals).record(subject))
    return names, tuple(notes)


def _left(answer: Mapping[str, Any]) -> list[str]:
    """Notes on what the agent found in its way and did not remove."""
    notes = []
    for path in answer["left"]:
        ours = path.startswith(".specaudit-")
        notes.append(f"{path} was left: {'specaudit did not make it' if ours else 'it holds files of someone else'}")
    return notes


def verify(place: Place, imports: bool = False) -> Verification:
    """Re-scans an engine with and without what stands, compiles every touched file, and imports it when asked."""
    agent = place.agent()
    standing = _settled(agent)
    problems = [f"{f.path} is {f.word}, not as it was patched" for f in standing.drifted]
    if standing.state in ("interrupted", "busy"):
        problems.append(f"a change is {standing.state}")
    journal, blobs = agent.fetch()
    originals = {path: blobs.get(e["sha256"]) if e["sha256"] else None for path, e in journal["files"].items()}
    snapshot = place.snapshot()
    before, after = Index(overlay(snapshot, originals)), Index(snapshot)
    with _PARSING, _unchanged(place, "Try again: specaudit patch verify TARGET."):
        repaired, wrong = _effect(standing, before, after)
    checked = _check(place, standing, imports)
    problems += wrong
    problems += [f"{path} does not compile: {why}" for path, why in checked["compiled"].items() if why]
    python, tried = str(checked["python"]), dict(checked["imported"])
    shown = f"{python} ({checked['version']})"
    problems += importing.problems(tried, shown)
    installed = place.installation
    advice = importing.advice(tried, python, installed.root, installed.engine, place.target)
    return Verification(
        standing.recipes,
        tuple(problems),
        repaired,
        len(checked["compiled"]),
        sum(not why for why in tried.values()),
        shown,
        " ".join(part for part in (_way_out(place, standing).replace(TARGET, place.asked), advice) if part),
    )


def _settled(agent: AgentClient) -> Standing:
    """What stands, once another run that is at work there has had its time: its change is whole, or undone."""
    end = time.monotonic() + PATIENCE
    while (standing := agent.status()).state == "busy" and time.monotonic() < end:
        time.sleep(0.2)
    return standing


def _effect(standing: Standing, before: Index, after: Index) -> tuple[tuple[str, ...], list[str]]:
    """Findings that are repaired, and what is not as the standing recipes claim."""
    known = all_recipes()
    old, new = every_finding(before), every_finding(after)
    claimed: set[str] = set()
    allowed: set[str] = set()
    wrong = []
    for name in standing.recipes:
        recipe = known.get(name)
        if recipe is None:
            wrong.append(f"{name} is not a recipe of this program, so its effect cannot be checked")
            continue
        claimed |= {rule for rule in recipe.repairs if old[rule].status in _DEFECTIVE}
        allowed |= {*recipe.also, *recipe.repairs}
        wrong += recipe.check(before, after)
    wrong += [f"{rule} is still {new[rule].status}" for rule in sorted(claimed) if new[rule].status != "fixed"]
    flips = {rule for rule in old if _status(old, rule) != _status(new, rule)}
    wrong += [f"{r} turned from {old[r].status} to {new[r].status}" for r in sorted(flips - claimed - allowed)]
    return tuple(sorted(rule for rule in flips if new[rule].status == "fixed")), wrong


def _status(found: Mapping[str, Finding], rule: str) -> str:
    return found[rule].status


def _check(place: Place, standing: Standing, imports: bool) -> dict[str, Any]:
    paths = [f.path for f in standing.files if f.now and f.path.endswith(".py")]  # a pipe would be waited for
    modules = [path[: -len(".py")].replace("/", ".").removesuffix(".__init__") for path in paths] if imports else []
    request = {"paths": paths, "modules": modules, "seconds": IMPORT_SECONDS}
    python = place.installation.python or None
    found: dict[str, Any] = place.call(
        "specaudit.patching.checking", request, python, 60.0 + IMPORT_SECONDS * len(modules)
    )
    return found


def journal_of(place: Place, folder: Path | None = None) -> Journal:
    """The user's journal of the engine at a place."""
    standing = place.agent().status()
    return Journal(place.target.spec, standing.folder, place.installation.engine, folder)


def _record(place: Place, journal: Journal, subject: str, body: str) -> str:
    """Records what the machine says now; a touched file that no application changes any more is its original again."""
    state, blobs = place.agent().fetch()
    expected = {c["path"]: c["after"] for a in state["applied"] for c in a["changes"]}
    files = {path: blobs[sha] for path, sha in expected.items() if sha in blobs}
    return journal.record(subject, body, state=state, files={**journal.contents("originals"), **files})


def _note(notes: list[str], action: Callable[[], str]) -> None:
    """The machine has the change and its own copy of the originals: a journal that cannot be kept here ends nothing."""
    try:
        said = action()
        if said:
            notes.append(said)
    except PatchError as bad:
        notes.append(f"{bad.message} {bad.hint}")

"""``specaudit patch``: a plan first, then a change, and the way back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from specaudit.cli import machines
from specaudit.cli.root import sub_app
from specaudit.errors import Exit, JournalError, LeftError, PatchError, UsageError, exit_of
from specaudit.words import about, meant

if TYPE_CHECKING:
    from typer._click.core import Context

    from specaudit.hosts.machines import Machines
    from specaudit.patching.fleet import Applied, Open, Planned
    from specaudit.patching.place import Place


class _Default(TyperGroup):
    """``specaudit patch TARGET …`` is ``specaudit patch apply TARGET …``."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Puts the command's name before anything that is not one."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            if args[0][:1] != "-" and not any(word.startswith("--recipe") for word in args):  # then it is no target
                self._no_command(args[0])
            args = ["apply", *args]
        return super().parse_args(ctx, args)

    def _no_command(self, word: str) -> None:
        if near := meant(word, self.commands):
            raise UsageError(f"There is no command {word!r} of specaudit patch.", near)


app = sub_app(cls=_Default, no_args_is_help=True)

TargetArgument = Annotated[
    str, typer.Argument(metavar="TARGET", help="@local, dir:PATH, or a machine as ssh knows it.", show_default=False)
]
EngineOption = Annotated[
    str | None, typer.Option("--engine", metavar="NAME", help="vllm or sglang, where both are installed.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON to stdout, and nothing else.")]


@app.callback()
def _patch() -> None:
    """Change an installed engine, prove the effect, and take it back byte for byte.

    `specaudit patch TARGET --recipe NAME` shows the plan and asks; see `specaudit patch apply --help`.
    """


@app.command("apply")
@machines.reaching
def apply(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="TARGET...", help="As in status; a wheel or a release with --emit.", show_default=False),
    ] = None,
    *,
    recipe: Annotated[
        list[str], typer.Option("--recipe", metavar="NAME", help="What to apply (repeatable; see recipes).")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Apply without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan only, as without a terminal.")] = False,
    emit: Annotated[
        Path | None, typer.Option("--emit", metavar="FILE", help="Write the plan as a patch file; change nothing.")
    ] = None,
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Of several targets, change those that can be.")
    ] = False,
    imports: Annotated[
        bool, typer.Option("--import", help="Afterwards import the changed modules with the engine's interpreter.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff/--no-diff", help="Show the unified diff.")] = True,
    said: machines.Said,
    inventory: machines.InventoryFile = None,
    limit: machines.Limit = None,
    engine: EngineOption = None,
    json: JsonOption = False,
) -> None:
    """Plan recipes, show the plan, and apply it (the default of `specaudit patch TARGET`).

    Everything is checked before the first file is touched, and undone when anything fails. On several targets: none is
    changed unless all can be and hold the same engine; one that fails is taken back.
    """
    from specaudit import document
    from specaudit.console import complain, note, show_lines
    from specaudit.patching import fleet
    from specaudit.patching.present import outcome, plan_lines, verification_lines
    from specaudit.patching.recipes.registry import named

    wanted = named(recipe)
    if not targets and inventory is None:
        raise UsageError("No target is named.", "Write specaudit patch TARGET --recipe NAME, or name an --inventory.")
    meant, reached = machines.meant(targets or [], said, inventory=inventory, limit=limit)
    if emit is not None:
        document.check_writable(emit)
    with _opener(engine, reached) as open_place:
        planned = fleet.plan_all(meant, wanted, open_place)
        if len(planned) == 1 and planned[0].error is not None:
            raise planned[0].error
        if not json:
            for p in planned:
                if p.prepared is not None:
                    show_lines(plan_lines(p.target.spec, p.prepared, diffs=diff))
        if emit is not None:
            _emit(planned, emit, json)
            return
        if not allow_partial:
            fleet.agree(planned)
        for p in planned:
            if p.error is not None:  # told before anybody is asked, and where nothing is applied, too
                complain(about(p.target.spec, p.error.message), p.error.hint)
        changing = any(p.prepared is not None and p.prepared.plan.steps for p in planned)
        if dry_run or not changing or not (yes or _agreed()):
            if changing and not dry_run and not json:
                note("nothing was changed; add --yes to apply")
            _write(json, [_planned(p) for p in planned])
            raise typer.Exit(exit_of(p.code for p in planned))
        sent = {p.target.spec: p.prepared.asked for p in planned if p.prepared is not None and p.prepared.plan.steps}
        with _sent(sent, "Undo it"):
            done = fleet.apply_all(planned, open_place, imports)
    for p, result in zip(planned, done, strict=True):
        for text in result.notes:
            note(text if len(done) == 1 else about(p.target.spec, text))
        if p.error is not None:
            continue
        if result.error is not None:
            why = result.error.message + (" Its change was taken back." if result.reverted else "")
            complain(why if len(done) == 1 else about(p.target.spec, why), result.error.hint)
        elif not json and p.prepared is not None and result.verification is not None:
            show_lines([("", None), *verification_lines(result.target.spec, result.verification)])
            show_lines([(f"  {outcome(p.prepared.plan)}", "green")])
            if p.prepared.surroundings.processes:
                note("restart the processes listed above: they still run the old code")
    _write(json, [{**_planned(p), **_applied(result)} for p, result in zip(planned, done, strict=True)])
    raise typer.Exit(exit_of(result.code for result in done))


def _agreed() -> bool:
    return sys.stdin.isatty() and typer.confirm("Apply this?", err=True)


def _emit(planned: tuple[Planned, ...], file: Path, json: bool) -> None:
    from specaudit.document import write
    from specaudit.patching.diff import dockerfile, patch

    if len(planned) != 1:
        raise UsageError("--emit takes one target.", "Write one patch file for each release.")
    assert planned[0].prepared is not None
    made = planned[0].prepared.plan
    if not made.steps:
        raise UsageError("There is nothing to write: everything is applied already.", "Name another recipe.")
    write(file, patch(made))
    _write(json, [_planned(planned[0])])
    if not json:
        print(f"\n{file} holds the patch. In a Dockerfile:\n\n{dockerfile(made.engine, file.name, made.paths)}", end="")


@app.command("status")
@machines.reaching
def status(
    target: TargetArgument, *, said: machines.Said, engine: EngineOption = None, json: JsonOption = False
) -> None:
    """Tell what stands: clean, patched by which recipe, drifted, foreign or interrupted. Changes nothing.

    Exit code 1 when files are not as the package or the recipes left them, 3 when some could not be read.
    """
    from specaudit.console import show_lines
    from specaudit.patching.present import standing_lines, state_word

    with _place(target, said, engine) as place:
        standing = place.agent().status()
        snapshot = place.snapshot()
    facts, unread = snapshot.engine, [one for one in snapshot.errors if one.path]
    kinds = {"changed": facts.modified, "missing": facts.missing, "added": facts.added}
    foreign = {path: kind for kind, paths in kinds.items() for path in paths if path not in _ours(standing)}
    word = state_word(standing, foreign)
    if not json:
        show_lines(standing_lines(target, standing, foreign, unread))
    files = [{"path": f.path, "state": f.word} for f in standing.files]
    recipes = [{"recipe": a["recipe"], "version": a["version"]} for a in standing.applied]
    lost = [{"path": one.path, "error": one.error} for one in unread]
    stands = {"target": target, "state": word, "recipes": recipes, "files": files, "foreign": foreign, "unread": lost}
    _write(json, [stands])
    if unread:
        raise typer.Exit(Exit.INCOMPLETE)
    raise typer.Exit(Exit.CLEAN if word in ("clean", "patched") and not foreign else Exit.FINDINGS)


@app.command("verify")
@machines.reaching
def verify(
    target: TargetArgument,
    imports: Annotated[
        bool, typer.Option("--import", help="Import the changed modules with the engine's interpreter.")
    ] = False,
    *,
    said: machines.Said,
    engine: EngineOption = None,
    json: JsonOption = False,
) -> None:
    """Scan again with and without what stands, compile every changed file, import it when asked.

    Exit code 1 when a recipe does not do what it claims, or anything else changed with it.
    """
    from specaudit.console import show_lines
    from specaudit.patching.operations import verify as check
    from specaudit.patching.present import verification_lines

    with _place(target, said, engine) as place:
        found = check(place, imports)
    if not json:
        show_lines(verification_lines(target, found))
    _write(json, [_verified(found)])
    raise typer.Exit(Exit.FINDINGS if found.problems else Exit.CLEAN)


@app.command("revert")
@machines.reaching
def revert(
    target: TargetArgument,
    recipe: Annotated[
        list[str] | None, typer.Option("--recipe", metavar="NAME", help="Take back only this one (repeatable).")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")] = False,
    *,
    said: machines.Said,
    engine: EngineOption = None,
    json: JsonOption = False,
) -> None:
    """Take changes back: bytes, mode, owner, times and links as they were. Undoes interrupted runs too.

    Refuses when someone else has changed a file since, and shows the difference.
    """
    from specaudit.console import note, show_lines
    from specaudit.patching.operations import take_back
    from specaudit.patching.present import process_lines, reverted_lines, reverting_lines
    from specaudit.patching.recipes.registry import named

    with _place(target, said, engine) as place:
        standing = place.agent().status()
        stand = {application["recipe"] for application in standing.applied}
        named(name for name in recipe or () if name not in stand)  # that there are such
        nothing: dict[str, Any] = {"target": target, "reverted": [], "restored": [], "deleted": []}
        if not (standing.applied or standing.pending or standing.leftovers):
            _write(json, [nothing])
            if not json:
                show_lines([(f"{target}: no change by specaudit stands there, nothing is to be taken back", None)])
            return
        absent = ", ".join(sorted({*(recipe or ())} - stand))
        if absent:  # the machine would say so, but not before the question
            stands = ", ".join(standing.recipes) or "none"
            raise UsageError(f"{target}: not applied here: {absent}.", f"Leave it out; what stands: {stands}.")
        if not json:
            show_lines(reverting_lines(target, standing, recipe))
        if not yes and not (sys.stdin.isatty() and typer.confirm("Take it back?", err=True)):
            note("nothing was changed; add --yes to take it back")
            _write(json, [nothing])
            return
        with _sent({target: place.asked}, "Go on"):
            answer, notes = take_back(place, recipe)
        for text in notes:
            note(text)
        if not json:
            show_lines(reverted_lines(target, answer))
            show_lines(process_lines(place.surroundings(()), "  restart "))
    _write(json, [{"target": target, **{what: list(answer[what]) for what in ("reverted", "restored", "deleted")}}])


@app.command("launch")
@machines.reaching
def launch(
    target: TargetArgument,
    model: Annotated[str, typer.Option("--model", metavar="MODEL", help="The target, as vllm serve takes it.")],
    draft: Annotated[str, typer.Option("--draft", metavar="MODEL", help="Its DFlash drafter.")],
    draft_tokens: Annotated[
        int, typer.Option("--draft-tokens", min=1, metavar="K", help="Tokens of the drafter's chain.")
    ] = 15,
    budget: Annotated[int, typer.Option("--budget", metavar="N", help="Nodes of a tree.")] = 16,
    exact: Annotated[bool, typer.Option("--exact", help="Attention that rounds as the chain's does.")] = False,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Write it there, to be run.")] = None,
    *,
    said: machines.Said,
    engine: EngineOption = None,
) -> None:
    """Write a script that starts a patched engine with trees, and tells the way back.

    It forces the attention backend that trees need, and says what stock would have picked.
    """
    from specaudit import document
    from specaudit.console import note
    from specaudit.patching.launch import ORDER_PATH, Launch, recipe_of, script

    if output is not None:
        document.check_writable(output)
    with _place(target, said, engine) as place:
        recipe = recipe_of(place.agent().status().recipes, place.asked)
        snapshot = place.snapshot(lambda path: path == ORDER_PATH)
        source = snapshot.read(ORDER_PATH).decode("utf-8", "replace") if ORDER_PATH in snapshot.files else ""
        text = script(
            Launch(model, draft, draft_tokens, budget, exact),
            recipe,
            f"{place.installation.engine} {place.installation.version}".strip(),
            place.asked,
            source,
            snapshot.environment.gpus,
            place.target.python,
        )
    if output is None:
        sys.stdout.write(text)
        return
    document.write(output, text.encode())
    if output.is_file():
        output.chmod(output.stat().st_mode | 0o111)
    note(f"{output}: starts it; arguments of vllm serve may follow")


@app.command("forget")
@machines.reaching
def forget(
    target: TargetArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")] = False,
    *,
    said: machines.Said,
    engine: EngineOption = None,
) -> None:
    """Drop the machine's journal and leave the engine's files as they are (after a reinstallation, say)."""
    from specaudit.console import note, show_lines
    from specaudit.patching import operations

    with _place(target, said, engine) as place:
        try:
            standing = place.agent().status()
        except JournalError as unreadable:
            standing = None
            note(unreadable.message)
        if standing and not (standing.applied or standing.pending or standing.leftovers):
            show_lines([(f"{target}: no change by specaudit stands there, there is no journal to drop", None)])
            return
        if standing and standing.applied and not (standing.drifted or yes):
            raise PatchError(f"{target} is patched, and its files are as they were left.", "Use revert; or add --yes.")
        if not yes and not (sys.stdin.isatty() and typer.confirm("Drop the journal?", err=True)):
            note("nothing was changed; add --yes to drop the journal")
            return
        forgotten, notes = operations.forget(place)
        for text in notes:
            note(text)
        names = ", ".join(forgotten) or ("an interrupted run" if standing else "unknown changes")
        show_lines([(f"{target}: the journal of {names} is dropped, files stay as they are", None)])


@app.command("log")
@machines.reaching
def log(target: TargetArgument, *, said: machines.Said, engine: EngineOption = None) -> None:
    """List what was done to an engine from this account, newest first."""
    from specaudit.console import show_lines
    from specaudit.patching.operations import journal_of

    with _place(target, said, engine) as place:
        entries = journal_of(place).entries()
    show_lines((f"{e.identity[:12]}  {e.date}  {e.subject}", None) for e in entries)
    if not entries:
        show_lines([(f"{target}: nothing was recorded here", None)])


@app.command("show")
@machines.reaching
def show(
    target: TargetArgument,
    entry: Annotated[str, typer.Argument(metavar="ENTRY", help="As log names it; the newest one by default.")] = "",
    *,
    said: machines.Said,
    engine: EngineOption = None,
) -> None:
    """Show one entry of the log: its plan, and what was written, as a diff."""
    from specaudit.console import show_lines
    from specaudit.patching.operations import journal_of

    with _place(target, said, engine) as place:
        journal = journal_of(place)
        newest = journal.entries()
        if not newest:
            raise UsageError(
                f"Nothing was recorded about {target} here.", "specaudit patch status TARGET tells what stands."
            )
        text = journal.show(entry or newest[0].identity)
    show_lines((line, None) for line in text.split("\n"))


@app.command("recipes")
def recipes() -> None:
    """List the recipes."""
    from specaudit.console import show_lines
    from specaudit.patching.present import recipe_lines
    from specaudit.patching.recipes.registry import recipes as known

    for recipe in known().values():
        show_lines(recipe_lines(recipe))


@contextmanager
def _opener(engine: str | None, reached: Machines) -> Iterator[Open]:
    from specaudit.cli.caching import cached
    from specaudit.patching.place import place

    with cached() as cache, reached:
        yield lambda target: place(target, cache, engine, machines=reached)


@contextmanager
def _place(spec: str, said: machines.Said, engine: str | None) -> Iterator[Place]:
    target, reached = machines.one_meant(spec, said)
    with _opener(engine, reached) as open_place, open_place(target) as place:
        yield place


@contextmanager
def _sent(asked: dict[str, str], then: str) -> Iterator[None]:
    """Says, when Ctrl-C comes meanwhile, that a change was sent, and how to see and undo it.

    ``asked`` are the targets, each with how a command line names it.
    """
    try:
        yield
    except KeyboardInterrupt:
        one = next(iter(asked.values())) if len(asked) == 1 else "TARGET"
        raise LeftError(
            f"Interrupted, after a change had been sent to {', '.join(asked)}: it may have been made.",
            f"Look at specaudit patch status {one}. {then}: specaudit patch revert {one}.",
        ) from None


def _ours(standing: Any) -> set[str]:
    return {file.path for file in standing.files}


def _planned(p: Planned) -> dict[str, Any]:
    from specaudit.patching.plan import as_document

    if p.prepared is None:
        return {"target": p.target.spec, "error": p.error.message if p.error else ""}
    around = p.prepared.surroundings
    return {
        "target": p.target.spec,
        "plan": as_document(p.prepared.plan),
        "shared": [{"path": s.path, "others": list(s.others), "unknown": s.unknown} for s in around.shared],
        "aliases": list(around.aliases),
        "processes": [{"pid": pid, "name": name} for pid, name in around.processes],
    }


def _applied(result: Applied) -> dict[str, Any]:
    error = {"error": result.error.message, "reverted": result.reverted} if result.error else {}
    found = {"verification": _verified(result.verification)} if result.verification else {}
    return {"applied": result.error is None, **found, **error}


def _verified(found: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(found)


def _write(json: bool, documents: list[dict[str, Any]]) -> None:
    if json:
        from specaudit.document import as_json

        sys.stdout.buffer.write(as_json(documents[0] if len(documents) == 1 else {"targets": documents}))

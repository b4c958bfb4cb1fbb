"""``specaudit smoke``: what a speculative method does on the GPU host, in numbers."""

from __future__ import annotations

import math
import re
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specaudit.cli import machines
from specaudit.cli.output import Output
from specaudit.cli.root import sub_app
from specaudit.errors import Exit, PatchError, TargetError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from specaudit.patching.place import Place

#: Bytes of a file with prompts, or with an earlier result.
_LIMIT = 64 << 20


def _finite(value: float | None) -> float | None:
    """A number; infinity and NaN are in no order that a limit or a threshold could be held to."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


app = sub_app()


@app.command()
@machines.reaching
def smoke(
    host: Annotated[str, typer.Argument(metavar="TARGET", help="@local, dir:PATH, or a machine as ssh knows it.")],
    target: Annotated[
        str, typer.Option("--target", metavar="MODEL", help="Target model; without it a toy pair is trained there.")
    ] = "",
    draft: Annotated[str, typer.Option("--draft", metavar="MODEL", help="Draft model.")] = "",
    modes: Annotated[
        str,
        typer.Option(
            "--modes", metavar="NAMES", help="none, dflash, ddtree, ddtree-exact, given; separated by commas."
        ),
    ] = "none,dflash",
    prompts: Annotated[
        Path | None, typer.Option("--prompts", metavar="FILE", help="One per line, or a JSON list; texts or token ids.")
    ] = None,
    temperature: Annotated[
        float,
        typer.Option("--temperature", help="0 compares tokens with the mode none.", min=0, max=100, callback=_finite),
    ] = 0.0,
    batch: Annotated[str, typer.Option("--batch", metavar="SIZES", help="Requests at a time, e.g. 1,32.")] = "1",
    tokens: Annotated[
        int, typer.Option("--tokens", help="Tokens to generate for each prompt.", min=1, max=1_000_000)
    ] = 192,
    count: Annotated[int, typer.Option("--count", help="Prompts to take, at most.", min=1, max=1_000_000)] = 32,
    repeats: Annotated[int, typer.Option("--repeats", help="Timed runs of each batch size.", min=1, max=1000)] = 1,
    draft_tokens: Annotated[
        int | None,
        typer.Option(
            "--draft-tokens", help="Tokens to draft; by default what the drafter's block holds.", min=1, max=1000
        ),
    ] = None,
    budget: Annotated[int, typer.Option("--budget", help="Nodes of a tree (mode ddtree).", min=1, max=512)] = 16,
    speculative_config: Annotated[
        str | None, typer.Option("--speculative-config", metavar="JSON", help="What the mode given runs.")
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(
            "--memory",
            help="Part of the GPU's memory; 0.9, or 0.15 for a toy pair.",
            min=0.001,
            max=1,
            callback=_finite,
        ),
    ] = None,
    minutes: Annotated[
        float, typer.Option("--minutes", help="Time to train a toy pair in.", min=0.01, max=1440, callback=_finite)
    ] = 3.5,
    corpus: Annotated[
        list[str] | None, typer.Option("--corpus", metavar="DIR", help="Python files there to train on (repeatable).")
    ] = None,
    environment: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="For the engine (repeatable).")
    ] = None,
    limit: Annotated[
        float,
        typer.Option(
            "--limit", metavar="SECONDS", help="The whole run ends after these.", min=1, max=604_800, callback=_finite
        ),
    ] = 1800.0,
    min_acceptance: Annotated[
        float, typer.Option("--min-acceptance", help="Least acceptance length.", min=0, callback=_finite)
    ] = 1.0,
    min_agreement: Annotated[
        float,
        typer.Option(
            "--min-agreement",
            help="Least part of the prompts with the reference's tokens.",
            min=0,
            max=1,
            callback=_finite,
        ),
    ] = 0.0,
    min_speedup: Annotated[
        float, typer.Option("--min-speedup", help="Least speed relative to the mode none.", min=0, callback=_finite)
    ] = 0.0,
    max_gap: Annotated[
        float,
        typer.Option(
            "--max-gap",
            help="A divergence counts as a near tie up to this gap of log probabilities.",
            min=0,
            callback=_finite,
        ),
    ] = 0.5,
    compare: Annotated[
        Path | None, typer.Option("--compare", metavar="FILE", help="An earlier result (--output) to compare with.")
    ] = None,
    attach: Annotated[
        str | None, typer.Option("--attach", metavar="RUN", help="Follow a run that was started before.")
    ] = None,
    stop: Annotated[str | None, typer.Option("--stop", metavar="RUN", help="End a run and its processes.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the run's folder and log on the host.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Write the result to stdout as JSON, and nothing else.")] = False,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Also write it there.")] = None,
    *,
    said: machines.Said,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="NAME", help="The engine, where several are installed.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Run a speculative method on the GPU host beside no speculation: acceptance, speed, and whether tokens agree.

    The engine runs there in processes of its own and outlives a dropped connection. Exit code 1: a threshold is missed
    or a mode failed; 3: none could be measured.
    """
    from specaudit.advice import filled, named
    from specaudit.cli.caching import cached
    from specaudit.console import Progress, note, show_lines
    from specaudit.document import check_writable
    from specaudit.patching.place import is_source, place
    from specaudit.smoke import session
    from specaudit.smoke.modes import DRAFTING, arguments
    from specaudit.smoke.present import document, lines
    from specaudit.smoke.results import Thresholds, undecidable

    names = [name.strip() for name in modes.split(",") if name.strip()]
    asked = Thresholds(min_acceptance, max_gap, min_agreement, min_speedup)
    if attach is None and stop is None:
        if bool(target) != bool(draft) and set(DRAFTING) & set(names):
            raise UsageError("--target and --draft go together.", "Name both, or neither for a toy pair.")
        if names and (why := undecidable(names, temperature, asked)):
            raise UsageError(why, "Name such modes with --modes, or leave the threshold out.")
    earlier = _earlier(compare)
    if output is not None and stop is None:
        check_writable(output)
    results = Output()
    progress = Progress(quiet)
    where, reached = machines.one_meant(host, said, progress.clear)
    if is_source(where):
        raise TargetError(
            f"{host} is no installed engine, so nothing can run there.",
            "Name one that is installed on a GPU host: @local, dir:PATH, or a machine as ssh knows it.",
        )
    spelled = named(where, reached, engine)
    with cached() as cache, reached:

        def opened() -> AbstractContextManager[Place]:
            return place(where, cache, engine, machines=reached)

        if stop is not None:
            with opened() as there:
                session.stop(there, stop)
            show_lines([(f"{stop}: ended", None)])
            return
        if attach is None:
            job = session.Job(
                modes=arguments(names, draft, draft_tokens, budget, speculative_config),
                target=target,
                draft=draft,
                prompts=_prompts(prompts) if target or prompts else None,
                count=count,
                tokens=tokens,
                temperature=temperature,
                batches=_sizes(batch),
                repeats=repeats,
                memory=memory or (0.9 if target else 0.15),
                limit=limit,
                minutes=minutes,
                corpus=tuple(corpus or ()),
                environment=_environment(environment or ()),
            )
            with opened() as there:
                _needed(there, names)
                attach = session.start(there, job)
            note(
                f"{attach} runs on {host}; if this ends early: specaudit smoke {spelled} --attach {attach} (or --stop)"
            )
        with filled(spelled):
            seen = session.follow(opened, attach, progress)
        progress.clear()
        failed = any("error" in result for result in seen.results.values())
        told = {mode: one for mode, one in seen.results.items() if mode in seen.job["modes"] or "error" in one}
        made = document(host, told, seen.job, asked)
        if not json and any("runs" in result for result in told.values()):
            results.put(lambda: show_lines(lines(host, told, asked, earlier)))
        saved = _give(made, results, json, output)
        if not saved:
            note(f"the result is still there: specaudit smoke {spelled} --attach {attach} --output FILE")
        if saved and not (keep or failed):
            with opened() as there:
                session.drop(there, attach)
    results.finish()
    session.measured(seen, where)
    if failed:
        note(f"all that was said is in {seen.folder}/log.txt there")
    passed = all(check["passed"] for check in made["verdict"])
    raise typer.Exit(max(Exit.CLEAN if passed else Exit.FINDINGS, results.code))


def _needed(there: Place, names: Sequence[str]) -> None:
    from specaudit.smoke.modes import NEEDS

    for name in names:
        if name in NEEDS and not set(NEEDS[name]) & set(there.agent().status().recipes):
            spec = there.target.spec
            raise PatchError(
                f"The mode {name} needs a recipe that {spec} does not have.",
                f"Apply it first: specaudit patch {there.asked} --recipe {' or '.join(NEEDS[name])}.",
            )


#: Asked of a real target when the user brings no prompts.
_PROMPTS = (
    "def merge_sorted(left, right):\n    ",
    "Write a Python function that returns the n-th prime number, and explain how it works.",
    "Translate to German: The train leaves the station at half past seven.",
    "List the planets of the solar system in order of their distance from the sun.",
    "class LRUCache:\n    def __init__(self, capacity):\n        ",
    "A farmer has 17 sheep, and all but 9 run away. How many are left? Think step by step.",
    "Summarise in two sentences how a hash table handles collisions.",
    "SELECT name, COUNT(*) FROM orders WHERE ",
)


def _prompts(file: Path | None) -> tuple[Any, ...]:
    from specaudit.given import contents
    from specaudit.smoke.session import prompts_of

    if file is None:
        return _PROMPTS
    try:
        return prompts_of(contents(file, _LIMIT), str(file))
    except OSError as bad:
        raise UsageError(f"{file} cannot be read: {bad.strerror}.", "Name another file.") from bad


def _sizes(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"0*[1-9][0-9]{0,5}", part) for part in parts):
        raise UsageError(f"{text!r} are no batch sizes.", "Write numbers separated by commas: 1,32.")
    return tuple(int(part) for part in parts)


def _environment(pairs: Sequence[str]) -> dict[str, str]:
    wrong = [pair for pair in pairs if pair.find("=") < 1]
    if wrong:
        raise UsageError(f"{wrong[0]!r} is no NAME=VALUE.", "Write --env NAME=VALUE.")
    return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}


def _earlier(file: Path | None) -> dict[str, Any] | None:
    from specaudit.given import contents, decoded

    if file is None:
        return None
    try:
        found = decoded(contents(file, _LIMIT))
    except OSError as bad:
        raise UsageError(f"{file} cannot be read: {bad.strerror}.", "Name another file.") from bad
    except ValueError as bad:
        raise UsageError(f"{file} is no earlier result: {bad}.", "Write one with --output FILE.") from bad
    if not isinstance(found, dict) or found.get("schema") != "specaudit/smoke/1":
        raise UsageError(f"{file} is no result of a smoke run.", "Write one with --output FILE.")
    return found


def _give(made: dict[str, Any], results: Output, json: bool, output: Path | None) -> bool:
    """Writes the result where it is wanted; whether its file, if any, was written."""
    from specaudit.document import as_json, write

    data = as_json(made)
    if json:
        results.put(lambda: sys.stdout.buffer.write(data))
    return output is None or results.save(lambda: write(output, data))

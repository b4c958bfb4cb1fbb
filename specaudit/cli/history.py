"""``specaudit history``: one row a release, from the package index or from a checkout's tags."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from specaudit.cli.root import sub_app
from specaudit.errors import exit_of

app = sub_app()


@app.command()
def history(
    first: Annotated[
        str | None, typer.Option("--from", metavar="VERSION", help="The oldest release.", show_default=False)
    ] = None,
    last: Annotated[
        str | None, typer.Option("--to", metavar="VERSION", help="The newest release.", show_default=False)
    ] = None,
    engine: Annotated[str, typer.Option("--engine", metavar="NAME", help="vllm or sglang.")] = "vllm",
    git: Annotated[
        Path | None,
        typer.Option("--git", metavar="PATH", help="A clone of the engine: read its tags instead of the index."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Write all scans as one document to stdout.")] = False,
    changes: Annotated[bool, typer.Option("--changes", help="Print what changed below each row.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Tell how releases differ: default runner, open findings, drafts, walks and trees."""
    from specaudit import document
    from specaudit.cli.caching import cached
    from specaudit.console import Progress, note, show_table
    from specaudit.engines import ENGINES
    from specaudit.errors import UsageError
    from specaudit.history import COLUMNS, below, releases, rows, table, tagged
    from specaudit.ruling.judge import RuleJudge
    from specaudit.ruling.store import rulebook
    from specaudit.scan import Options, scan_all

    if engine not in ENGINES:
        raise UsageError(f"{engine} is no engine that can be examined.", f"Known engines: {', '.join(ENGINES)}.")
    targets = tagged(git, first, last) if git is not None else releases(engine, first, last)
    progress = Progress(quiet)
    with cached() as cache:
        options = Options(engine=engine, judge=RuleJudge(rulebook(), cache))
        outcomes = list(scan_all(targets, options, cache, progress, lambda _: False))
    progress.clear()
    for outcome in outcomes:
        if outcome.error is not None:
            note(f"{outcome.scan.target.spec}: {outcome.error}")
    scans = [outcome.scan for outcome in outcomes]
    if json:
        sys.stdout.buffer.write(document.encode(document.of_scans(scans)))
    else:
        found = rows(scans)
        show_table(COLUMNS, table(found), [below(row, changes=changes) for row in found])
    raise typer.Exit(exit_of(outcome.code for outcome in outcomes))

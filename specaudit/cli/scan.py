"""``specaudit scan``: targets in, answers out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specaudit.cli import machines
from specaudit.cli.root import sub_app
from specaudit.errors import Exit

if TYPE_CHECKING:
    from specaudit.cache import Cache
    from specaudit.scan import Judge

app = sub_app()


@app.command()
def scan(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET]...",
            help="@local (default), dir:PATH, wheel:FILE, vllm==VERSION, or a machine as ssh knows it.",
            show_default=False,
        ),
    ] = None,
    python: machines.Python = None,
    venv: machines.Venv = None,
    via: machines.Via = None,
    sudo: machines.Sudo = False,
    inventory: machines.InventoryFile = None,
    limit: machines.Limit = None,
    jobs: machines.Jobs = 8,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Read the counters of speculative decoding off running servers.")
    ] = False,
    ssh_config: machines.SshConfig = None,
    ssh_option: machines.SshOption = None,
    host_keys: machines.HostKeys = None,
    deadline: machines.Deadline = None,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="NAME", help="vllm or sglang, where both are installed.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option("--method", metavar="NAME", help="Show only this method (repeatable).")
    ] = None,
    rules: Annotated[bool, typer.Option("--rules/--no-rules", help="Look for known defects.")] = True,
    download: Annotated[
        bool, typer.Option("--download", help="Agree to download a whole wheel where an index leaves no other way.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Write the scan document to stdout, and nothing else.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Also write the scan document to FILE.")
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Print the answers without the tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Tell which speculative-decoding code an engine really runs.

    The engine is read, never imported. Several targets make several scans; one that fails does not end the others.
    """
    from specaudit import document
    from specaudit.cache import Cache, folder
    from specaudit.console import Progress, note, show_scan
    from specaudit.scan import Options, only_methods, scan_all

    progress = Progress(quiet)
    said = machines.Said(
        python, venv, via, sudo, inventory, limit, ssh_config, ssh_option, host_keys, deadline, metrics
    )
    wanted, reached = machines.meant(targets or [], said, progress.clear)

    def consent(question: str) -> bool:
        if download or not sys.stdin.isatty():
            return download
        progress.clear()
        return typer.confirm(question, err=True)

    outcomes = []
    with Cache(folder()) as cache:
        if cache.problem:
            note(f"the cache {folder()} cannot be used ({cache.problem}); nothing will be kept for the next scan")
        options = Options(engine, _judge(cache) if rules else None, reached, jobs)
        for outcome in scan_all(wanted, options, cache, progress, consent):
            progress.clear()
            if outcome.error is not None:
                print(f"error: {outcome.error.message}\n  try: {outcome.error.hint}", file=sys.stderr)
            outcomes.append(outcome)
            if not json and outcome.error is None:
                show_scan(only_methods(outcome.scan, tuple(method or ())) if method else outcome.scan, brief=brief)
    scans = [only_methods(o.scan, tuple(method)) if method and o.error is None else o.scan for o in outcomes]
    data = document.encode(document.of_scans(scans))
    if json:
        sys.stdout.buffer.write(data)
    if output is not None:
        document.write(output, data)
    raise typer.Exit(max((outcome.code for outcome in outcomes), default=Exit.CLEAN))


def _judge(cache: Cache) -> Judge:
    from specaudit.ruling.judge import RuleJudge
    from specaudit.ruling.store import rulebook

    return RuleJudge(rulebook(), cache)

"""``specaudit scan``: targets in, answers out."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specaudit.cli import machines
from specaudit.cli.gating import Baseline, Expect, FailOn, Ignore, gate_of, tell
from specaudit.cli.output import Output
from specaudit.cli.root import sub_app
from specaudit.errors import ConfigurationError, Exit, exit_of
from specaudit.words import about, counted

if TYPE_CHECKING:
    from specaudit.cache import Cache
    from specaudit.configured import Configured
    from specaudit.model import Fleet, Scan
    from specaudit.report.gate import Gate
    from specaudit.ruling.judge import RuleJudge
    from specaudit.scan import Outcome

#: Errors of one scan that are told beside a document; it holds all of them.
_TOLD = 5

app = sub_app()


@app.command()
@machines.reaching
def scan(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET]...",
            help="@local (default), dir:PATH, wheel:FILE, vllm==VERSION, or a machine as ssh knows it.",
            show_default=False,
        ),
    ] = None,
    *,
    said: machines.Said,
    inventory: machines.InventoryFile = None,
    limit: machines.Limit = None,
    jobs: machines.Jobs = 8,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Read the counters of speculative decoding off running servers.")
    ] = False,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="NAME", help="vllm or sglang, where both are installed.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option("--method", metavar="NAME", help="Show only this method (repeatable).")
    ] = None,
    speculative_config: Annotated[
        str | None,
        typer.Option("--speculative-config", metavar="JSON|FILE", help="What does this configuration run, and reach?"),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="A variable of it (repeatable).")
    ] = None,
    server: Annotated[
        int | None, typer.Option("--server", metavar="PID", help="Take the configuration from this running server.")
    ] = None,
    rules: Annotated[
        list[Path] | None, typer.Option("--rules", metavar="DIR", help="Rules of your own besides (repeatable).")
    ] = None,
    no_rules: Annotated[bool, typer.Option("--no-rules", help="Do not look for known defects.")] = False,
    fail_on: FailOn = None,
    baseline: Baseline = None,
    ignore: Ignore = None,
    expect: Expect = None,
    download: Annotated[
        bool, typer.Option("--download", help="Agree to download a whole wheel where an index leaves no other way.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Write the scan document to stdout, and nothing else.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Also write the scan document to FILE.")
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Print the answers without the tables.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Tell which speculative-decoding code an engine really runs.

    The engine is read, never imported. Several targets make several scans; one that fails does not end the others.
    Several machines make one table, grouped by identical engine.
    """
    from specaudit import document
    from specaudit.cli.caching import cached
    from specaudit.console import Progress, complain, show_fleet, show_scan
    from specaudit.report.gate import fit
    from specaudit.scan import Options, scan_all

    progress = Progress(quiet)
    gate = _gate(fail_on, baseline, ignore, expect, None if no_rules else rules or ())
    if output is not None:
        document.check_writable(output)
    wanted, reached = machines.perhaps_meant(
        targets or [], said, inventory=inventory, limit=limit, metrics=metrics, clear=progress.clear
    )

    asking = machines.Asking(progress.clear)

    def consent(question: str) -> bool:
        return download or (sys.stdin.isatty() and asking.confirm(question))

    together = sum(target.host is not None for target in wanted) > 1
    page = Output()
    outcomes = []
    with cached() as cache:
        found = None if no_rules else _judge(cache, rules or ())
        configure = _configure(method or (), speculative_config, env or (), server, found)
        options = Options(engine, found, reached, jobs, configure, metrics)
        for outcome in scan_all(wanted, options, cache, progress, consent):
            progress.clear()
            if outcome.error is not None:
                why = outcome.error.message
                complain(why if len(wanted) == 1 else about(outcome.scan.target.spec, why), outcome.error.hint)
            elif json:
                _note_errors(outcome.scan)
            outcomes.append(outcome)
            if not json and outcome.error is None and not (together and outcome.scan.target.host):
                page.put(partial(show_scan, _narrowed(outcome, configure), brief=brief))
    scans = [_narrowed(outcome, configure) for outcome in outcomes]
    fleet = _compared(outcomes) if together else None
    if fleet is not None and not json:
        by_host = {one.target.spec: one for one in scans}
        page.put(partial(show_fleet, fleet, by_host))
        for group in fleet.groups:
            page.put(partial(show_scan, by_host[group.hosts[0]], brief=brief))
    if json or output is not None:
        data = document.encode(document.of_scans(scans, fleet))
        if json:
            page.put(lambda: sys.stdout.buffer.write(data))
        if output is not None:
            page.save(partial(document.write, output, data))
    page.finish()
    codes = [exit_of(outcome.code for outcome in outcomes), page.code]
    if gate is not None:
        fit(gate.known, scans)
        codes += [_judged(one, gate) for one, outcome in zip(scans, outcomes, strict=True) if outcome.error is None]
    raise typer.Exit(max(codes))


def _note_errors(scan: Scan) -> None:
    """What a reader of the document alone would not see: why the exit code is not 0."""
    from specaudit.console import note

    for failure in scan.errors[:_TOLD]:
        note(f"{scan.target.spec}: not examined: {failure.path + ': ' if failure.path else ''}{failure.error}")
    if len(scan.errors) > _TOLD:
        note(f"{scan.target.spec}: {counted(len(scan.errors) - _TOLD, 'more error')} in the document")


def _narrowed(outcome: Outcome, configure: Configured | None) -> Scan:
    """The scan with what concerns the configured methods alone; where aliases or a server name them, their paths have
    their names. Where no runner is known to take them (the errors say why), it stays whole.
    """
    from specaudit.narrowing import only_methods

    made = outcome.scan
    if configure is None or outcome.error is not None:
        return made
    methods = (*configure.methods, *(path.method for path in made.paths))
    return only_methods(made, methods) if any(runner.method in methods for runner in made.runners) else made


def _compared(outcomes: Iterable[Outcome]) -> Fleet:
    from specaudit.fleet import compare, member

    return compare([member(outcome) for outcome in outcomes if outcome.scan.target.host])


def _gate(
    fail_on: str | None,
    baseline: Path | None,
    ignore: Sequence[str] | None,
    expect: Sequence[str] | None,
    rules: Sequence[Path] | None,
) -> Gate | None:
    """The gate that the options describe, ``None`` without such options; ``rules`` is ``None`` for a scan without."""
    if not (fail_on or baseline or ignore or expect):
        return None
    from specaudit.errors import UsageError
    from specaudit.ruling.store import rulebook

    if rules is None and (fail_on or baseline or ignore):
        raise UsageError("--no-rules leaves nothing to gate.", "Leave out --no-rules, or the options of the gate.")
    return gate_of(fail_on, baseline, ignore, expect, rulebook(rules or ()).ids)


def _judged(scan: Scan, gate: Gate) -> Exit:
    """The exit code that the gate gives a scan; what it objects to is said."""
    from specaudit.report.gate import judge

    judgement = judge(scan, gate)
    tell(judgement)
    return judgement.code


def _configure(
    methods: Sequence[str], configuration: str | None, env: Sequence[str], server: int | None, judge: RuleJudge | None
) -> Configured | None:
    """What the options say about a configuration; ``None`` when they say nothing."""
    if not (methods or configuration or env or server):
        return None
    from specaudit.cli.trace import read_configuration, read_environment
    from specaudit.configured import Configured

    settings = read_configuration(configuration) if configuration is not None else {}
    named = settings.pop("method", None)
    if methods and named is not None and list(methods) != [named]:
        raise ConfigurationError(
            f"--method says {', '.join(methods)}, the configuration says {named}.", "Leave out one of the two."
        )
    chosen = tuple(methods) or ((named,) if named else ())
    if not chosen and server is None:
        raise ConfigurationError("No method of speculative decoding is named.", "Add --method NAME.")
    needs = judge.summary.needs if judge is not None else {}
    return Configured(chosen, {**settings, **read_environment(env)}, needs, server, configuration is not None)


def _judge(cache: Cache, folders: Sequence[Path]) -> RuleJudge:
    from specaudit.ruling.judge import RuleJudge
    from specaudit.ruling.store import rulebook

    judge = RuleJudge(rulebook(folders), cache)
    _ = judge.summary  # a broken document is told before any target is asked
    return judge

"""``specaudit report``: scan documents in, reports out, and the gate's exit code."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specaudit.cli.gating import Baseline, Expect, FailOn, Ignore, gate_of, tell
from specaudit.cli.output import Output
from specaudit.cli.root import sub_app

if TYPE_CHECKING:
    from specaudit.model import Run, Scan

#: Formats that say themselves what the gate says of each scan.
_SAYING = ("text", "markdown", "html")

app = sub_app()


@app.command()
def report(
    scans: Annotated[list[Path], typer.Argument(metavar="SCAN.json...", help="Scan documents; - is standard input.")],
    format: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT[=FILE]",
            help="text, json, markdown, html, sarif, junit or github (repeatable; default: text).",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where the only format goes.")
    ] = None,
    fail_on: FailOn = None,
    baseline: Baseline = None,
    ignore: Ignore = None,
    expect: Expect = None,
) -> None:
    """Turn scan documents into reports, and gate on them.

    With --format github, the step summary is appended to the file that GITHUB_STEP_SUMMARY names.
    """
    from specaudit import document
    from specaudit.errors import UsageError
    from specaudit.model import Run
    from specaudit.report import formats, gate, github
    from specaudit.report.view import report_of

    wanted = formats.wanted(format or ["text"])
    if output is not None:
        if len(wanted) != 1 or wanted[0].path is not None:
            raise UsageError("--output is for one format.", "Write --format FORMAT=FILE for each of several.")
        wanted = (formats.Wanted(wanted[0].name, output),)
    for one in wanted:
        if one.path is not None:
            document.check_writable(one.path)
    loaded = [_load(path) for path in scans]
    found = [scan for one in loaded for scan in (one.scans if isinstance(one, Run) else (one,))]
    checked = gate_of(fail_on, baseline, ignore, expect, {finding.rule for scan in found for finding in scan.findings})
    gate.fit(checked.known, found)
    made = report_of(found, checked)
    files = Output()
    for one in wanted:
        data = formats.FORMATS[one.name](made).encode()
        if one.path is None:
            sys.stdout.buffer.write(data)
        else:
            files.save(partial(document.write, one.path, data))
        step = os.environ.get("GITHUB_STEP_SUMMARY")
        if one.name == "github" and step:
            files.save(partial(_append, Path(step), github.summary(made)))
    if not any(one.path is None and one.name in _SAYING for one in wanted):
        for judgement in made.judgements:
            tell(judgement)
    raise typer.Exit(max(gate.worst(made.judgements), files.code))


def _load(path: Path) -> Scan | Run:
    from specaudit import document
    from specaudit.errors import ConfigurationError
    from specaudit.model import Run

    name = "standard input" if str(path) == "-" else str(path)
    loaded = document.read(sys.stdin.buffer, name) if str(path) == "-" else document.load(path)
    if isinstance(loaded, Run) and not loaded.scans:  # no gate may pass on it
        raise ConfigurationError(f"{name} holds no scan, so there is nothing to report or judge.", "Scan again.")
    return loaded


def _append(path: Path, text: str) -> None:
    from specaudit.errors import UsageError

    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as bad:
        raise UsageError(
            f"The step summary {path} cannot be written: {bad.strerror}.", "Unset GITHUB_STEP_SUMMARY to do without."
        ) from bad

"""``specaudit diff``: what changed between two targets or scan documents."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specaudit.cli.root import sub_app
from specaudit.errors import Exit, UsageError
from specaudit.lines import hanging
from specaudit.words import counted

if TYPE_CHECKING:
    from specaudit.cache import Cache
    from specaudit.console import Progress
    from specaudit.model import Scan

#: Findings that the gate names; the changes hold all of them.
_TOLD = 5

app = sub_app()


@app.command()
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="A target as for scan, or a scan document.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The same.")],
    json: Annotated[bool, typer.Option("--json", help="Write the document specaudit/diff/1 to stdout.")] = False,
    fail_on: Annotated[
        str | None,
        typer.Option(
            "--fail-on", metavar="SEVERITY", help="Exit 1 when B has findings of this severity that A has not."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Tell what appeared, vanished, moved or changed: proposers, verifiers, runners, trees, options, findings."""
    from specaudit import diff as differences
    from specaudit.cli.caching import cached
    from specaudit.console import Progress, note, show_lines
    from specaudit.report.gate import severity
    from specaudit.report.view import ranked
    from specaudit.summary import title

    floor = severity(fail_on) if fail_on is not None else None
    progress = Progress(quiet)
    with cached() as cache:
        old, new = (_scan(spec, cache, progress) for spec in (before, after))
    progress.clear()
    if floor is not None and old.engine and new.engine and old.engine.name != new.engine.name:
        raise UsageError(
            f"--fail-on cannot compare {old.engine.name} with {new.engine.name}.", "Leave it out, or name one engine."
        )
    changes = differences.diff(old, new)
    if json:
        sys.stdout.buffer.write(differences.as_json(old, new, changes))
    else:
        style = {"appeared": "green", "vanished": "red", "moved": "dim", "changed": "yellow"}
        show_lines(hanging("", f"{title(old)} -> {title(new)}", "bold"))
        show_lines(line for c in changes for line in hanging(c.lead, c.text, style[c.kind]))
        show_lines([(counted(len(changes), "change"), "bold")])
    worse = ranked(differences.worse(old, new, floor)) if floor is not None else []
    if worse:
        more = f" and {len(worse) - _TOLD} more" if len(worse) > _TOLD else ""
        note(
            f"{after}: gate: {counted(len(worse), 'finding')} at or above the gate that {before} has not: "
            f"{', '.join(finding.rule for finding in worse[:_TOLD])}{more}"
        )
    unjudged = floor is not None and any(one.engine and not one.findings for one in (old, new))
    if unjudged:
        note("one of the two was scanned without rules, so that --fail-on has nothing to compare")
    incomplete = unjudged or any(one.errors or one.engine is None for one in (old, new))
    raise typer.Exit(Exit.INCOMPLETE if incomplete else Exit.FINDINGS if worse else Exit.CLEAN)


def _scan(spec: str, cache: Cache, progress: Progress) -> Scan:
    """A scan document where the argument is a file, else a scan of the target."""
    from specaudit import document
    from specaudit.model import Run
    from specaudit.ruling.judge import RuleJudge
    from specaudit.ruling.store import rulebook
    from specaudit.scan import Options, scan
    from specaudit.targets import parse

    if os.path.isfile(spec):
        loaded = document.load(Path(spec))
        if isinstance(loaded, Run) and len(loaded.scans) == 1:
            return loaded.scans[0]
        if isinstance(loaded, Run):
            raise UsageError(
                f"{spec} holds {counted(len(loaded.scans), 'scan')}.", "Compare documents of one scan each."
            )
        return loaded
    if spec.endswith(".json"):
        raise UsageError(f"There is no file {spec}.", "Name a scan document that exists, or a target.")
    return scan(parse(spec), Options(judge=RuleJudge(rulebook(), cache)), cache, progress)

"""Options of the gate, shared by the commands that end a CI run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specaudit.errors import Exit

if TYPE_CHECKING:
    from specaudit.report.gate import Gate, Judgement

FailOn = Annotated[
    str | None,
    typer.Option("--fail-on", metavar="SEVERITY", help="Exit 1 on findings of this severity or above."),
]
Baseline = Annotated[
    Path | None,
    typer.Option("--baseline", metavar="FILE", help="An earlier scan document; only what is new counts."),
]
Ignore = Annotated[
    list[str] | None, typer.Option("--ignore", metavar="ID", help="A rule that does not count (repeatable).")
]
Expect = Annotated[
    list[str] | None,
    typer.Option("--expect", metavar="KEY=VALUE", help="What must be so, as runner=v2 (repeatable)."),
]


def gate_of(
    fail_on: str | None,
    baseline: Path | None,
    ignore: Sequence[str] | None,
    expect: Sequence[str] | None,
    rules: Iterable[str] = (),
) -> Gate:
    """The gate that the options describe.

    Args:
        fail_on: a severity.
        baseline: a scan document.
        ignore: ids of rules.
        expect: expectations.
        rules: ids that are known besides those of the packaged rules.

    Raises:
        UsageError: a severity, an id, an expectation or the baseline cannot be understood.
    """
    from specaudit import document
    from specaudit.report import expect as expectations
    from specaudit.report import gate
    from specaudit.ruling.store import rulebook

    expected = tuple(expectations.read(text) for text in expect or ())
    named = [*(ignore or ()), *(one.of for one in expected if one.key == "rule")]
    if named:
        gate.check_ids(named, {*rulebook().ids, *rules})
    return gate.Gate(
        fail_on=gate.severity(fail_on) if fail_on is not None else None,
        ignored=frozenset(ignore or ()),
        known=gate.baseline(document.load(baseline)) if baseline is not None else gate.Baseline(),
        expectations=expected,
    )


def tell(judgement: Judgement) -> None:
    """Says on stderr what the gate objects to in one scan, or why it cannot judge it; nothing where it passes."""
    from specaudit.console import note
    from specaudit.report.view import verdict

    if judgement.failing or judgement.unmet or judgement.code is not Exit.CLEAN:
        note(f"{judgement.scan.target.spec}: gate: {verdict(judgement)}")

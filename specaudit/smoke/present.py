"""A smoke run as a document and as lines of text; pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from specaudit.lines import Line, hanging
from specaudit.smoke.results import Numbers, Thresholds, equality, not_run_on, numbers, verdict
from specaudit.words import counted

#: Divergences that are shown; the document holds all.
SHOWN = 5


def document(
    target: str, results: Mapping[str, Mapping[str, Any]], job: Mapping[str, Any], asked: Thresholds
) -> dict[str, Any]:
    """The whole run, ``specaudit/smoke/1``."""
    first: Mapping[str, Any] = next((r for r in results.values() if "versions" in r), {})
    return {
        "schema": "specaudit/smoke/1",
        "target": target,
        "models": {
            "target": job.get("target", ""),
            "draft": job.get("draft", ""),
            "toy": bool(job.get("prompts_file")),
        },
        "asked": {k: job.get(k) for k in ("count", "tokens", "temperature", "seed", "repeats", "batches")},
        "versions": first.get("versions", {}),
        "gpus": first.get("gpus", {}),
        "capability": first.get("capability", ""),
        "not_run_on": list(not_run_on(first)),
        "modes": [
            {
                "mode": mode,
                "arguments": (job.get("modes") or {}).get(mode, {}),
                "error": result.get("error"),
                "start_seconds": result.get("start_seconds"),
                "ran": result.get("ran", {}),
                "numbers": [asdict(row) for row in numbers({mode: result})],
                "equality": asdict(same) if (same := equality(results, mode)) is not None else None,
            }
            for mode, result in results.items()
        ],
        "verdict": [asdict(check) for check in verdict(results, asked)],
    }


def lines(
    target: str, results: Mapping[str, Mapping[str, Any]], asked: Thresholds, earlier: Mapping[str, Any] | None = None
) -> Iterator[Line]:
    """The table, what it is compared with, the verdict, and what it says nothing about."""
    first: Mapping[str, Any] = next((r for r in results.values() if "versions" in r), {})
    yield target, "bold"
    versions = ", ".join(f"{name} {value}" for name, value in first.get("versions", {}).items())
    gpus = ", ".join(f"{count} x {name}" for name, count in first.get("gpus", {}).items())
    yield from hanging("  ", versions)
    yield from hanging("  ", gpus or "no GPU")
    yield "", None
    rows = numbers(results)
    yield from _table(rows)
    yield from _positions(rows)
    for mode, result in results.items():
        for role, name in result.get("ran", {}).items():
            yield from hanging(f"  {mode}: ", f"{role} {name}", "dim")
        yield from _divergences(results, mode)
    if earlier is not None:
        yield from _compared(rows, earlier)
    yield "", None
    for check in verdict(results, asked):
        style = "green" if check.passed else "bold red"
        yield from hanging(f"  {'ok  ' if check.passed else 'FAIL'}  ", f"{check.name}: {check.text}", style)
    missing = not_run_on(first)
    if missing:
        yield from hanging("  ", f"says nothing about {', '.join(missing)}: compiled for, not run on", "yellow")


def _table(rows: Sequence[Numbers]) -> Iterator[Line]:
    cells: list[tuple[str, ...]] = [
        ("mode", "batch", "drafts", "drafted", "accepted", "emitted", "length", "step ms", "tok/s")
    ]
    for row in rows:
        length = f"{row.acceptance_length:.3f}" if row.acceptance_length is not None else "-"
        step = f"{row.step_ms:.2f}" if row.step_ms is not None else "-"
        counts = (str(n) for n in (row.batch, row.drafts, row.drafted, row.accepted, row.emitted))
        cells.append((row.mode, *counts, length, step, f"{row.tokens_per_second:.1f}"))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for number, (mode, *rest) in enumerate(cells):
        columns = "".join(f" {cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True))
        yield f"  {mode:<{widths[0]}}{columns}", "dim" if number == 0 else None


def _positions(rows: Sequence[Numbers]) -> Iterator[Line]:
    for row in rows:
        if row.per_position:
            deepest = max((at for at, part in enumerate(row.per_position, 1) if part), default=1)  # a tree has N slots
            shown = " ".join(f"{part:.2f}" for part in row.per_position[:deepest])
            yield from hanging("  ", f"{row.mode}, batch {row.batch}, accepted by position: {shown}")


def _divergences(results: Mapping[str, Mapping[str, Any]], mode: str) -> Iterator[Line]:
    same = equality(results, mode)
    if same is None:
        return
    yield f"  {mode}: the reference's tokens for {same.equal} of {counted(same.prompts, 'prompt')}", None
    for d in sorted(same.divergences, key=lambda d: -(d.gap or 0))[:SHOWN]:
        gap = f"{d.gap:.4f}" if d.gap is not None else "not known"
        yield (
            f"    prompt {d.prompt}, position {d.position}: {d.token} for {d.reference}, gap of the best two {gap}",
            "dim",
        )


def _compared(rows: Sequence[Numbers], earlier: Mapping[str, Any]) -> Iterator[Line]:
    before = {(n["mode"], n["batch"]): n for mode in earlier.get("modes", ()) for n in mode.get("numbers", ())}
    for row in rows:
        old = before.get((row.mode, row.batch))
        if old is None:
            continue
        was, now = old["acceptance_length"], row.acceptance_length
        length = f"acceptance length {was:.3f} -> {now:.3f}, " if was is not None and now is not None else ""
        speed = f"tokens/s {old['tokens_per_second']:.1f} -> {row.tokens_per_second:.1f}"
        yield from hanging("  ", f"{row.mode}, batch {row.batch}, before -> now: {length}{speed}", "bold")

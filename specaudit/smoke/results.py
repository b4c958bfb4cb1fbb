"""Results of a smoke run as numbers, the comparison of modes, and the verdict. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from specaudit.words import counted

REFERENCE = "none"
_NO_REFERENCE = f"the mode {REFERENCE} was not measured beside it"
#: Compute capability -> the generation that users know it by.
GENERATIONS = {
    "7.5": "Turing",
    "8.0": "Ampere (A100)",
    "8.6": "Ampere",
    "8.9": "Ada",
    "9.0": "Hopper",
    "10.0": "Blackwell (B200)",
    "10.3": "Blackwell (B300)",
    "12.0": "Blackwell (RTX)",
    "12.1": "Blackwell (GB10)",
}


@dataclass(frozen=True, slots=True)
class Numbers:
    """One mode at one batch size. Counts are sums over the repeats, times and speeds are medians.

    ``acceptance_length`` is emitted tokens per verification step, the bonus token included (``None``: nothing was
    drafted); ``per_position`` is the part of the drafts that was accepted up to each position.
    """

    mode: str
    batch: int
    drafts: int
    drafted: int
    accepted: int
    emitted: int
    acceptance_length: float | None
    per_position: tuple[float, ...]
    step_ms: float | None
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a prompt's tokens part from the reference's: ``gap`` is the distance of its two best log probabilities."""

    prompt: int
    position: int
    token: int | None
    reference: int | None
    gap: float | None


@dataclass(frozen=True, slots=True)
class Equality:
    """How a mode's tokens compare with the reference's."""

    mode: str
    prompts: int
    equal: int
    divergences: tuple[Divergence, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """One part of the verdict."""

    name: str
    passed: bool
    text: str


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What is asked of a run.

    ``acceptance``: least acceptance length of every speculative mode (just above 1: something was accepted).
    ``gap``: largest gap at which a divergence from the reference counts as a near tie. ``agreement``: least part of
    the prompts whose tokens are the reference's. ``speedup``: least speed relative to the reference.
    """

    acceptance: float = 1.0
    gap: float = 0.5
    agreement: float = 0.0
    speedup: float = 0.0

    @property
    def of_speculation(self) -> bool:
        """Whether more is asked than that what runs is right."""
        return self.acceptance > 1 or self.agreement > 0 or self.speedup > 0


def numbers(results: Mapping[str, Mapping[str, Any]]) -> tuple[Numbers, ...]:
    """One entry per mode and batch size, in the order in which they ran."""
    found = []
    for mode, result in results.items():
        runs: Sequence[Mapping[str, Any]] = result.get("runs") or ()
        for batch in dict.fromkeys(run["batch"] for run in runs):
            found.append(_numbers(mode, batch, [run for run in runs if run["batch"] == batch]))
    return tuple(found)


def _numbers(mode: str, batch: int, runs: Sequence[Mapping[str, Any]]) -> Numbers:
    drafts, drafted, accepted, emitted = (
        sum(int(run[key]) for run in runs) for key in ("drafts", "drafted", "accepted", "emitted")
    )
    width = max(len(run["per_position"]) for run in runs)
    positions = [sum(run["per_position"][i] for run in runs if i < len(run["per_position"])) for i in range(width)]
    steps = [run["step_seconds"] for run in runs if run["step_seconds"] is not None]
    return Numbers(
        mode=mode,
        batch=batch,
        drafts=drafts,
        drafted=drafted,
        accepted=accepted,
        emitted=emitted,
        acceptance_length=1 + accepted / drafts if drafts else None,
        per_position=tuple(count / drafts for count in positions) if drafts else (),
        step_ms=1000 * median(steps) if steps else None,
        tokens_per_second=median(run["emitted"] / run["seconds"] for run in runs),
    )


def equality(results: Mapping[str, Mapping[str, Any]], mode: str) -> Equality | None:
    """Compares a mode's tokens with the reference's; ``None`` where one of them is missing or tokens were sampled."""
    reference, other = results.get(REFERENCE, {}), results.get(mode, {})
    if mode == REFERENCE or not reference.get("texts") or not other.get("texts") or reference.get("gaps") is None:
        return None
    divergences = []
    pairs = zip(reference["texts"], other["texts"], reference["gaps"], strict=True)
    for number, (expected, got, looked) in enumerate(pairs):
        if expected == got:
            continue
        at = next((i for i, (a, b) in enumerate(zip(expected, got, strict=False)) if a != b), None)
        if at is None:
            at = min(len(expected), len(got))
        # The gap was measured in a run of its own: it says something only where that run had the same prefix.
        known = looked["tokens"][:at] == expected[:at] and at < len(looked["gaps"])
        gap = looked["gaps"][at] if known else None
        divergences.append(Divergence(number, at, _at(got, at), _at(expected, at), gap))
    total = len(reference["texts"])
    return Equality(mode, total, total - len(divergences), tuple(divergences))


def _at(tokens: Sequence[int], position: int) -> int | None:
    return tokens[position] if position < len(tokens) else None


def verdict(results: Mapping[str, Mapping[str, Any]], asked: Thresholds) -> tuple[Check, ...]:
    """What was asked, and whether it is so."""
    checks = [Check(f"{mode} ran", "error" not in r, str(r.get("error", "to its end"))) for mode, r in results.items()]
    measured = numbers(results)
    for row in measured:
        if row.mode == REFERENCE:
            continue
        length = row.acceptance_length
        passed = length is not None and length >= asked.acceptance and row.accepted > 0
        shown = "nothing was drafted" if length is None else f"acceptance length {length:.3f}"
        checks.append(Check(f"{row.mode} accepts, batch {row.batch}", passed, f"{shown}, least {asked.acceptance:g}"))
        base = next((r for r in measured if r.mode == REFERENCE and r.batch == row.batch), None)
        if asked.speedup:
            ratio = row.tokens_per_second / base.tokens_per_second if base is not None else 0.0
            text = f"{ratio:.2f} times the reference, least {asked.speedup:g}" if base is not None else _NO_REFERENCE
            checks.append(Check(f"{row.mode} is fast, batch {row.batch}", ratio >= asked.speedup, text))
    for mode in results:
        same = equality(results, mode)
        if same is not None:
            checks += _equality_checks(same, asked)
        elif asked.agreement and mode != REFERENCE:  # what was not looked at does not pass
            checks.append(Check(f"{mode} agrees", False, f"{_NO_REFERENCE}, or tokens were sampled"))
    if asked.of_speculation and set(results) <= {REFERENCE}:
        checks.append(Check("a mode speculates", False, "none did, and the thresholds are about those that do"))
    return tuple(checks)


def undecidable(modes: Collection[str], temperature: float, asked: Thresholds) -> str:
    """Why a run of these modes could not say whether what is asked is so; nothing where it can."""
    if asked.of_speculation and set(modes) <= {REFERENCE}:
        return "Thresholds are about modes that speculate, and none is named."
    if (asked.speedup or asked.agreement) and REFERENCE not in modes:
        return f"--min-speedup and --min-agreement compare with the mode {REFERENCE}, which is not named."
    if asked.agreement and temperature:
        return "--min-agreement compares tokens, and at a temperature above 0 they are sampled."
    return ""


def _equality_checks(same: Equality, asked: Thresholds) -> list[Check]:
    wide = [d for d in same.divergences if d.gap is not None and d.gap > asked.gap]
    text = f"the reference's tokens for {same.equal} of {counted(same.prompts, 'prompt')}; "
    text += f"{counted(len(wide), 'divergence')} where its two best tokens are more than {asked.gap:g} apart"
    checks = [Check(f"{same.mode} is lossless", not wide, text)]
    if asked.agreement:
        part = same.equal / same.prompts
        checks.append(
            Check(
                f"{same.mode} agrees",
                part >= asked.agreement,
                f"{part:.0%} of the prompts, least {asked.agreement:.0%}",
            )
        )
    return checks


def not_run_on(result: Mapping[str, Any]) -> tuple[str, ...]:
    """GPU generations that the engine's torch was built for and this run says nothing about."""
    own = str(result.get("capability", ""))
    found = []
    for name in result.get("built_for", ()):
        digits = "".join(c for c in str(name).partition("_")[2] if c.isdigit())
        capability = f"{digits[:-1]}.{digits[-1]}" if len(digits) > 1 else ""
        if capability and capability.partition(".")[0] != own.partition(".")[0]:
            generation = GENERATIONS.get(capability, "")
            found.append(f"{capability} {generation}".strip())
    return tuple(dict.fromkeys(found))

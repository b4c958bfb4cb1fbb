"""Rule (b): every emitted token, scored by a stock engine's prefill, is about as good as the best one at its place.

delta is the 99.9th percentile of how far two stock ways of computing the same log-probabilities lie apart (a chain's
own while it decodes, a prefill's of the same tokens). By that definition one token in a thousand lies beyond it: so
many may, or as many as a stock arm has of the same prompts, whichever is more; and the largest gap is at most twice
the largest of any stock arm (a gap within delta is never too large).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .figures import quantile
from .part import Setting
from .pool import Engines

PERCENTILE = 0.999
Scores = list[list[list[float]]]  # per output, per token: its log-probability, the best one, 1 where it is the best


@dataclass(frozen=True)
class Gaps:
    """How many of the tokens lie further than delta below the best, and the largest distance."""

    tokens: int
    beyond: int
    worst: float

    @classmethod
    def of(cls, scores: Scores, delta: float) -> Gaps:
        gaps = [best - own for sequence in scores for own, best, _ in sequence]
        return cls(len(gaps), sum(gap > delta for gap in gaps), max(gaps, default=0.0))


def allowed_count(gaps: Gaps, stock: Sequence[Gaps], more: int = 0) -> int:
    """Tokens that may lie beyond delta. more: than the worst stock arm has, where a case is small."""
    return max(more + max((one.beyond for one in stock), default=0), math.ceil((1 - PERCENTILE) * gaps.tokens - 1e-9))


def allowed_gap(stock: Sequence[Gaps], delta: float) -> float:
    return max(2 * max((one.worst for one in stock), default=0.0), delta)


def delta_of(decoded: list[dict[str, Any]], scored: Scores) -> float:
    """decoded: outputs with their own log-probabilities."""
    pairs = zip(decoded, scored, strict=True)
    return quantile(
        (abs(a[0] - b[0]) for output, one in pairs for a, b in zip(output["logprobs"], one, strict=True)), PERCENTILE
    )


def scored_by_stock(
    engines: Engines, given: Setting, requests: list[dict[str, Any]], outputs: list[list[int]]
) -> Scores:
    """By a prefill of prompt and output together; outputs without tokens are left out."""
    sequences = [{"prompt": r["prompt"], "tokens": t} for r, t in zip(requests, outputs, strict=True) if t]
    scores: Scores = engines["none"].ask("score", given.clock.need(5), sequences=sequences)
    return scores

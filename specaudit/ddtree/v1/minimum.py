"""`min_tokens` by the position of a row: no stop token where fewer tokens than that would stand before it.

The engine's own processor (0.20.1, `v1/sample/logits_processor/builtin.py`) counts a list of tokens that, with
asynchronous scheduling, holds the drafts of a step still in flight, and masks by row, which is a depth only in a chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class Minimum(NamedTuple):
    """No row at a position before `end - 1` may yield one of `stops` [n] int64."""

    end: int  # tokens of the prompt and min_tokens
    stops: Tensor


class Minimums:
    """What the running requests ask for; learned when a request is first seen, dropped with it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: dict[str, Minimum | None] = {}

    def pending(
        self,
        request_ids: Sequence[str],
        requests: dict[str, Any],
        prompts: np.ndarray,
        computed: np.ndarray,
        slack: int,
    ) -> list[tuple[int, Minimum]]:
        """(batch row, minimum) of the requests that may not be past it.

        prompts, computed [>= B]: tokens of each prompt, and an upper bound of those computed that is too large by at
        most `slack` (drafts in flight).
        """
        known, current = self._known, {}
        found = []
        for b, request_id in enumerate(request_ids):
            if request_id not in known:
                known[request_id] = self._of(requests.get(request_id), int(prompts[b]))
            minimum = current[request_id] = known[request_id]
            if minimum is not None and computed[b] - slack < minimum.end:
                found.append((b, minimum))
        self._known = current
        return found

    def _of(self, request: Any, prompt: int) -> Minimum | None:
        params = getattr(request, "sampling_params", None)
        if params is None or not params.min_tokens or not params.all_stop_token_ids:
            return None
        stops = torch.tensor(sorted(params.all_stop_token_ids), dtype=torch.int64)
        return Minimum(prompt + params.min_tokens, stops.to(self._device, non_blocking=True))


def mask_stops(
    logits: Tensor, positions: Tensor, counts: Iterable[int], pending: Sequence[tuple[int, Minimum]]
) -> None:
    """In place, without a host synchronisation: logits [rows, V], a request's rows together; positions [rows]."""
    starts = np.cumsum([0, *counts])
    for b, minimum in pending:
        rows = slice(int(starts[b]), int(starts[b + 1]))
        early = (positions[rows] + 1 < minimum.end)[:, None]
        own = logits[rows]
        own[:, minimum.stops] = own[:, minimum.stops].masked_fill(early, float("-inf"))


def idle(processor: Any) -> bool:
    """Whether one of the engine's own logits processors has nothing to do; of others nobody knows."""
    for state in ("min_toks", "biases", "is_enabled"):
        if hasattr(processor, state):
            return not getattr(processor, state)
    return False

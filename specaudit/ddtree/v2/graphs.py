"""Captured graphs of two uniform lengths, a tree's and a chain's, side by side.

The engine (vllm/v1/worker/gpu/cudagraph_utils.py) offers a batch only the graphs of the next larger token count. With
two lengths that count is often the other one's, and the batch runs piecewise although a graph of its own length holds
it: 7 trees of 17 rows under [112, 128, 136] find the chain's 128 and not the trees' 136.
"""

from __future__ import annotations

from typing import Any


def offer_every_length(manager: Any) -> None:
    """Offers each token count the smallest graph of every uniform length that holds it, smallest first.

    manager: the engine's CudaGraphManager before capture, or None.
    """
    if manager is None:
        return
    uniform = [d for descs in manager._capture_descs.values() for d in descs if d.uniform_token_count is not None]
    uniform.sort(key=lambda d: d.num_tokens)
    for (tokens, loras), offered in manager._candidates.items():
        smallest: dict[tuple[int, int], Any] = {}
        for desc in uniform:
            if desc.num_tokens >= tokens and desc.num_active_loras == loras:
                smallest.setdefault((desc.uniform_token_count, desc.num_ubatches), desc)
        offered[:] = [*smallest.values(), *(d for d in offered if d.uniform_token_count is None)]

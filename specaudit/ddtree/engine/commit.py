"""Move the accepted nodes' KV rows to the first slots, for the target's layers only, right after sampling.

The drafter's layers are left alone: it recomputes its context keys and values from the target's hidden states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..kernels import commit_kv
from ..layout import KVCaches
from .state import TreeState


class Commit:
    """The target's caches, one `KVCaches` per KV-cache group and layout; made each time the caches are allocated."""

    def __init__(self, groups: list[Any], layers: dict[str, Any], draft_layers: set[str]) -> None:
        self.caches: list[tuple[int, KVCaches]] = []
        for gid, group in enumerate(groups):
            by_layout: dict[tuple[Any, ...], list[Tensor]] = {}
            for name in group.layer_names:
                if name in draft_layers:
                    continue
                for view in cache_views(layers[name].kv_cache):
                    by_layout.setdefault((view.shape, view.stride(), view.dtype), []).append(view)
            self.caches += [(gid, KVCaches.of(views)) for views in by_layout.values()]

    def run(self, state: TreeState, slot_mappings: Sequence[Tensor] | Tensor, row_starts: Tensor) -> None:
        """slot_mappings [groups][T] int64 and row_starts [B + 1] int32 of the step that was just sampled."""
        for gid, caches in self.caches:
            commit_kv(caches, slot_mappings[gid], state.walk, row_starts)


def cache_views(cache: Tensor) -> tuple[Tensor, ...]:
    """A layer's cache as views [blocks, block_size, heads, bytes of a head]: one of K and V together, or one each.

    FlashAttention's layouts: [blocks, heads, block_size, 2 * head_size] in newer engines, in older ones
    [2, blocks, block_size, heads, head_size].
    """
    return tuple(cache) if cache.dim() == 5 else (cache.transpose(1, 2),)

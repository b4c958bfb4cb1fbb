"""Whether rows can be attended to exactly in this engine, and with which buffers."""

from __future__ import annotations

import os
from typing import Any

import torch

from .commit import cache_views
from .exact import Exact
from .schedule import Layout, Order, expected_runs, flash_blocks, layout_of, order_of
from .state import TreeState


def exact_for(state: TreeState, groups: list[tuple[Any, list[str]]], layers: dict[str, Any]) -> Exact | None:
    """groups: the target's attention groups with their layers' names. None: not asked for.

    Raises:
        ValueError: it was asked for and is not possible, with the reason.
    """
    if not state.settings.exact or not groups:
        return None
    (group, names), *others = groups
    builder, impl = group.metadata_builders[0], layers[names[0]].impl
    heads, device = builder.num_heads_kv, state.walk.accepted.device
    packed = (1 + state.horizon) * (builder.num_heads_q // heads)
    blocks = flash_blocks(builder.headdim, packed)
    views = [view for name in names for view in cache_views(layers[name].kv_cache)]
    strides = {(view.stride(0) / view.stride(1), view.shape[1]) for view in views}
    reasons = (
        (impl.vllm_flash_attn_version != 3, "FlashAttention 3 (an NVIDIA Hopper GPU)"),
        (builder.kv_cache_dtype not in (torch.bfloat16, torch.float16), "a KV cache in bf16 or fp16"),
        (blocks is None, "heads of 128, or of 64 with few query heads"),
        (bool(others), "one KV cache group"),
        (not builder.max_num_splits, "full CUDA graphs (without them chains are divided by another rule)"),
        (len(strides) != 1 or not next(iter(strides))[0].is_integer(), "one layout of all KV caches"),
    )
    missing = [what for absent, what in reasons if absent]
    order, layout = None, None
    if not missing and blocks is not None:
        slots, rows = state.batch.batch, 1 + state.horizon
        requests = max(builder.max_cudagraph_size or 0, min(512, 2 * slots * rows)) // rows  # the chain's graphs
        most_runs = 1 if os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0") else builder.max_num_splits
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        order = order_of(blocks, heads, packed, multiprocessors, most_runs, requests)
        one_row = order_of(blocks, heads, builder.num_heads_q // heads, multiprocessors, 0, 0)
        layout = schedule_layout(builder, one_row, device)
    if order is None or layout is None:
        what = (missing or ["a schedule of FlashAttention 3 that it knows"])[0]
        raise ValueError(f"ddtree: exact needs {what}: leave it out")
    unit, block_size = next(iter(strides))
    trees = min(state.batch.batch, state.settings.max_batch) * (1 + state.nodes)
    capacity = min(max(trees, builder.max_cudagraph_size or 0), state.batch.batch * (1 + state.nodes))
    longest = builder.model_config.max_model_len
    return Exact(order, layout, capacity, longest, state.horizon, device, block_size=block_size, unit=int(unit))


def schedule_layout(builder: Any, order: Order, device: torch.device) -> Layout | None:
    """Read off what the library makes for sequences of one row, of which one is long enough for several runs."""
    from vllm.v1.attention.backends.fa_utils import get_scheduler_metadata

    lens = [100, 64 * order.keys, 100, 100, 100]
    made = [
        get_scheduler_metadata(
            batch_size=len(lens),
            max_seqlen_q=1,
            max_seqlen_k=max(lens),
            num_heads_q=builder.num_heads_q,
            num_heads_kv=builder.num_heads_kv,
            headdim=builder.headdim,
            cache_seqlens=torch.tensor(lens, dtype=torch.int32, device=device),
            qkv_dtype=builder.kv_cache_dtype,
            cu_seqlens_q=torch.arange(len(lens) + 1, dtype=torch.int32, device=device),
            page_size=1,
            causal=False,
            window_size=(-1, -1),
            num_splits=splits,
        )
        for splits in (4, 1)
    ]
    return layout_of(made[0], made[1], expected_runs(order, lens, 4))

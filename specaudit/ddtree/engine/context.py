"""Attention of the target: the chain's own FlashAttention over the context, then the tree kernel, which merges.

The context part is the call that a chain makes, with every row seeing all of the request's earlier tokens, the root
and none of the nodes (not causal, `seqused_k` = context length + 1) and its log-sum-exp returned; its cost is the
chain's at any context length. The tree part costs O(N^2) and is independent of the context.

Requests with a short context get both from one kernel, which rounds as the chain's does (short_attention.py); their
context part is empty. Which ones is decided on the GPU, in every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..attention import tree_attention
from ..short_attention import LONGEST, MAX_HEAD_SIZE, MAX_NODES, flash_blocks, share_factor, short_tree_attention
from .state import KeyOrder, Step, TreeState


@dataclass(frozen=True, slots=True)
class TreeMetadata:
    """What one step's attention layers share. `rest_*` describe the requests behind the trees, None without any."""

    requests: int
    rows: int
    max_rows: int
    context_lens: Tensor  # [requests] int32, the root counted in; 0 where the context is short
    short: tuple[Tensor, Tensor, int] | None  # lens and runs of short contexts, [requests] int32 each; keys of a block
    ancestors: Tensor  # [S, R, W] int32
    depths: Tensor  # [S, R] int32
    row_starts: Tensor  # [requests + 1] int32
    rest_row_starts: Tensor | None
    rest_max_rows: int

    @property
    def whole(self) -> bool:
        """Whether every row of the batch is a tree row: only then the builder's own schedule fits the context part."""
        return self.rest_row_starts is None


def attach(attn_groups: list[list[Any]], layers: dict[str, Any], draft_layers: set[str], state: TreeState) -> None:
    """Hook of initialize_kv_cache (which runs twice): hands the buffers to the target's metadata builders.

    Raises:
        ValueError: a target layer whose attention the tree kernel does not compute, with its name and reason.
    """
    orders: set[KeyOrder | None] = set()
    for group in (g for groups in attn_groups for g in groups):
        targets = [name for name in group.layer_names if name not in draft_layers]
        if not targets:
            continue
        backend = group.backend.get_name()
        if backend != "FLASH_ATTN":
            raise ValueError(f"ddtree: target layer {targets[0]} runs on {backend}: set attention backend FLASH_ATTN")
        for name in targets:
            _check(name, layers[name].impl)
        for builder in group.metadata_builders:
            builder.ddtree = state
            orders.add(_key_order(state, layers[targets[0]].impl, builder))
    state.order = orders.pop() if len(orders) == 1 else None


def _key_order(state: TreeState, impl: Any, builder: Any) -> KeyOrder | None:
    """None where chains do not run on FlashAttention 3 in the form that short_attention.py follows."""
    if getattr(impl, "vllm_flash_attn_version", None) != 3 or state.nodes > MAX_NODES:
        return None
    if builder.headdim > MAX_HEAD_SIZE or builder.kv_cache_dtype not in (torch.bfloat16, torch.float16):
        return None
    if builder.max_num_splits == 0 or builder.max_cudagraph_size is None:
        requests = 0  # nothing is captured
    else:
        requests = builder.max_cudagraph_size // (1 + state.horizon)
    heads, multiprocessors = builder.num_heads_kv, torch.cuda.get_device_properties().multi_processor_count
    packed = (1 + state.horizon) * builder.num_heads_q // heads
    blocks = flash_blocks(builder.headdim, packed)
    factor = share_factor(heads, blocks, packed, multiprocessors)
    return KeyOrder(LONGEST - state.horizon, blocks.keys, factor, builder.max_num_splits, requests)


def _check(name: str, impl: Any) -> None:
    window = impl.sliding_window
    for refused, what in (
        (window is not None and tuple(window) != (-1, -1), "a sliding window"),
        (impl.alibi_slopes is not None, "ALiBi"),
        (bool(impl.logits_soft_cap), "logits soft-capping"),
        (impl.sinks is not None, "attention sinks"),
        (getattr(impl, "dcp_world_size", 1) > 1, "decode context parallelism"),
    ):
        if refused:
            raise ValueError(f"ddtree: target layer {name} uses {what}: use the stock chain")


def plan(state: TreeState | None, common: Any) -> TreeMetadata | None:
    """Hook of the metadata builder: the tree part of this batch, None when it is the stock chain's.

    A real step was classified by begin_step; in capture (no step) a uniform batch of 1 + N rows is a batch of trees.
    """
    if state is None:
        return None
    step = state.step or _captured(state, common)
    if step is None or not step.tree:
        return None
    requests, rows, rest = step.requests, step.rows, None
    padded, max_rows = common.num_reqs, 1 + state.nodes
    if common.num_actual_tokens == padded * state.rows and common.max_query_len == state.rows:
        # a graph's padding requests have context 0 and no rows
        requests, rows, max_rows = padded, common.num_actual_tokens, state.rows
    elif requests < padded:
        rest = common.query_start_loc[requests:] - rows
    return TreeMetadata(
        requests=requests,
        rows=rows,
        max_rows=max_rows,
        context_lens=state.context_lens[:requests],
        short=(state.short_lens[:requests], state.short_runs[:requests], state.order.keys) if state.order else None,
        ancestors=state.batch.ancestors,
        depths=state.batch.depths,
        row_starts=common.query_start_loc[: requests + 1],
        rest_row_starts=rest,
        rest_max_rows=common.max_query_len,
    )


def _captured(state: TreeState, common: Any) -> Step | None:
    uniform = common.max_query_len == state.rows and common.num_actual_tokens == common.num_reqs * state.rows
    return Step(common.num_reqs, common.num_actual_tokens, True) if uniform else None


def forward(
    impl: Any,
    metadata: Any,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    output: Tensor,
    scales: tuple[Tensor | None, Tensor, Tensor],
    layer: Any,
) -> None:
    """Hook of the backend's forward for a batch that starts with trees: `output` [T, Hq, D] is filled for all rows.

    scales: q, k and v descale tensors as the backend passes them to FlashAttention ([requests, kv heads] views).
    """
    from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func

    tree: TreeMetadata = metadata.ddtree
    quantized = query.dtype.itemsize == 1
    query_scale, key_scale, value_scale = scales
    rows = tree.rows
    out = output[:rows]
    _, lse = flash_attn_varlen_func(
        q=query[:rows],
        k=key_cache,
        v=value_cache,
        out=out,
        cu_seqlens_q=tree.row_starts,
        max_seqlen_q=tree.max_rows,
        seqused_k=tree.context_lens,
        max_seqlen_k=metadata.max_seq_len,
        softmax_scale=impl.scale,
        causal=False,
        block_table=metadata.block_table[: tree.requests],
        return_softmax_lse=True,
        scheduler_metadata=metadata.scheduler_metadata,
        fa_version=impl.vllm_flash_attn_version,
        q_descale=None if query_scale is None else query_scale[: tree.requests],
        k_descale=key_scale[: tree.requests],
        v_descale=value_scale[: tree.requests],
        num_splits=metadata.max_num_splits,
    )
    if tree.short is not None:
        lens, runs, keys = tree.short
        short_tree_attention(
            out,
            query[:rows],
            key_cache,
            value_cache,
            tree.row_starts,
            tree.ancestors,
            tree.depths,
            metadata.slot_mapping,
            metadata.block_table,
            lens,
            runs,
            max_rows=tree.max_rows,
            scale=impl.scale,
            keys=keys,
        )
    fp8_cache = key_cache.dtype.itemsize == 1
    tree_attention(
        out,
        lse,
        query[:rows],
        key_cache,
        value_cache,
        tree.row_starts,
        tree.ancestors,
        max_rows=tree.max_rows,
        root_in_context=True,
        done=None if tree.short is None else tree.short[0],
        scale=impl.scale,
        slot_mapping=metadata.slot_mapping,
        query_scale=layer._q_scale if quantized else None,
        key_scale=layer._k_scale if fp8_cache else None,
        value_scale=layer._v_scale if fp8_cache else None,
    )
    if tree.rest_row_starts is None:
        return
    requests = tree.requests
    flash_attn_varlen_func(
        q=query[rows : metadata.num_actual_tokens],
        k=key_cache,
        v=value_cache,
        out=output[rows : metadata.num_actual_tokens],
        cu_seqlens_q=tree.rest_row_starts,
        max_seqlen_q=tree.rest_max_rows,
        seqused_k=metadata.seq_lens[requests:],
        max_seqlen_k=metadata.max_seq_len,
        softmax_scale=impl.scale,
        causal=True,
        block_table=metadata.block_table[requests:],
        fa_version=impl.vllm_flash_attn_version,
        q_descale=None if query_scale is None else query_scale[requests:],
        k_descale=key_scale[requests:],
        v_descale=value_scale[requests:],
        num_splits=0,
    )

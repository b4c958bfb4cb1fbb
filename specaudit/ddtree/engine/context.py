"""Attention of the target: the chain's own FlashAttention over the context, then the tree kernel, which merges.

The context part is the call that a chain makes, with every row seeing all of the request's earlier tokens, the root
and none of the nodes (not causal, `seqused_k` = context length + 1) and its log-sum-exp returned; its cost is the
chain's at any context length. The tree part costs O(N^2) and is independent of the context.

Or the chain's kernel for every row alone (exact.py), which rounds as a chain does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..attention import tree_attention
from .exact import Sequences, pages
from .exact_setup import exact_for
from .state import Step, TreeState


@dataclass(frozen=True, slots=True)
class TreeMetadata:
    """What one step's attention layers share. `rest_*` describe the requests behind the trees, None without any."""

    requests: int
    rows: int
    max_rows: int
    context_lens: Tensor  # [requests] int32, the root counted in
    ancestors: Tensor  # [S, R, W] int32
    row_starts: Tensor  # [requests + 1] int32
    rest_row_starts: Tensor | None
    rest_max_rows: int
    sequences: Sequences | None = None  # the rows one by one, where attention is exact

    @property
    def scheduled(self) -> bool:
        """Whether the builder's own schedule is used, for the context part: every row is a tree row, attended in two
        parts."""
        return self.rest_row_starts is None and self.sequences is None


def attach(attn_groups: list[list[Any]], layers: dict[str, Any], draft_layers: set[str], state: TreeState) -> None:
    """Hook of initialize_kv_cache (which runs twice): hands the buffers to the target's metadata builders.

    Raises:
        ValueError: a target layer whose attention the tree kernel does not compute, with its name and reason.
    """
    found: list[tuple[Any, list[str]]] = []
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
        found.append((group, targets))
    state.exact = None  # its buffers go before new ones come
    state.exact = exact_for(state, found, layers)


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
    if step.uniform and _is_a_graphs(state, common):
        # a graph's padding requests have context 0 and no rows
        requests, rows, max_rows = padded, common.num_actual_tokens, state.rows
    elif requests < padded:
        rest = common.query_start_loc[requests:] - rows
    sequences = None
    if state.exact is not None and rows <= state.exact.capacity:
        sequences = state.exact.prepare(
            state.batch,
            state.context_lens,
            common.query_start_loc[: requests + 1],
            rows,
            common.block_table_tensor,
            common.slot_mapping,
        )
    return TreeMetadata(
        sequences=sequences,
        requests=requests,
        rows=rows,
        max_rows=max_rows,
        context_lens=state.context_lens[:requests],
        ancestors=state.batch.ancestors,
        row_starts=common.query_start_loc[: requests + 1],
        rest_row_starts=rest,
        rest_max_rows=common.max_query_len,
    )


def _captured(state: TreeState, common: Any) -> Step | None:
    return Step(common.num_reqs, common.num_actual_tokens, True, True) if _is_a_graphs(state, common) else None


def _is_a_graphs(state: TreeState, common: Any) -> bool:
    """Whether the batch has the shape of a graph of trees: 1 + N rows for every request, padding ones included."""
    uniform: bool = common.num_actual_tokens == common.num_reqs * state.rows and common.max_query_len == state.rows
    return uniform


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
    rows = tree.rows
    out = output[:rows]
    if tree.sequences is not None:
        rows_alone(tree.sequences, impl, query[:rows], key_cache, value_cache, out)
    else:
        _in_two_parts(tree, impl, metadata, query[:rows], key_cache, value_cache, out, scales, layer)
    if tree.rest_row_starts is None:
        return
    query_scale, key_scale, value_scale = scales
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


def rows_alone(
    sequences: Sequences, impl: Any, query: Tensor, key_cache: Tensor, value_cache: Tensor, out: Tensor
) -> None:
    """Every row is a sequence of one query over pages of one key each."""
    from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func

    flash_attn_varlen_func(
        q=query,
        k=pages(key_cache)[0],
        v=pages(value_cache)[0],
        out=out,
        cu_seqlens_q=sequences.starts,
        max_seqlen_q=1,
        seqused_k=sequences.lens,
        max_seqlen_k=sequences.table.shape[1],
        softmax_scale=impl.scale,
        causal=False,
        block_table=sequences.table,
        scheduler_metadata=sequences.schedule,
        fa_version=impl.vllm_flash_attn_version,
        num_splits=sequences.splits,
    )


def _in_two_parts(
    tree: TreeMetadata,
    impl: Any,
    metadata: Any,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    out: Tensor,
    scales: tuple[Tensor | None, Tensor, Tensor],
    layer: Any,
) -> None:
    from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func

    quantized = query.dtype.itemsize == 1
    query_scale, key_scale, value_scale = scales
    _, lse = flash_attn_varlen_func(
        q=query,
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
    fp8_cache = key_cache.dtype.itemsize == 1
    tree_attention(
        out,
        lse,
        query,
        key_cache,
        value_cache,
        tree.row_starts,
        tree.ancestors,
        max_rows=tree.max_rows,
        root_in_context=True,
        scale=impl.scale,
        slot_mapping=metadata.slot_mapping,
        query_scale=layer._q_scale if quantized else None,
        key_scale=layer._k_scale if fp8_cache else None,
        value_scale=layer._v_scale if fp8_cache else None,
    )

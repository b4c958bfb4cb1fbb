"""Attention over a draft tree in a paged KV cache, in plain torch: what `attention.py` must compute, same signatures.

Row 0 of a request is the root (the last emitted token), rows 1..N are the nodes, parents before children. A row sees
the request's whole context, its ancestors and itself (DDTree, arXiv:2604.12989). Everything here is fp32, one request
at a time; nothing is meant to be fast.

Shapes, used in both modules:
    T   query rows of the batch; the rows of request b are row_starts[b] to row_starts[b + 1] - 1
    Hq, Hkv, D   query heads, KV heads (Hq a multiple of Hkv), head size
    query            [T, Hq, D]                        fp32, bf16, fp16, or e4m3 with `query_scale`
    key/value_cache  [blocks, block_size, Hkv, D]      any strides (NHD, HND, interleaved); e4m3 with a scale
    row_starts       [B + 1] int32                     as in layout.py; a padded request has no rows
    ancestors        [B, R, W] int32                   Tree.ancestors: the rows that a row sees
    slot_mapping     [T] int64                         KV slot of each row; below zero: the row has no KV
    block_table      [B, max_blocks] int32             block of position p of request b: block_table[b, p // block_size]
    context_lens     [B] int32                         KV positions before the root
    out, lse         [T, Hq, D], [Hq, T] fp32          FlashAttention's layout; lse is the natural logarithm
"""

from __future__ import annotations

import torch
from torch import Tensor

from .layout import unpack_bits


def gather_kv(cache: Tensor, slots: Tensor, scale: Tensor | None = None) -> Tensor:
    """The rows of a paged cache at `slots` [n] in fp32: [n, Hkv, D]. Slots below zero give zeros."""
    safe = slots.clamp(min=0).long()
    rows = cache[safe // cache.shape[1], safe % cache.shape[1]].float()
    rows[slots < 0] = 0
    return rows if scale is None else rows * scale.float()


def table_slots(block_table: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """The slots of `positions` [n] through one request's block table [max_blocks]."""
    return block_table[positions // block_size].long() * block_size + positions % block_size


def softmax_attention(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention of rows [n, Hq, D] over keys [m, Hkv, D] where `visible` [n, m]: (out [n, Hq, D], lse [Hq, n]), fp32.

    A row that sees nothing gives zeros and an lse of minus infinity.
    """
    group = query.shape[1] // key.shape[1]
    key, value = (x.float().repeat_interleave(group, 1) for x in (key, value))
    scores = torch.einsum("nhd,mhd->hnm", query.float(), key) * scale
    scores = scores.masked_fill(~visible, float("-inf"))
    lse = scores.logsumexp(-1)
    weights = torch.where(visible, (scores - lse[..., None]).exp(), 0.0)
    return torch.einsum("hnm,mhd->nhd", weights, value), lse


def context_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    row_starts: Tensor,
    context_lens: Tensor,
    block_table: Tensor,
    *,
    scale: float,
    query_scale: Tensor | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What the context kernel gives: every row over its request's context, (out [T, Hq, D], lse [Hq, T]) in fp32.

    With the root in the context part, give it context_lens + 1.
    """
    out = torch.zeros(query.shape, dtype=torch.float32, device=query.device)
    lse = torch.full(query.shape[1::-1], float("-inf"), device=query.device)
    rows = query.float() if query_scale is None else query.float() * query_scale
    for b, context in enumerate(context_lens.tolist()):
        start, end = row_starts[b : b + 2].tolist()
        slots = table_slots(block_table[b], torch.arange(context, device=query.device), key_cache.shape[1])
        visible = torch.ones(end - start, context, dtype=torch.bool, device=query.device)
        key, value = gather_kv(key_cache, slots, key_scale), gather_kv(value_cache, slots, value_scale)
        out[start:end], lse[:, start:end] = softmax_attention(rows[start:end], key, value, visible, scale)
    return out, lse


def tree_attention(
    out: Tensor,
    lse: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    row_starts: Tensor,
    ancestors: Tensor,
    *,
    max_rows: int,
    scale: float,
    slot_mapping: Tensor | None = None,
    block_table: Tensor | None = None,
    context_lens: Tensor | None = None,
    query_scale: Tensor | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
    merged: Tensor | None = None,
    root_in_context: bool = False,
) -> None:
    """The tree part, merged into a context part (out, lse) computed elsewhere; see `attention.tree_attention`."""
    merged = out if merged is None else merged
    rows = query.float() if query_scale is None else query.float() * query_scale
    for b in range(len(row_starts) - 1):
        start, end = row_starts[b : b + 2].tolist()
        n = end - start
        if slot_mapping is not None:
            slots = slot_mapping[start:end]
        else:
            assert block_table is not None
            assert context_lens is not None
            positions = context_lens[b] + torch.arange(n, device=query.device)
            slots = table_slots(block_table[b], positions, key_cache.shape[1])
        key, value = gather_kv(key_cache, slots, key_scale), gather_kv(value_cache, slots, value_scale)
        visible = unpack_bits(ancestors[b, :n], n)
        if root_in_context:
            visible[:, :1] = False
        tree, tree_lse = softmax_attention(rows[start:end], key, value, visible, scale)
        context_lse = lse[:, start:end]
        # "No keys" is +inf from FlashAttention 2 and -inf from FlashAttention 3.
        context_lse = context_lse.masked_fill(context_lse.isinf(), float("-inf"))
        total = torch.logaddexp(context_lse, tree_lse)
        weight = (context_lse - total).exp().T[..., None]  # [n, Hq, 1]
        context = torch.where(weight > 0, weight * out[start:end].float(), 0.0)
        merged[start:end] = (context + (tree_lse - total).exp().T[..., None] * tree).to(merged.dtype)


def paged_tree_attention(
    out: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    row_starts: Tensor,
    context_lens: Tensor,
    block_table: Tensor,
    ancestors: Tensor,
    *,
    max_rows: int,
    scale: float,
    splits: int = 1,
    scratch: Tensor | None = None,
    query_scale: Tensor | None = None,
    key_scale: Tensor | None = None,
    value_scale: Tensor | None = None,
) -> None:
    """Context and tree together: one softmax over both; see `attention.paged_tree_attention`."""
    rows = query.float() if query_scale is None else query.float() * query_scale
    for b, context in enumerate(context_lens.tolist()):
        start, end = row_starts[b : b + 2].tolist()
        n = end - start
        slots = table_slots(block_table[b], torch.arange(context + n, device=query.device), key_cache.shape[1])
        key, value = gather_kv(key_cache, slots, key_scale), gather_kv(value_cache, slots, value_scale)
        before = torch.ones(n, context, dtype=torch.bool, device=query.device)
        visible = torch.cat([before, unpack_bits(ancestors[b, :n], n)], 1)
        result, _ = softmax_attention(rows[start:end], key, value, visible, scale)
        out[start:end] = result.to(out.dtype)

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


def short_tree_attention(
    out: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    row_starts: Tensor,
    ancestors: Tensor,
    depths: Tensor,
    slot_mapping: Tensor,
    block_table: Tensor,
    lens: Tensor,
    runs: Tensor,
    *,
    max_rows: int,
    scale: float,
    keys: int,
) -> None:
    """What FlashAttention 3 gives each row as the end of a chain, one row after the other: see `short_attention.py`."""
    for b, (length, run) in enumerate(zip(lens.tolist(), runs.tolist(), strict=True)):
        start, end = row_starts[b : b + 2].tolist()
        if length == 0 or start == end:
            continue
        context = table_slots(block_table[b], torch.arange(length, device=query.device), key_cache.shape[1])
        visible = unpack_bits(ancestors[b, : end - start], end - start)
        for row in range(end - start):
            path = [node for node in visible[row].nonzero().flatten().tolist() if node > 0]
            path.sort(key=lambda node, b=b: int(depths[b, node]))  # type: ignore[misc]
            slots = torch.cat([context, slot_mapping[start:end][path]])
            key, value = gather_kv(key_cache, slots), gather_kv(value_cache, slots)
            out[start + row] = flash_order(query[start + row].float(), key, value, scale, keys, run, out.dtype)


def flash_order(
    query: Tensor, key: Tensor, value: Tensor, scale: float, keys: int, run: int, dtype: torch.dtype
) -> Tensor:
    """One row [Hq, D] over keys [m, Hkv, D] in blocks of `keys`, last block first: weights are relative to the maximum
    of what was seen in this run of blocks, rounded to `dtype`, multiplied and added in fp32; runs are merged in fp32.
    """
    group = query.shape[0] // key.shape[1]
    key, value = (x.repeat_interleave(group, 1) for x in (key, value))
    scores = torch.einsum("hd,mhd->hm", query, key)
    factor = scale * 1.4426950408889634
    parts: list[tuple[Tensor, Tensor, Tensor]] = []  # of a run: maximum, sum of weights, weighted values
    for block in reversed(range(-(-key.shape[0] // keys))):
        s, v = scores[:, block * keys : (block + 1) * keys], value[block * keys : (block + 1) * keys]
        if not parts or (block + 1) % run == 0:
            nothing = torch.zeros_like(query)
            parts.append((torch.full_like(nothing[:, 0], float("-inf")), nothing[:, 0], nothing))
        top, total, acc = parts.pop()
        new_top = torch.maximum(top, s.amax(1))
        shrink = ((top - new_top) * factor).exp2()
        weights = (s.double() * factor - (new_top * factor)[:, None].double()).float().exp2()  # fused
        acc = acc * shrink[:, None] + torch.einsum("hm,mhd->hd", weights.to(dtype).float(), v)
        parts.append((new_top, total * shrink + weights.sum(1), acc))
    tops, totals, values = (torch.stack(kind) for kind in zip(*parts, strict=True))
    shares = ((tops - tops.amax(0)) * factor).exp2()  # [runs, Hq]
    merged: Tensor = (shares[..., None] * values).sum(0) / (shares * totals).sum(0)[:, None]
    return merged.to(dtype)

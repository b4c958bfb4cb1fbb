# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The Triton kernels of `attention.paged_tree_attention`: context and tree in one, split by keys, then merged."""

from __future__ import annotations

import triton
import triton.language as tl

from .attention_kernels import (
    BATCH_SIZES,
    _ancestor_bits,
    _attend,
    _load_kv,
    _load_rows,
    _operand,
    _packed_rows,
    _scales,
    _slots,
    _store_rows,
)  # fmt: skip
from .launch import relaunched


@relaunched
@triton.jit(do_not_specialize=BATCH_SIZES)
def paged_tree_attention_kernel(
    Out,
    Partial,
    PartialLse,
    Query,
    Key,
    Value,
    RowStarts,
    Ancestors,
    Table,
    ContextLens,
    QueryScale,
    KeyScale,
    ValueScale,
    scale,
    words,
    rows,
    splits,
    out_row,
    out_head,
    query_row,
    query_head,
    key_block,
    key_position,
    key_head,
    value_block,
    value_position,
    value_head,
    ancestors_request,
    ancestors_row,
    table_request,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    DIRECT: tl.constexpr,
    E4M3_QUERY: tl.constexpr,
    E4M3_CACHE: tl.constexpr,
    OPERAND: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (tile of rows, split, request x KV head).

    The key tiles of a request run through its context and its tree alike; a split takes an equal run of them.
    """
    tile, split = tl.program_id(0), tl.program_id(1)
    kv_heads: tl.constexpr = HEADS // GROUP
    b, kv_head = tl.program_id(2) // kv_heads, tl.program_id(2) % kv_heads
    start = tl.load(RowStarts + b)
    n = tl.load(RowStarts + b + 1) - start
    if tile * BLOCK_M >= n * GROUP:
        return
    row, head, live, seen = _packed_rows(tile, n, 0, GROUP, BLOCK_M)
    first_t, first_head = start.to(tl.int64), kv_head * GROUP  # offsets within a request are small: 32 bits do
    Query += first_t * query_row + first_head * query_head
    q = _load_rows(Query, row * query_row + head * query_head, live, HEAD_SIZE, BLOCK_D, False)
    q = _operand(q, OPERAND)
    scale_s, scale_v = _scales(QueryScale, KeyScale, ValueScale, scale, E4M3_QUERY, E4M3_CACHE)

    context = tl.load(ContextLens + b)
    full_tiles, tiles = context // BLOCK_N, tl.cdiv(context + seen, BLOCK_N)
    share = tl.cdiv(tiles, splits)
    begin, end = split * share, tl.minimum((split + 1) * share, tiles)
    table = Table + b * table_request
    key_base = Key + kv_head * key_head
    value_base = Value + kv_head * value_head
    column = tl.arange(0, BLOCK_N)

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    top, total = tl.full([BLOCK_M], float("-inf"), tl.float32), tl.zeros([BLOCK_M], tl.float32)
    for i in range(begin, tl.minimum(end, full_tiles)):  # every row sees every key here: no mask
        every = column >= 0
        block, offset = _slots(table, i * BLOCK_N + column, every, BLOCK_SIZE)
        k, v = _load_kv(
            key_base, value_base, block, offset, every, key_block, key_position, value_block, value_position,
            HEAD_SIZE, BLOCK_D, OPERAND, True,
        )  # fmt: skip
        acc, top, total = _attend(acc, top, total, q, k, v, every, scale_s, False, PRECISION)
    for i in range(tl.maximum(begin, full_tiles), end):  # the end of the context, then the tree
        position = i * BLOCK_N + column
        stored = position < context + n
        block, offset = _slots(table, position, stored, BLOCK_SIZE)
        k, v = _load_kv(
            key_base, value_base, block, offset, stored, key_block, key_position, value_block, value_position,
            HEAD_SIZE, BLOCK_D, OPERAND, False,
        )  # fmt: skip
        first = i * BLOCK_N - context  # the tile's first key as a row of the tree: below 0 in the context
        bits = _ancestor_bits(Ancestors + b * ancestors_request, row * ancestors_row, live, first, words, BLOCK_N)
        visible = (bits | (position < context)[None, :]) & stored[None, :]
        acc, top, total = _attend(acc, top, total, q, k, v, visible, scale_s, True, PRECISION)

    seen_any = total > 0
    safe_total = tl.where(seen_any, total, 1.0)
    result = acc * (scale_v / safe_total)[:, None]
    if DIRECT:
        Out += first_t * out_row + first_head * out_head
        _store_rows(Out, row * out_row + head * out_head, result, live, HEAD_SIZE, BLOCK_D)
    else:
        at = (split * rows + first_t) * HEADS + first_head + row * HEADS + head
        lse = tl.where(seen_any, top + tl.log2(safe_total), float("-inf"))
        tl.store(PartialLse + at, lse, mask=live)
        if end > begin:
            _store_rows(Partial, at * HEAD_SIZE, result, live, HEAD_SIZE, BLOCK_D)


@relaunched
@triton.jit(do_not_specialize=BATCH_SIZES)
def merge_splits_kernel(
    Out,
    Partial,
    PartialLse,
    RowStarts,
    rows,
    requests,
    splits,
    out_row,
    out_head,
    HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """Program (row, head): the splits' parts, weighted by their log-sum-exp."""
    t, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if t < tl.load(RowStarts) or t >= tl.load(RowStarts + requests):
        return
    s, d = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    at = (s * rows + t) * HEADS + head
    lse = tl.load(PartialLse + at, mask=s < splits, other=float("-inf"))
    weight = tl.exp2(lse - tl.max(lse, 0))
    # A split without keys stored no part: its rows of the scratch may hold anything.
    used = (lse > float("-inf"))[:, None] & (d < HEAD_SIZE)[None, :]
    part = tl.load(Partial + at[:, None] * HEAD_SIZE + d[None, :], mask=used, other=0.0)
    result = tl.sum(part * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(Out + t * out_row + head * out_head + d, result.to(Out.dtype.element_ty), mask=d < HEAD_SIZE)

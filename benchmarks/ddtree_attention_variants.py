# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Other forms of the tree attention kernel, to be timed beside the one that is used; none of them is installed.

What bounds it at 8 requests of 64 nodes (32 heads, 8 KV heads of 128), by arithmetic: 65 rows x 4 heads make 5 tiles of
64 packed rows, the fifth of them with 4 rows of work; 8 x 8 x 5 = 320 programs, where two fit a multiprocessor (246
registers a thread, compiled for sm_90) and 264 an H200: a second, almost empty wave. A program's loads follow one
another (query and slots, then keys and values, then the context's part at the end), three latencies in a row. Bytes are
no bound: 15 MB at least, 3 us of the L2 cache.

apart   the root apart: its key is a vector that every row sees, its own row belongs to the first tile. Rows 1 to N and
        keys 1 to N are whole tiles then: 256 programs, one wave.
early   the context's part is loaded before the products, not after them: one latency less.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specaudit.ddtree.attention import Tile
from specaudit.ddtree.attention_kernels import LOG2_E, _ancestor_bits, _attend, _load_rows, _store_rows


class Variant(NamedTuple):
    tile: Tile
    apart: bool = False
    early: bool = False
    registers: int | None = None  # a limit: more programs on a multiprocessor, for spills


VARIANTS = {
    "early": Variant(Tile(64, 64, 4, 1), early=True),
    "apart": Variant(Tile(64, 64, 4, 1), apart=True),
    "apart, 160 registers": Variant(Tile(64, 64, 4, 1), apart=True, registers=160),
    "apart early": Variant(Tile(64, 64, 4, 1), apart=True, early=True),
    "apart early, 8 warps": Variant(Tile(64, 64, 8, 1), apart=True, early=True),
    "apart early, 128 rows": Variant(Tile(128, 64, 8, 1), apart=True, early=True),
    "apart early, 32 rows": Variant(Tile(32, 64, 4, 1), apart=True, early=True),
    "apart early, 32 keys": Variant(Tile(64, 32, 4, 2), apart=True, early=True),
    "apart early, 16 rows": Variant(Tile(16, 64, 4, 1), apart=True, early=True),
}


def chosen() -> dict[str, Variant]:
    """All, or those that the environment variable DDTREE_VARIANTS names, separated by semicolons."""
    names = [name.strip() for name in os.environ.get("DDTREE_VARIANTS", "").split(";") if name.strip()]
    return {name: VARIANTS[name] for name in names} or VARIANTS


@triton.jit(do_not_specialize=["words", "lse_head", "ancestors_request", "ancestors_row"])
def variant_kernel(
    Out,
    Lse,
    Query,
    Key,
    Value,
    RowStarts,
    Ancestors,
    Slots,
    scale,
    words,
    out_row,
    out_head,
    lse_head,
    lse_row,
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
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_G: tl.constexpr,
    APART: tl.constexpr,
    EARLY: tl.constexpr,
    OPERAND: tl.constexpr,
):
    tile, kv_head, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    FIRST: tl.constexpr = 1 if APART else 0
    start = tl.load(RowStarts + b)
    n = tl.load(RowStarts + b + 1) - start
    if tile * BLOCK_M >= tl.maximum((n - FIRST) * GROUP, tl.minimum(n, 1)):  # the first tile has the root's row
        return
    packed = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    row, head = FIRST + packed // GROUP, packed % GROUP
    live = row < n
    first_t, first_head = start.to(tl.int64), kv_head * GROUP
    Query += first_t * query_row + first_head * query_head
    Lse += first_t * lse_row + first_head.to(tl.int64) * lse_head
    Out += first_t * out_row + first_head * out_head
    q = _load_rows(Query, row * query_row + head * query_head, live, HEAD_SIZE, BLOCK_D, False)
    lse = tl.load(Lse + head * lse_head + row * lse_row, mask=live, other=float("-inf")) * LOG2_E
    lse = tl.where(lse == float("inf"), float("-inf"), lse)
    has_context = lse > float("-inf")
    at = row * out_row + head * out_head
    if EARLY:
        context = _load_rows(Out, at, live & has_context, HEAD_SIZE, BLOCK_D, False)
    q = q.to(OPERAND)
    scale_s = scale * LOG2_E
    key_base, value_base = Key + kv_head * key_head, Value + kv_head * value_head

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    top, total = lse, tl.zeros([BLOCK_M], tl.float32)
    if APART:
        d = tl.arange(0, BLOCK_D)
        root = tl.load(Slots + start)
        root_block, root_offset = root // BLOCK_SIZE, root % BLOCK_SIZE
        seen = (d < HEAD_SIZE) & (root >= 0)
        key_at = root_block * key_block + root_offset * key_position + d
        value_at = root_block * value_block + root_offset * value_position + d
        root_key = tl.load(key_base + key_at, mask=seen, other=0).to(tl.float32)
        root_value = tl.load(value_base + value_at, mask=seen, other=0).to(tl.float32)
        score = tl.sum(q.to(tl.float32) * root_key[None, :], 1) * scale_s
        top = tl.maximum(lse, score)
        total = tl.exp2(score - top)
        acc = total[:, None] * root_value[None, :]
    last = FIRST + (tile * BLOCK_M + BLOCK_M - 1) // GROUP
    for first in range(FIRST, tl.minimum(n, last + 1), BLOCK_N):
        j = first + tl.arange(0, BLOCK_N)
        in_tree = j < n
        slot = tl.load(Slots + start + j, mask=in_tree, other=-1)
        block, offset, stored = slot // BLOCK_SIZE, slot % BLOCK_SIZE, slot >= 0
        key_rows, value_rows = block * key_block + offset * key_position, block * value_block + offset * value_position
        k = _load_rows(key_base, key_rows, stored, HEAD_SIZE, BLOCK_D, False).to(OPERAND)
        v = _load_rows(value_base, value_rows, stored, HEAD_SIZE, BLOCK_D, False).to(OPERAND)
        bits = _ancestor_bits(Ancestors + b * ancestors_request, row * ancestors_row, live, first, words, BLOCK_N)
        acc, top, total = _attend(acc, top, total, q, k, v, bits & in_tree[None, :], scale_s, True, "tf32")

    weight = tl.exp2(lse - tl.where(top == float("-inf"), 0.0, top))
    inverse = 1.0 / tl.where(live, total + weight, 1.0)
    if not EARLY:
        context = _load_rows(Out, at, live & has_context, HEAD_SIZE, BLOCK_D, False)
    result = acc * inverse[:, None] + context.to(tl.float32) * (inverse * weight)[:, None]
    _store_rows(Out, at, result, live, HEAD_SIZE, BLOCK_D)

    if APART and tile == 0:
        h = tl.arange(0, BLOCK_G)
        inside = h < GROUP
        q0 = _load_rows(Query, h * query_head, inside, HEAD_SIZE, BLOCK_D, False).to(tl.float32)
        lse0 = tl.load(Lse + h * lse_head, mask=inside, other=float("-inf")) * LOG2_E
        lse0 = tl.where(lse0 == float("inf"), float("-inf"), lse0)
        score0 = tl.sum(q0 * root_key[None, :], 1) * scale_s
        top0 = tl.maximum(lse0, score0)
        own0, weight0 = tl.exp2(score0 - top0), tl.exp2(lse0 - top0)
        seen0 = inside & (lse0 > float("-inf"))
        context0 = _load_rows(Out, h * out_head, seen0, HEAD_SIZE, BLOCK_D, False).to(tl.float32)
        result0 = (own0[:, None] * root_value[None, :] + weight0[:, None] * context0) / (own0 + weight0)[:, None]
        _store_rows(Out, h * out_head, result0, inside, HEAD_SIZE, BLOCK_D)


def run(
    variant: Variant,
    out: Tensor,
    lse: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    row_starts: Tensor,
    ancestors: Tensor,
    slots: Tensor,
    max_rows: int,
    scale: float,
) -> None:
    """As `attention.tree_attention` in place, by slot mapping, with the root left to the tree; bf16 or fp32."""
    heads, kv_heads, size = query.shape[1], key_cache.shape[2], query.shape[2]
    group, tile = heads // kv_heads, variant.tile
    tiles = max(1, triton.cdiv((max_rows - variant.apart) * group, tile.block_m))
    grid = (tiles, kv_heads, len(row_starts) - 1)
    variant_kernel[grid](
        out, lse, query, key_cache, value_cache, row_starts, ancestors, slots, scale, ancestors.shape[2],
        *out.stride()[:2], *lse.stride(), *query.stride()[:2], *key_cache.stride()[:3], *value_cache.stride()[:3],
        *ancestors.stride()[:2],
        GROUP=group, BLOCK_SIZE=key_cache.shape[1], HEAD_SIZE=size, BLOCK_D=triton.next_power_of_2(size),
        BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_G=triton.next_power_of_2(group),
        APART=variant.apart, EARLY=variant.early,
        OPERAND=tl.bfloat16 if query.dtype == torch.bfloat16 else tl.float32,
        num_warps=tile.warps, num_stages=tile.stages, maxnreg=variant.registers,
    )  # fmt: skip

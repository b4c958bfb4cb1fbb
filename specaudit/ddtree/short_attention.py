"""Attention over short contexts and their trees, rounded as FlashAttention 3 rounds a chain's.

Two correct attention kernels round differently, and at a near tie of two tokens that changes the output. In bf16 what
matters is where the softmax weights are rounded: relative to which maximum. FlashAttention 3 goes through keys in
blocks (hopper/tile_size.h), last block first, with a running maximum; a captured step of a vLLM engine may divide a
request's blocks into runs that it computes apart and merges in fp32 (hopper/flash_prepare_scheduler.cu). This kernel
takes the same blocks in the same order with the same runs, context and tree in one, each node's key where a chain of
its ancestors has it. What is left are fp32 sums in another order: one bf16 result in 50,000, not one in four.

One program goes through all keys of a request, so this is for short contexts; longer ones are FlashAttention's, and
`attention.tree_attention` adds the tree.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import triton
from torch import Tensor

from .attention import Tile, _check, _operand_type, _precision
from .short_kernels import short_tree_attention_kernel

LONGEST = 512  # keys: context, root and horizon
MAX_NODES = 64  # one tile of keys
MAX_HEAD_SIZE = 128  # above it FlashAttention's blocks are shorter
MARGIN = 1.1


class Blocks(NamedTuple):
    """How FlashAttention 3 cuts a call over a paged cache: packed query rows and keys of a block."""

    rows: int
    keys: int


def flash_blocks(head_size: int, packed_rows: int) -> Blocks:
    """Of a causal call in bf16 or fp16, pages shorter than a block; packed_rows: rows of a request times query heads of
    a KV head. Few rows get one warp group, and with heads of 64 larger blocks of keys."""
    if packed_rows <= 64 and head_size in (64, 128):
        return Blocks(64, 192 if head_size == 64 else 128)
    return Blocks(192 if head_size <= 96 else 128, 128)


def share_factor(kv_heads: int, blocks: Blocks, packed_rows: int, multiprocessors: int) -> float:
    """What the number of key blocks in a batch is multiplied with to give the blocks per multiprocessor, which is how
    many blocks FlashAttention 3 leaves in one run at least."""
    return math.ceil(packed_rows / blocks.rows) * MARGIN * kv_heads / multiprocessors


#: 64 packed rows, as a warp group of Hopper multiplies them: smaller products (16 rows) are added up in another order,
#: and 20 times as many results round elsewhere.
TILE = Tile(64, MAX_NODES, 4, 1)


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
    tile: Tile = TILE,
) -> None:
    """Attends over context and tree and writes `out`, for the requests that have a length.

    Args:
        lens: [B] int32, the context with the root counted in; 0: not this kernel's request, its rows stay untouched.
        runs: [B] int32, the blocks that share a running maximum, 1 or more.
        depths: [B, R] int32, the root's is 0; a node's key counts as the one at position lens - 1 + depth.
        max_rows: 1 + N, at most 65.
        keys: of a block, see `flash_blocks`.
        The others are those of `attention.tree_attention`; bf16, fp16 or fp32.

    Raises:
        ValueError: shapes or types do not fit together.
    """
    _check(query, key_cache, value_cache, ancestors, max_rows, None, None, None)
    if max_rows > 1 + MAX_NODES or query.shape[2] > MAX_HEAD_SIZE:
        raise ValueError(
            f"at most {MAX_NODES} nodes and heads of {MAX_HEAD_SIZE}, got {max_rows - 1}, {query.shape[2]}"
        )
    heads, kv_heads, head_size = query.shape[1], key_cache.shape[2], query.shape[2]
    group, requests = heads // kv_heads, len(row_starts) - 1
    operand = _operand_type(query)
    grid = (triton.cdiv(max_rows * group, tile.block_m), kv_heads, requests)
    short_tree_attention_kernel[grid](
        out,
        query,
        key_cache,
        value_cache,
        row_starts,
        ancestors,
        depths,
        slot_mapping,
        block_table,
        lens,
        runs,
        scale,
        ancestors.shape[2],
        *out.stride()[:2],
        *query.stride()[:2],
        *key_cache.stride()[:3],
        *value_cache.stride()[:3],
        *ancestors.stride()[:2],
        depths.stride(0),
        block_table.stride(0),
        GROUP=group,
        BLOCK_SIZE=key_cache.shape[1],
        HEAD_SIZE=head_size,
        BLOCK_D=triton.next_power_of_2(head_size),
        BLOCK_M=tile.block_m,
        BLOCK_N=max(16, min(tile.block_n, triton.next_power_of_2(max_rows - 1))),
        BLOCK_C=triton.next_power_of_2(keys),
        KEYS=keys,
        OPERAND=operand,
        PRECISION=_precision(operand),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )

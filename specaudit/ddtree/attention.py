"""Attention over a draft tree in a paged KV cache, on the GPU: the functions of `attention_reference.py`, as launches.

Shapes and meanings of the tensors are drawn there. Two ways to attend:

tree_attention         the (1 + N) x (1 + N) tree part alone, merged by log-sum-exp into a context part (out, lse) that
                       the engine's own kernel computed: FlashAttention over `context_lens` keys, not causal, with its
                       lse. Its cost does not depend on the context. One launch.
paged_tree_attention   context and tree together, split over the KV positions, for where there is no FlashAttention
                       (fp32, odd head sizes, new devices). One launch, or two when `splits` > 1.

Nothing here reads a tensor on the host or allocates: every length lives in a GPU buffer and the grids follow from
`max_rows` and the shapes, so a launch can be captured in a CUDA graph and replayed with other lengths. A padded request
(no rows) costs an empty program. A row's own bit must be set: no row may be fully masked.

e4m3 is read as bytes. Its bits, shifted into fp16, hold value / 256 exactly, subnormals too, on every device (sm_80 has
no such type); the factor goes into the scales. The two NaN codes become +-480: engines saturate and never store them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor
from triton import knobs

from .attention_kernels import tree_attention_kernel
from .launch import cdiv, power_of_2
from .paged_kernels import merge_splits_kernel, paged_tree_attention_kernel


class Tile(NamedTuple):
    """How a kernel is cut: packed query rows and keys per step, warps per program, stages of the load pipeline.

    early: the tree part loads the context's part before the products: one latency less, for more registers.
    """

    block_m: int
    block_n: int
    warps: int
    stages: int
    early: bool = False


def tree_tile(programs: int, keys: int, head_size: int, itemsize: int, cache_itemsize: int) -> Tile:
    """The cut of the tree part. Latency bounds it: one tile of keys where they fit, and all programs at once.

    Args:
        programs: how many there would be with 16 packed rows each; few small ones finish sooner than fewer large ones.
        keys: the most tree rows to attend to.
        itemsize: bytes of an operand of the matrix products (the query's type; 2 for e4m3).
        cache_itemsize: bytes of an element of the caches; turning e4m3 into operands takes registers.
    """
    if itemsize == 4:
        return Tile(16, 16, 4, 2)  # fp32 products unroll into plain arithmetic: larger tiles spill registers
    widest = 64 if head_size <= 128 and cache_itemsize == 2 else 32
    block_m = 16 if programs <= 256 else 64 if head_size <= 128 else 32
    if keys > widest + 1:  # only the last row needs key widest + 1; more means a loop worth a pipeline
        return Tile(block_m, 32, 4, 2)
    return Tile(block_m, max(16, min(widest, power_of_2(keys))), 4, 1, early=True)


def paged_tile(head_size: int, itemsize: int, cache_itemsize: int) -> Tile:
    """The cut of the context-and-tree kernel; fits the 99 KiB of shared memory of sm_86, sm_89 and sm_120."""
    if itemsize == 4:
        return Tile(16, 16, 4, 2)
    if head_size > 128:
        return Tile(64, 32, 8, 2)
    return Tile(64, 32 if cache_itemsize == 1 else 64, 4, 2)


def paged_plan(
    requests: int,
    kv_heads: int,
    packed_rows: int,
    max_keys: int,
    multiprocessors: int,
    head_size: int,
    itemsize: int,
    cache_itemsize: int,
) -> tuple[Tile, int]:
    """The cut of the context-and-tree kernel, and how many ways to split its keys: 1 to 64.

    A multiprocessor holds two programs at once (three of the narrow cut, by their registers), so the programs come in
    waves, and the last wave costs as much as a full one. A wave takes as many steps as a split has tiles, and about
    three more to begin and end.

    All arguments are constants of a captured graph: lengths read on the GPU decide how much of a split is used, never
    how many there are.

    Args:
        packed_rows: the rows of a tree times the query heads of one KV head.
        max_keys: the longest context that the graph may meet, and its tree.
        The others are those of `paged_tile`.
    """
    tile = paged_tile(head_size, itemsize, cache_itemsize)
    programs, tiles = requests * kv_heads * cdiv(packed_rows, tile.block_m), cdiv(max_keys, tile.block_n)

    def steps(splits: int) -> int:
        return cdiv(programs * splits, 2 * multiprocessors) * (cdiv(tiles, splits) + 3)

    def worth_its_merge(splits: int) -> bool:
        return splits <= (cdiv(tiles, 2) if programs * splits <= multiprocessors else tiles // 4)

    splits = min([1, *filter(worth_its_merge, range(2, 65))], key=steps)
    if splits == 1 and 2 * multiprocessors < programs <= 3 * multiprocessors:
        tile = tile._replace(block_n=min(tile.block_n, 32))  # one wave in place of two
    return tile, splits


def scratch_size(rows: int, heads: int, head_size: int, splits: int) -> int:
    """fp32 elements of scratch for `paged_tree_attention`: per split, row and head one output row and its lse."""
    return 0 if splits == 1 else splits * rows * heads * (head_size + 1)


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
    tile: Tile | None = None,
) -> None:
    """Attends over the rows of the tree and merges the result with the context's part.

    Args:
        out, lse: the context's part; an lse of +-inf means no context, then `out` is not used (it may hold anything).
        root_in_context: the context's part has the root's KV as its last key (context_lens + 1 keys), so the tree part
            is N x N. Every row sees the root anyway, inert ones then too; a tree of 64 nodes becomes whole tiles, and
            no context is empty. The fastest way, where the context kernel can be given the length.
        slot_mapping: the KV slot of every row, as the engine wrote them in this step. Without it, `block_table` and
            `context_lens` say where row i lies: position context_lens[b] + i.
        max_rows: the most rows a request of this launch can have, 1 + N; ancestors must have at least as many rows.
        scale: factor on the scores, usually head_size ** -0.5.
        query_scale, key_scale, value_scale: one fp32 element each, on the GPU; needed with e4m3.
        merged: where the result goes, default in place of `out`. Rows of no request are not written.

    Raises:
        ValueError: shapes or types do not fit together.
    """
    merged = out if merged is None else merged
    _check(query, key_cache, value_cache, ancestors, max_rows, query_scale, key_scale, value_scale)
    by_table = slot_mapping is None
    if by_table and (block_table is None or context_lens is None):
        raise ValueError("give slot_mapping, or both block_table and context_lens")
    heads, kv_heads, head_size = query.shape[1], key_cache.shape[2], query.shape[2]
    operand = _operand_type(query)
    group, requests = heads // kv_heads, len(row_starts) - 1
    first_key = int(root_in_context)
    first_row = first_key if merged is out else 0
    if tile is None:
        programs = requests * kv_heads * cdiv((max_rows - first_row) * group, 16)
        sizes = head_size, operand.primitive_bitwidth // 8, key_cache.itemsize
        tile = tree_tile(programs, max_rows - first_key, *sizes)
    anything = row_starts  # stands for the pointer of an argument that this launch does not read
    grid = (cdiv((max_rows - first_row) * group, tile.block_m), kv_heads, requests)
    tree_attention_kernel[grid](
        merged,
        out,
        lse,
        _bytes(query),
        _bytes(key_cache),
        _bytes(value_cache),
        row_starts,
        ancestors,
        anything if slot_mapping is None else slot_mapping,
        anything if block_table is None else block_table,
        anything if context_lens is None else context_lens,
        anything if query_scale is None else query_scale,
        anything if key_scale is None else key_scale,
        anything if value_scale is None else value_scale,
        scale,
        ancestors.shape[2],
        *merged.stride()[:2],
        *out.stride()[:2],
        *lse.stride(),
        *query.stride()[:2],
        *key_cache.stride()[:3],
        *value_cache.stride()[:3],
        *ancestors.stride()[:2],
        0 if block_table is None else block_table.stride(0),
        GROUP=group,
        BLOCK_SIZE=key_cache.shape[1],
        HEAD_SIZE=head_size,
        BLOCK_D=power_of_2(head_size),
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BY_TABLE=by_table,
        FIRST_ROW=first_row,
        FIRST_KEY=first_key,
        SINGLE=max_rows - first_key <= tile.block_n,
        EARLY=tile.early,
        E4M3_QUERY=query.itemsize == 1,
        E4M3_CACHE=key_cache.itemsize == 1,
        OPERAND=operand,
        PRECISION=_precision(operand),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


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
    tile: Tile | None = None,
) -> None:
    """Attends over the context and the rows of the tree, and writes `out`.

    Args:
        splits, tile: see `paged_plan`.
        scratch: at least `scratch_size(T, Hq, D, splits)` fp32 elements, contiguous; what it holds does not matter and
            means nothing afterwards. Not needed with one split.
        The others are those of `tree_attention`; all rows, the tree's too, are found through `block_table`.

    Raises:
        ValueError: shapes or types do not fit together.
    """
    _check(query, key_cache, value_cache, ancestors, max_rows, query_scale, key_scale, value_scale)
    rows, heads, head_size = query.shape
    needed = scratch_size(rows, heads, head_size, splits)
    if needed and (scratch is None or scratch.numel() < needed or scratch.dtype != torch.float32):
        raise ValueError(f"{splits} splits need a scratch of {needed} fp32 elements")
    kv_heads = key_cache.shape[2]
    group, requests = heads // kv_heads, len(row_starts) - 1
    operand = _operand_type(query)
    tile = tile or paged_tile(head_size, operand.primitive_bitwidth // 8, key_cache.itemsize)
    anything = row_starts
    partial = scratch.view(-1) if needed and scratch is not None else anything
    partial_lse = partial[splits * rows * heads * head_size :] if needed else anything
    grid = (cdiv(max_rows * group, tile.block_m), splits, requests * kv_heads)
    paged_tree_attention_kernel[grid](
        out,
        partial,
        partial_lse,
        _bytes(query),
        _bytes(key_cache),
        _bytes(value_cache),
        row_starts,
        ancestors,
        block_table,
        context_lens,
        anything if query_scale is None else query_scale,
        anything if key_scale is None else key_scale,
        anything if value_scale is None else value_scale,
        scale,
        ancestors.shape[2],
        rows,
        splits,
        *out.stride()[:2],
        *query.stride()[:2],
        *key_cache.stride()[:3],
        *value_cache.stride()[:3],
        *ancestors.stride()[:2],
        block_table.stride(0),
        HEADS=heads,
        GROUP=group,
        BLOCK_SIZE=key_cache.shape[1],
        HEAD_SIZE=head_size,
        BLOCK_D=power_of_2(head_size),
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        DIRECT=splits == 1,
        E4M3_QUERY=query.itemsize == 1,
        E4M3_CACHE=key_cache.itemsize == 1,
        OPERAND=operand,
        PRECISION=_precision(operand),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    if splits > 1:
        merge_splits_kernel[(rows, heads)](
            out,
            partial,
            partial_lse,
            row_starts,
            rows,
            requests,
            splits,
            *out.stride()[:2],
            HEADS=heads,
            HEAD_SIZE=head_size,
            BLOCK_D=power_of_2(head_size),
            BLOCK_S=power_of_2(splits),
            num_warps=2,
        )


def _check(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    ancestors: Tensor,
    max_rows: int,
    query_scale: Tensor | None,
    key_scale: Tensor | None,
    value_scale: Tensor | None,
) -> None:
    shapes = tuple(query.shape), tuple(key_cache.shape), tuple(value_cache.shape)
    (_, heads, head_size), (_, _, kv_heads, kv_head_size), value_shape = shapes
    if head_size != kv_head_size or heads % kv_heads or value_shape != shapes[1]:
        raise ValueError(f"query, key and value shapes do not fit together: {shapes}")
    if ancestors.dtype != torch.int32 or ancestors.shape[1] < max_rows or ancestors.shape[2] * 32 < max_rows:
        raise ValueError(f"{max_rows} rows need as many rows of int32 ancestor words, got {tuple(ancestors.shape)}")
    if any(x.stride(-1) != 1 for x in (query, key_cache, value_cache, ancestors)):
        raise ValueError("the last dimension of query, caches and ancestors must be contiguous")
    if query.itemsize == 1 and query_scale is None:
        raise ValueError("an e4m3 query needs query_scale")
    if key_cache.itemsize == 1 and (key_scale is None or value_scale is None):
        raise ValueError("an e4m3 cache needs key_scale and value_scale")


def _bytes(x: Tensor) -> Tensor:
    """e4m3 as bytes, everything else as it is."""
    return x.view(torch.uint8) if x.dtype == torch.float8_e4m3fn else x


def _operand_type(query: Tensor) -> tl.dtype:
    """The type of the matrix products' operands. The interpreter multiplies bf16 as integers: there it is fp32."""
    if query.dtype == torch.float32 or (query.dtype == torch.bfloat16 and knobs.runtime.interpret):
        return tl.float32
    return tl.bfloat16 if query.dtype == torch.bfloat16 else tl.float16


def _precision(operand: tl.dtype) -> str:
    """fp32 operands are multiplied as fp32, not as tf32."""
    return "ieee" if operand == tl.float32 else "tf32"

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The Triton kernel of `short_attention.py`; arguments and shapes are explained there."""

from __future__ import annotations

import triton
import triton.language as tl

from .attention_kernels import (
    BATCH_SIZES,
    LOG2_E,
    _ancestor_bits,
    _load_kv,
    _load_rows,
    _operand,
    _packed_rows,
    _slots,
    _store_rows,
    _tree_slots,
)  # fmt: skip

RESET = tl.constexpr(64.0)  # powers of two


@triton.jit
def _pages(Table, block, length, BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr, BLOCK_C: tl.constexpr):
    """Where the keys of a block of context positions lie, and which of them there are: none in front of the first."""
    column = tl.arange(0, BLOCK_C)
    position = block * KEYS + column
    stored = (column < KEYS) & (position >= 0) & (position < length)
    page, offset = _slots(Table, position, stored, BLOCK_SIZE)
    return page, offset, stored


@triton.jit
def _base(top, block, run, factor):
    """Where the maximum of a block starts from: in the first block of a run (they come last to first), from nothing.

    Not lower than 2^-64 of what was seen so far, so that rescaling that to the new maximum cannot overflow.
    """
    return tl.where((block + 1) % run == 0, top - RESET / factor, top)


@triton.jit
def _attend_block(acc, top, total, q, k, v, stored, base, factor, PRECISION: tl.constexpr):
    """One block of keys that every row sees. base: see `_base`."""
    s = tl.where(stored[None, :], tl.dot(q, tl.trans(k), input_precision=PRECISION), float("-inf"))
    new_top = tl.maximum(base, tl.max(s, 1))
    shrink = tl.exp2((top - new_top) * factor)
    p = tl.exp2(s * factor - (new_top * factor)[:, None])
    total = total * shrink + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    return acc, new_top, total


@triton.jit
def _finite(top):
    return tl.where(top == float("-inf"), 0.0, top)  # nothing seen so far: -inf - -inf would be NaN


@triton.jit(do_not_specialize=BATCH_SIZES)
def short_tree_attention_kernel(
    Out,
    Query,
    Key,
    Value,
    RowStarts,
    Ancestors,
    Depths,
    Slots,
    Table,
    Lens,
    Runs,
    scale,
    words,
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
    depths_request,
    table_request,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    KEYS: tl.constexpr,
    OPERAND: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (tile of rows, KV head, request).

    A node's key counts as the key at position root + depth, where a chain has it: it goes with the block of that
    position. The nodes' scores are computed once; those behind the root's block come first.
    """
    tile, kv_head, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(Lens + b)
    start = tl.load(RowStarts + b)
    n = tl.load(RowStarts + b + 1) - start
    if (length == 0) | (tile * BLOCK_M >= n * GROUP):
        return
    row, head, live, seen = _packed_rows(tile, n, 0, GROUP, BLOCK_M)
    first_t, first_head = start.to(tl.int64), kv_head * GROUP
    Query += first_t * query_row + first_head * query_head
    Out += first_t * out_row + first_head * out_head
    Ancestors += b * ancestors_request
    Table += b * table_request
    Slots += start
    key_base, value_base = Key + kv_head * key_head, Value + kv_head * value_head
    factor = scale * LOG2_E

    last = (length - 1) // KEYS  # the root's block
    node = 1 + tl.arange(0, BLOCK_N)
    q = _operand(_load_rows(Query, row * query_row + head * query_head, live, HEAD_SIZE, BLOCK_D, False), OPERAND)
    node_page, node_offset, node_stored = _tree_slots(Slots, Table, length, 1, seen, BLOCK_SIZE, BLOCK_N, False)
    bits = _ancestor_bits(Ancestors, row * ancestors_row, live, 1, words, BLOCK_N)
    depth = tl.load(Depths + b * depths_request + node, mask=node < seen, other=0)
    run = tl.load(Runs + b)
    node_k, node_v = _load_kv(
        key_base, value_base, node_page, node_offset, node_stored,
        key_block, key_position, value_block, value_position, HEAD_SIZE, BLOCK_D, OPERAND, False,
    )  # fmt: skip
    later = (length - 1 + depth) // KEYS > last
    node_s = tl.dot(q, tl.trans(node_k), input_precision=PRECISION)
    node_s = tl.where(bits & (node < seen)[None, :], node_s, float("-inf"))

    # the block behind the root's: nodes alone
    later_s = tl.where(later[None, :], node_s, float("-inf"))
    top = tl.max(later_s, 1)
    later_p = tl.exp2(later_s * factor - (_finite(top) * factor)[:, None])
    total = tl.sum(later_p, 1)
    acc = tl.dot(later_p.to(OPERAND), node_v, input_precision=PRECISION)

    # the root's block: the end of the context, and nodes
    page, offset, stored = _pages(Table, last, length, BLOCK_SIZE, KEYS, BLOCK_C)
    k, v = _load_kv(
        key_base, value_base, page, offset, stored, key_block, key_position, value_block, value_position,
        HEAD_SIZE, BLOCK_D, OPERAND, False,
    )  # fmt: skip
    node_s = tl.where(later[None, :], float("-inf"), node_s)
    base = tl.maximum(_base(top, last, run, factor), tl.max(node_s, 1))
    acc, new_top, total = _attend_block(acc, top, total, q, k, v, stored, base, factor, PRECISION)
    node_p = tl.exp2(node_s * factor - (new_top * factor)[:, None])
    total += tl.sum(node_p, 1)
    acc = tl.dot(node_p.to(OPERAND), node_v, acc, input_precision=PRECISION)
    top = new_top

    for i in range(last):  # whole blocks of the context
        block = last - 1 - i
        base = _base(top, block, run, factor)
        page, offset, stored = _pages(Table, block, length, BLOCK_SIZE, KEYS, BLOCK_C)
        k, v = _load_kv(
            key_base, value_base, page, offset, stored, key_block, key_position, value_block, value_position,
            HEAD_SIZE, BLOCK_D, OPERAND, KEYS == BLOCK_C,
        )  # fmt: skip
        acc, top, total = _attend_block(acc, top, total, q, k, v, stored, base, factor, PRECISION)

    result = acc * (1.0 / tl.where(live, total, 1.0))[:, None]
    _store_rows(Out, row * out_row + head * out_head, result, live, HEAD_SIZE, BLOCK_D)

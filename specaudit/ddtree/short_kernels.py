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
def _context_block(
    block, column, length, table, key_base, value_base, key_block, key_position, value_block, value_position,
    BLOCK_SIZE: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr, OPERAND: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """Keys and values of one block of context positions, zeros at and behind `length`: [BLOCK_C, BLOCK_D] each."""
    position = block * column.shape[0] + column
    stored = position < length
    page, offset = _slots(table, position, stored, BLOCK_SIZE)
    return _load_kv(
        key_base, value_base, page, offset, stored, key_block, key_position, value_block, value_position,
        HEAD_SIZE, BLOCK_D, OPERAND, WHOLE,
    )  # fmt: skip


@triton.jit
def _base(top, block, run, factor):
    """Where the maximum of a block starts from: in the first block of a run (they come last to first), from nothing.

    Not lower than 2^-64 of what was seen so far, so that rescaling that to the new maximum cannot overflow.
    """
    return tl.where((block + 1) % run == 0, top - RESET / factor, top)


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
    run = tl.load(Runs + b)
    factor = scale * LOG2_E

    node, column = 1 + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_C)
    q = _operand(_load_rows(Query, row * query_row + head * query_head, live, HEAD_SIZE, BLOCK_D, False), OPERAND)
    page, offset, stored = _tree_slots(Slots, Table, length, 1, seen, BLOCK_SIZE, BLOCK_N, False)
    bits = _ancestor_bits(Ancestors, row * ancestors_row, live, 1, words, BLOCK_N)
    depth = tl.load(Depths + b * depths_request + node, mask=node < seen, other=0)
    node_k, node_v = _load_kv(
        key_base, value_base, page, offset, stored, key_block, key_position, value_block, value_position,
        HEAD_SIZE, BLOCK_D, OPERAND, False,
    )  # fmt: skip
    last = (length - 1) // BLOCK_C  # the root's block
    later = (length - 1 + depth) // BLOCK_C > last
    node_s = tl.dot(q, tl.trans(node_k), input_precision=PRECISION)
    node_s = tl.where(bits & (node < seen)[None, :], node_s, float("-inf"))

    # the block behind the root's: nodes alone
    later_s = tl.where(later[None, :], node_s, float("-inf"))
    top = tl.max(later_s, 1)
    later_p = tl.exp2(later_s * factor - (_finite(top) * factor)[:, None])
    total = tl.sum(later_p, 1)
    acc = tl.dot(later_p.to(OPERAND), node_v, input_precision=PRECISION)

    # the root's block: the end of the context, and nodes
    k, v = _context_block(
        last, column, length, Table, key_base, value_base, key_block, key_position, value_block, value_position,
        BLOCK_SIZE, HEAD_SIZE, BLOCK_D, OPERAND, False,
    )  # fmt: skip
    context_s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    context_s = tl.where((last * BLOCK_C + column < length)[None, :], context_s, float("-inf"))
    node_s = tl.where(later[None, :], float("-inf"), node_s)
    new_top = tl.maximum(_base(top, last, run, factor), tl.maximum(tl.max(context_s, 1), tl.max(node_s, 1)))
    shrink = tl.exp2((top - new_top) * factor)
    context_p = tl.exp2(context_s * factor - (new_top * factor)[:, None])
    node_p = tl.exp2(node_s * factor - (new_top * factor)[:, None])
    total = total * shrink + tl.sum(context_p, 1) + tl.sum(node_p, 1)
    acc = tl.dot(context_p.to(OPERAND), v, acc * shrink[:, None], input_precision=PRECISION)
    acc = tl.dot(node_p.to(OPERAND), node_v, acc, input_precision=PRECISION)
    top = new_top

    for i in range(last):  # whole blocks of the context
        block = last - 1 - i
        k, v = _context_block(
            block, column, length, Table, key_base, value_base, key_block, key_position, value_block, value_position,
            BLOCK_SIZE, HEAD_SIZE, BLOCK_D, OPERAND, True,
        )  # fmt: skip
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        new_top = tl.maximum(_base(top, block, run, factor), tl.max(s, 1))
        shrink = tl.exp2((top - new_top) * factor)
        p = tl.exp2(s * factor - (new_top * factor)[:, None])
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(OPERAND), v, acc * shrink[:, None], input_precision=PRECISION)
        top = new_top

    result = acc * (1.0 / tl.where(live, total, 1.0))[:, None]
    _store_rows(Out, row * out_row + head * out_head, result, live, HEAD_SIZE, BLOCK_D)

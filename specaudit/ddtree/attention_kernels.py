# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""The Triton kernel of `attention.tree_attention`, and what `paged_kernels.py` shares with it.

Arguments and shapes are explained in `attention.py` and `attention_reference.py`.

Query heads of one KV head are packed with the rows of the tree: packed row m is tree row m // GROUP, head m % GROUP,
so that K and V are read once per BLOCK_M packed rows and not once per head.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .launch import relaunched

WORD_BITS = tl.constexpr(32)
E4M3_SHIFT = tl.constexpr(256.0)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _operand(x, DTYPE: tl.constexpr):
    """Loaded elements as operands of a matrix product; e4m3 bytes become value / 256."""
    if x.dtype == tl.uint8:
        bits = x.to(tl.uint16)
        x = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True)
    return x.to(DTYPE)


@triton.jit
def _load_rows(base, offsets, live, HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr, ALL_LIVE: tl.constexpr):
    """Rows of HEAD_SIZE elements at `offsets` [n], zero where not live: [n, BLOCK_D]."""
    d = tl.arange(0, BLOCK_D)
    pointers = base + offsets[:, None] + d[None, :]
    if ALL_LIVE and HEAD_SIZE == BLOCK_D:
        return tl.load(pointers)
    return tl.load(pointers, mask=live[:, None] & (d < HEAD_SIZE)[None, :], other=0)


@triton.jit
def _store_rows(base, offsets, x, live, HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr):
    d = tl.arange(0, BLOCK_D)
    pointers = base + offsets[:, None] + d[None, :]
    tl.store(pointers, x.to(base.dtype.element_ty), mask=live[:, None] & (d < HEAD_SIZE)[None, :])


@triton.jit
def _slots(Table, positions, live, BLOCK_SIZE: tl.constexpr):
    """Block and offset of KV positions through one request's block table."""
    block = tl.load(Table + positions // BLOCK_SIZE, mask=live, other=0).to(tl.int64)
    return block, positions % BLOCK_SIZE


@triton.jit
def _tree_slots(
    Slots, Table, context, first, seen, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, BY_TABLE: tl.constexpr
):
    """Block and offset of the tree rows first to first + BLOCK_N - 1, and which of them have a slot."""
    j = first + tl.arange(0, BLOCK_N)
    if BY_TABLE:
        block, offset = _slots(Table, context + j, j < seen, BLOCK_SIZE)
        stored = j < seen
    else:
        slot = tl.load(Slots + j, mask=j < seen, other=-1)
        block, offset, stored = slot // BLOCK_SIZE, slot % BLOCK_SIZE, slot >= 0
    return block, offset, stored


@triton.jit
def _load_kv(
    key_base, value_base, block, offset, stored, key_block, key_position, value_block, value_position,
    HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr, OPERAND: tl.constexpr, ALL_STORED: tl.constexpr,
):  # fmt: skip
    """Keys and values of KV rows, zeros where they have no slot: [BLOCK_N, BLOCK_D] each."""
    key_rows, value_rows = block * key_block + offset * key_position, block * value_block + offset * value_position
    k = _load_rows(key_base, key_rows, stored, HEAD_SIZE, BLOCK_D, ALL_STORED)
    v = _load_rows(value_base, value_rows, stored, HEAD_SIZE, BLOCK_D, ALL_STORED)
    return _operand(k, OPERAND), _operand(v, OPERAND)


@triton.jit
def _packed_rows(tile, n, FIRST_ROW: tl.constexpr, GROUP: tl.constexpr, BLOCK_M: tl.constexpr):
    """Tree row and query head of a tile's packed rows, which of them exist, and the first tree row none of them sees.

    Parents come before children, so no row sees a later one.
    """
    packed = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    row = FIRST_ROW + packed // GROUP
    seen = tl.minimum(n, FIRST_ROW + (tile * BLOCK_M + BLOCK_M - 1) // GROUP + 1)
    return row, packed % GROUP, row < n, seen


@triton.jit
def _word(Words, row_offsets, live, first, words):
    """The 32 bits from `first` on, of each row: [n] uint32. Bits before the first word and past the last are 0."""
    at = first >> 5  # rounds down below 0, too
    low = tl.load(Words + row_offsets + at, mask=live & (at >= 0) & (at < words), other=0)
    high = tl.load(Words + row_offsets + at + 1, mask=live & (at >= -1) & (at + 1 < words), other=0)
    low, high = low.to(tl.uint32, bitcast=True), high.to(tl.uint32, bitcast=True)
    shift = first & 31
    return (low >> shift) | ((high << 1) << (31 - shift))  # in two steps: a shift by 32 is undefined


@triton.jit
def _ancestor_bits(Words, row_offsets, live, first, words, BLOCK_N: tl.constexpr):
    """Whether each row sees the tree rows first to first + BLOCK_N - 1: [n, BLOCK_N]."""
    column = tl.arange(0, BLOCK_N).to(tl.uint32)
    bits = _word(Words, row_offsets, live, first, words)[:, None]
    if BLOCK_N > WORD_BITS:
        tl.static_assert(BLOCK_N == 2 * WORD_BITS)
        more = _word(Words, row_offsets, live, first + WORD_BITS, words)[:, None]
        bits = tl.where((column < WORD_BITS)[None, :], bits, more)
    return ((bits >> (column % WORD_BITS)[None, :]) & 1) != 0


@triton.jit
def _attend(acc, top, total, q, k, v, visible, scale, MASKED: tl.constexpr, PRECISION: tl.constexpr):
    """One step of the online softmax, base 2: weighted values, maximum and sum of weights, one tile of keys on."""
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if MASKED:
        s = tl.where(visible, s, float("-inf"))
    new_top = tl.maximum(top, tl.max(s, 1) * scale)
    safe = tl.where(new_top == float("-inf"), 0.0, new_top)  # nothing seen so far: -inf - -inf would be NaN
    shrink = tl.exp2(top - safe)
    p = tl.exp2(s * scale - safe[:, None])  # scaled here: one multiply-add per score
    total = total * shrink + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    return acc, new_top, total


@triton.jit
def _scales(QueryScale, KeyScale, ValueScale, scale, E4M3_QUERY: tl.constexpr, E4M3_CACHE: tl.constexpr):
    """Factors on the scores (in base 2) and on the values."""
    scale_s = scale * LOG2_E
    scale_v = 1.0
    if E4M3_QUERY:
        scale_s = scale_s * tl.load(QueryScale) * E4M3_SHIFT
    if E4M3_CACHE:
        scale_s = scale_s * tl.load(KeyScale) * E4M3_SHIFT
        scale_v = tl.load(ValueScale) * E4M3_SHIFT
    return scale_s, scale_v


# Sizes that change with the batch and not with the model: one compilation serves them all.
BATCH_SIZES = ["words", "rows", "requests", "splits", "lse_head", "ancestors_request", "ancestors_row", "table_request"]


@relaunched
@triton.jit(do_not_specialize=BATCH_SIZES)
def tree_attention_kernel(
    Merged,
    Out,
    Lse,
    Query,
    Key,
    Value,
    RowStarts,
    Ancestors,
    Slots,
    Table,
    ContextLens,
    QueryScale,
    KeyScale,
    ValueScale,
    scale,
    words,
    merged_row,
    merged_head,
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
    table_request,
    GROUP: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BY_TABLE: tl.constexpr,
    FIRST_ROW: tl.constexpr,
    FIRST_KEY: tl.constexpr,
    SINGLE: tl.constexpr,
    EARLY: tl.constexpr,
    E4M3_QUERY: tl.constexpr,
    E4M3_CACHE: tl.constexpr,
    OPERAND: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (tile of rows, KV head, request). With the root in the context part the keys start at row 1; its own row
    has nothing to add then, and is skipped where the result is already in place."""
    tile, kv_head, b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start = tl.load(RowStarts + b)
    n = tl.load(RowStarts + b + 1) - start
    if tile * BLOCK_M >= (n - FIRST_ROW) * GROUP:
        return
    row, head, live, seen = _packed_rows(tile, n, FIRST_ROW, GROUP, BLOCK_M)
    first_t, first_head = start.to(tl.int64), kv_head * GROUP  # offsets within a request are small: 32 bits do
    Query += first_t * query_row + first_head * query_head
    Lse += first_t * lse_row + first_head.to(tl.int64) * lse_head
    Out += first_t * out_row + first_head * out_head
    Merged += first_t * merged_row + first_head * merged_head
    Ancestors += b * ancestors_request
    key_base, value_base = Key + kv_head * key_head, Value + kv_head * value_head
    position = start  # not used with slots
    if BY_TABLE:
        position = tl.load(ContextLens + b)
        Table += b * table_request
    else:
        Slots += start
    # Loads are issued in this order and waited for at their first use: what others hang on comes first.
    if SINGLE:
        block, offset, stored = _tree_slots(Slots, Table, position, FIRST_KEY, seen, BLOCK_SIZE, BLOCK_N, BY_TABLE)
        bits = _ancestor_bits(Ancestors, row * ancestors_row, live, FIRST_KEY, words, BLOCK_N)
    lse = tl.load(Lse + head * lse_head + row * lse_row, mask=live, other=float("-inf")) * LOG2_E
    q = _operand(_load_rows(Query, row * query_row + head * query_head, live, HEAD_SIZE, BLOCK_D, False), OPERAND)
    at = row * out_row + head * out_head
    if EARLY:
        context = _load_rows(Out, at, live, HEAD_SIZE, BLOCK_D, False)
    scale_s, scale_v = _scales(QueryScale, KeyScale, ValueScale, scale, E4M3_QUERY, E4M3_CACHE)
    lse = tl.where(lse == float("inf"), float("-inf"), lse)  # FlashAttention 2 says +inf, 3 says -inf for "no keys"

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    top, total = lse, tl.zeros([BLOCK_M], tl.float32)
    if SINGLE:
        k, v = _load_kv(
            key_base, value_base, block, offset, stored, key_block, key_position, value_block, value_position,
            HEAD_SIZE, BLOCK_D, OPERAND, False,
        )  # fmt: skip
        visible = bits & (FIRST_KEY + tl.arange(0, BLOCK_N) < seen)[None, :]
        acc, top, total = _attend(acc, top, total, q, k, v, visible, scale_s, True, PRECISION)
    else:
        for first in range(FIRST_KEY, seen, BLOCK_N):
            block, offset, stored = _tree_slots(Slots, Table, position, first, seen, BLOCK_SIZE, BLOCK_N, BY_TABLE)
            k, v = _load_kv(
                key_base, value_base, block, offset, stored, key_block, key_position, value_block, value_position,
                HEAD_SIZE, BLOCK_D, OPERAND, False,
            )  # fmt: skip
            bits = _ancestor_bits(Ancestors, row * ancestors_row, live, first, words, BLOCK_N)
            visible = bits & (first + tl.arange(0, BLOCK_N) < seen)[None, :]
            acc, top, total = _attend(acc, top, total, q, k, v, visible, scale_s, True, PRECISION)

    weight = tl.exp2(lse - tl.where(top == float("-inf"), 0.0, top))
    inverse = 1.0 / tl.where(live, total + weight, 1.0)
    if not EARLY:
        context = _load_rows(Out, at, live, HEAD_SIZE, BLOCK_D, False)
    context = tl.where((lse > float("-inf"))[:, None], context, 0)  # without keys, `Out` may hold anything
    result = acc * (inverse * scale_v)[:, None] + context.to(tl.float32) * (inverse * weight)[:, None]
    _store_rows(Merged, row * merged_row + head * merged_head, result, live, HEAD_SIZE, BLOCK_D)

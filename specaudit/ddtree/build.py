# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Build on the GPU: draft logits to best-first trees, in four launches. Same functions as in reference.py.

Stage one, the table (2 launches). The N best of a row of V logits lie inside the N groups with the highest maxima: a
group outside them is beaten by N elements. So the logits are read once, leaving the maximum of every GROUP consecutive
ids and of every FAN groups, and the log-sum-exp of each chunk (`_scan`, bound by memory). Then, one program per
position, `_select` sorts the super-groups, expands the N best into groups, sorts, expands into ids, sorts: three small
sorts, whatever the data. Consecutive ids make the order of groups by (maximum, lowest index) agree with the order of
ids by (logit, lowest id), so equal logits need no care.

Stage two, the tree (2 launches). `_grow` is the heap, one warp per request. Every row of the tree offers one candidate,
its best child that is not in the tree yet; a step takes the best candidate by two 32-bit warp reductions and replaces
two: the parent's next child, and the new node's first. The N steps are serial, so this part is bound by latency.
`_link` derives what follows from the parents: tokens, links, ancestor words.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .layout import MAX_HORIZON, MAX_NODES, MAX_VOCABULARY, Table, Tree

CHUNK = 8192  # logits a program of _scan reads
SCAN_WARPS = 4
LINK_ROWS = 8  # rows a program of _link writes
LINK_WARPS = 1


class Fanout(NamedTuple):
    group: int  # ids per group
    fan: int  # groups per super-group


def fanout(nodes: int) -> Fanout:
    """Group sizes that balance the three sorts of _select at V = 2^17 to 2^18."""
    if nodes <= 128:
        return Fanout(16, 16)
    return Fanout(8, 16) if nodes <= 256 else Fanout(8, 8)


def select_warps(top: int) -> int:
    """Enough threads to keep a sort of `top` times a group size in registers."""
    return 8 if top <= 128 else 16


# ---- stage one ----


@triton.jit
def _scan(
    logits_ptr,  # [B, K, V]
    temperature_ptr,  # [B] float32 or None
    group_ptr,  # [B * K, supers * FAN] the type of the logits: maximum of each group
    super_ptr,  # [B * K, supers] the same: maximum of each super-group
    partial_ptr,  # [2, B * K, splits] float32: maximum and sum of exponentials of each chunk
    batch_stride,
    position_stride,
    horizon,
    vocabulary,
    supers,
    GROUP: tl.constexpr,
    FAN: tl.constexpr,
    CHUNK: tl.constexpr,
):
    row = tl.program_id(0)
    split = tl.program_id(1)
    rows = tl.num_programs(0)
    splits = tl.num_programs(1)
    b = row // horizon
    base = logits_ptr + b.to(tl.int64) * batch_stride + (row % horizon).to(tl.int64) * position_stride

    groups: tl.constexpr = CHUNK // GROUP
    group = split * groups + tl.arange(0, groups)
    ids = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    x = tl.load(base + ids, mask=ids < vocabulary, other=float("-inf")).to(tl.float32)
    x = tl.where(x != x, float("-inf"), x)
    best = tl.max(x, axis=1)  # [groups]
    tl.store(
        group_ptr + row.to(tl.int64) * supers * FAN + group,
        best.to(group_ptr.dtype.element_ty),
        mask=group < supers * FAN,
    )
    super_best = tl.max(tl.reshape(best, (groups // FAN, FAN)), axis=1)
    super_group = split * (groups // FAN) + tl.arange(0, groups // FAN)
    tl.store(
        super_ptr + row.to(tl.int64) * supers + super_group,
        super_best.to(super_ptr.dtype.element_ty),
        mask=super_group < supers,
    )

    # The sum of exp(y - top), y = x / temperature, in few instructions: they, not the bytes, bound a large batch.
    inverse = 1.0 / _divisor(temperature_ptr, b)
    highest = tl.max(super_best, axis=0)
    top = _largest_finite(highest * inverse)
    power = (x - tl.where(highest == float("-inf"), 0.0, highest)) * (inverse * 1.4426950408889634)
    total = tl.sum(tl.sum(tl.exp2(power), axis=1), axis=0)
    huge = top == 3.4028234663852886e38  # then log(total) is lost in rounding, and total may be infinite or NaN
    tl.store(partial_ptr + row * splits + split, top)
    tl.store(partial_ptr + (rows + row) * splits + split, tl.where(huge, 1.0, total))


@triton.jit
def _select(
    logits_ptr,
    temperature_ptr,
    group_ptr,
    super_ptr,
    partial_ptr,
    logprobs_ptr,  # [B, K, N]
    ids_ptr,  # [B, K, N]
    lse_ptr,  # [B, K]
    batch_stride,
    position_stride,
    horizon,
    vocabulary,
    supers,
    splits,
    N,
    GROUP: tl.constexpr,
    FAN: tl.constexpr,
    TOP: tl.constexpr,  # N rounded up to a power of two, at least 2, as the sorts need
    SUPERS: tl.constexpr,  # supers rounded up, at least TOP
    SPLITS: tl.constexpr,  # splits rounded up
):
    row = tl.program_id(0)
    rows = tl.num_programs(0)
    b = row // horizon
    position = row % horizon
    base = logits_ptr + b.to(tl.int64) * batch_stride + position.to(tl.int64) * position_stride

    TYPE: tl.constexpr = logits_ptr.dtype.element_ty
    index = tl.arange(0, SUPERS)
    value = tl.load(super_ptr + row.to(tl.int64) * supers + index, mask=index < supers, other=float("-inf"))
    index = _index_of(tl.topk(_sort_key(value, index, TYPE), TOP), TYPE)  # super-groups

    index = tl.reshape(index[:, None] * FAN + tl.arange(0, FAN)[None, :], (TOP * FAN,))
    inside = index < supers * FAN
    value = tl.load(group_ptr + row.to(tl.int64) * supers * FAN + index, mask=inside, other=float("-inf"))
    groups = tl.sort(_index_of(tl.topk(_sort_key(value, index, TYPE), TOP), TYPE))  # lowest ids first

    index = tl.reshape(groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :], (TOP * GROUP,))
    value = tl.load(base + index, mask=index < vocabulary, other=float("-inf"))
    key = tl.topk(_sort_key(value, tl.arange(0, TOP * GROUP), TYPE), TOP)  # by place among the candidates
    place = _index_of(key, TYPE)
    index = tl.gather(groups, place // GROUP, axis=0) * GROUP + place % GROUP  # ids
    value = _value_of(key, TYPE)

    split = tl.arange(0, SPLITS)
    top = tl.load(partial_ptr + row * splits + split, mask=split < splits, other=float("-inf"))
    total = tl.load(partial_ptr + (rows + row) * splits + split, mask=split < splits, other=0.0)
    highest = tl.max(top, axis=0)
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    total = tl.maximum(tl.sum(total * tl.exp(top - shift), axis=0), 1.0)  # the highest logit alone gives 1
    lse = shift + tl.log(total)
    tl.store(lse_ptr + row, tl.where(highest == float("-inf"), highest, lse))

    rank = tl.arange(0, TOP)
    usable = (rank < N - position) & (value > float("-inf"))
    y = _largest_finite(tl.math.div_rn(value, _divisor(temperature_ptr, b)))
    logprob = tl.where(usable, tl.minimum(y - lse, 0.0), float("-inf"))
    tl.store(logprobs_ptr + row * N + rank, logprob, mask=rank < N)
    tl.store(ids_ptr + row * N + rank, tl.where(usable, index, 0), mask=rank < N)


@triton.jit
def _sort_key(value, index, TYPE: tl.constexpr):
    """Keys that sort by value, equal values by lowest index: the value's ordered bits above the index's complement.

    int32 for 16-bit types (indices below 2^16), int64 for float32. NaN counts as -inf, -0 as 0.
    """
    value = value.to(tl.float32)
    value = tl.where(value == 0.0, 0.0, tl.where(value != value, float("-inf"), value))
    if tl.float32 == TYPE:
        return (_ordered(value.to(tl.int32, bitcast=True)).to(tl.int64) << 32) | (0x7FFFFFFF - index).to(tl.int64)
    if tl.bfloat16 == TYPE:
        bits = value.to(tl.int32, bitcast=True) >> 16
    else:
        bits = value.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)
    return (_ordered16(bits) << 16) | (0xFFFF - index)


@triton.jit
def _index_of(key, TYPE: tl.constexpr):
    if tl.float32 == TYPE:
        return 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)
    return 0xFFFF - (key & 0xFFFF)


@triton.jit
def _value_of(key, TYPE: tl.constexpr):
    """The value of a key, as float32."""
    if tl.float32 == TYPE:
        return _ordered((key >> 32).to(tl.int32)).to(tl.float32, bitcast=True)
    bits = _ordered16(key >> 16)
    if tl.bfloat16 == TYPE:
        return (bits << 16).to(tl.float32, bitcast=True)
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _ordered(bits):
    """Bits of a float32 as an int32 of the same order; its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _ordered16(bits):
    """The same for the bits of a 16-bit float, sign-extended to int32."""
    return bits ^ ((bits >> 31) & 0x7FFF)


@triton.jit
def _largest_finite(y):
    """+inf becomes the largest float32."""
    return tl.minimum(y, 3.4028234663852886e38)


@triton.jit
def _divisor(temperature_ptr, b):
    temperature = 1.0
    if temperature_ptr is not None:
        temperature = tl.load(temperature_ptr + b)
        temperature = tl.where(temperature > 0.0, temperature, 1.0)
    return temperature


# ---- stage two ----


@triton.jit
def _grow(
    logprobs_ptr,  # [B, K, N]
    budgets_ptr,  # [B] int32 or None
    bonus_ptr,  # [K] float32 or None
    parents_ptr,  # [B, R], also the four below
    depths_ptr,
    ranks_ptr,
    scores_ptr,
    num_rows_ptr,  # [B]
    spine,
    K,
    N,
    K_POW2: tl.constexpr,
    N_POW2: tl.constexpr,
):
    b = tl.program_id(0)
    logprobs_ptr += b * K * N
    parents_ptr += b * (N + 1)
    depths_ptr += b * (N + 1)
    ranks_ptr += b * (N + 1)
    scores_ptr += b * (N + 1)

    # The whole table once, in parallel: the steps below then find it in the L1 cache.
    position = tl.arange(0, K_POW2)
    rows = tl.arange(0, N_POW2)  # also ranks; a row's candidate is held by its lane. Row N is never a parent.
    inside = (position[:, None] < K) & (rows[None, :] < N)
    table = tl.load(logprobs_ptr + position[:, None] * N + rows[None, :], mask=inside, other=float("-inf"))
    possible = tl.max(table, axis=1) > float("-inf")  # [K]: a row's best is its rank 0
    chain = tl.min(tl.where(possible, K, position), axis=0)  # the greedy chain ends at the first impossible position

    limit = N
    if budgets_ptr is not None:
        budget = tl.load(budgets_ptr + b)
        limit = tl.minimum(budget, N)
        spine = tl.where(budget == 0, N, spine)
        limit = tl.where(budget == 0, tl.minimum(chain, N), limit)
    spine = tl.minimum(tl.minimum(spine, chain), limit)

    # What a row's lane holds: its score, its candidate's score, and that candidate's place in the order of equals:
    # depth of the row, the row, rank of the candidate (ranks and rows below 2^10).
    NONE: tl.constexpr = -2147483648
    IMPOSSIBLE: tl.constexpr = -2139095041  # ordered bits of -inf
    score = tl.zeros((N_POW2,), tl.float32)
    order = tl.where(rows == 0, 0, 2147483647)
    offer = tl.where(rows == 0, _offer(0.0, 0, 0, logprobs_ptr, bonus_ptr, K, N), NONE)

    count = 0  # nodes so far
    eligible = offer
    best = tl.max(eligible, axis=0)
    while (count < limit) & (best > IMPOSSIBLE):
        first = tl.min(tl.where(eligible == best, order, 2147483647), axis=0)
        parent = (first >> 10) & 1023
        rank = first & 1023
        depth = first >> 20  # of the parent
        new_score = _ordered(best).to(tl.float32, bitcast=True)
        count += 1
        tl.store(parents_ptr + count, parent)
        tl.store(depths_ptr + count, depth + 1)
        tl.store(ranks_ptr + count, rank)
        tl.store(scores_ptr + count, new_score)

        is_parent = rows == parent
        is_new = rows == count
        offer = tl.where(is_parent, _offer(score, depth, rank + 1, logprobs_ptr, bonus_ptr, K, N), offer)
        offer = tl.where(is_new, _offer(new_score, depth + 1, 0, logprobs_ptr, bonus_ptr, K, N), offer)
        order = tl.where(is_parent, first + 1, tl.where(is_new, ((depth + 1) << 20) | (count << 10), order))
        score = tl.where(is_new, new_score, score)
        eligible = tl.where((count >= spine) | is_new, offer, NONE)  # in the spine each node is a child of the last
        best = tl.max(eligible, axis=0)

    row = tl.arange(0, N_POW2 * 2)
    inert = (row <= N) & ((row > count) | (row == 0))
    zero = tl.zeros((N_POW2 * 2,), tl.int32)
    tl.store(parents_ptr + row, zero - 1, mask=inert)
    tl.store(depths_ptr + row, zero, mask=inert)
    tl.store(ranks_ptr + row, zero, mask=inert)
    tl.store(scores_ptr + row, zero.to(tl.float32), mask=inert)
    tl.store(num_rows_ptr + b, tl.where(limit < 0, 0, count + 1))


@triton.jit
def _offer(score, depth, rank, logprobs_ptr, bonus_ptr, K, N):
    """Ordered bits of the score of the child of that rank of a row with that score and depth."""
    step = tl.load(logprobs_ptr + depth * N + rank, mask=(depth < K) & (rank < N), other=float("-inf"))
    if bonus_ptr is not None:
        step += tl.load(bonus_ptr + depth, mask=depth < K, other=0.0)
    return _ordered((score + step).to(tl.int32, bitcast=True))


@triton.jit
def _link(
    table_ids_ptr,  # [B, K, N]
    parents_ptr,  # [B, R], as the ones below
    depths_ptr,
    ranks_ptr,
    num_rows_ptr,  # [B]
    tokens_ptr,
    first_child_ptr,
    next_sibling_ptr,
    ancestors_ptr,  # [B, R, W]
    K,
    N,
    W,
    ROWS: tl.constexpr,
    ALL_ROWS: tl.constexpr,  # R rounded up to a power of two
    WORDS: tl.constexpr,  # W rounded up
):
    b = tl.program_id(0)
    R = N + 1
    num_rows = tl.load(num_rows_ptr + b)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = row < R
    real = row < num_rows
    node = real & (row > 0)
    parent = tl.load(parents_ptr + b * R + row, mask=inside, other=-1)
    depth = tl.load(depths_ptr + b * R + row, mask=inside, other=0)
    rank = tl.load(ranks_ptr + b * R + row, mask=inside, other=0)

    token = tl.load(table_ids_ptr + (b * K + depth - 1) * N + rank, mask=node, other=0)
    tl.store(tokens_ptr + b * R + row, token, mask=inside & (row > 0))

    other = tl.arange(0, ALL_ROWS)
    other_parent = tl.load(parents_ptr + b * R + other, mask=other < R, other=-1)
    other_rank = tl.load(ranks_ptr + b * R + other, mask=other < R, other=0)
    child = (other_parent[None, :] == row[:, None]) & (other_rank[None, :] == 0)
    sibling = (other_parent[None, :] == parent[:, None]) & (other_rank[None, :] == rank[:, None] + 1)
    first_child = tl.min(tl.where(child, other[None, :], ALL_ROWS), axis=1)
    next_sibling = tl.min(tl.where(sibling & node[:, None], other[None, :], ALL_ROWS), axis=1)
    tl.store(first_child_ptr + b * R + row, tl.where(first_child < ALL_ROWS, first_child, -1), mask=inside)
    tl.store(next_sibling_ptr + b * R + row, tl.where(next_sibling < ALL_ROWS, next_sibling, -1), mask=inside)

    _store_ancestors(parents_ptr + b * R, ancestors_ptr + b * R * W, row, inside, W, WORDS)


@triton.jit
def _store_ancestors(parents_ptr, ancestors_ptr, row, inside, W, WORDS: tl.constexpr):
    """Climb from every row to its root, setting the bits on the way."""
    word = tl.arange(0, WORDS)[None, :]
    bits = tl.zeros((row.shape[0], WORDS), tl.int32)
    at = tl.where(inside, row, -1)
    while tl.max(at, axis=0) >= 0:
        bits |= tl.where((at >= 0)[:, None] & (at[:, None] // 32 == word), 1 << (at[:, None] % 32), 0)
        at = tl.load(parents_ptr + at, mask=at >= 0, other=-1)
    tl.store(ancestors_ptr + row[:, None] * W + word, bits, mask=inside[:, None] & (word < W))


@triton.jit
def _ancestors(parents_ptr, ancestors_ptr, R, W, ROWS: tl.constexpr, WORDS: tl.constexpr):
    b = tl.program_id(0)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    _store_ancestors(parents_ptr + b * R, ancestors_ptr + b * R * W, row, row < R, W, WORDS)


# ---- the functions of reference.py ----


def draft_table(logits: Tensor, nodes: int, temperature: Tensor | None = None, out: Table | None = None) -> Table:
    """See reference.draft_table. Raises ValueError on shapes outside the limits of layout.py."""
    batch, horizon, vocabulary = logits.shape
    if not (1 <= nodes <= MAX_NODES and 1 <= horizon <= MAX_HORIZON and 1 <= vocabulary <= MAX_VOCABULARY):
        limits = f"at most {MAX_NODES}, {MAX_HORIZON}, {MAX_VOCABULARY}"
        raise ValueError(f"N={nodes}, K={horizon}, V={vocabulary}: {limits}")
    if logits.stride(2) != 1:
        raise ValueError("logits must be contiguous along the vocabulary")
    out = out or Table.empty(batch, horizon, nodes, logits.device)
    size = fanout(nodes)
    supers = triton.cdiv(vocabulary, size.group * size.fan)
    splits = triton.cdiv(vocabulary, CHUNK)
    rows = batch * horizon
    groups_max = torch.empty(rows, supers * size.fan, dtype=logits.dtype, device=logits.device)
    supers_max = torch.empty(rows, supers, dtype=logits.dtype, device=logits.device)
    partial = torch.empty(2, rows, splits, dtype=torch.float32, device=logits.device)
    strides = (logits.stride(0), logits.stride(1))
    _scan[(rows, splits)](
        logits, temperature, groups_max, supers_max, partial, *strides, horizon, vocabulary, supers,
        GROUP=size.group, FAN=size.fan, CHUNK=CHUNK, num_warps=SCAN_WARPS,
    )  # fmt: skip
    top = max(2, triton.next_power_of_2(nodes))
    _select[(rows,)](
        logits, temperature, groups_max, supers_max, partial, out.logprobs, out.ids, out.lse,
        *strides, horizon, vocabulary, supers, splits, nodes,
        GROUP=size.group, FAN=size.fan, TOP=top, SUPERS=max(triton.next_power_of_2(supers), top),
        SPLITS=triton.next_power_of_2(splits), num_warps=select_warps(top),
    )  # fmt: skip
    return out


def best_first(
    table: Table,
    budgets: Tensor | None = None,
    spine: int = 0,
    depth_bonus: Tensor | None = None,
    out: Tree | None = None,
) -> Tree:
    """See reference.best_first. `out` must be contiguous: from Tree.empty, or a leading slice of it."""
    batch, horizon, nodes = table.logprobs.shape
    out = out or Tree.empty(batch, nodes, horizon, table.logprobs.device)
    rows, words = nodes + 1, out.ancestors.shape[2]
    _grow[(batch,)](
        table.logprobs, budgets, depth_bonus, out.parents, out.depths, out.ranks, out.scores, out.num_rows,
        spine, horizon, nodes,
        K_POW2=triton.next_power_of_2(horizon), N_POW2=triton.next_power_of_2(nodes), num_warps=1,
    )  # fmt: skip
    _link[(batch, triton.cdiv(rows, LINK_ROWS))](
        table.ids, out.parents, out.depths, out.ranks, out.num_rows,
        out.tokens, out.first_child, out.next_sibling, out.ancestors, horizon, nodes, words,
        ROWS=LINK_ROWS, ALL_ROWS=triton.next_power_of_2(rows), WORDS=triton.next_power_of_2(words),
        num_warps=LINK_WARPS,
    )  # fmt: skip
    return out


def build(
    logits: Tensor,
    nodes: int,
    temperature: Tensor | None = None,
    budgets: Tensor | None = None,
    spine: int = 0,
    depth_bonus: Tensor | None = None,
    out: Tree | None = None,
) -> Tree:
    """See reference.build."""
    return best_first(draft_table(logits, nodes, temperature), budgets, spine, depth_bonus, out)


def ancestor_mask(parents: Tensor, out: Tensor) -> Tensor:
    """See reference.ancestor_mask. Both contiguous."""
    batch, rows = parents.shape
    words = out.shape[2]
    _ancestors[(batch, triton.cdiv(rows, LINK_ROWS))](
        parents, out, rows, words, ROWS=LINK_ROWS, WORDS=triton.next_power_of_2(words), num_warps=4
    )
    return out

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Stage two of the build on the GPU: the table to best-first trees, in two launches; and both stages together.

`_grow` is the heap, one warp per request. Every row of the tree offers one candidate, its best child that is not in the
tree yet; a step takes the best candidate by two 32-bit warp reductions and replaces two: the parent's next child, and
the new node's first. The N steps are serial, so this part is bound by latency. `_link` derives what follows from the
parents: tokens, links, ancestor words.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launch import cdiv, power_of_2, relaunched
from .layout import Table, Tree
from .table import _ordered, draft_table

LINK_ROWS = 8  # rows a program of _link writes


@relaunched
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


@relaunched
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


@relaunched
@triton.jit
def _ancestors(parents_ptr, ancestors_ptr, R, W, ROWS: tl.constexpr, WORDS: tl.constexpr):
    b = tl.program_id(0)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    _store_ancestors(parents_ptr + b * R, ancestors_ptr + b * R * W, row, row < R, W, WORDS)


# ---- the functions of reference.py ----


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
        K_POW2=power_of_2(horizon), N_POW2=power_of_2(nodes), num_warps=1,
    )  # fmt: skip
    _link[(batch, cdiv(rows, LINK_ROWS))](
        table.ids, out.parents, out.depths, out.ranks, out.num_rows,
        out.tokens, out.first_child, out.next_sibling, out.ancestors, horizon, nodes, words,
        ROWS=LINK_ROWS, ALL_ROWS=power_of_2(rows), WORDS=power_of_2(words),
        num_warps=1,
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
    _ancestors[(batch, cdiv(rows, LINK_ROWS))](
        parents, out, rows, words, ROWS=LINK_ROWS, WORDS=power_of_2(words), num_warps=1
    )
    return out

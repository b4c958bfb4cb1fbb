# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Positions and batch order on the GPU: what precedes the target's forward. Same functions as in reference.py.

An engine keeps trees by request slot and its batch in another order, different every step, while a captured graph reads
fixed addresses. `stage` gathers the slots of the step into batch order and cuts every tree to what was scheduled;
`write_positions` turns row positions into depth positions. KV slots come from row positions: compute them before.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launch import cdiv, power_of_2, relaunched
from .layout import Tree

ROWS = 32  # rows a program of _stage copies


@relaunched
@triton.jit
def _write_positions(positions_ptr, depths_ptr, num_rows_ptr, row_starts_ptr, R, ROWS: tl.constexpr):
    b = tl.program_id(0)
    start = tl.load(row_starts_ptr + b)
    stop = tl.load(row_starts_ptr + b + 1)
    if (tl.load(num_rows_ptr + b) > 0) & (stop > start):
        row = tl.arange(0, ROWS)
        root = tl.load(positions_ptr + start)
        depth = tl.load(depths_ptr + b * R + row, mask=row < R, other=0)
        # the root's own position does not change: no thread reads what another writes
        tl.store(positions_ptr + start + row, root + depth, mask=(row > 0) & (row < R) & (start + row < stop))


@relaunched
@triton.jit
def _stage(
    slots_ptr,  # [B]
    row_starts_ptr,  # [B + 1]
    num_rows_ptr,  # [slots], then [slots, R] each
    tokens_ptr,
    parents_ptr,
    depths_ptr,
    ranks_ptr,
    scores_ptr,
    first_child_ptr,
    next_sibling_ptr,
    ancestors_ptr,  # [slots, R, W]
    out_num_rows_ptr,  # [B], then [B, R] each
    out_tokens_ptr,
    out_parents_ptr,
    out_depths_ptr,
    out_ranks_ptr,
    out_scores_ptr,
    out_first_child_ptr,
    out_next_sibling_ptr,
    out_ancestors_ptr,  # [B, R, W]
    R,
    W,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):
    b = tl.program_id(0)
    slot = tl.load(slots_ptr + b).to(tl.int64)
    scheduled = tl.load(row_starts_ptr + b + 1) - tl.load(row_starts_ptr + b)
    rows = tl.minimum(tl.load(num_rows_ptr + slot, mask=slot >= 0, other=0), scheduled)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    source = slot * R + row
    target = b * R + row
    inside = row < R
    real = row < rows
    node = real & (row > 0)
    tl.store(out_num_rows_ptr + b, rows)
    tl.store(out_tokens_ptr + target, tl.load(tokens_ptr + source, mask=node, other=0), mask=inside & (row > 0))
    tl.store(out_parents_ptr + target, tl.load(parents_ptr + source, mask=node, other=-1), mask=inside)
    tl.store(out_depths_ptr + target, tl.load(depths_ptr + source, mask=node, other=0), mask=inside)
    tl.store(out_ranks_ptr + target, tl.load(ranks_ptr + source, mask=node, other=0), mask=inside)
    tl.store(out_scores_ptr + target, tl.load(scores_ptr + source, mask=node, other=0.0), mask=inside)
    child = tl.load(first_child_ptr + source, mask=real, other=-1)
    tl.store(out_first_child_ptr + target, tl.where(child < rows, child, -1), mask=inside)
    sibling = tl.load(next_sibling_ptr + source, mask=real, other=-1)
    tl.store(out_next_sibling_ptr + target, tl.where(sibling < rows, sibling, -1), mask=inside)

    word = tl.arange(0, WORDS)[None, :]
    itself = tl.where(row[:, None] // 32 == word, 1 << (row[:, None] % 32), 0)
    seen = tl.load(ancestors_ptr + source[:, None] * W + word, mask=node[:, None] & (word < W), other=0)
    tl.store(out_ancestors_ptr + target[:, None] * W + word, seen | itself, mask=inside[:, None] & (word < W))


# ---- the functions of reference.py ----


def write_positions(positions: Tensor, tree: Tree, row_starts: Tensor) -> Tensor:
    """See reference.write_positions."""
    rows = tree.nodes + 1
    _write_positions[(tree.batch,)](
        positions, tree.depths, tree.num_rows, row_starts, rows, ROWS=power_of_2(rows), num_warps=1
    )
    return positions


def stage(tree: Tree, slots: Tensor, row_starts: Tensor, out: Tree) -> Tree:
    """See reference.stage."""
    if tree.nodes != out.nodes:
        raise ValueError(f"trees of {tree.nodes} nodes do not fit buffers of {out.nodes}")
    rows, words = tree.nodes + 1, tree.ancestors.shape[2]
    names = ("num_rows", "tokens", "parents", "depths", "ranks", "scores", "first_child", "next_sibling", "ancestors")
    _stage[(out.batch, cdiv(rows, ROWS))](
        slots, row_starts, *(getattr(tree, n) for n in names), *(getattr(out, n) for n in names),
        rows, words, ROWS=ROWS, WORDS=power_of_2(words), num_warps=1,
    )  # fmt: skip
    return out

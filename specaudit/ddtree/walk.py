# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Walk on the GPU: which nodes does the target agree with. Same functions as in reference.py.

Nothing is descended: a node is accepted when it and all its ancestors carry the target's token at their parent. That is
one gather, one bit per row, and one AND with each row's ancestor words, so the time does not depend on how much is
accepted. Siblings carry different tokens (a build never gives them the same), so the accepted nodes are one path. Were
they not, the result would still be a path the target agrees with: the ancestors of the deepest accepted row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import cdiv, power_of_2, relaunched
from .layout import Tree, Walk

CHUNK = 8192  # logits a program of _argmax_chunk reads
ARGMAX_WARPS = 8


@relaunched
@triton.jit
def _walk(
    target_ptr,  # [T] tokens; written first when partial maxima are given
    tokens_ptr,  # [T]
    row_starts_ptr,  # [B + 1]
    num_rows_ptr,  # [B]
    parents_ptr,  # [B, R]
    depths_ptr,  # [B, R]
    ancestors_ptr,  # [B, R, W]
    accepted_ptr,  # [B, D]
    emitted_ptr,  # [B, 1 + D]
    num_accepted_ptr,  # [B]
    num_emitted_ptr,  # [B]
    best_ptr,  # [T, splits] float32 maxima of the chunks of each row's logits, or None
    best_id_ptr,  # [T, splits]
    splits,
    R,
    D,
    W,
    ROWS: tl.constexpr,  # R rounded up to a power of two, at least 32
    DEPTHS: tl.constexpr,  # 1 + D rounded up
    SPLITS: tl.constexpr,  # splits rounded up
):
    b = tl.program_id(0)
    start = tl.load(row_starts_ptr + b)
    rows = tl.minimum(tl.load(row_starts_ptr + b + 1) - start, tl.load(num_rows_ptr + b))
    row = tl.arange(0, ROWS)
    real = row < rows
    if best_ptr is not None:
        _store_argmax(target_ptr + start, best_ptr, best_id_ptr, start, row, real, splits, SPLITS)
        tl.debug_barrier()  # the gather below reads what other threads of this program wrote
    parent = tl.load(parents_ptr + b * R + row, mask=real & (row > 0), other=0)
    depth = tl.load(depths_ptr + b * R + row, mask=real, other=0)
    token = tl.load(tokens_ptr + start + row, mask=real, other=-1).to(tl.int32)
    wanted = tl.load(target_ptr + start + parent, mask=real, other=-1).to(tl.int32)
    agrees = real & ((row == 0) | ((token == wanted) & (token >= 0)))

    words: tl.constexpr = ROWS // 32
    agreeing = tl.sum(tl.reshape(agrees.to(tl.int32) << (row % 32), (words, 32)), axis=1)  # [words], disjoint bits
    word = tl.arange(0, words)
    seen = (b * R + row[:, None]) * W + word[None, :]
    ancestors = tl.load(ancestors_ptr + seen, mask=real[:, None] & (word[None, :] < W), other=0)
    missing = tl.max(((ancestors & ~agreeing[None, :]) != 0).to(tl.int32), axis=1)
    accepts = agrees & (missing == 0)

    deepest = tl.max(tl.where(accepts, depth * ROWS + (ROWS - 1 - row), -1), axis=0)  # ties: the lowest row
    last = tl.where(deepest < 0, 0, ROWS - 1 - deepest % ROWS)
    count = tl.where(deepest < 0, 0, deepest // ROWS)
    path = tl.load(ancestors_ptr + (b * R + last) * W + row // 32, mask=real, other=0)
    on_path = real & (row > 0) & (((path >> (row % 32)) & 1) != 0)
    tl.store(accepted_ptr + b * D + depth - 1, row, mask=on_path)
    tl.store(emitted_ptr + b * (D + 1) + depth - 1, token, mask=on_path)
    bonus = tl.load(target_ptr + start + last, mask=rows > 0, other=-1).to(tl.int32)
    _store_tail(accepted_ptr, emitted_ptr, num_accepted_ptr, num_emitted_ptr, b, count, bonus, D, DEPTHS)


@triton.jit
def _store_tail(accepted_ptr, emitted_ptr, num_accepted_ptr, num_emitted_ptr, b, count, bonus, D, DEPTHS: tl.constexpr):
    """The target's own token after `count` accepted ones, the counts, and -1 behind."""
    place = tl.arange(0, DEPTHS)
    minus = tl.full((DEPTHS,), -1, tl.int32)
    tl.store(accepted_ptr + b * D + place, minus, mask=(place >= count) & (place < D))
    tail = tl.where(place == count, bonus, -1)
    tl.store(emitted_ptr + b * (D + 1) + place, tail, mask=(place >= count) & (place <= D))
    tl.store(num_accepted_ptr + b, count)
    tl.store(num_emitted_ptr + b, count + tl.where(bonus >= 0, 1, 0))


@relaunched
@triton.jit
def _linear_walk(
    target_ptr,
    tokens_ptr,
    row_starts_ptr,
    num_rows_ptr,  # [B] or None
    accepted_ptr,
    emitted_ptr,
    num_accepted_ptr,
    num_emitted_ptr,
    D,
    DEPTHS: tl.constexpr,
):
    b = tl.program_id(0)
    start = tl.load(row_starts_ptr + b)
    rows = tl.load(row_starts_ptr + b + 1) - start
    if num_rows_ptr is not None:
        rows = tl.minimum(rows, tl.load(num_rows_ptr + b))
    place = tl.arange(0, DEPTHS)
    inside = (place < D) & (place + 1 < rows)
    token = tl.load(tokens_ptr + start + place + 1, mask=inside, other=-1).to(tl.int32)
    wanted = tl.load(target_ptr + start + place, mask=inside, other=-1).to(tl.int32)
    rejects = ~(inside & (token == wanted) & (token >= 0))
    count = tl.min(tl.where(rejects, place, D), axis=0)
    tl.store(accepted_ptr + b * D + place, place + 1, mask=place < count)
    tl.store(emitted_ptr + b * (D + 1) + place, token, mask=place < count)
    bonus = tl.load(target_ptr + start + count, mask=rows > 0, other=-1).to(tl.int32)
    _store_tail(accepted_ptr, emitted_ptr, num_accepted_ptr, num_emitted_ptr, b, count, bonus, D, DEPTHS)


@relaunched
@triton.jit
def _argmax_chunk(logits_ptr, best_ptr, best_id_ptr, stride, vocabulary, CHUNK: tl.constexpr):
    row = tl.program_id(0)
    split = tl.program_id(1)
    ids = split * CHUNK + tl.arange(0, CHUNK)
    base = logits_ptr + row.to(tl.int64) * stride
    x = tl.load(base + ids, mask=ids < vocabulary, other=float("-inf")).to(tl.float32)
    x = tl.where(x != x, float("-inf"), x)
    best = tl.max(x, axis=0)
    place = row * tl.num_programs(1) + split
    tl.store(best_ptr + place, best)
    tl.store(best_id_ptr + place, tl.min(tl.where(x == best, ids, vocabulary), axis=0))


@triton.jit
def _store_argmax(target_ptr, best_ptr, best_id_ptr, start, row, real, splits, SPLITS: tl.constexpr):
    """Reduce the chunks of each row: highest value, then lowest id."""
    split = tl.arange(0, SPLITS)
    place = (start + row)[:, None] * splits + split[None, :]
    inside = real[:, None] & (split[None, :] < splits)
    value = tl.load(best_ptr + place, mask=inside, other=float("-inf"))
    ids = tl.load(best_id_ptr + place, mask=inside, other=2147483647)
    best = tl.max(value, axis=1)
    tl.store(target_ptr + row, tl.min(tl.where(value == best[:, None], ids, 2147483647), axis=1), mask=real)


# ---- the functions of reference.py ----


def walk(target: Tensor, tokens: Tensor, tree: Tree, row_starts: Tensor, out: Walk | None = None) -> Walk:
    """See reference.walk. All tensors contiguous; trees past the requests of row_starts are not looked at."""
    out = out or Walk.empty(tree.batch, tree.max_depth, target.device, target.dtype)
    _launch(target, tokens, tree, row_starts, out, None, None, 1)
    return out


def greedy_walk(logits: Tensor, tokens: Tensor, tree: Tree, row_starts: Tensor, out: Walk | None = None) -> Walk:
    """See reference.greedy_walk. Two launches; logits contiguous along the vocabulary."""
    out = out or Walk.empty(tree.batch, tree.max_depth, logits.device)
    best, best_id = _chunk_maxima(logits)
    target = torch.empty(logits.shape[0], dtype=torch.int32, device=logits.device)
    _launch(target, tokens, tree, row_starts, out, best, best_id, best.shape[1])
    return out


def linear_walk(
    target: Tensor,
    tokens: Tensor,
    row_starts: Tensor,
    depth: int,
    num_rows: Tensor | None = None,
    out: Walk | None = None,
) -> Walk:
    """See reference.linear_walk."""
    batch = row_starts.shape[0] - 1
    out = out or Walk.empty(batch, depth, target.device, target.dtype)
    _linear_walk[(batch,)](
        target, tokens, row_starts, num_rows, out.accepted, out.emitted, out.num_accepted, out.num_emitted, depth,
        DEPTHS=power_of_2(1 + depth), num_warps=1,
    )  # fmt: skip
    return out


def _chunk_maxima(logits: Tensor) -> tuple[Tensor, Tensor]:
    rows, vocabulary = logits.shape
    if logits.stride(1) != 1:
        raise ValueError("logits must be contiguous along the vocabulary")
    splits = cdiv(vocabulary, CHUNK)
    best = torch.empty(rows, splits, dtype=torch.float32, device=logits.device)
    best_id = torch.empty(rows, splits, dtype=torch.int32, device=logits.device)
    grid = (rows, splits)
    _argmax_chunk[grid](logits, best, best_id, logits.stride(0), vocabulary, CHUNK=CHUNK, num_warps=ARGMAX_WARPS)
    return best, best_id


def _launch(
    target: Tensor,
    tokens: Tensor,
    tree: Tree,
    row_starts: Tensor,
    out: Walk,
    best: Tensor | None,
    best_id: Tensor | None,
    splits: int,
) -> None:
    rows, depth = tree.nodes + 1, out.accepted.shape[1]
    if depth < tree.max_depth:
        raise ValueError(f"the walk has room for {depth} accepted nodes, the tree may be {tree.max_depth} deep")
    padded = max(32, power_of_2(rows))
    _walk[(row_starts.shape[0] - 1,)](
        target, tokens, row_starts, tree.num_rows, tree.parents, tree.depths, tree.ancestors,
        out.accepted, out.emitted, out.num_accepted, out.num_emitted, best, best_id, splits, rows, depth,
        tree.ancestors.shape[2], ROWS=padded, DEPTHS=power_of_2(1 + depth),
        SPLITS=power_of_2(splits), num_warps=warps(padded),
    )  # fmt: skip


def warps(padded_rows: int) -> int:
    return 1 if padded_rows <= 64 else 4 if padded_rows <= 256 else 8

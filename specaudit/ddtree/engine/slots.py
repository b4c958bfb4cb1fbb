# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Small kernels after drafting: what was drafted goes to the requests' slots, trees and greedy chains."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..launch import power_of_2, relaunched
from ..layout import Tree
from .state import TreeState


@triton.jit
def _store_chain(To, From, stride, K, DEPTHS: tl.constexpr):
    """A greedy chain: K ids, `stride` apart, to `To`."""
    place = tl.arange(0, DEPTHS)
    token = tl.load(From + place * stride, mask=place < K)
    tl.store(To + place, token.to(tl.int64), mask=place < K)


@relaunched
@triton.jit
def _chain_kernel(
    Slots, Tokens, Ids, ids_request, Chains, Parents, Depths, Child, Sibling, Words, Rows, K, length, R,
    W: tl.constexpr, BLOCK: tl.constexpr, DEPTHS: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0)
    slot = tl.load(Slots + b).to(tl.int64)
    _store_chain(Ids + b * ids_request, Tokens + b * K, 1, K, DEPTHS)
    if slot >= 0:
        _store_chain(Chains + slot * K, Tokens + b * K, 1, K, DEPTHS)
        row = tl.arange(0, BLOCK)
        inside = row < R
        used = row <= length
        base = slot * R + row
        tl.store(Parents + base, tl.where(used, row - 1, -1), mask=inside)
        tl.store(Depths + base, tl.where(used, row, 0), mask=inside)
        tl.store(Child + base, tl.where(row < length, row + 1, -1), mask=inside)
        tl.store(Sibling + base, tl.full([BLOCK], -1, tl.int32), mask=inside)
        for w in range(W):
            first = w * 32
            seen = tl.minimum(tl.maximum(row + 1 - first, 0), 32)  # bits 0 .. row of the mask that fall into this word
            bits = tl.where(seen == 32, -1, (1 << (seen % 32)) - 1)
            own = tl.where(row // 32 == w, 1 << (row % 32), 0)
            tl.store(Words + base * W + w, tl.where(used, bits, own), mask=inside)
        tl.store(Rows + slot, length + 1)


def write_chains(state: TreeState, slots: Tensor, tokens: Tensor, ids: Tensor) -> None:
    """The chains that the stock drafter proposed, tokens [B, K] int64, dense: to the slots [B] int64 (-1: none), and to
    the first K of each row of ids [B, >= K] int64, which the engine schedules."""
    tree, horizon = state.slots, state.horizon
    _chain_kernel[(slots.shape[0],)](
        slots,
        tokens,
        ids,
        ids.stride(0),
        state.chains,
        tree.parents,
        tree.depths,
        tree.first_child,
        tree.next_sibling,
        tree.ancestors,
        tree.num_rows,
        horizon,
        min(horizon, state.nodes),
        1 + state.nodes,
        W=tree.ancestors.shape[2],
        BLOCK=power_of_2(1 + state.nodes),
        DEPTHS=power_of_2(horizon),
    )


@relaunched
@triton.jit
def _scatter_kernel(
    Slots,
    FromParents,
    FromDepths,
    FromChild,
    FromSibling,
    FromWords,
    FromRows,
    ToParents,
    ToDepths,
    ToChild,
    ToSibling,
    ToWords,
    ToRows,
    R,
    Ids,
    Chains,
    ids_request,
    ids_position,
    K,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
    WORDS: tl.constexpr,
    DEPTHS: tl.constexpr,
):
    b = tl.program_id(0)
    slot = tl.load(Slots + b).to(tl.int64)
    if slot >= 0:
        _store_chain(Chains + slot * K, Ids + b * ids_request, ids_position, K, DEPTHS)
        row = tl.arange(0, BLOCK)
        inside = row < R
        source = b * R + row
        target = slot * R + row
        tl.store(ToParents + target, tl.load(FromParents + source, mask=inside), mask=inside)
        tl.store(ToDepths + target, tl.load(FromDepths + source, mask=inside), mask=inside)
        tl.store(ToChild + target, tl.load(FromChild + source, mask=inside), mask=inside)
        tl.store(ToSibling + target, tl.load(FromSibling + source, mask=inside), mask=inside)
        word = tl.arange(0, WORDS)
        held = inside[:, None] & (word < W)[None, :]
        bits = tl.load(FromWords + source[:, None] * W + word[None, :], mask=held)
        tl.store(ToWords + target[:, None] * W + word[None, :], bits, mask=held)
        tl.store(ToRows + slot, tl.load(FromRows + b))


def scatter(state: TreeState, proposed: Tree, chains: Tensor, slots: Tensor) -> None:
    """Trees and greedy chains [B, K] (ids, any strides) in batch order to their request slots [B] int64; slot -1
    (padding) is skipped."""
    tree = state.slots
    words = tree.ancestors.shape[2]
    _scatter_kernel[(slots.shape[0],)](
        slots,
        proposed.parents,
        proposed.depths,
        proposed.first_child,
        proposed.next_sibling,
        proposed.ancestors,
        proposed.num_rows,
        tree.parents,
        tree.depths,
        tree.first_child,
        tree.next_sibling,
        tree.ancestors,
        tree.num_rows,
        1 + state.nodes,
        chains,
        state.chains,
        *chains.stride(),
        state.horizon,
        W=words,
        BLOCK=power_of_2(1 + state.nodes),
        WORDS=power_of_2(words),
        DEPTHS=power_of_2(state.horizon),
    )

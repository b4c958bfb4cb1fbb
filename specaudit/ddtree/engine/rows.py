# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Small kernels before a forward pass: trees from their slots to the step's rows, or the chains that stand for them.

Flat rows of a step: request b has rows row_starts[b] .. row_starts[b + 1] - 1 (the engine's query_start_loc).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..launch import power_of_2, relaunched
from .state import TreeState


# The batch's size is no reason to compile again: a server would stall in the middle of its work.
@relaunched
@triton.jit(do_not_specialize=["requests", "tree_requests"])
def _prepare_kernel(
    Positions,
    Slots,
    RowStarts,
    NumComputed,
    PrefillLens,
    requests,
    tree_requests,
    ContextLens,
    # slots -> batch
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
    W: tl.constexpr,
    BLOCK: tl.constexpr,
    WORDS: tl.constexpr,
    BY_SLOT: tl.constexpr,
):
    b = tl.program_id(0)
    row = tl.arange(0, BLOCK)
    inside = row < R
    slot = tl.zeros([], tl.int64)
    start = tl.zeros([], tl.int32)
    length = tl.zeros([], tl.int32)
    context = tl.zeros([], tl.int32)
    count = tl.zeros([], tl.int32)
    chain = count > 0  # false: a prompt chunk in a graph of trees is a chain of its own rows
    if b < requests:
        slot = tl.load(Slots + b).to(tl.int64)
        start = tl.load(RowStarts + b)
        length = tl.load(RowStarts + b + 1) - start
        count = tl.full([], 1, tl.int32)
        if b < tree_requests:
            if BY_SLOT:
                context = tl.load(NumComputed + slot)
                if context >= tl.load(PrefillLens + slot):  # below it, drafts are placeholders
                    count = tl.minimum(tl.load(FromRows + slot), length)
            else:
                context = tl.load(NumComputed + b)
                chain = slot < 0
                count = length
                if slot >= 0:
                    count = tl.minimum(tl.load(FromRows + slot), length)
    # The root is in every row's sight, so the context part takes it along.
    tl.store(ContextLens + b, context + (b < tree_requests).to(tl.int32))
    tl.store(ToRows + b, count)
    used = inside & (row < count)
    taken = used & ~chain
    node = taken & (row > 0)
    source = slot * R + row
    target = b.to(tl.int64) * R + row
    depth = tl.load(FromDepths + source, mask=node, other=0)
    depth = tl.where(used & chain, row, depth)
    tl.store(ToDepths + target, depth, mask=inside)
    parent = tl.load(FromParents + source, mask=node, other=-1)
    tl.store(ToParents + target, tl.where(used & chain, row - 1, parent), mask=inside)
    child = tl.load(FromChild + source, mask=taken, other=-1)
    child = tl.where(used & chain, row + 1, child)
    tl.store(ToChild + target, tl.where(child < count, child, -1), mask=inside)
    sibling = tl.load(FromSibling + source, mask=taken, other=-1)
    tl.store(ToSibling + target, tl.where(sibling < count, sibling, -1), mask=inside)
    word = tl.arange(0, WORDS)
    own = tl.where(word[None, :] == row[:, None] // 32, 1 << (row[:, None] % 32), 0)
    bits = tl.load(FromWords + source[:, None] * W + word[None, :], mask=node[:, None] & (word < W)[None, :], other=0)
    seen = tl.minimum(tl.maximum(row[:, None] + 1 - word[None, :] * 32, 0), 32)  # rows 0 .. row in each word
    causal = tl.where(seen == 32, -1, (1 << (seen % 32)) - 1)
    bits = tl.where(node[:, None], bits, tl.where((used & chain)[:, None], causal, own))
    tl.store(ToWords + target[:, None] * W + word[None, :], bits, mask=inside[:, None] & (word < W)[None, :])
    if b < tree_requests:
        position = context.to(tl.int64) + depth
        tl.store(Positions + start + row, position, mask=inside & (row < length))


def prepare(
    state: TreeState,
    positions: Tensor,
    slots: Tensor,
    row_starts: Tensor,
    num_computed: Tensor,
    prefill_lens: Tensor | None,
    tree_requests: int,
) -> None:
    """Gather the step's trees into batch order and write depth positions in place, after the KV slots were computed.

    positions [T] int64; row_starts [B + 1] int32. slots [B]: where each request's tree lies. With prefill_lens [S] the
    slots are the engine's request slots and num_computed [S] is by slot; without it they are rows of the step before
    (-1: was not in it, has no tree) and num_computed [B] is in batch order. The first `tree_requests` requests are
    trees; the others become a root alone. Padded requests up to S become inert.
    """
    words = state.batch.ancestors.shape[2]
    _prepare_kernel[(state.batch.batch,)](
        positions,
        slots,
        row_starts,
        num_computed,
        num_computed if prefill_lens is None else prefill_lens,
        slots.shape[0],
        tree_requests,
        fixed=state.staging,
        W=words,
        BLOCK=power_of_2(1 + state.nodes),
        WORDS=power_of_2(words),
        BY_SLOT=prefill_lens is not None,
    )


@relaunched
@triton.jit
def _read_chains_kernel(
    Ids, Slots, RowStarts, LogitStarts, NumComputed, PrefillLens, Chains, K, DRAFTS: tl.constexpr
):  # fmt: skip
    b = tl.program_id(0)
    slot = tl.load(Slots + b).to(tl.int64)
    if tl.load(NumComputed + slot) >= tl.load(PrefillLens + slot):  # below it, drafts are placeholders
        drafts = tl.load(LogitStarts + b + 1) - tl.load(LogitStarts + b) - 1
        end = tl.load(RowStarts + b + 1)
        place = tl.arange(0, DRAFTS)
        token = tl.load(Chains + slot * K + place, mask=place < K, other=0)
        tl.store(Ids + end - drafts + place, token, mask=place < drafts)


def read_chains(
    state: TreeState,
    ids: Tensor,
    slots: Tensor,
    row_starts: Tensor,
    logit_starts: Tensor,
    num_computed: Tensor,
    prefill_lens: Tensor,
) -> None:
    """Put each request's greedy chain in place of its drafts, for the stock path to verify; token 0 behind its end.

    ids [T] int32, in place; slots [B] int64; row_starts and logit_starts [B + 1] int32: a request's drafts are its last
    rows, one less than it has logits. num_computed and prefill_lens [S] int32. What reads drafts on the device reads
    these. The host's copies go on naming nodes, and a grammar's masks are made from them: the trees of its requests are
    chains (budget 0), padded with the token of inert nodes, which is 0, too.
    """
    _read_chains_kernel[(slots.shape[0],)](
        ids,
        slots,
        row_starts,
        logit_starts,
        num_computed,
        prefill_lens,
        state.chains,
        state.horizon,
        DRAFTS=power_of_2(state.nodes),
    )

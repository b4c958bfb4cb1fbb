# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Attention of trees that rounds exactly as a chain's: every row is a sequence of its own for FlashAttention 3.

Two correct attention kernels round differently, and in bf16 that changes outputs at near ties of two tokens. Here the
chain's own kernel computes each row over the keys that a chain ending in it has, in the same order: its context, its
ancestors, itself. What a row sees is a block table of pages of one key each, so nothing is copied.

A batch of rows fills the GPU more than the chain's batch of requests, and FlashAttention 3 would divide the keys of a
request into fewer runs, so the schedule is written here: as many runs as the chain's call would have (schedule.py).
What a number of runs cannot say is left: a row that ends a block before its chain does, where runs are of three blocks
and more, is cut elsewhere. So is a step with prompts, whose chain counts their blocks, too.

Every row reads its whole context, so the cost grows with nodes x context, and it has to be asked for.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import cdiv, power_of_2, relaunched
from ..layout import Tree
from .schedule import ORDER, ROWS, RUNS, Layout, Order, rounded

CHUNK = 512
MOST_DIVIDED = 992  # sequences of a call that can have runs of their own number


class Exact:
    """The sequences of a step's tree rows, in buffers of fixed addresses that captured graphs read."""

    def __init__(
        self,
        order: Order,
        layout: Layout,
        capacity: int,
        max_model_len: int,
        horizon: int,
        device: torch.device,
        *,
        block_size: int,
        unit: int,
    ) -> None:
        """capacity: tree rows of the largest step. A step of more rows goes without. block_size: of the caches; unit:
        pages of one key from a block to the next, see `pages`."""
        self.order, self.layout, self.capacity, self.horizon = order, layout, capacity, horizon
        self.block_size, self.unit = block_size, unit
        self.table = torch.zeros(capacity, 16 * cdiv(max_model_len, 16), dtype=torch.int32, device=device)
        self.lens = torch.zeros(capacity, dtype=torch.int32, device=device)
        self.starts = torch.arange(capacity + 1, dtype=torch.int32, device=device)
        self.schedule = torch.zeros(4 * rounded(capacity) + 1, dtype=torch.int32, device=device)

    def splits(self, requests: int, rows: int) -> int:
        """Most runs that a request of such a batch can have: what the call makes room for."""
        order = self.order
        if requests > order.requests or rows > MOST_DIVIDED:
            return 1
        blocks = cdiv(self.table.shape[1], order.keys)
        return max(1, min(order.most_runs, cdiv(blocks, order.share(requests))))

    def prepare(
        self,
        tree: Tree,
        context_lens: Tensor,
        row_starts: Tensor,
        rows: int,
        block_table: Tensor,
        slots: Tensor,
    ) -> Sequences:
        """One launch per step.

        Args:
            tree: the step's trees in batch order.
            context_lens: [>= B] int32, the root counted in.
            row_starts: [B + 1] int32; rows of no request get no keys.
            rows: flat rows that the call covers, at most `capacity`.
            block_table: [B, blocks] int32; slots: [>= rows] int64, the KV slot of every row.
        """
        requests = row_starts.shape[0] - 1
        splits = self.splits(requests, rows)
        roles = self.layout.of(splits)
        width = self.table.shape[1]
        words = tree.ancestors.shape[2]
        _sequences_kernel[(rows, 1 + cdiv(width, CHUNK))](
            self.table,
            self.lens,
            self.schedule,
            row_starts,
            context_lens,
            tree.depths,
            tree.ancestors,
            slots,
            block_table,
            requests,
            rounded(rows),
            block_table.stride(0),
            self.unit,
            self.horizon,
            self.order.rows,
            float(self.order.heads),
            float(self.order.multiprocessors),
            splits,
            width,
            self.layout.value,
            ROWS_AT=roles.index(ROWS),
            RUNS_AT=roles.index(RUNS) if RUNS in roles else -1,
            ORDER_AT=roles.index(ORDER) if ORDER in roles else -1,
            VECTORS=len(roles),
            R=tree.depths.shape[1],
            W=words,
            BLOCK_SIZE=self.block_size,
            KEYS=self.order.keys,
            REQUESTS=power_of_2(tree.batch),
            BLOCK_R=power_of_2(tree.depths.shape[1]),
            CHUNK=CHUNK,
        )
        return Sequences(
            self.table[:rows],
            self.lens[:rows],
            self.starts[: rows + 1],
            self.schedule[: self.layout.size(rows, splits)],
            splits,
        )


class Sequences(NamedTuple):
    """What FlashAttention 3 is given: [rows, width] pages, [rows] lengths, [rows + 1] starts, its schedule, runs."""

    table: Tensor
    lens: Tensor
    starts: Tensor
    schedule: Tensor
    splits: int


def pages(cache: Tensor) -> tuple[Tensor, int]:
    """A cache [blocks, block_size, heads, size] as pages of one key each, and how many lie from a block to the next.

    Raises:
        ValueError: blocks are no multiple of a key apart.
    """
    block, position, head, _ = cache.stride()
    if block % position:
        raise ValueError(f"KV blocks {block} elements apart are not made of keys {position} apart")
    unit = block // position
    count = (cache.shape[0] - 1) * unit + cache.shape[1]
    return cache.as_strided((count, 1, *cache.shape[2:]), (position, position, head, 1)), unit


# The batch's size is no reason to compile again: a server would stall in the middle of its work.
@relaunched
@triton.jit(
    do_not_specialize=[
        "requests",
        "aligned_rows",
        "block_row",
        "unit",
        "query_blocks",
        "most_runs",
        "width",
        "packed_rows",
    ]
)
def _sequences_kernel(
    Table,
    Lens,
    Schedule,
    RowStarts,
    ContextLens,
    Depths,
    Words,
    Slots,
    BlockTable,
    requests,
    aligned_rows,
    block_row,
    unit,
    horizon,
    query_blocks,
    heads,
    multiprocessors,
    most_runs,
    width,
    packed_rows,
    ROWS_AT: tl.constexpr,
    RUNS_AT: tl.constexpr,
    ORDER_AT: tl.constexpr,
    VECTORS: tl.constexpr,
    R: tl.constexpr,
    W: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    REQUESTS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Program (row, part): part 0 is the row's length, its schedule and its ancestors, the others its context."""
    t, part = tl.program_id(0), tl.program_id(1)
    other = tl.arange(0, REQUESTS)
    ends = tl.load(RowStarts + 1 + other, mask=other < requests, other=0x7FFFFFFF)
    b = tl.sum((ends <= t).to(tl.int32), 0)
    live = b < requests
    first = tl.load(RowStarts + b, mask=live, other=0)
    context = tl.load(ContextLens + b, mask=live, other=0)
    row = t - first
    Table += t.to(tl.int64) * width
    if part > 0:
        position = (part - 1) * CHUNK + tl.arange(0, CHUNK)
        mask = position < tl.minimum(context, width)
        block = tl.load(BlockTable + b.to(tl.int64) * block_row + position // BLOCK_SIZE, mask=mask, other=0)
        tl.store(Table + position, block * unit + position % BLOCK_SIZE, mask=mask)
    else:
        live = live & (context > 0)
        depth = tl.load(Depths + b * R + row, mask=live, other=0)
        length = tl.where(live, tl.minimum(context + depth, width), 0)
        tl.store(Lens + t, length)

        lens = tl.load(ContextLens + other, mask=other < requests, other=0)
        blocks = tl.sum(tl.where(lens > 0, tl.cdiv(lens + horizon, KEYS), 0), 0)
        fill = (blocks * query_blocks).to(tl.float32) * 1.1 * heads  # as Order.share
        share = tl.maximum(tl.ceil(tl.div_rn(fill, multiprocessors)).to(tl.int32), 1)
        own = tl.cdiv(context + horizon, KEYS)  # the chain's, of this request
        runs = tl.maximum(tl.minimum(tl.cdiv(own, share), most_runs), 1)
        if RUNS_AT >= 0:
            blocks_of_a_run = tl.maximum(tl.cdiv(own, runs), 1)
            tl.store(
                Schedule + RUNS_AT * aligned_rows + t,
                tl.maximum(tl.cdiv(tl.cdiv(length, KEYS), blocks_of_a_run), 1),
            )
        tl.store(Schedule + ROWS_AT * aligned_rows + t, packed_rows)
        if ORDER_AT >= 0:
            tl.store(Schedule + ORDER_AT * aligned_rows + t, t)
        if t == 0:
            tl.store(Schedule + VECTORS * aligned_rows, 0)

        # the ancestor at each depth, the row itself the last of them
        node = tl.arange(0, BLOCK_R)
        word = tl.load(Words + (b * R + row) * W + node // 32, mask=live & (node < R), other=0)
        seen = (node > 0) & (((word >> (node % 32)) & 1) != 0)
        at = tl.load(Depths + b * R + node, mask=seen, other=0)
        slot = tl.load(Slots + first + node, mask=seen, other=0).to(tl.int32)
        page = tl.where(slot < 0, 0, slot // BLOCK_SIZE * unit + slot % BLOCK_SIZE)  # a dummy step has no slots
        seen = seen & (at > 0) & (at <= depth) & (context + at <= width)
        tl.store(Table + context + at - 1, page, mask=seen)

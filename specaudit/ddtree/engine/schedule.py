"""How FlashAttention 3 cuts a call and divides it into runs, and the schedule in which it is told.

It takes keys in blocks (hopper/tile_size.h) and divides the blocks of a sequence into runs, computed apart and merged,
by how full the GPU is (hopper/flash_prepare_scheduler.cu).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

MARGIN = np.float32(1.1)  # of flash_prepare_scheduler.cu: blocks per multiprocessor are counted a little high
ROWS, RUNS, ORDER = 0, 1, 2  # what a vector of a schedule holds, an entry per sequence


class Blocks(NamedTuple):
    """How FlashAttention 3 cuts a call over a paged cache: packed query rows, keys."""

    rows: int
    keys: int


def flash_blocks(head_size: int, packed_rows: int) -> Blocks | None:
    """Blocks of a chain's causal call in bf16 or fp16, None where those of a single row are others.

    packed_rows: rows of a request times query heads of a KV head. Few rows get one warp group.
    """
    if head_size == 64 and packed_rows <= 64:
        return Blocks(64, 192)
    if head_size == 128:
        return Blocks(64 if packed_rows <= 64 else 128, 128)
    return None


@dataclass(frozen=True, slots=True)
class Order:
    """How a chain's call goes through keys.

    keys: of a block. rows: blocks of packed query rows of a request. heads: KV heads. most_runs: per request, in
    batches of up to `requests` requests (larger ones are not captured, and not divided).
    """

    keys: int
    rows: int
    heads: int
    multiprocessors: int
    most_runs: int
    requests: int

    def share(self, blocks: int) -> int:
        """Key blocks that a run has at least, when the batch has so many: what a multiprocessor gets. In fp32, in the
        library's order, for it matters where the result is near a whole number."""
        f = np.float32
        return max(1, math.ceil(f(f(f(blocks * self.rows) * MARGIN) * f(self.heads)) / f(self.multiprocessors)))


def order_of(blocks: Blocks, kv_heads: int, packed_rows: int, multiprocessors: int, runs: int, requests: int) -> Order:
    """The order of chains with that many packed rows."""
    return Order(blocks.keys, -(-packed_rows // blocks.rows), kv_heads, multiprocessors, runs, requests)


def rounded(rows: int) -> int:
    return -(-rows // 4) * 4


class Layout(NamedTuple):
    """Vectors of a FlashAttention 3 schedule, each aligned to four entries, in front of a counter (flash_api.cpp).

    divided: of a call with runs; whole: of one without. value: of ROWS, the same for all sequences of one row.
    """

    divided: tuple[int, ...]
    whole: tuple[int, ...]
    value: int

    def of(self, runs: int) -> tuple[int, ...]:
        return self.divided if runs > 1 else self.whole

    def size(self, rows: int, runs: int) -> int:
        """Elements of a schedule."""
        return len(self.of(runs)) * rounded(rows) + 1


def layout_of(divided: Tensor, whole: Tensor, runs: list[int]) -> Layout | None:
    """The layout of two schedules that the library made, for calls with and without runs; None: not one known here.

    runs: what the first one must say, not the same for all, so that it is found by its values.
    """
    vectors, whole_vectors = (_vectors(made, len(runs)) for made in (divided, whole))
    roles = []
    for vector in vectors:
        if sorted(vector) == sorted(runs):
            roles.append(RUNS)
        elif sorted(vector) == list(range(len(runs))):
            roles.append(ORDER)
        elif len({*vector}) == 1:
            roles.append(ROWS)
        else:
            return None
    if sorted(roles) not in ([ROWS, RUNS], [ROWS, RUNS, ORDER]):
        return None
    left = [role for role in roles if role != RUNS]
    if len(whole_vectors) not in (len(roles), len(left)):
        return None
    without = roles if len(whole_vectors) == len(roles) else left
    value = vectors[roles.index(ROWS)][0]
    if whole_vectors[without.index(ROWS)] != [value] * len(runs):
        return None
    return Layout(tuple(roles), tuple(without), value)


def _vectors(made: Tensor, rows: int) -> list[list[int]]:
    count, rest = divmod(made.numel() - 1, rounded(rows))
    return [] if rest else [made[i * rounded(rows) :][:rows].tolist() for i in range(count)]


def expected_runs(order: Order, lens: list[int], most: int) -> list[int]:
    """Runs of sequences of those lengths, one row each: what the library's own schedule must say."""
    blocks = [-(-length // order.keys) for length in lens]
    share = order.share(sum(blocks))
    return [max(1, min(-(-n // share), most)) for n in blocks]

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Commit on the GPU: accepted rows to the front. Same functions as in reference.py.

Accepted rows are scattered and move down (accepted[j] > j), so one move's destination may be another's source. A
program takes the same columns of all rows of one request, reads them all, and only then writes: no other program
touches those columns, so the barrier between is all the order that is needed. Contents move as integers of the widest
size that fits the layout, never as numbers: any type of one byte or more, scales stored in the row included.
"""

from __future__ import annotations

from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import cdiv, power_of_2, relaunched
from .layout import KVCaches, Walk

COLUMNS = 64  # units of a row a program moves
UNITS = {1: (tl.int8, torch.int8), 2: (tl.int16, torch.int16), 4: (tl.int32, torch.int32), 8: (tl.int64, torch.int64)}


@relaunched
@triton.jit
def _commit_kv(
    pointers_ptr,  # [views]
    slots_ptr,  # [T]
    row_starts_ptr,  # [B + 1]
    accepted_ptr,  # [B, D]
    num_accepted_ptr,  # [B]
    D,
    block_stride,
    slot_stride,
    head_stride,
    BLOCK_SIZE: tl.constexpr,
    HEAD_UNITS: tl.constexpr,
    ROW_UNITS: tl.constexpr,
    UNIT: tl.constexpr,
    DEPTHS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    base = tl.load(pointers_ptr + tl.program_id(0)).to(tl.pointer_type(UNIT))
    b = tl.program_id(1)
    start = tl.load(row_starts_ptr + b)
    place = tl.arange(0, DEPTHS)
    row = tl.load(accepted_ptr + b * D + place, mask=place < tl.load(num_accepted_ptr + b), other=0)
    moves = row > place + 1  # an accepted chain is where it belongs
    source = tl.load(slots_ptr + start + row, mask=moves, other=-1).to(tl.int64)
    destination = tl.load(slots_ptr + start + place + 1, mask=moves, other=-1).to(tl.int64)
    moves = (source >= 0) & (destination >= 0)

    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    offset = (column // HEAD_UNITS).to(tl.int64) * head_stride + column % HEAD_UNITS
    mask = moves[:, None] & (column < ROW_UNITS)[None, :]
    source = (source // BLOCK_SIZE) * block_stride + (source % BLOCK_SIZE) * slot_stride
    destination = (destination // BLOCK_SIZE) * block_stride + (destination % BLOCK_SIZE) * slot_stride
    content = tl.load(base + source[:, None] + offset[None, :], mask=mask, other=0)
    tl.debug_barrier()
    tl.store(base + destination[:, None] + offset[None, :], content, mask=mask)


@relaunched
@triton.jit
def _commit_rows(
    rows_ptr,  # [T, units]
    out_ptr,  # [B, 1 + D, units], or rows_ptr
    row_starts_ptr,
    accepted_ptr,
    num_accepted_ptr,
    D,
    row_stride,
    out_batch_stride,
    out_row_stride,
    units,
    IN_PLACE: tl.constexpr,
    DEPTHS: tl.constexpr,  # 1 + D rounded up
    COLUMNS: tl.constexpr,
):
    b = tl.program_id(0)
    start = tl.load(row_starts_ptr + b).to(tl.int64)
    count = tl.load(num_accepted_ptr + b)
    place = tl.arange(0, DEPTHS)  # 0 is the root
    node = (place > 0) & (place <= count)
    row = tl.load(accepted_ptr + b * D + place - 1, mask=node, other=0)
    if IN_PLACE:
        moves = node & (row > place)
        destination = (start + place) * row_stride
    else:
        moves = (place <= count) & (tl.load(row_starts_ptr + b + 1) > start)
        destination = b.to(tl.int64) * out_batch_stride + place.to(tl.int64) * out_row_stride
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = moves[:, None] & (column < units)[None, :]
    content = tl.load(rows_ptr + ((start + row) * row_stride)[:, None] + column[None, :], mask=mask, other=0)
    tl.debug_barrier()
    tl.store(out_ptr + destination[:, None] + column[None, :], content, mask=mask)


# ---- the functions of reference.py ----


def commit_kv(caches: KVCaches, slot_mapping: Tensor, walk: Walk, row_starts: Tensor) -> None:
    """See reference.commit_kv. One launch for all views; a walk's rows past the requests of row_starts are not read."""
    batch, depth = row_starts.shape[0] - 1, walk.accepted.shape[1]
    block_size, heads, head_units = caches.row
    units = heads * head_units
    columns = min(COLUMNS, power_of_2(units))
    block_stride, slot_stride, head_stride = caches.strides
    _commit_kv[(len(caches.views), batch, cdiv(units, columns))](
        caches.pointers, slot_mapping, row_starts, walk.accepted, walk.num_accepted, depth,
        block_stride, slot_stride, head_stride,
        BLOCK_SIZE=block_size, HEAD_UNITS=head_units, ROW_UNITS=units, UNIT=UNITS[caches.unit][0],
        DEPTHS=power_of_2(depth), COLUMNS=columns, num_warps=4,
    )  # fmt: skip


def commit_rows(rows: Tensor, walk: Walk, row_starts: Tensor, out: Tensor | None = None) -> Tensor:
    """See reference.commit_rows. Rows contiguous along C, of the same type as out."""
    batch, depth = walk.accepted.shape
    tensors = [rows] if out is None else [rows, out]
    size = rows.element_size()
    spans = [stride * size for t in tensors for stride in t.stride()[:-1]]
    unit = gcd(8, rows.shape[1] * size, *spans, *(t.data_ptr() for t in tensors))
    source, *rest = [t.view(UNITS[unit][1]) for t in tensors]
    target = rest[0] if rest else source
    columns = min(COLUMNS, power_of_2(source.shape[1]))
    _commit_rows[(batch, cdiv(source.shape[1], columns))](
        source, target, row_starts, walk.accepted, walk.num_accepted, depth,
        source.stride(0), target.stride(0), target.stride(-2), source.shape[1],
        IN_PLACE=out is None, DEPTHS=power_of_2(1 + depth), COLUMNS=columns, num_warps=4,
    )  # fmt: skip
    return rows if out is None else out

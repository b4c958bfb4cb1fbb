# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Stage one of the build on the GPU: draft logits to the table of the most probable ids, in two launches.

The N best of a row of V logits lie inside the N groups with the highest maxima: a group outside them is beaten by N
elements. So the logits are read once, leaving the maximum of every GROUP consecutive ids and of every FAN groups, and
the log-sum-exp of each chunk (`_scan`, bound by memory). Then, one program per position, `_select` sorts the
super-groups, expands the N best into groups, sorts, expands into ids, sorts: three small sorts, whatever the data.
Groups are consecutive ids, so their order by (maximum, lowest index) agrees with the order of ids by (logit, lowest
id), and equal logits need no care.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import cdiv, power_of_2, relaunched
from .layout import MAX_HORIZON, MAX_NODES, MAX_VOCABULARY, Table

CHUNK = 2048  # logits a program of _scan reads
SCAN_WARPS = 2


class Fanout(NamedTuple):
    group: int  # ids per group
    fan: int  # groups per super-group


def fanout(nodes: int) -> Fanout:
    """Group sizes that balance the three sorts of _select at V = 2^17 to 2^18."""
    if nodes <= 128:
        return Fanout(16, 16)
    return Fanout(8, 16) if nodes <= 256 else Fanout(8, 8)


def select_warps(top: int, rows: int) -> int:
    """Warps of a program of _select: the large sorts need them all, the small ones only while the GPU is not full."""
    return 16 if top > 128 or rows <= 128 else 8


@relaunched
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


@relaunched
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

    kind: tl.constexpr = logits_ptr.dtype.element_ty
    index = tl.arange(0, SUPERS)
    value = tl.load(super_ptr + row.to(tl.int64) * supers + index, mask=index < supers, other=float("-inf"))
    index = _index_of(tl.topk(_sort_key(value, index, kind), TOP), kind)  # super-groups

    index = tl.reshape(index[:, None] * FAN + tl.arange(0, FAN)[None, :], (TOP * FAN,))
    inside = index < supers * FAN
    value = tl.load(group_ptr + row.to(tl.int64) * supers * FAN + index, mask=inside, other=float("-inf"))
    groups = tl.sort(_index_of(tl.topk(_sort_key(value, index, kind), TOP), kind))  # lowest ids first

    index = tl.reshape(groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :], (TOP * GROUP,))
    value = tl.load(base + index, mask=index < vocabulary, other=float("-inf"))
    key = tl.topk(_sort_key(value, tl.arange(0, TOP * GROUP), kind), TOP)  # by place among the candidates
    place = _index_of(key, kind)
    index = tl.gather(groups, place // GROUP, axis=0) * GROUP + place % GROUP  # ids
    value = _value_of(key, kind)

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
def _sort_key(value, index, kind: tl.constexpr):
    """Keys that sort by value, equal values by lowest index: the value's ordered bits above the index's complement.

    int32 for 16-bit types (indices below 2^16), int64 for float32. NaN counts as -inf, -0 as 0.
    """
    value = value.to(tl.float32)
    value = tl.where(value == 0.0, 0.0, tl.where(value != value, float("-inf"), value))
    if kind == tl.float32:
        key = (_ordered(value.to(tl.int32, bitcast=True)).to(tl.int64) << 32) | (0x7FFFFFFF - index).to(tl.int64)
    elif kind == tl.bfloat16:
        key = (_ordered16(value.to(tl.int32, bitcast=True) >> 16) << 16) | (0xFFFF - index)
    else:
        bits = value.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)
        key = (_ordered16(bits) << 16) | (0xFFFF - index)
    return key


@triton.jit
def _index_of(key, kind: tl.constexpr):
    highest: tl.constexpr = 0x7FFFFFFF if kind == tl.float32 else 0xFFFF
    return highest - (key & highest).to(tl.int32)


@triton.jit
def _value_of(key, kind: tl.constexpr):
    """The value of a key, as float32."""
    if kind == tl.float32:
        value = _ordered((key >> 32).to(tl.int32)).to(tl.float32, bitcast=True)
    elif kind == tl.bfloat16:
        value = (_ordered16(key >> 16) << 16).to(tl.float32, bitcast=True)
    else:
        value = _ordered16(key >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    return value


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
    supers = cdiv(vocabulary, size.group * size.fan)
    splits = cdiv(vocabulary, CHUNK)
    rows = batch * horizon
    groups_max = torch.empty(rows, supers * size.fan, dtype=logits.dtype, device=logits.device)
    supers_max = torch.empty(rows, supers, dtype=logits.dtype, device=logits.device)
    partial = torch.empty(2, rows, splits, dtype=torch.float32, device=logits.device)
    strides = (logits.stride(0), logits.stride(1))
    _scan[(rows, splits)](
        logits, temperature, groups_max, supers_max, partial, *strides, horizon, vocabulary, supers,
        GROUP=size.group, FAN=size.fan, CHUNK=CHUNK, num_warps=SCAN_WARPS,
    )  # fmt: skip
    top = max(2, power_of_2(nodes))
    _select[(rows,)](
        logits, temperature, groups_max, supers_max, partial, out.logprobs, out.ids, out.lse,
        *strides, horizon, vocabulary, supers, splits, nodes,
        GROUP=size.group, FAN=size.fan, TOP=top, SUPERS=max(power_of_2(supers), top),
        SPLITS=power_of_2(splits), num_warps=select_warps(top, rows),
    )  # fmt: skip
    return out

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Chain order after the forward pass: what the drafter and the engine's bookkeeping get in place of a tree's rows.

Flat rows of a step: request b has rows row_starts[b] .. row_starts[b + 1] - 1 (the engine's query_start_loc).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import power_of_2, relaunched
from .state import Step, TreeState


class Addresses:
    """Device addresses of sets of tensors; a graph's outputs keep theirs, so each set is uploaded once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], Tensor] = {}

    def of(self, tensors: list[Tensor]) -> Tensor:
        """[L] int64 on the tensors' device."""
        key = tuple(x.data_ptr() for x in tensors)
        known = self._known.get(key)
        if known is None:
            if len(self._known) > 64:  # eager steps allocate anew; do not collect their addresses for ever
                self._known.clear()
            table = torch.tensor(key, dtype=torch.int64)
            known = self._known[key] = table.to(tensors[0].device, non_blocking=True)
        return known


@relaunched
@triton.jit
def _compact_kernel(
    Out,
    OutPositions,
    OutStarts,
    OutRejected,
    In,
    InStarts,
    InPositions,
    Accepted,
    NumAccepted,
    in_row,
    out_row,
    D,
    LAYERS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    b = tl.program_id(0)
    j = tl.program_id(1)
    start = tl.load(InStarts + b)
    out_start = tl.load(OutStarts + b)
    rows = tl.load(OutStarts + b + 1) - out_start
    accepted = tl.load(NumAccepted + b)
    chosen = tl.load(Accepted + b * D + j - 1, mask=(j > 0) & (j <= accepted), other=0)
    source = start + tl.maximum(chosen, 0)  # behind the accepted rows the root again: rejected, but readable
    if j < rows:
        position = tl.load(InPositions + start) + j
        tl.store(OutPositions + out_start + j, position)
        column = tl.arange(0, BLOCK)
        target = (out_start + j).to(tl.int64) * out_row
        for layer in range(LAYERS):
            pointer = tl.load(In + layer).to(tl.pointer_type(Out.dtype.element_ty))
            for first in range(0, WIDTH, BLOCK):
                mask = first + column < WIDTH
                x = tl.load(pointer + source.to(tl.int64) * in_row + first + column, mask=mask)
                tl.store(Out + target + layer * WIDTH + first + column, x, mask=mask)
    if j == 0:
        tl.store(OutRejected + b, rows - 1 - accepted)


class ChainOrder(NamedTuple):
    """What a drafter gets in place of the step's rows: [T', L * C] states, [T'] positions, [B] rejected rows."""

    hidden: Tensor
    positions: Tensor
    rejected: Tensor


class ChainStarts:
    """Row starts after `compact`: a tree keeps at most its root and `depth` rows, the other requests keep all.

    A batch of whole trees, the usual one, has the same starts every time: those lie on the device already.
    """

    def __init__(self, slots: int, depth: int, device: torch.device) -> None:
        self._depth = depth
        self._usual = np.arange(slots + 1, dtype=np.int32) * (1 + depth)
        self._usual_on_device = torch.from_numpy(self._usual).to(device)

    def of(
        self, lengths: np.ndarray, tree_requests: int, upload: Callable[[np.ndarray], Tensor]
    ) -> tuple[np.ndarray, Tensor]:
        """lengths [B]: rows of each request, trees first -> starts [B + 1] int32 on the host and on the device."""
        requests = len(lengths)
        if requests == tree_requests and lengths.min() > self._depth:
            return self._usual[: requests + 1], self._usual_on_device[: requests + 1]
        kept = lengths.astype(np.int32)
        np.minimum(kept[:tree_requests], 1 + self._depth, out=kept[:tree_requests])
        starts = np.zeros(requests + 1, dtype=np.int32)
        np.cumsum(kept, out=starts[1:])
        return starts, upload(starts)


def compact(
    state: TreeState,
    hidden: list[Tensor],
    positions: Tensor,
    row_starts: Tensor,
    num_rejected: Tensor,
    step: Step,
    new_starts: np.ndarray,
    new_row_starts: Tensor,
    addresses: Addresses,
) -> ChainOrder:
    """Root and accepted rows of tree requests in chain order, then the rows of all other requests as they are.

    hidden: the target's auxiliary states, L tensors [>= T, C]; the result holds them side by side, as the drafter
    concatenates them. new_starts [B + 1]: `ChainStarts.of`, and new_row_starts the same on the device. Positions of the
    result are sequential, rejected counts rows of the new layout. One launch, and three copies in a mixed batch: the
    rows behind the trees may be a whole prompt, which no program per row should visit.
    """
    first, trees = hidden[0], step.requests
    requests, total, kept = len(new_starts) - 1, int(new_starts[-1]), int(new_starts[trees])
    out = ChainOrder(
        first.new_empty(total, len(hidden) * first.shape[1]),
        positions.new_empty(total),
        num_rejected.new_empty(requests),
    )
    _compact_kernel[(trees, 1 + state.batch.max_depth)](
        out.hidden,
        out.positions,
        new_row_starts,
        out.rejected,
        addresses.of(hidden),
        row_starts,
        positions,
        state.walk.accepted,
        state.walk.num_accepted,
        first.stride(0),
        out.hidden.stride(0),
        state.walk.accepted.shape[1],
        LAYERS=len(hidden),
        WIDTH=first.shape[1],
        BLOCK=min(1024, power_of_2(first.shape[1])),
    )
    if total > kept:
        behind = slice(step.rows, step.rows + total - kept)
        torch.cat([x[behind] for x in hidden], dim=-1, out=out.hidden[kept:])
        out.positions[kept:] = positions[behind]
        out.rejected[trees:] = num_rejected[trees:requests]
    return out


def path_rows(accepted: Tensor, row_starts: Tensor, rows: int) -> Tensor:
    """Row of each emitted token's logits: accepted [B, D] rows of each request -> [rows] int64, identity elsewhere."""
    starts = row_starts[:-1, None].long()
    depth = torch.arange(1, accepted.shape[1] + 1, device=accepted.device)
    live = accepted >= 0
    order = torch.arange(rows + 1, device=accepted.device)  # one row more, for what is not live
    order.scatter_(0, torch.where(live, starts + depth, rows).flatten(), (starts + accepted.clamp(min=0)).flatten())
    return order[:rows]

"""FlashAttention's variable-length call in plain torch, any dtype, on any device: slow, exact, and easy to read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    max_seqlen_q: int = 0,
    cu_seqlens_q: Tensor | None = None,
    max_seqlen_k: int = 0,
    *,
    seqused_k: Tensor,
    block_table: Tensor,
    softmax_scale: float,
    causal: bool = False,
    out: Tensor | None = None,
    return_softmax_lse: bool = False,
    **unused: Any,
) -> Any:
    """q [T, Hq, D] over paged k, v [blocks, block_size, Hkv, D]; out [T, Hq, D], lse [Hq, T] fp32, -inf without keys.

    Windows, soft caps, sinks and quantised types are not computed here: callers have none of them.
    """
    assert cu_seqlens_q is not None
    requests, group = seqused_k.shape[0], q.shape[1] // k.shape[2]
    starts = cu_seqlens_q[: requests + 1].long()
    lengths, used = starts.diff(), seqused_k.long()
    rows = torch.arange(int(lengths.max()), device=q.device)
    keys = torch.arange(max(1, int(used.max())), device=q.device)
    live = rows < lengths[:, None]
    place = (starts[:-1, None] + rows).clamp(max=q.shape[0] - 1)
    blocks = block_table[:requests, : -(-len(keys) // k.shape[1])].long()
    k, v = (x[blocks].flatten(1, 2)[:, : len(keys)].float() for x in (k, v))
    v = v.masked_fill((keys >= used[:, None])[:, :, None, None], 0.0)  # an unused slot may hold NaN; 0 * NaN is NaN
    query = q[place].float().view(requests, len(rows), -1, group, q.shape[2])
    scores = torch.einsum("bqhgd,bkhd->bhgqk", query, k) * softmax_scale
    visible = (keys < used[:, None])[:, None, :].expand(-1, len(rows), -1)
    if causal:
        last = (used - lengths)[:, None] + rows
        visible = visible & (keys <= last[:, :, None])
    scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - lse.unsqueeze(-1)).nan_to_num(0.0)
    result = torch.einsum("bhgqk,bkhd->bqhgd", weights, v).flatten(2, 3)
    out = torch.empty_like(q) if out is None else out
    out[place[live]] = result[live].to(out.dtype)
    if not return_softmax_lse:
        return out
    flat = torch.full((q.shape[1], q.shape[0]), float("-inf"), device=q.device)
    flat[:, place[live]] = lse.permute(0, 3, 1, 2).flatten(2)[live].T
    return out, flat


def attend_in_plain_torch() -> None:
    """FlashAttention's backend with its kernel replaced by the one above, which takes fp32: for an exact comparison."""
    from vllm.v1.attention.backends import fa_utils, flash_attn

    for module in (fa_utils, flash_attn):
        for name in list(vars(module)):
            if name in ("flash_attn_varlen_func", "_FA4_DENSE_ATTENTION_KERNEL"):
                setattr(module, name, flash_attn_varlen_func)
    flash_attn.FlashAttentionBackend.supported_dtypes = [torch.float16, torch.bfloat16, torch.float32]
    builder = flash_attn.FlashAttentionMetadataBuilder
    if hasattr(builder, "_get_scheduler_metadata"):
        builder._get_scheduler_metadata = lambda self, **_: None
    else:
        flash_attn.get_scheduler_metadata = lambda **_: None

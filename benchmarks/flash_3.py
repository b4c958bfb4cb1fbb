"""FlashAttention 3 of an installed vLLM, as its attention backend calls it, over a paged bf16 cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func, get_scheduler_metadata

SPLITS = 32  # what vLLM allows in its graphs


@dataclass(frozen=True)
class Call:
    """What the calls of a step have in common: B requests of `rows` query rows each.

    starts [B + 1] int32; table [B, blocks] int32; longest: the most keys that a request may have.
    """

    heads: int
    kv_heads: int
    size: int
    page: int
    rows: int
    longest: int
    starts: Tensor
    table: Tensor

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, keys: Tensor, causal: bool, schedule: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(out [T, Hq, D], lse [Hq, T]) over the first `keys` [B] of each request."""
        out, lse, *_ = flash_attn_varlen_func(
            q=query,
            k=key,
            v=value,
            cu_seqlens_q=self.starts,
            max_seqlen_q=self.rows,
            seqused_k=keys,
            max_seqlen_k=self.longest,
            softmax_scale=self.size**-0.5,
            causal=causal,
            block_table=self.table,
            return_softmax_lse=True,
            scheduler_metadata=self.schedule(keys, causal) if schedule is None else schedule,
            fa_version=3,
            num_splits=SPLITS,
        )
        return out, lse

    def schedule(self, keys: Tensor, causal: bool) -> Tensor:
        """Once a step for all layers."""
        made: Tensor = get_scheduler_metadata(
            batch_size=len(keys),
            max_seqlen_q=self.rows,
            max_seqlen_k=self.longest,
            num_heads_q=self.heads,
            num_heads_kv=self.kv_heads,
            headdim=self.size,
            cache_seqlens=keys,
            qkv_dtype=torch.bfloat16,
            cu_seqlens_q=self.starts,
            page_size=self.page,
            causal=causal,
            window_size=(-1, -1),
            num_splits=SPLITS,
        )
        return made

"""The engine benchmarks' attention in plain torch, against attention written out key by key."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from benchmarks.test_engine import ENGINE
from torch import Tensor

HEADS, KV_HEADS, SIZE, BLOCK = 4, 2, 8, 4


@pytest.fixture
def attend(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ENGINE.parent))
    from engine.flash import flash_attn_varlen_func

    return flash_attn_varlen_func


def by_hand(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """One request: q [R, Hq, D], k and v [K, Hkv, D] -> out [R, Hq, D], lse [Hq, R]."""
    out, lse = torch.zeros_like(q), torch.zeros(HEADS, len(q))
    for row in range(len(q)):
        keys = len(k) - (len(q) - 1 - row if causal else 0)
        for head in range(HEADS):
            own = head // (HEADS // KV_HEADS)
            scores = k[:keys, own] @ q[row, head] / math.sqrt(SIZE)
            lse[head, row] = scores.logsumexp(0)
            out[row, head] = scores.softmax(0) @ v[:keys, own]
    return out, lse


@pytest.mark.parametrize("causal", [True, False])
def test_every_request_attends_to_its_own_used_keys(attend: Any, causal: bool) -> None:
    """Not causal: the keys before a tree and its root, fewer than it has rows, too. Unused slots hold NaN."""
    generator = torch.Generator().manual_seed(0)
    rows, used = [5, 1, 3], [9, 4, 6] if causal else [2, 8, 1]
    table = torch.tensor([[7, 2, 5], [1, 0, 3], [4, 6, 0]], dtype=torch.int32)
    caches = torch.full((2, 8, BLOCK, KV_HEADS, SIZE), float("nan"))
    parts = []
    for number, length in enumerate(used):
        k, v = torch.randn(2, length, KV_HEADS, SIZE, generator=generator)
        for place in range(length):
            slot = int(table[number, place // BLOCK]), place % BLOCK
            caches[0][slot], caches[1][slot] = k[place], v[place]
        q = torch.randn(rows[number], HEADS, SIZE, generator=generator)
        parts.append((q, *by_hand(q, k, v, causal)))
    query = torch.cat([q for q, _, _ in parts])
    out = torch.full_like(query, 7.0)
    starts = torch.tensor([0, *rows]).cumsum(0).int()
    given = {"cu_seqlens_q": starts, "seqused_k": torch.tensor(used, dtype=torch.int32), "block_table": table}
    found, lse = attend(
        q=query, k=caches[0], v=caches[1], out=out, causal=causal, softmax_scale=SIZE**-0.5,
        return_softmax_lse=True, scheduler_metadata=None, fa_version=3, num_splits=0, **given,
    )  # fmt: skip
    assert found is out
    torch.testing.assert_close(out, torch.cat([o for _, o, _ in parts]))
    torch.testing.assert_close(lse, torch.cat([x for _, _, x in parts], 1))

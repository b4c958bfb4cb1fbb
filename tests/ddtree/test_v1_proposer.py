"""The V1 proposer beside a parent that makes its buffers as vLLM 0.20.1's DFlashProposer does."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

HORIZON = 15


class Parent:
    """Buffers of `v1/spec_decode/dflash.py`: as many rows as requests of 1 + K can have."""

    def __init__(self, vllm_config: Any, device: torch.device, runner: Any = None) -> None:
        self.device = device
        self.max_batch_size = vllm_config.scheduler_config.max_num_seqs
        self.max_query_tokens = self.max_batch_size * (1 + vllm_config.speculative_config.num_speculative_tokens)
        self.positions = torch.zeros(self.max_query_tokens, dtype=torch.int64, device=device)
        self._slot_mapping_buffer = torch.zeros(self.max_query_tokens, dtype=torch.int64, device=device)


@pytest.fixture
def proposer_class(monkeypatch: pytest.MonkeyPatch) -> Any:
    dflash = ModuleType("vllm.v1.spec_decode.dflash")
    dflash.DFlashProposer = Parent  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.spec_decode"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, dflash.__name__, dflash)
    monkeypatch.delitem(sys.modules, "specaudit.ddtree.v1.proposer", raising=False)
    if not torch.cuda.is_available():  # pinned memory needs a driver
        empty = torch.empty
        monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **k: empty(*a, **k))
    from specaudit.ddtree.v1.proposer import DDTreeProposer

    yield DDTreeProposer
    sys.modules.pop("specaudit.ddtree.v1.proposer", None)


@pytest.mark.parametrize(("requests", "budget"), [(30, 16), (7, 64), (32, 16), (1, 8)])
def test_padded_drafter_rows_have_room(proposer_class: Any, device: torch.device, requests: int, budget: int) -> None:
    """An engine of trees captures multiples of 1 + N, so the drafter's B * (1 + K) rows are padded to one of those."""
    length = 1 + budget
    sizes = range(length, 513, length)
    config = SimpleNamespace(
        additional_config={"ddtree": {"budget": budget, "max_batch": requests, "_horizon": HORIZON}},
        speculative_config=SimpleNamespace(num_speculative_tokens=budget),
        scheduler_config=SimpleNamespace(max_num_seqs=requests),
        compilation_config=SimpleNamespace(max_cudagraph_capture_size=sizes[-1]),
    )
    proposer = proposer_class(config, device)
    for batch in range(1, requests + 1):
        rows = batch * (1 + HORIZON)
        padded = next((size for size in sizes if size >= rows), rows)
        assert proposer.positions[:padded].shape == (padded,)
        assert proposer._slot_mapping_buffer[:padded].shape == (padded,)
    assert not proposer.positions.any()


def test_without_graphs_the_rows_are_the_parents(proposer_class: Any, device: torch.device) -> None:
    config = SimpleNamespace(
        additional_config={"ddtree": {"budget": 16, "max_batch": 4, "_horizon": HORIZON}},
        speculative_config=SimpleNamespace(num_speculative_tokens=16),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        compilation_config=SimpleNamespace(max_cudagraph_capture_size=None),
    )
    assert proposer_class(config, device).positions.shape == (4 * (1 + HORIZON),)

"""What the V2 speculator hands to the kernels, beside a parent that has the names vLLM 0.33.0 gives it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ddtree import stubs
from ddtree.test_v2_sampler import ENGINE

from specaudit.ddtree import reference
from specaudit.ddtree.engine.state import CHAIN, TREE, Step

NODES, HORIZON, SLOTS, VOCABULARY = 8, 4, 6, 32
GPU = "vllm.v1.worker.gpu"


class Parent:
    """What the hooks use of the engine's speculator."""

    def __init__(self, config: Any, device: torch.device) -> None:
        assert config.speculative_config.num_speculative_tokens == HORIZON  # built for the chain
        self.max_num_reqs, self.device = SLOTS, device
        self.draft_tokens = torch.zeros(SLOTS, HORIZON, dtype=torch.int64, device=device)
        self.query_cudagraph_manager: Any = None
        self.logits: Any = None

    def compute_draft_logits(self, hidden_states: torch.Tensor, _: int) -> Any:
        return self.logits


@pytest.fixture
def speculator(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> Iterator[Any]:
    contents = {f"{GPU}.{name}": held for name, held in ENGINE.items()}
    contents[f"{GPU}.spec_decode.dflash.speculator"] = {"DFlashSpeculator": Parent}
    contents["vllm.utils.torch_utils"] = {"async_tensor_h2d": None}
    stubs.install(monkeypatch, contents)
    modules = ("specaudit.ddtree.v2.sampler", "specaudit.ddtree.v2.speculator")
    for name in modules:
        monkeypatch.delitem(sys.modules, name, raising=False)
    from specaudit.ddtree.v2.speculator import DDTreeSpeculator

    config = SimpleNamespace(
        additional_config={"ddtree": {"budget": NODES, "max_batch": 4, "_horizon": HORIZON}},
        speculative_config=SimpleNamespace(
            num_speculative_tokens=NODES, num_speculative_tokens_per_batch_size=[(1, 4, NODES), (5, SLOTS, HORIZON)]
        ),
        num_speculative_tokens=NODES,
    )
    yield DDTreeSpeculator(config, device)
    for name in modules:
        sys.modules.pop(name, None)


def batch(slots: list[int], drafts: list[int], device: torch.device) -> Any:
    lengths = [n + 1 for n in drafts]
    starts = torch.tensor([0, *lengths]).cumsum(0).int().to(device)
    return SimpleNamespace(
        num_reqs=len(slots),
        idx_mapping=torch.tensor(slots, dtype=torch.int32, device=device),
        idx_mapping_np=np.array(slots),
        query_start_loc=starts,
        cu_num_logits=starts,
        input_ids=torch.arange(sum(lengths), dtype=torch.int32, device=device) + 100,
        positions=torch.arange(sum(lengths), device=device) + 7,
    )


def test_trees_and_chains_are_drafted_into_their_slots(speculator: Any, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(1)
    speculator.logits = torch.randn(2, HORIZON, VOCABULARY, generator=generator).to(device)
    hidden = torch.zeros(2 * HORIZON, 3, device=device)
    slots = torch.tensor([5, 2], device=device).repeat_interleave(HORIZON)
    greedy = speculator.logits.argmax(-1)
    given = batch([5, 2], [NODES, NODES], device)

    assert speculator.sample_draft(hidden, None, slots).view(2, HORIZON).tolist() == greedy.tolist()
    speculator._publish(given)
    tree = reference.build(speculator.logits.float().cpu(), NODES)
    assert speculator.node_tokens[:2].cpu().tolist() == tree.tokens[:, 1:].tolist()
    assert speculator.tree.chains[[5, 2]].tolist() == greedy.tolist()
    assert speculator.tree.slots.parents[[5, 2]].cpu().tolist() == tree.parents.tolist()
    assert speculator.tree.kinds[[5, 2, 0]].tolist() == [TREE, TREE, 0]

    speculator._choose(trees=False)
    speculator.draft_tokens[:2] = torch.randint(VOCABULARY, (2, HORIZON), generator=generator)
    speculator._publish(given)
    assert speculator.tree.chains[[5, 2]].tolist() == speculator.draft_tokens[:2].tolist()
    assert speculator.node_tokens[:2, :HORIZON].tolist() == speculator.draft_tokens[:2].tolist()
    assert speculator.tree.kinds[[5, 2, 0]].tolist() == [CHAIN, CHAIN, 0]


def test_rows_are_prepared_as_the_step_says(speculator: Any, device: torch.device) -> None:
    speculator.tree.chains[:] = torch.arange(SLOTS * HORIZON, device=device).view(SLOTS, HORIZON)
    computed = torch.full((SLOTS,), 30, dtype=torch.int32, device=device)
    prefill = torch.full((SLOTS,), 20, dtype=torch.int32, device=device)
    prefill[2] = 40  # still a prompt

    def prepared(step: Step | None) -> tuple[list[int], list[int]]:
        given = batch([5, 2], [NODES, NODES], device)
        speculator.tree.step = step
        speculator.prepare_rows(given, computed, prefill)
        return given.input_ids.tolist(), given.positions.tolist()

    ids, positions = prepared(None)
    assert prepared(Step(2, 18, tree=False)) == (ids, positions)
    chain = [100, 20, 21, 22, 23, 0, 0, 0, 0]
    assert prepared(Step(2, 18, tree=False, as_chains=True)) == ([*chain, *ids[9:]], positions)
    assert prepared(Step(2, 18, tree=True)) == (ids, [30] * 18)  # trees without nodes: every row is its root's

"""How the V2 sampler finds the target's tokens, beside a parent that has the names vLLM 0.33.0 gives it."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ddtree import stubs

from specaudit.ddtree import reference
from specaudit.ddtree.engine.settings import Settings
from specaudit.ddtree.engine.state import Step, TreeState

NODES, HORIZON, VOCABULARY, REQUESTS = 8, 4, 64, 2
ROWS = 1 + NODES


class Parent:
    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def _verify(self, *_: Any) -> str:
        return "the engine's own"


class Drawn(Exception):
    pass


def draws(*_: Any, **__: Any) -> Any:
    raise Drawn


ENGINE = {
    "input_batch": {"get_num_sampled_and_rejected": None},
    "metrics.logits": {"get_num_nans": None},
    "sample.gumbel": {"gumbel_sample": draws},
    "sample.output": {"SamplerOutput": SimpleNamespace},
    "sample.states": {"NO_LOGPROBS": -1},
    "spec_decode.rejection_sampler": {"get_max_chunk_logits": None, "RejectionSampler": Parent},
}


@pytest.fixture
def sampler_class(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    stubs.install(monkeypatch, {f"vllm.v1.worker.gpu.{name}": held for name, held in ENGINE.items()})
    monkeypatch.delitem(sys.modules, "specaudit.ddtree.v2.sampler", raising=False)
    from specaudit.ddtree.v2.sampler import TreeRejectionSampler

    yield TreeRejectionSampler
    sys.modules.pop("specaudit.ddtree.v2.sampler", None)


def sampler_at(sampler_class: Any, state: TreeState, temperatures: tuple[float, ...], process: Any) -> Any:
    """A sampler whose requests have these temperatures, by slot; another one's is 1."""
    states = SimpleNamespace(
        temperature=SimpleNamespace(np=np.array([*temperatures, 1.0], dtype=np.float32), gpu=None),
        seeds=SimpleNamespace(gpu=None),
    )
    return sampler_class(
        SimpleNamespace(apply_sampling_params=process, sampling_states=states, use_fp64_gumbel=False), state=state
    )


@pytest.mark.parametrize(
    ("temperatures", "processes", "drawn"), [((0, 0), False, False), ((0, 0.7), False, True), ((0, 0), True, True)]
)
def test_tokens_are_drawn_only_where_something_is_drawn_or_processed(
    sampler_class: Any, device: torch.device, temperatures: tuple[float, ...], processes: bool, drawn: bool
) -> None:
    generator = torch.Generator().manual_seed(3)
    trees = reference.build(4 * torch.randn(REQUESTS, HORIZON, VOCABULARY, generator=generator), NODES)
    state = TreeState(Settings(budget=NODES, max_batch=2, horizon=HORIZON), REQUESTS, device)
    for name, x in state.batch.tensors().items():
        x.copy_(trees.tensors()[name])
    state.step = Step(REQUESTS, REQUESTS * ROWS, True)
    tokens = trees.tokens.flatten().long()
    logits = torch.randn(REQUESTS * ROWS, VOCABULARY, generator=generator).to(torch.bfloat16)
    for row in range(REQUESTS * ROWS):  # the target agrees with every first child
        child = int(trees.first_child.flatten()[row])
        if child >= 0:
            logits[row, tokens[row // ROWS * ROWS + child]] = 9
    processed = (lambda x, *_: x.float()) if processes else (lambda x, *_: x)
    sampler = sampler_at(sampler_class, state, temperatures, processed)
    starts = torch.arange(REQUESTS + 1, dtype=torch.int32) * ROWS
    given = [None] * 5
    arguments = (
        logits.to(device), None, tokens.to(device), None, starts.to(device), torch.arange(REQUESTS, device=device),
        np.arange(REQUESTS), *given[:3], tokens.to(device),
    )  # fmt: skip
    if drawn:
        with pytest.raises(Drawn):
            sampler._verify(*arguments)
        return
    _, emitted, counts = sampler._verify(*arguments)
    expected = reference.walk(logits.float().argmax(-1), tokens, trees, starts)
    assert emitted.tolist() == expected.emitted.tolist()
    assert counts.tolist() == expected.num_emitted.tolist()
    assert int(counts.max()) > 2


def test_rows_without_logits_are_left_out(sampler_class: Any) -> None:
    """Of a prompt the last row has some. Where all rows have, they are read where they lie: padding is behind them."""
    from specaudit.ddtree.v2.sampler import with_logits

    batch = SimpleNamespace(input_ids=torch.arange(10, 18), positions=torch.arange(8) + 100, num_tokens=7)
    batch.logits_indices = torch.tensor([0, 1, 2, 6])
    assert [x.tolist() for x in with_logits(batch, 4)] == [[10, 11, 12, 16], [100, 101, 102, 106]]
    batch.num_tokens, batch.logits_indices = 6, torch.arange(6)
    ids, positions = with_logits(batch, 6)
    assert (ids.tolist(), positions.tolist()) == ([*range(10, 16)], [*range(100, 106)])
    assert ids.data_ptr() == batch.input_ids.data_ptr()


def test_trees_that_are_read_as_chains_are_drawn_as_trees_are(
    sampler_class: Any, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain that is accepted up to its second token, one cut to two drafts of which all are, a prompt's last row. So
    a seed's tokens do not hang on who else sends a prompt."""
    state = TreeState(Settings(budget=NODES, max_batch=2, horizon=HORIZON), 3, device)
    state.step = Step(2, 12, tree=False, as_chains=True)
    target = torch.tensor([5, 6, 40, 8, 0, 0, 0, 0, 0, 3, 4, 9, 7])
    tokens = torch.tensor([1, 5, 6, 7, 8, 0, 0, 0, 0, 1, 3, 4, 1])
    starts = torch.tensor([0, 9, 12, 13], dtype=torch.int32)
    module = sys.modules[sampler_class.__module__]
    arguments = (
        torch.zeros(13, VOCABULARY, device=device), None, tokens.to(device), None, starts.to(device),
        torch.arange(3, device=device), np.arange(3), None, None, None, tokens.to(device),
    )  # fmt: skip
    with pytest.raises(Drawn):
        sampler_at(sampler_class, state, (0.0, 0.7, 0.0), lambda x, *_: x)._verify(*arguments)
    monkeypatch.setattr(module, "gumbel_sample", lambda *_, **__: target.to(device))
    sampler = sampler_at(sampler_class, state, (0.0, 0.7, 0.0), lambda x, *_: x)
    _, emitted, counts = sampler._verify(*arguments)
    assert counts.tolist() == [3, 3, 1]
    assert [row[:n] for row, n in zip(emitted.tolist(), counts.tolist(), strict=True)] == [[5, 6, 40], [3, 4, 9], [7]]
    assert sampler._first == 3
    assert sampler_at(sampler_class, state, (0.0, 0.0, 0.0), draws)._verify(*arguments) == "the engine's own"
    state.step = Step(2, 12, tree=False)
    assert sampler_at(sampler_class, state, (0.7, 0.7, 0.7), draws)._verify(*arguments) == "the engine's own"

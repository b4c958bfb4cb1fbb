"""How the V2 sampler finds the target's tokens, beside a parent that has the names vLLM 0.33.0 gives it."""

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from specaudit.ddtree import reference
from specaudit.ddtree.engine.settings import Settings
from specaudit.ddtree.engine.state import Step, TreeState

NODES, HORIZON, VOCABULARY, REQUESTS = 8, 4, 64, 2
ROWS = 1 + NODES
ENGINE = {
    "input_batch": {"get_num_sampled_and_rejected": None},
    "metrics.logits": {"get_num_nans": None},
    "sample.gumbel": {"gumbel_sample": None},
    "sample.output": {"SamplerOutput": SimpleNamespace},
    "sample.states": {"NO_LOGPROBS": -1},
    "spec_decode.rejection_sampler": {"get_max_chunk_logits": None},
}


class Parent:
    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler


class Drawn(Exception):
    pass


def draws(*_: Any, **__: Any) -> Any:
    raise Drawn


@pytest.fixture
def sampler_class(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, contents in ENGINE.items():
        full = f"vllm.v1.worker.gpu.{name}"
        for i in range(1, full.count(".") + 1):
            parent = full.rsplit(".", i)[0]
            monkeypatch.setitem(sys.modules, parent, sys.modules.get(parent, ModuleType(parent)))
        module = ModuleType(full)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, full, module)
    vars(sys.modules["vllm.v1.worker.gpu.spec_decode.rejection_sampler"])["RejectionSampler"] = Parent
    vars(sys.modules["vllm.v1.worker.gpu.sample.gumbel"])["gumbel_sample"] = draws
    monkeypatch.delitem(sys.modules, "specaudit.ddtree.v2.sampler", raising=False)
    from specaudit.ddtree.v2.sampler import TreeRejectionSampler

    yield TreeRejectionSampler
    sys.modules.pop("specaudit.ddtree.v2.sampler", None)


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
    states = SimpleNamespace(
        temperature=SimpleNamespace(np=np.array([*temperatures, 1.0], dtype=np.float32), gpu=None),
        seeds=SimpleNamespace(gpu=None),
    )
    processed = (lambda x, *_: x.float()) if processes else (lambda x, *_: x)
    sampler = sampler_class(
        SimpleNamespace(apply_sampling_params=processed, sampling_states=states, use_fp64_gumbel=False), state=state
    )
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

"""The V1 sampler and its `min_tokens`, beside a parent that has the names vLLM 0.20.1 gives it."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from specaudit.ddtree import reference
from specaudit.ddtree.engine.settings import Settings
from specaudit.ddtree.engine.state import Step, TreeState
from specaudit.ddtree.v1.minimum import Minimums, idle, mask_stops

NODES, HORIZON, VOCABULARY, STOP, OTHER = 8, 4, 64, 7, 9


def request(min_tokens: int, *stops: int) -> SimpleNamespace:
    return SimpleNamespace(sampling_params=SimpleNamespace(min_tokens=min_tokens, all_stop_token_ids=set(stops)))


def test_stops_are_masked_where_too_few_tokens_stand_before(device: torch.device) -> None:
    """By a row's own position, whatever the order of the rows: siblings share a position."""
    minimums = Minimums(device)
    requests = {"a": request(3, STOP, OTHER), "b": request(0, STOP), "c": request(2, STOP)}
    prompts, computed = np.array([10, 10, 5]), np.array([11, 11, 5])
    pending = minimums.pending(["a", "b", "c"], requests, prompts, computed, 0)
    assert [b for b, _ in pending] == [0, 2]
    positions = torch.tensor([11, 12, 12, 13, 11, 5, 6], device=device)
    logits = torch.zeros(7, VOCABULARY, device=device)
    mask_stops(logits, positions, [4, 1, 2], pending)
    # a: tokens 10, 11 and 12 are the first three; a row at p yields token p + 1
    masked = [(row, int(token)) for row in range(7) for token in (logits[row] == float("-inf")).nonzero().flatten()]
    assert masked == [(0, STOP), (0, OTHER), (5, STOP)]


def test_a_minimum_is_learned_once_and_forgotten_with_its_request(device: torch.device) -> None:
    minimums = Minimums(device)
    requests = {"a": request(3, STOP)}
    assert minimums.pending(["a"], requests, np.array([10]), np.array([12]), 0)
    assert minimums.pending(["a"], {}, np.array([10]), np.array([12]), 0), "known already"
    assert not minimums.pending(["a"], {}, np.array([10]), np.array([13]), 0), "past it"
    assert minimums.pending(["a"], {}, np.array([10]), np.array([20]), 8), "drafts in flight count as computed"
    assert not minimums.pending([], {}, np.array([]), np.array([]), 0)
    assert not minimums.pending(["a"], {}, np.array([10]), np.array([0]), 0), "another request of that name"


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        (SimpleNamespace(min_toks={}), True),
        (SimpleNamespace(min_toks={0: 1}), False),
        (SimpleNamespace(biases={}), True),
        (SimpleNamespace(biases={0: {1: 2.0}}), False),
        (SimpleNamespace(is_enabled=False), True),
        (SimpleNamespace(is_enabled=True), False),
        (SimpleNamespace(), False),
    ],
)
def test_only_a_known_processor_without_work_is_idle(processor: Any, expected: bool) -> None:
    assert idle(processor) is expected


@dataclass
class Metadata:
    num_draft_tokens: list[int]
    cu_num_draft_tokens: torch.Tensor
    cu_num_sampled_tokens: torch.Tensor
    logits_indices: torch.Tensor


class Parent:
    is_processed_logprobs_mode = False

    def __init__(self, sampler: Any, spec_config: Any, device: torch.device) -> None:
        self.sampler = sampler

    def apply_logits_processors(self, logits: torch.Tensor, sampling: Any, metadata: Any) -> torch.Tensor:
        self.asked = metadata
        return logits


@pytest.fixture
def sampler_class(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    outputs, rejection = ModuleType("vllm.v1.outputs"), ModuleType("vllm.v1.sample.rejection_sampler")
    outputs.SamplerOutput = SimpleNamespace  # type: ignore[attr-defined]
    rejection.RejectionSampler = Parent  # type: ignore[attr-defined]
    rejection.GREEDY_TEMPERATURE = 0.0  # type: ignore[attr-defined]
    rejection.apply_sampling_constraints = lambda logits, *_: logits  # type: ignore[attr-defined]
    proposer = ModuleType("specaudit.ddtree.v1.proposer")
    proposer.DDTreeProposer = SimpleNamespace  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.sample"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for module in (outputs, rejection, proposer):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "specaudit.ddtree.v1.sampler", raising=False)
    from specaudit.ddtree.v1.sampler import TreeRejectionSampler

    yield TreeRejectionSampler
    sys.modules.pop("specaudit.ddtree.v1.sampler", None)


@pytest.mark.parametrize("min_tokens", [0, 4, 5, 6, 20])
def test_no_stop_token_is_emitted_before_min_tokens(sampler_class: Any, device: torch.device, min_tokens: int) -> None:
    """A tree whose longest path the target follows; the target would stop everywhere, its second choice is the path."""
    prompt, computed = 10, 13  # the root is the request's fourth token: a row at p yields token p + 1
    state = TreeState(Settings(budget=NODES, max_batch=2, horizon=HORIZON), 2, device)
    made = reference.build(torch.randn(1, HORIZON, VOCABULARY, generator=torch.Generator().manual_seed(1)), NODES)
    for name, x in state.batch.tensors().items():
        x[:1].copy_(made.tensors()[name])
    state.step = Step(1, 1 + NODES, True)
    tokens = made.tokens[0].to(device).int()
    positions = computed + made.depths[0].to(device)
    logits = torch.zeros(1 + NODES, VOCABULARY, device=device)
    logits[:, STOP] = 2
    child = made.first_child[0]
    for row in range(1 + NODES):  # the target goes on along first children, then says OTHER
        logits[row, tokens[child[row]] if child[row] >= 0 else OTHER] = 1
    runner = SimpleNamespace(
        input_ids=SimpleNamespace(gpu=tokens), positions=positions, requests={"a": request(min_tokens, STOP)},
        input_batch=SimpleNamespace(
            req_ids=["a"], num_prompt_tokens=np.array([prompt]), num_computed_tokens_cpu=np.array([computed])
        ),
    )  # fmt: skip
    sampler = sampler_class(None, None, device, SimpleNamespace(tree=state, runner=runner))
    metadata = Metadata(
        num_draft_tokens=[NODES],
        cu_num_draft_tokens=torch.tensor([NODES], dtype=torch.int32, device=device),
        cu_num_sampled_tokens=torch.tensor([1 + NODES], dtype=torch.int32, device=device),
        logits_indices=torch.arange(1 + NODES, device=device),
    )
    sampling = SimpleNamespace(
        all_greedy=True, no_penalties=True, bad_words_token_ids={}, allowed_token_ids_mask=None, max_num_logprobs=None,
        logitsprocs=SimpleNamespace(non_argmax_invariant=[SimpleNamespace(min_toks={})]),
    )  # fmt: skip
    emitted = [t for t in sampler.forward(metadata, None, logits, sampling).sampled_token_ids[0].tolist() if t >= 0]
    path, row = [], 0
    while child[row] >= 0:
        row = int(child[row])
        path.append(int(tokens[row]))
    before = computed + 1 - prompt  # tokens that the request has, the root counted
    free = max(0, min_tokens - before)  # so many more may not be the stop token
    assert emitted == [*path, OTHER][:free] + [STOP] * (free <= len(path))

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
from specaudit.ddtree.layout import Tree
from specaudit.ddtree.v1.minimum import Minimums, idle, mask_stops
from specaudit.ddtree.v1.noise import noise_of

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


def constrained(logits: torch.Tensor, ends: torch.Tensor, sampling: Any) -> torch.Tensor:
    """As the engine's, whose kernel fills the first 128 rows of a request."""
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    assert int(counts.max()) <= 128
    temperature = sampling.temperature.where(sampling.temperature != 0, 1.0).repeat_interleave(counts)
    logits = logits / temperature[:, None]
    if sampling.top_k is not None:
        least = logits.sort(descending=True).values.gather(1, sampling.top_k.repeat_interleave(counts)[:, None] - 1)
        logits = logits.masked_fill(logits < least, float("-inf"))
    return logits


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
    rejection.apply_sampling_constraints = constrained  # type: ignore[attr-defined]
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


PROMPT, COMPUTED = 10, 13  # the root is a request's fourth token: a row at p yields token p + 1


def make_sampler(sampler_class: Any, trees: list[Tree], min_tokens: int, device: torch.device) -> tuple[Any, Metadata]:
    """The sampler at a step of whole trees [1, R] each, and the step's metadata."""
    count, rows = len(trees), 1 + NODES
    state = TreeState(Settings(budget=NODES, max_batch=2, horizon=HORIZON), count, device)
    for b, tree in enumerate(trees):
        for name, x in state.batch.tensors().items():
            x[b].copy_(tree.tensors()[name][0])
    state.step = Step(count, count * rows, True)
    names = [f"r{b}" for b in range(count)]
    runner = SimpleNamespace(
        input_ids=SimpleNamespace(gpu=torch.cat([tree.tokens[0] for tree in trees]).to(device).int()),
        positions=COMPUTED + torch.cat([tree.depths[0] for tree in trees]).to(device),
        requests={name: request(min_tokens, STOP) for name in names},
        input_batch=SimpleNamespace(
            req_ids=names,
            num_prompt_tokens=np.full(count, PROMPT),
            num_computed_tokens_cpu=np.full(count, COMPUTED),
        ),
    )
    ends = torch.arange(1, count + 1, dtype=torch.int32, device=device)
    metadata = Metadata(
        num_draft_tokens=[NODES] * count,
        cu_num_draft_tokens=ends * NODES,
        cu_num_sampled_tokens=ends * rows,
        logits_indices=torch.arange(count * rows, device=device),
    )
    return sampler_class(None, None, device, SimpleNamespace(tree=state, runner=runner)), metadata


def sampling_of(**given: Any) -> SimpleNamespace:
    usual = {
        "all_greedy": True, "no_penalties": True, "bad_words_token_ids": {}, "allowed_token_ids_mask": None,
        "max_num_logprobs": None, "top_k": None, "top_p": None,
        "logitsprocs": SimpleNamespace(non_argmax_invariant=[SimpleNamespace(min_toks={})]),
    }  # fmt: skip
    return SimpleNamespace(**(usual | given))


def emitted_by(sampler: Any, metadata: Metadata, logits: torch.Tensor, sampling: Any) -> list[list[int]]:
    tokens = sampler.forward(metadata, None, logits, sampling).sampled_token_ids.tolist()
    return [[t for t in row if t >= 0] for row in tokens]


def on_cpu(tree: Tree) -> Tree:
    return Tree(**{name: x.cpu() for name, x in tree.tensors().items()}, horizon=tree.horizon)


def drawn_tree(seed: int) -> Tree:
    logits = torch.randn(1, HORIZON, VOCABULARY, generator=torch.Generator().manual_seed(seed))
    return reference.build(6 * logits, NODES)  # a few likely tokens: deep as well as broad


@pytest.mark.parametrize("min_tokens", [0, 4, 5, 6, 20])
def test_no_stop_token_is_emitted_before_min_tokens(sampler_class: Any, device: torch.device, min_tokens: int) -> None:
    """A tree whose longest path the target follows; the target would stop everywhere, its second choice is the path."""
    made = drawn_tree(1)
    sampler, metadata = make_sampler(sampler_class, [made], min_tokens, device)
    tokens, child = made.tokens[0], made.first_child[0]
    logits = torch.zeros(1 + NODES, VOCABULARY, device=device)
    logits[:, STOP] = 2
    for row in range(1 + NODES):  # the target goes on along first children, then says OTHER
        logits[row, tokens[child[row]] if child[row] >= 0 else OTHER] = 1
    [emitted] = emitted_by(sampler, metadata, logits, sampling_of())
    path, row = [], 0
    while child[row] >= 0:
        row = int(child[row])
        path.append(int(tokens[row]))
    before = COMPUTED + 1 - PROMPT  # tokens that the request has, the root counted
    free = max(0, min_tokens - before)  # so many more may not be the stop token
    assert emitted == [*path, OTHER][:free] + [STOP] * (free <= len(path))


def reordered(tree: Tree) -> tuple[Tree, list[int]]:
    """The same tree breadth first, and each new row's old row."""
    parents = tree.parents[0].tolist()
    old = sorted(range(1 + NODES), key=lambda row: (int(tree.depths[0, row]), -row))
    new = {row: place for place, row in enumerate(old)}
    moved = Tree(**{name: x.clone() for name, x in tree.tensors().items()}, horizon=HORIZON)
    for name in ("tokens", "depths", "ranks", "scores"):
        getattr(moved, name)[0] = getattr(tree, name)[0, old]
    moved.parents[0] = torch.tensor([new.get(parents[row], -1) for row in old])
    moved.parents[0, 0] = -1
    for name in ("first_child", "next_sibling"):
        links = getattr(tree, name)[0].tolist()
        getattr(moved, name)[0] = torch.tensor([new[links[row]] if links[row] >= 0 else -1 for row in old])
    reference.ancestor_mask(moved.parents, moved.ancestors)
    return moved, old


def test_a_seeded_request_gets_the_same_tokens_whatever_the_order_of_the_nodes(
    sampler_class: Any, device: torch.device
) -> None:
    lengths = []
    for seed in range(24):
        tree = drawn_tree(seed)
        moved, old = reordered(tree)
        assert old != list(range(1 + NODES))
        logits = torch.full((1 + NODES, VOCABULARY), -4.0, device=device)
        for row in range(1, 1 + NODES):  # every node is a likely child of its parent
            logits[int(tree.parents[0, row]), int(tree.tokens[0, row])] = 2
        found = []
        for one, order in ((tree, list(range(1 + NODES))), (moved, old)):
            sampler, metadata = make_sampler(sampler_class, [one, one], 0, device)
            generators = {0: seeded(seed, device)}
            sampling = sampling_of(all_greedy=False, temperature=torch.ones(2, device=device), generators=generators)
            found.append(emitted_by(sampler, metadata, logits[order].repeat(2, 1), sampling)[0])
        assert found[0] == found[1]
        lengths.append(len(found[0]))
    assert len(set(lengths)) > 2  # nothing, some and much was accepted


def test_drafts_that_are_no_tree_reject_and_break_nothing(sampler_class: Any, device: torch.device) -> None:
    """Behind a request without drafts, the engine's list of N tokens lies at N sequential positions, deeper than K."""
    sampler, metadata = make_sampler(sampler_class, [drawn_tree(1), drawn_tree(2)], 0, device)
    tree = sampler.proposer.tree
    tree.batch.num_rows[1] = 1
    tree.step = Step(1, 1 + NODES, True)
    sampler.proposer.runner.positions[1 + NODES :] = COMPUTED + torch.arange(1 + NODES, device=device)
    logits = torch.randn(2 * (1 + NODES), VOCABULARY, device=device)
    for generators in ({}, {0: seeded(1, device), 1: seeded(2, device)}):
        sampling = sampling_of(all_greedy=False, temperature=torch.ones(2, device=device), generators=generators)
        first, second = emitted_by(sampler, metadata, logits, sampling)
        assert len(first) >= 1
        assert len(second) == 1


def test_temperature_and_top_k_of_a_request_are_its_rows(sampler_class: Any, device: torch.device) -> None:
    """Cold draws the best token, top-1 as well; hot draws others."""
    trees = [drawn_tree(seed) for seed in range(3)]
    sampler, metadata = make_sampler(sampler_class, trees, 0, device)
    logits = torch.randn(3 * (1 + NODES), VOCABULARY, generator=torch.Generator().manual_seed(4)).to(device)
    sampling = sampling_of(
        all_greedy=False, temperature=torch.tensor([1e-4, 5.0, 5.0], device=device), generators={},
        top_k=torch.tensor([VOCABULARY, VOCABULARY, 1], device=device),
    )  # fmt: skip
    _, target = sampler._target_tokens(metadata, logits, sampling, [])
    best = (target == logits.argmax(-1)).view(3, 1 + NODES).all(-1)
    assert best.tolist() == [True, False, True]


def test_a_seeds_noise_belongs_to_the_position_whatever_the_steps(device: torch.device) -> None:
    vocabulary, depth = 1500, 3
    logits = torch.zeros(5, vocabulary, device=device)

    def drawn(seed: int, first: int) -> torch.Tensor:
        """Of a request that begins at that position, behind another one."""
        positions = torch.tensor([7, first, first + 1, first + 1, first + 2], device=device)
        return noise_of(logits, [1, 4], depth, positions, {1: seeded(seed, device)})[1]

    early, late, other = drawn(5, 40), drawn(5, 42), drawn(6, 40)
    assert torch.equal(early[2:], late[:2])
    assert len(torch.cat([early, other, late[2:]]).flatten().unique()) > 9 * vocabulary
    sample = early.flatten().sort().values.cpu()
    even = torch.arange(len(sample)) / len(sample)
    assert float((1 - torch.exp(-sample) - even).abs().max()) < 1.63 / len(sample) ** 0.5  # Kolmogorov, at 1 %
    assert float(sample.min()) > 0
    large = noise_of(logits, [1, 4], depth, torch.full((5,), 1 << 20, device=device), {1: seeded(2**63 + 5, device)})
    assert torch.isfinite(large).all()


def test_a_request_without_drafts_gets_the_engines_own_noise(device: torch.device) -> None:
    logits = torch.zeros(4, VOCABULARY, device=device)
    noise = noise_of(logits, [1, 3], HORIZON, torch.zeros(4, dtype=torch.int64, device=device), {0: seeded(3, device)})
    engines = torch.empty(1, VOCABULARY, device=device)
    engines[0].exponential_(generator=seeded(3, device))
    assert torch.equal(noise[0, 0], engines[0])


def seeded(seed: int, device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def test_sampled_tokens_follow_the_targets_distribution(sampler_class: Any, device: torch.device) -> None:
    """Noise that siblings share: the first two tokens together, drawn 4,000 times, against the exact chances."""
    tree = drawn_tree(5)
    draws, places = 4000, 1 + NODES
    logits = torch.randn(places, VOCABULARY, generator=torch.Generator().manual_seed(2)).to(device)
    for row in range(1, places):
        logits[int(tree.parents[0, row]), int(tree.tokens[0, row])] = 3
    chances = logits.softmax(-1)
    torch.manual_seed(11)
    sampler, metadata = make_sampler(sampler_class, [tree] * draws, 0, device)
    sampling = sampling_of(all_greedy=False, temperature=torch.ones(draws, device=device), generators={})
    _, target = sampler._target_tokens(metadata, logits.repeat(draws, 1), sampling, [])
    trees, starts = sampler.proposer.tree.batch, torch.arange(draws + 1) * places
    walked = reference.walk(target.cpu(), tree.tokens[0].repeat(draws), on_cpu(trees), starts)
    found = walked.emitted.tolist()
    children = {int(tree.tokens[0, row]): row for row in range(1, places) if int(tree.parents[0, row]) == 0}
    for token, row in children.items():
        expected = draws * float(chances[0, token])
        seen = [tokens for tokens in found if tokens[0] == token]
        assert abs(len(seen) - expected) < 5 * expected**0.5
        for other in tree.tokens[0, (tree.parents[0] == row).nonzero().flatten()].tolist():
            expected = len(seen) * float(chances[row, other])
            assert abs(sum(tokens[1] == other for tokens in seen) - expected) < 5 * expected**0.5 + 2

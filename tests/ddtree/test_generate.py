"""generate(): the tokens are the target's own, and every step accepts what a drafter without any cache would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ddtree import toy
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from specaudit.ddtree import reference
from specaudit.ddtree.dflash import DFlashConfig, DFlashDrafter
from specaudit.ddtree.generate import Generation, generate

VOCABULARY, HORIZON = 12, 4
TINY = DFlashConfig(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    block_size=1 + HORIZON,
    mask_token_id=3,
    target_layer_ids=(0, 2),
)
PROMPTS = [[5, 1, 4, 4, 9, 2, 7], [8], [11, 10, 0, 6, 1, 1, 2, 3, 5, 8, 9, 7, 2, 0, 4]]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small are slower on many threads, and much slower beside other test processes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tiny_target() -> Qwen3ForCausalLM:
    """Random weights, wide enough that the next token depends on the prefix, and few enough tokens to be guessed."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen3ForCausalLM(config).eval()


@pytest.fixture(scope="module")
def tiny_drafter() -> DFlashDrafter:
    torch.manual_seed(1)
    drafter = DFlashDrafter(TINY).eval()
    for name, parameter in drafter.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.4)
    return drafter


@torch.inference_mode()
def plain_greedy(target: Any, prompt: list[int], count: int) -> list[int]:
    """Without cache, drafter or tree: one full forward pass a token."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(target(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@torch.inference_mode()
def expected_steps(
    target: Any, drafter: DFlashDrafter, prompt: list[int], tokens: list[int], until: int, nodes: int
) -> list[int]:
    """Tokens each step must emit, given what the target says, found without any cache, mask or commit.

    `tokens` goes past `until` by a full step. Each step drafts anew from one causal pass over everything accepted.
    """
    sequence = prompt + tokens
    hidden = target(
        input_ids=torch.tensor([sequence], device=target.device), use_cache=False, output_hidden_states=True
    ).hidden_states
    features = torch.cat([hidden[i + 1][0] for i in drafter.config.target_layer_ids], -1)
    root, steps = len(prompt), []
    while root + 1 - len(prompt) < until:
        horizon = drafter.config.block_size - 1
        block = torch.tensor([sequence[root]] + [drafter.config.mask_token_id] * horizon, device=target.device)
        context = drafter.extend(drafter.empty_context(), features[:root])
        logits = target.get_output_embeddings()(drafter(target.get_input_embeddings()(block), context)[1:])
        following = sequence[root + 1 : root + 1 + horizon]
        accepted = chain_prefix(logits, following) if nodes == 0 else tree_prefix(logits, following, nodes)
        steps.append(accepted + 1)
        root += accepted + 1
    return steps


def chain_prefix(logits: Tensor, following: list[int]) -> int:
    drafted = logits.argmax(-1).tolist()
    matches = [a == b for a, b in zip(drafted, following, strict=True)]
    return matches.index(False) if False in matches else len(matches)


def tree_prefix(logits: Tensor, following: list[int], nodes: int) -> int:
    """How long a prefix of `following` is among the `nodes` most probable paths."""
    tree = reference.build(logits[None], nodes)
    children = {(int(tree.parents[0, row]), int(tree.tokens[0, row])): row for row in range(1, int(tree.num_rows))}
    row = 0
    for depth, token in enumerate(following):
        if (row, token) not in children:
            return depth
        row = children[row, token]
    return len(following)


@pytest.mark.parametrize("nodes", [0, 1, 6, 40])
@pytest.mark.parametrize("prompt", PROMPTS, ids=["7 tokens", "1 token", "15 tokens"])
def test_tokens_are_plain_greedy_and_steps_are_the_oracles(
    tiny_target: Qwen3ForCausalLM, tiny_drafter: DFlashDrafter, prompt: list[int], nodes: int
) -> None:
    plain = plain_greedy(tiny_target, prompt, 40 + HORIZON + 1)
    got = generate(tiny_target, tiny_drafter, prompt, 40, nodes=nodes)
    assert got.tokens == plain[:40]
    assert got.emitted == expected_steps(tiny_target, tiny_drafter, prompt, plain, 40, nodes)


def test_a_tree_accepts_more_than_the_chain(tiny_target: Qwen3ForCausalLM, tiny_drafter: DFlashDrafter) -> None:
    chain, small, large = (
        [generate(tiny_target, tiny_drafter, prompt, 40, nodes=nodes).acceptance_length for prompt in PROMPTS]
        for nodes in (0, 6, 40)
    )
    assert sum(chain) <= sum(small) <= sum(large)
    assert sum(large) > sum(chain) + 1


def test_sampling_is_lossless_position_by_position(tiny_target: Qwen3ForCausalLM, tiny_drafter: DFlashDrafter) -> None:
    """At temperature 1 the chain and every tree give the tokens of the same seed; another seed gives others."""
    chain, *trees = (
        generate(tiny_target, tiny_drafter, PROMPTS[0], 40, nodes=nodes, temperature=1.0, seed=3)
        for nodes in (0, 6, 40)
    )
    assert [tree.tokens for tree in trees] == [chain.tokens] * 2
    assert trees[1].acceptance_length > 1
    assert generate(tiny_target, tiny_drafter, PROMPTS[0], 40, temperature=1.0, seed=4).tokens != chain.tokens
    assert generate(tiny_target, tiny_drafter, PROMPTS[0], 40).tokens != chain.tokens


def test_stops_with_the_stop_token(tiny_target: Qwen3ForCausalLM, tiny_drafter: DFlashDrafter) -> None:
    plain = plain_greedy(tiny_target, PROMPTS[2], 30)
    token = plain[17]
    got = generate(tiny_target, tiny_drafter, PROMPTS[2], 30, nodes=20, stop={token})
    assert got.tokens == plain[: plain.index(token) + 1]


def test_last_layer_of_the_target_is_refused(tiny_target: Qwen3ForCausalLM) -> None:
    drafter = DFlashDrafter(
        DFlashConfig(**{n: getattr(TINY, n) for n in TINY.__slots__} | {"target_layer_ids": (0, 3)})
    )
    with pytest.raises(ValueError, match="last layer"):
        generate(tiny_target, drafter, PROMPTS[0], 8)


def write_checkpoint(folder: Path, drafter: DFlashDrafter, **changes: object) -> None:
    stored = {n: getattr(TINY, n) for n in TINY.__slots__ if n not in ("mask_token_id", "target_layer_ids")}
    stored["dflash_config"] = {"mask_token_id": 3, "target_layer_ids": [0, 2]}
    (folder / "config.json").write_text(json.dumps(stored | changes))
    weights = {name: tensor.clone() for name, tensor in drafter.state_dict().items()}
    names = sorted(weights)
    for i, part in enumerate((names[:5], names[5:])):
        save_file({name: weights[name] for name in part}, folder / f"model-{i}.safetensors")


def test_checkpoint_of_several_files_is_loaded(tmp_path: Path, tiny_drafter: DFlashDrafter) -> None:
    write_checkpoint(tmp_path, tiny_drafter)
    loaded = DFlashDrafter.load(tmp_path)
    assert loaded.config == TINY
    assert all(torch.equal(a, b) for a, b in zip(loaded.parameters(), tiny_drafter.parameters(), strict=True))


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_bias": True},
        {"layer_types": ["sliding_attention", "full_attention"]},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}},
    ],
)
def test_drafters_this_does_not_model_are_refused(
    tmp_path: Path, tiny_drafter: DFlashDrafter, changes: dict[str, object]
) -> None:
    write_checkpoint(tmp_path, tiny_drafter, **changes)
    with pytest.raises(ValueError, match="only plain rotary"):
        DFlashDrafter.load(tmp_path)


# ---- the toy pair ----


class Toy:
    def __init__(self, folder: Path, device: torch.device) -> None:
        self.target = AutoModelForCausalLM.from_pretrained(folder / "target", dtype=torch.float32).to(device).eval()
        self.drafter = DFlashDrafter.load(folder / "draft", device)
        self.prompts = [ids[:64] for ids in json.loads((folder / "holdout.json").read_text())]

    def generate(self, prompts: int, count: int, nodes: int) -> list[Generation]:
        return [generate(self.target, self.drafter, p, count, nodes=nodes) for p in self.prompts[:prompts]]


@pytest.fixture(scope="module")
def toy_pair(tmp_path_factory: pytest.TempPathFactory, device: torch.device) -> Toy:
    return Toy(toy.unpacked(tmp_path_factory.mktemp("toy")), device)


def acceptance_length(generations: list[Generation]) -> float:
    """Over all steps of all prompts."""
    steps = [n for generation in generations for n in generation.emitted]
    return sum(steps) / len(steps)


@pytest.mark.toy
def test_toy_steps_are_the_oracles(toy_pair: Toy) -> None:
    """A trained drafter accepts deep paths, where a wrong position, mask or commit costs acceptance and no token."""
    target, drafter, prompt, count = toy_pair.target, toy_pair.drafter, toy_pair.prompts[1], 40
    longer = generate(target, drafter, prompt, count + drafter.config.block_size).tokens
    for nodes in (0, 16, 64):
        got = generate(target, drafter, prompt, count, nodes=nodes)
        assert got.tokens == longer[:count]
        assert got.emitted == expected_steps(target, drafter, prompt, longer, count, nodes)
        assert max(got.emitted) >= 4


@pytest.mark.toy
@pytest.mark.long
def test_toy_acceptance_is_the_authors(toy_pair: Toy) -> None:
    """T = 0, fp32, 32 held-out prompts, 192 tokens: the authors' code, on the same pair, gave these figures."""
    published = {0: 2.740, 16: 3.397, 64: 3.876}
    chain = toy_pair.generate(32, 192, 0)
    for nodes, expected in published.items():
        generations = chain if nodes == 0 else toy_pair.generate(32, 192, nodes)
        got = acceptance_length(generations)
        print(f"N={nodes}: acceptance length {got:.3f}, expected {expected:.3f}")
        assert got == pytest.approx(expected, rel=0.015)
        assert [g.tokens for g in generations] == [g.tokens for g in chain]

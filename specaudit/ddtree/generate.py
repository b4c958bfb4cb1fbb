"""A Transformers target with a DFlash drafter, chain and tree, one request at a time: the oracle for acceptance.

Nothing here is fast: the tree is built, walked and committed by `reference.py`. Everything an engine does to be fast
must give these tokens and this acceptance. The target may be any causal language model of transformers whose attention
takes a mask and positions; transformers is imported where it is used.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import reference
from .dflash import DFlashDrafter
from .layout import Walk, uniform_row_starts, unpack_bits


@dataclass(frozen=True, slots=True)
class Generation:
    tokens: list[int]
    """The generated tokens, without the prompt."""
    emitted: list[int]
    """Tokens of every verification step: accepted + 1. The first token comes from the prompt's own pass, not from a
    step; the last step is counted whole, also where it went past the limit or a stop token."""

    @property
    def acceptance_length(self) -> float:
        """Tokens per verification step, tau in the papers."""
        return sum(self.emitted) / len(self.emitted)


@torch.inference_mode()
def generate(
    target: Any,
    drafter: DFlashDrafter,
    prompt: Sequence[int],
    max_new_tokens: int,
    *,
    nodes: int = 0,
    temperature: float = 0.0,
    seed: int = 0,
    stop: Collection[int] = (),
) -> Generation:
    """Generates after `prompt`, drafting a tree of `nodes` nodes in each step, or with 0 the chain of K.

    Above temperature 0 the target samples with noise that belongs to a position of the sequence (and `seed`), not to a
    step. A walk visits one node of each depth, so every position is drawn once from the target's own distribution, and
    the tokens are the same for the chain, for every tree and without speculation.

    Raises:
        ValueError: the drafter reads the target's last layer, whose hidden state Transformers returns normalised.
    """
    decoder = _Decoder(target, drafter.config.target_layer_ids)
    embed, head = target.get_input_embeddings(), target.get_output_embeddings()
    config = drafter.config
    horizon = config.block_size - 1
    device = embed.weight.device
    budgets = None if nodes else torch.zeros(1, dtype=torch.int32)
    rows = 1 + (nodes or horizon)
    row_starts = uniform_row_starts(1, rows, device)
    noise = _Noise(temperature, seed)
    masks = torch.full((horizon,), config.mask_token_id, device=device)

    ids = torch.tensor(prompt, device=device)
    logits, features = decoder.run(ids, torch.arange(len(ids), device=device), None)
    tokens = noise.pick(logits[-1:], [len(ids) - 1]).tolist()
    context = drafter.extend(drafter.empty_context(), features)
    emitted: list[int] = []
    while len(tokens) < max_new_tokens and not any(token in stop for token in tokens):
        start = (
            len(prompt) + len(tokens) - 1
        )  # position of the root: the last token, which no forward pass has seen yet
        root = ids.new_tensor(tokens[-1:])
        draft = head(drafter(embed(torch.cat([root, masks])), context)[1:])  # [K, V]
        tree = reference.build(draft[None], rows - 1, budgets=budgets)
        row_tokens = torch.cat([root, tree.tokens[0, 1:].to(device)])
        positions = start + tree.depths[0]
        logits, features = decoder.run(row_tokens, positions, unpack_bits(tree.ancestors[0], rows))
        walk = reference.walk(noise.pick(logits, positions.tolist()), row_tokens, tree, row_starts)
        new = walk.emitted[0, : int(walk.num_emitted)].tolist()
        decoder.commit(start, walk, row_starts)
        context = drafter.extend(context, reference.commit_rows(features, walk, row_starts)[: len(new)])
        tokens += new
        emitted.append(len(new))
    tokens = tokens[:max_new_tokens]
    stops = [i for i, token in enumerate(tokens) if token in stop]
    return Generation(tokens[: stops[0] + 1] if stops else tokens, emitted)


class _Decoder:
    """The target with its KV cache."""

    def __init__(self, target: Any, layer_ids: tuple[int, ...]) -> None:
        from transformers import DynamicCache

        if max(layer_ids) + 1 >= target.config.num_hidden_layers:
            raise ValueError(f"target_layer_ids {layer_ids} name the last layer of the target or one it does not have")
        self.target = target
        self.layer_ids = layer_ids
        self.cache: Any = DynamicCache()
        # Transformers 5.24 renamed the argument.
        known = inspect.signature(target.forward).parameters
        self.cache_argument = "cache" if "cache" in known else "past_key_values"

    def run(self, ids: Tensor, positions: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor]:
        """Rows [n] after the cache -> logits [n, V], features [n, layers * hidden].

        visible [n, n]: which of the new rows each row sees, all of them see the whole cache; None: causal.
        """
        mask = None
        if visible is not None:
            past = visible.new_ones(len(ids), self.cache.get_seq_length())
            mask = torch.cat([past, visible], 1)[None, None]
        out = self.target(
            input_ids=ids[None],
            position_ids=positions[None].long(),
            attention_mask=mask,
            output_hidden_states=True,
            use_cache=True,
            **{self.cache_argument: self.cache},
        )
        # hidden_states[0] is the embedding: the output of layer i stands at i + 1.
        return out.logits[0], torch.cat([out.hidden_states[i + 1][0] for i in self.layer_ids], -1)

    def commit(self, start: int, walk: Walk, row_starts: Tensor) -> None:
        """Moves the accepted rows, written from position `start` on, to the front and forgets the others."""
        for layer in self.cache.layers:
            for kept in (layer.keys, layer.values):  # [1, heads, S, head_size]
                reference.commit_rows(kept[0, :, start:].transpose(0, 1), walk, row_starts)
        rejected = self.cache.get_seq_length() - (start + 1 + int(walk.num_accepted))
        if rejected:
            self.cache.crop(-rejected)


class _Noise:
    """The target's choice at each row: argmax, or a sample by Gumbel noise that is a function of (seed, position)."""

    def __init__(self, temperature: float, seed: int) -> None:
        self.temperature = temperature
        self.seed = seed

    def pick(self, logits: Tensor, positions: list[int]) -> Tensor:
        """logits [n, V] of rows at `positions` -> tokens [n] int32."""
        if self.temperature > 0:
            noise = {position: self._gumbel(position, logits.shape[-1]) for position in set(positions)}
            logits = logits.float() / self.temperature + torch.stack([noise[p] for p in positions]).to(logits.device)
        return reference.greedy_tokens(logits)

    def _gumbel(self, position: int, size: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + position)
        return -torch.empty(size).exponential_(generator=generator).log()

"""Many steps of an engine in miniature, through the functions that its hooks call: requests come, go, reuse slots, skip
steps, and get their drafts cut, while every emitted token, KV row and drafter row is held against plain decoding.

The model is a hash of the tokens it sees. A KV row is the token and the position that were written there, so that a row
that was not moved, or moved wrongly, changes what the model says next.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from specaudit.ddtree import kernels, reference
from specaudit.ddtree.engine.commit import Commit
from specaudit.ddtree.engine.order import Addresses, ChainStarts, compact
from specaudit.ddtree.engine.rows import prepare, read_chains
from specaudit.ddtree.engine.settings import Settings
from specaudit.ddtree.engine.slots import scatter, write_chains
from specaudit.ddtree.engine.state import CHAIN, TREE, TreeState
from specaudit.ddtree.layout import Tree, Walk, unpack_bits

VOCABULARY, SLOTS, BLOCK, BLOCKS_EACH = 5, 4, 4, 16
PLACE = 1000  # a KV row holds token + PLACE * position


def following(tokens: list[int]) -> int:
    """The target's greedy token after these."""
    return sum((i % 7 + 3) * (token + 1) for i, token in enumerate(tokens[-6:])) % VOCABULARY


@dataclass
class Request:
    slot: int
    tokens: list[int]  # prompt and what was emitted; the last one is not in the cache
    prompt: int
    computed: int = 0
    drafts: list[int] = field(default_factory=list)


class Miniature:
    """One engine whose trees lie by request slot, as V2 keeps them."""

    def __init__(self, budget: int, horizon: int, device: torch.device, seed: int, mixed: str) -> None:
        self.device = device
        self.random = random.Random(seed)
        self.settings = Settings(budget=budget, max_batch=SLOTS, horizon=horizon, mixed=mixed)
        self.state = TreeState(self.settings, SLOTS, device)
        # [1 layer][blocks, heads, block size, 2 x head size], the packed layout of newer engines
        self.cache = torch.zeros(1 + SLOTS * BLOCKS_EACH, 1, BLOCK, 2, dtype=torch.int64, device=device)
        group = SimpleNamespace(layer_names=["target", "draft"])
        self.commit = Commit([group], {"target": SimpleNamespace(kv_cache=self.cache)}, {"draft"})
        self.requests: list[Request] = []
        self.addresses = Addresses()
        self.chain_starts = ChainStarts(SLOTS, self.state.batch.max_depth, device)
        self.accepted = 0
        self.accepted_as_chains = 0

    def arrive(self, slot: int) -> None:
        tokens = [self.random.randrange(VOCABULARY) for _ in range(self.random.randrange(2, 9))]
        self.requests.append(Request(slot, tokens, len(tokens)))
        self.state.void(slot, chain_only=self.random.random() < 0.2)

    def step(self) -> None:
        taken = {request.slot for request in self.requests}
        for slot in set(range(SLOTS)) - taken:
            if self.random.random() < 0.5:
                self.arrive(slot)
        batch = [r for r in self.requests if self.random.random() < 0.85] or self.requests[:1]
        if not batch:
            return
        drafts = [r.drafts if r.computed >= r.prompt else [] for r in batch]
        drafts = [d[: self.random.randrange(len(d) + 1)] if self.random.random() < 0.3 else d for d in drafts]
        new = [1 if r.computed >= r.prompt else self.random.randrange(1, r.prompt - r.computed + 1) for r in batch]
        order = sorted(range(len(batch)), key=lambda i: (not drafts[i], new[i] + len(drafts[i])))
        self.run([batch[i] for i in order], [drafts[i] for i in order], [new[i] for i in order])
        if self.random.random() < 0.25:
            self.requests.remove(self.random.choice(self.requests))

    def run(self, batch: list[Request], drafts: list[list[int]], new: list[int]) -> None:
        device, state = self.device, self.state
        lengths = np.array([n + len(d) for n, d in zip(new, drafts, strict=True)], dtype=np.int32)
        starts = torch.tensor([0, *lengths]).cumsum(0).int().to(device)
        slots = torch.tensor([r.slot for r in batch], device=device)
        tokens = [t for r, d, n in zip(batch, drafts, new, strict=True) for t in r.tokens[r.computed :][:n] + d]
        positions = [r.computed + i for r, n in zip(batch, lengths, strict=True) for i in range(n)]
        owners = [r.slot for r, n in zip(batch, lengths, strict=True) for _ in range(n)]
        mapping = [(1 + s * BLOCKS_EACH) * BLOCK + p for s, p in zip(owners, positions, strict=True)]
        slot_mapping = torch.tensor(mapping, device=device)
        places = torch.tensor(positions, device=device)

        uniform = int(lengths[0]) if len(set(lengths)) == 1 and all(drafts) else None
        view = SimpleNamespace(
            num_scheduled_tokens=lengths,
            num_draft_tokens_np=np.array([len(d) for d in drafts], dtype=np.int32) if any(drafts) else None,
            idx_mapping_np=np.array([r.slot for r in batch]),
            has_prefill=any(r.computed < r.prompt for r in batch),
        )
        state.begin_step(view, uniform)
        step = state.step
        assert step is not None
        computed, prefill = torch.zeros(2, SLOTS, dtype=torch.int32, device=device)
        for r in batch:
            computed[r.slot], prefill[r.slot] = r.computed, r.prompt
        if step.tree:
            prepare(state, places, slots, starts, computed, prefill, step.requests)
        if step.as_chains:
            ids = torch.tensor(tokens, dtype=torch.int32, device=device)
            logit_starts = torch.tensor([0, *(len(d) + 1 for d in drafts)]).cumsum(0).int().to(device)
            read_chains(state, ids, slots, starts, logit_starts, computed, prefill)
            tokens = ids.tolist()
            drafts = [tokens[e - len(d) : e] for d, e in zip(drafts, starts[1:].tolist(), strict=True)]

        # the forward pass: KV is written, every row says what it sees
        flat = self.cache.view(-1, 2)
        for row, token in enumerate(tokens):
            flat[mapping[row]] = token + PLACE * int(places[row])
        ancestors = unpack_bits(state.batch.ancestors.cpu(), 1 + state.nodes)
        content = flat[:, 0].tolist()
        target = torch.tensor([self.says(batch, lengths, ancestors, row, content) for row in range(len(tokens))])
        self.sample(batch, drafts, new, tokens, target.to(device), starts, slot_mapping, places, lengths)

    def says(
        self, batch: list[Request], lengths: np.ndarray, ancestors: torch.Tensor, row: int, content: list[int]
    ) -> int:
        """The model on what the row attends to: the request's context, then its ancestors, in order of position."""
        step = self.state.step
        assert step is not None
        b = int(np.searchsorted(np.cumsum(lengths), row, side="right"))
        own, request = row - int(lengths[:b].sum()), batch[b]
        first = (1 + request.slot * BLOCKS_EACH) * BLOCK
        seen = [first + p for p in range(request.computed)]
        if step.tree and b < step.requests:
            seen += [first + request.computed + j for j, bit in enumerate(ancestors[b, own].tolist()) if bit]
        else:
            seen += [first + request.computed + j for j in range(own + 1)]
        rows = sorted(divmod(content[s], PLACE) for s in seen)
        if [place for place, _ in rows] != list(range(len(rows))):
            return -7  # positions are not those of a path: an inert row, which nobody may ask
        return following([token for _, token in rows])

    def sample(
        self,
        batch: list[Request],
        drafts: list[list[int]],
        new: list[int],
        tokens: list[int],
        target: torch.Tensor,
        starts: torch.Tensor,
        slot_mapping: torch.Tensor,
        places: torch.Tensor,
        lengths: np.ndarray,
    ) -> None:
        state, step, device = self.state, self.state.step, self.device
        assert step is not None
        emitted: list[list[int]] = []
        rejected = torch.zeros(len(batch), dtype=torch.int32, device=device)
        logit_rows = [
            int(e) - 1 - len(d) + i for e, d in zip(starts[1:], drafts, strict=True) for i in range(len(d) + 1)
        ]
        logit_starts = torch.tensor([0, *(len(d) + 1 for d in drafts)]).cumsum(0).int().to(device)
        asked = target[logit_rows]
        ids = torch.tensor(tokens, device=device)[logit_rows]
        if step.tree:
            cut = Tree(**{n: x[: len(batch)] for n, x in state.batch.tensors().items()}, horizon=state.horizon)
            out = Walk(**{n: x[: len(batch)] for n, x in state.walk.tensors().items()})
            kernels.walk(asked, ids, cut, logit_starts, out)
            emitted = [out.emitted[b, : int(out.num_emitted[b])].tolist() for b in range(len(batch))]
        else:
            for b, d in enumerate(drafts):
                says = asked[int(logit_starts[b]) : int(logit_starts[b + 1])].tolist()
                count = next((i for i, token in enumerate(d) if token != says[i]), len(d))
                emitted.append([*d[:count], says[count]])
        for b, (r, n) in enumerate(zip(batch, new, strict=True)):
            if r.computed + n < r.prompt:
                emitted[b] = []  # a chunk of the prompt
            else:
                rejected[b] = len(drafts[b]) + 1 - len(emitted[b])
        if step.tree:
            self.commit.run(state, slot_mapping[None], starts[: step.requests + 1])
            self.check_chain_order(batch, emitted, tokens, places, starts, rejected, lengths, new)
        for b, r in enumerate(batch):
            before = list(r.tokens)
            for token in emitted[b]:
                assert token == following(r.tokens), "an emitted token is not the one that plain decoding emits"
                r.tokens.append(token)
            self.accepted += max(0, len(emitted[b]) - 1)
            self.accepted_as_chains += step.as_chains * max(0, len(emitted[b]) - 1)
            r.computed += new[b] + max(0, len(emitted[b]) - 1)
            first = (1 + r.slot * BLOCKS_EACH) * BLOCK
            kept = self.cache.view(-1, 2)[first : first + r.computed]
            wanted = torch.tensor([t + PLACE * p for p, t in enumerate(r.tokens[: r.computed])], device=device)
            assert torch.equal(kept[:, 0], wanted), f"KV after {before} + {emitted[b]}"
            assert torch.equal(kept[:, 1], wanted)
            if len(r.tokens) > BLOCK * BLOCKS_EACH - 2 * (2 + state.nodes):
                self.requests.remove(r)
        self.draft(batch)

    def check_chain_order(
        self,
        batch: list[Request],
        emitted: list[list[int]],
        tokens: list[int],
        places: torch.Tensor,
        starts: torch.Tensor,
        rejected: torch.Tensor,
        lengths: np.ndarray,
        new: list[int],
    ) -> None:
        """The drafter gets the rows of the path that was accepted, at sequential positions."""
        step = self.state.step
        assert step is not None
        hidden = torch.tensor(tokens, dtype=torch.float32, device=self.device)[:, None].repeat(1, 3)
        begins, on_device = self.chain_starts.of(
            lengths, step.requests, lambda values: torch.from_numpy(values).to(self.device)
        )
        order = compact(
            self.state, [hidden, hidden + 0.5], places, starts, rejected, step, begins, on_device, self.addresses
        )
        for b, r in enumerate(batch):
            valid = int(begins[b + 1] - begins[b]) - int(order.rejected[b])
            rows = slice(int(begins[b]), int(begins[b]) + valid)
            accepted = emitted[b][:-1] if b < step.requests else tokens[int(starts[b]) + 1 : int(starts[b]) + valid]
            expected = [tokens[int(starts[b])], *accepted]
            assert order.hidden[rows, 0].tolist() == expected
            assert order.hidden[rows, 3].tolist() == [token + 0.5 for token in expected]
            assert order.positions[rows].tolist() == [r.computed + i for i in range(valid)]

    def draft(self, batch: list[Request]) -> None:
        """New drafts for the batch: trees, or now and then the stock chain, as a policy by batch size would."""
        state, settings = self.state, self.settings
        logits = torch.randn(len(batch), settings.horizon, VOCABULARY)
        for b, r in enumerate(batch):
            path = list(r.tokens)
            for k in range(settings.horizon):
                path.append(following(path))
                logits[b, k, path[-1]] += 2.0
        slots = torch.tensor([r.slot for r in batch], device=self.device)
        chains = logits.argmax(-1).to(self.device)
        if self.random.random() < 0.25 and settings.budget != settings.horizon:
            ids = torch.empty_like(chains)
            write_chains(state, slots, chains, ids)
            state.kinds[[r.slot for r in batch]] = CHAIN
            for b, r in enumerate(batch):
                r.drafts = ids[b].tolist()
            state.step = None
            return
        proposed = reference.build(logits, state.nodes, budgets=state.budgets[slots].cpu())
        moved = {name: x.to(self.device) for name, x in proposed.tensors().items()}
        scatter(state, Tree(**moved, horizon=settings.horizon), chains, slots)
        state.kinds[[r.slot for r in batch]] = TREE
        for b, r in enumerate(batch):
            r.drafts = proposed.tokens[b, 1 : 1 + settings.budget].tolist()
        state.step = None


@pytest.mark.parametrize("mixed", ["chain", "tree"])
@pytest.mark.parametrize(("budget", "horizon"), [(6, 3), (3, 5), (4, 4)])
def test_many_steps_emit_what_plain_decoding_emits(device: torch.device, budget: int, horizon: int, mixed: str) -> None:
    engine = Miniature(budget, horizon, device, seed=budget, mixed=mixed)
    torch.manual_seed(budget)
    for _ in range(60 if device.type == "cuda" else 20):
        engine.step()
    assert engine.accepted > 5
    assert (engine.accepted_as_chains > 2) == (mixed == "chain")

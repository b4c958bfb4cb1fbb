"""The small kernels around the forward pass against the core's plain-torch reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specaudit.ddtree import reference
from specaudit.ddtree.engine.order import Addresses, ChainStarts, compact, path_rows
from specaudit.ddtree.engine.rows import prepare, read_chains
from specaudit.ddtree.engine.settings import Settings
from specaudit.ddtree.engine.slots import scatter, write_chains
from specaudit.ddtree.engine.state import Step, TreeState
from specaudit.ddtree.layout import Tree, Walk

NODES, HORIZON, SLOTS = 40, 5, 6  # 41 rows: two ancestor words


def state_with_trees(device: torch.device, horizon: int = HORIZON) -> TreeState:
    """Every slot holds a random tree of its own size."""
    settings = Settings(budget=NODES, max_batch=4, horizon=horizon)
    state = TreeState(settings, SLOTS, device)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(SLOTS, horizon, 50, generator=generator)
    budgets = torch.tensor([NODES, 7, 0, 33, 1, 20], dtype=torch.int32)
    tree = reference.build(logits, state.nodes, budgets=budgets)
    chains = logits.argmax(-1).to(device)
    scatter(state, on(tree, device), chains, torch.arange(SLOTS, device=device))
    return state


def on(tree: Tree, device: torch.device) -> Tree:
    return Tree(**{name: x.to(device) for name, x in tree.tensors().items()}, horizon=tree.horizon)


def cpu(tree: Tree) -> Tree:
    return on(tree, torch.device("cpu"))


LINKS = ("parents", "depths", "first_child", "next_sibling", "ancestors", "num_rows")


def test_scatter_puts_each_tree_into_its_slot_and_skips_padding(device: torch.device) -> None:
    state = state_with_trees(device)
    before = cpu(state.slots).tensors()
    tree = on(reference.build(torch.randn(2, HORIZON, 30), NODES), device)
    ids = torch.randint(30, (2, HORIZON, 3), device=device)  # the engine's table: a chain is a strided view of it
    chains = state.chains.clone()
    scatter(state, tree, ids[:, :, 0], torch.tensor([4, -1], device=device))
    chains[4] = ids[0, :, 0]
    assert torch.equal(state.chains, chains)
    after = cpu(state.slots)
    for name in LINKS:
        assert torch.equal(getattr(after, name)[4], cpu(tree).tensors()[name][0]), name
        others = [0, 1, 2, 3, 5]
        assert torch.equal(getattr(after, name)[others], before[name][others]), name


@pytest.mark.parametrize("cut", [1, 2, NODES, NODES + 1])
def test_prepare_equals_stage_and_depth_positions(device: torch.device, cut: int) -> None:
    state = state_with_trees(device)
    slots = torch.tensor([3, 0, 5, 2])  # the last two are no trees: a prompt chunk of 9 rows, a single decode row
    lengths = torch.tensor([cut, NODES + 1, 9, 1])
    row_starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int()
    computed = torch.tensor([100, 101, 102, 103, 104, 105], dtype=torch.int32)
    prefill = torch.tensor([50, 50, 50, 50, 50, 200], dtype=torch.int32)
    sequential = torch.cat([computed[s] + torch.arange(n) for s, n in zip(slots, lengths, strict=True)]).long()
    positions = sequential.clone().to(device)
    args = (slots.to(device), row_starts.to(device), computed.to(device), prefill.to(device))
    prepare(state, positions, *args, tree_requests=2)

    trees = Tree.empty(2, NODES, HORIZON, "cpu", torch.int64)
    reference.stage(cpu(state.slots), slots[:2], row_starts[:3], trees)
    expected = reference.write_positions(sequential.clone(), trees, row_starts[:3])
    assert torch.equal(positions.cpu(), expected)
    batch = cpu(state.batch)
    for name in LINKS:
        assert torch.equal(getattr(batch, name)[:2], getattr(trees, name)), name
    assert batch.num_rows.tolist() == [trees.num_rows[0], trees.num_rows[1], 1, 1, 0, 0]
    assert state.context_lens.tolist() == [104, 101, 0, 0, 0, 0]  # the root counted in
    own = Tree.empty(1, NODES, HORIZON, "cpu").ancestors[0]
    assert all(torch.equal(batch.ancestors[b], own) for b in range(2, SLOTS))


def test_prepare_by_rows_of_the_step_before(device: torch.device) -> None:
    """V1: trees lie where the step before left them; a request without one is a chain of its own rows."""
    state = state_with_trees(device)
    rows = NODES + 1
    previous = torch.tensor([3, -1, 0])
    row_starts = torch.arange(0, 4 * rows, rows, dtype=torch.int32)
    computed = torch.tensor([70, 80, 90], dtype=torch.int32)
    sequential = torch.cat([n + torch.arange(rows) for n in computed]).long()
    positions = sequential.clone().to(device)
    prepare(state, positions, previous.to(device), row_starts.to(device), computed.to(device), None, 3)
    trees = Tree.empty(3, NODES, HORIZON, "cpu", torch.int64)
    reference.stage(cpu(state.slots), previous, row_starts, trees)
    batch = cpu(state.batch)
    for name in LINKS:
        expected, got = getattr(trees, name), getattr(batch, name)
        assert torch.equal(got[[0, 2]], expected[[0, 2]]), name
    assert batch.num_rows.tolist() == [trees.num_rows[0], rows, trees.num_rows[2], 0, 0, 0]
    assert batch.parents[1].tolist() == list(range(-1, NODES))
    assert batch.first_child[1].tolist() == [*range(1, rows), -1]
    causal = reference.ancestor_mask(batch.parents[1:2], torch.empty_like(batch.ancestors[1:2]))
    assert torch.equal(batch.ancestors[1:2], causal)
    assert torch.equal(positions[rows : 2 * rows].cpu(), sequential[rows : 2 * rows])
    assert state.context_lens.tolist() == [71, 81, 91, 0, 0, 0]


def test_prepare_rejects_placeholders_of_an_unfinished_prompt(device: torch.device) -> None:
    state = state_with_trees(device)
    row_starts = torch.tensor([0, NODES + 1], dtype=torch.int32, device=device)
    positions = torch.arange(NODES + 1, device=device) + 7
    computed = torch.full((SLOTS,), 7, dtype=torch.int32, device=device)
    prefill = torch.full((SLOTS,), 8, dtype=torch.int32, device=device)  # one prompt token is still missing
    prepare(state, positions, torch.tensor([0], device=device), row_starts, computed, prefill, 1)
    assert state.batch.num_rows[0] == 1
    assert state.batch.first_child[0].tolist() == [-1] * (NODES + 1)


@pytest.mark.parametrize("horizon", [1, HORIZON, NODES, NODES + 9])
def test_write_chains_is_a_chain_shaped_tree(device: torch.device, horizon: int) -> None:
    state = state_with_trees(device, horizon=horizon)
    kept = state.chains[[0, *range(2, SLOTS)]].clone()
    tokens = torch.randint(50, (2, horizon), device=device)
    ids = torch.full((3, horizon + 2), -7, device=device)
    write_chains(state, torch.tensor([1, -1], device=device), tokens, ids)
    assert torch.equal(ids[:2, :horizon], tokens)
    assert (ids[2] == -7).all()
    assert (ids[:, horizon:] == -7).all()
    assert torch.equal(state.chains[1], tokens[0])
    assert torch.equal(state.chains[[0, *range(2, SLOTS)]], kept)
    tree = cpu(state.slots)
    n = horizon
    assert tree.num_rows[1] == n + 1
    assert tree.parents[1].tolist() == [*range(-1, n), *[-1] * (state.nodes - n)]
    assert tree.depths[1].tolist() == [*range(n + 1), *[0] * (state.nodes - n)]
    assert tree.first_child[1].tolist() == [*range(1, n + 1), *[-1] * (state.nodes + 1 - n)]
    assert tree.next_sibling[1].tolist() == [-1] * (state.nodes + 1)
    expected = reference.ancestor_mask(tree.parents[1:2], torch.empty_like(tree.ancestors[1:2]))
    assert torch.equal(tree.ancestors[1:2], expected)


def test_read_chains_puts_the_greedy_chain_in_place_of_the_nodes(device: torch.device) -> None:
    """A whole tree, one cut to two drafts, a prompt, placeholders of an unfinished prompt, and drafts behind those."""
    state = state_with_trees(device)
    lengths = [NODES + 1, 3, 6, NODES + 4, 5]
    drafts = [NODES, 2, 0, NODES, 4]
    slots = [4, 0, 5, 2, 3]
    row_starts = torch.tensor([0, *lengths]).cumsum(0)
    logit_starts = torch.tensor([0, *(n + 1 for n in drafts)]).cumsum(0)
    computed = torch.tensor([50, 90, 47, 90, 90, 10], dtype=torch.int32)  # slot 0 decodes for the first time
    prefill = torch.full((SLOTS,), 50, dtype=torch.int32)
    ids = torch.arange(1000, 1000 + sum(lengths), dtype=torch.int32)
    got = ids.to(device)
    moved = [torch.tensor(slots), row_starts.int(), logit_starts.int(), computed, prefill]
    read_chains(state, got, *(x.to(device) for x in moved))
    for slot, end, n in zip(slots, row_starts[1:].tolist(), drafts, strict=True):
        if slot != 2:
            ids[end - n : end] = torch.tensor([*state.chains[slot].tolist(), *[0] * NODES][:n])
    assert torch.equal(got.cpu(), ids)


def test_compact_gives_accepted_rows_in_chain_order(device: torch.device) -> None:
    state = state_with_trees(device)
    row_starts = torch.tensor([0, 41, 82, 85], dtype=torch.int32)  # two trees, then three prompt rows
    accepted = [[4, 9, 17], []]
    walk = state.walk
    for b, rows in enumerate(accepted):
        walk.accepted[b].fill_(-1)
        walk.accepted[b, : len(rows)] = torch.tensor(rows, dtype=torch.int32)
        walk.num_accepted[b] = len(rows)
    hidden = [torch.randn(90, 10, device=device) for _ in range(3)]
    positions = torch.cat([torch.full((41,), 100), torch.full((41,), 200), torch.arange(300, 303)]).to(device)
    rejected = torch.tensor([37, 40, 1], dtype=torch.int32, device=device)
    starts, new_starts = chain_starts(device).of(np.array([41, 41, 3]), 2, lambda x: torch.from_numpy(x).to(device))
    assert starts.tolist() == new_starts.tolist() == [0, 6, 12, 15]
    step = Step(2, 82, True)
    order = compact(state, hidden, positions, row_starts.to(device), rejected, step, starts, new_starts, Addresses())
    side_by_side = torch.cat(hidden, 1).cpu()
    kept = Walk(*(x[:2].cpu() for x in walk.tensors().values()))
    expected = torch.zeros(2, 1 + HORIZON, 30)
    reference.commit_rows(side_by_side, kept, row_starts[:3], expected)
    out = order.hidden.cpu()
    assert torch.equal(out[:4], expected[0, :4])
    assert torch.equal(out[6:7], expected[1, :1])
    assert torch.equal(out[12:15], side_by_side[82:85])
    assert order.positions.tolist() == [*range(100, 106), *range(200, 206), 300, 301, 302]
    assert order.rejected.tolist() == [5 - 3, 5, 1]


def chain_starts(device: torch.device) -> ChainStarts:
    return ChainStarts(SLOTS, HORIZON, device)


@pytest.mark.parametrize(
    ("lengths", "trees", "expected"),
    [
        ([41], 1, [0, 6]),
        ([41, 41, 41], 3, [0, 6, 12, 18]),
        ([41, 7, 6], 3, [0, 6, 12, 18]),  # cut, and still deep enough
        ([41, 5, 2], 3, [0, 6, 11, 13]),
        ([41, 41], 1, [0, 6, 47]),  # a prompt of just as many rows keeps them all
        ([3], 0, [0, 3]),
    ],
)
def test_row_starts_of_whole_trees_are_not_uploaded(
    lengths: list[int], trees: int, expected: list[int], device: torch.device
) -> None:
    uploads = []

    def upload(values: np.ndarray) -> torch.Tensor:
        uploads.append(values)
        return torch.from_numpy(values).to(device)

    starts, on_device = chain_starts(device).of(np.array(lengths), trees, upload)
    assert starts.tolist() == on_device.tolist() == expected
    assert len(uploads) == (trees < len(lengths) or min(lengths) <= HORIZON)


def test_path_rows_permutes_logits_rows_by_the_accepted_path(device: torch.device) -> None:
    accepted = torch.tensor([[2, 5, -1], [-1, -1, -1]], dtype=torch.int32, device=device)
    row_starts = torch.tensor([0, 6, 8], dtype=torch.int32, device=device)
    assert path_rows(accepted, row_starts, 8).tolist() == [0, 2, 5, 3, 4, 5, 6, 7]


def test_a_chain_longer_than_the_trees_of_its_batch_is_verified_to_its_end(device: torch.device) -> None:
    """N < K: a request drafted a chain of K while the batch was large, its neighbours draft trees of N."""
    state = TreeState(Settings(budget=3, max_batch=4, horizon=HORIZON), SLOTS, device)
    logits = torch.randn(2, HORIZON, 50, generator=torch.Generator().manual_seed(1))
    tree = reference.build(logits, state.nodes, budgets=torch.tensor([3, 3], dtype=torch.int32))
    tokens = torch.zeros(3, state.horizon, dtype=torch.int64, device=device)
    scatter(state, on(tree, device), tokens[:2], torch.tensor([0, 1], device=device))
    write_chains(state, torch.tensor([2], device=device), tokens[2:], torch.empty_like(tokens))
    row_starts = torch.tensor([0, 4, 4 + 1 + HORIZON], dtype=torch.int32, device=device)
    positions = torch.cat([10 + torch.arange(4), 20 + torch.arange(1 + HORIZON)]).to(device)
    computed = torch.tensor([10, 0, 20, 0, 0, 0], dtype=torch.int32, device=device)
    prefill = torch.full((SLOTS,), 5, dtype=torch.int32, device=device)
    prepare(state, positions, torch.tensor([0, 2], device=device), row_starts, computed, prefill, 2)
    assert state.batch.num_rows[:2].tolist() == [4, 1 + HORIZON]
    assert positions[4:].tolist() == list(range(20, 21 + HORIZON))
    assert state.batch.parents[1].tolist() == list(range(-1, HORIZON))

"""Walk: acceptance, the emitted tokens, and their distribution; positions and batch order."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from ddtree.cases import (
    assert_same,
    budgets_of,
    generator,
    on,
    poisoned_tree,
    poisoned_walk,
    random_logits,
    random_table,
    seeds,
)
from hypothesis import example, given
from hypothesis import strategies as st

from specaudit.ddtree import kernels, reference
from specaudit.ddtree.layout import Tree, Walk, uniform_row_starts, unpack_bits

VOCABULARY = 6


class Step:
    """A batch of trees of different sizes in a flat batch that is cut differently for each request."""

    def __init__(self, seed: int, batch: int, horizon: int, nodes: int, agreement: float, cut: bool) -> None:
        g = generator(seed)
        table = random_table(seed, batch, horizon, nodes, False, VOCABULARY)
        self.tree = reference.best_first(table, budgets_of(seed, batch, nodes))
        scheduled = self.tree.num_rows.clone()
        if cut:  # fewer rows than the tree has, more (an engine pads), or none
            scheduled = torch.randint(0, nodes + 2, (batch,), generator=g)
        self.row_starts = torch.zeros(batch + 1, dtype=torch.int32)
        self.row_starts[1:] = scheduled.cumsum(0)
        rows = int(self.row_starts[-1])
        self.tokens = torch.zeros(rows, dtype=torch.int32)
        self.target = torch.randint(-1, VOCABULARY, (rows,), generator=g, dtype=torch.int32)
        for b in range(batch):
            start, stop = self.row_starts[b], self.row_starts[b + 1]
            self.tokens[start:stop] = self.tree.tokens[b, : stop - start]
            for row in range(1, min(int(stop - start), int(self.tree.num_rows[b]))):
                if torch.rand((), generator=g) < agreement:  # the target agrees with this child
                    self.target[start + self.tree.parents[b, row]] = self.tokens[start + row]
            if stop - start > 1 and torch.rand((), generator=g) < 0.3:
                self.tokens[start + 1 + int(torch.randint(0, int(stop - start) - 1, (), generator=g))] = -1


def run_walk(step: Step, device: torch.device, dtype: torch.dtype = torch.int32) -> Walk:
    out = Walk.empty(step.tree.batch, step.tree.max_depth, device, dtype)
    for x in out.tensors().values():
        x.fill_(7)
    target, tokens = (x.to(device, dtype) for x in (step.target, step.tokens))
    return kernels.walk(target, tokens, on(step.tree, device), step.row_starts.to(device), out)


@given(
    seed=seeds,
    batch=st.integers(1, 4),
    horizon=st.integers(1, 6),
    nodes=st.integers(1, 40),
    agreement=st.sampled_from([0.0, 0.5, 0.9]),
    cut=st.booleans(),
)
@example(seed=0, batch=1, horizon=1, nodes=1, agreement=0.9, cut=False)
@example(seed=1, batch=4, horizon=3, nodes=33, agreement=0.9, cut=True)
def test_walk_is_the_reference_walk(device, seed, batch, horizon, nodes, agreement, cut) -> None:
    step = Step(seed, batch, horizon, nodes, agreement, cut)
    expected = reference.walk(step.target, step.tokens, step.tree, step.row_starts)
    assert_same(run_walk(step, device), expected)
    assert_same(run_walk(step, device, torch.int64), reference.walk(
        step.target.long(), step.tokens.long(), step.tree, step.row_starts
    ))  # fmt: skip


@pytest.mark.parametrize(("nodes", "horizon"), [(7, 3), (64, 15), (512, 32)])
def test_all_accepted_and_all_rejected(device, nodes, horizon) -> None:
    table = random_table(0, 2, horizon, nodes, False, 600)
    tree = reference.best_first(table, spine=horizon)
    row_starts = uniform_row_starts(2, nodes + 1, "cpu")
    tokens = tree.tokens.flatten()
    target = torch.full_like(tokens, 599_999)
    for row in range(min(horizon, nodes)):
        target[row] = tokens[row + 1]  # request 0 accepts its spine whole, request 1 nothing
    walk = kernels.walk(target.to(device), tokens.to(device), on(tree, device), row_starts.to(device))
    depth = min(horizon, nodes)
    assert walk.num_accepted.tolist() == [depth, 0]
    assert walk.num_emitted.tolist() == [depth + 1, 1]
    assert walk.accepted[0].tolist() == list(range(1, depth + 1))
    assert walk.emitted[0].tolist() == [*tokens[1 : depth + 1].tolist(), 599_999]
    assert walk.emitted[1].tolist() == [599_999] + [-1] * depth
    assert_same(walk, reference.walk(target, tokens, tree, row_starts))


def test_minus_one_matches_nothing_not_even_minus_one(device) -> None:
    tree = reference.best_first(random_table(0, 1, 3, 6, False, 9))
    row_starts = uniform_row_starts(1, 7, device)
    minus = torch.full((7,), -1, dtype=torch.int32, device=device)
    walk = kernels.walk(minus, minus, on(tree, device), row_starts)
    assert walk.num_accepted.tolist() == walk.num_emitted.tolist() == [0]
    assert (walk.emitted == -1).all()


def test_siblings_that_share_a_token_still_give_a_path_the_target_agrees_with(device) -> None:
    tree = reference.best_first(random_table(3, 1, 4, 30, False, 9))
    tokens = torch.zeros(31, dtype=torch.int32)  # a stale slot: every node carries token 0
    target = torch.zeros(31, dtype=torch.int32)
    walk = kernels.walk(target.to(device), tokens.to(device), on(tree, device), uniform_row_starts(1, 31, device))
    count = int(walk.num_accepted[0])
    path = [0, *walk.accepted[0, :count].tolist()]
    assert count == tree.depths.max()
    assert [int(tree.parents[0, row]) for row in path[1:]] == path[:-1]
    assert walk.emitted[0, : count + 1].tolist() == [0] * (count + 1)


@given(seed=seeds, horizon=st.integers(1, 20), nodes=st.integers(1, 33), agreement=st.sampled_from([0.0, 0.7, 0.95]))
def test_a_chain_shaped_tree_is_the_linear_strict_walk(device, seed, horizon, nodes, agreement) -> None:
    """Bit for bit, kernels and references all four."""
    g = generator(seed)
    tree = reference.best_first(
        random_table(seed, 3, horizon, nodes, False, 30), torch.tensor([0, 0, -1], dtype=torch.int32)
    )
    depth = tree.max_depth
    row_starts = torch.tensor([0, depth + 1, depth + 1 + depth // 2 + 1, 2 * depth + 3], dtype=torch.int32)
    tokens = torch.randint(0, VOCABULARY, (2 * depth + 3,), generator=g, dtype=torch.int32)
    agrees = torch.rand(tokens.shape, generator=g) < agreement
    target = torch.where(agrees, tokens.roll(-1), torch.randint(-1, VOCABULARY, tokens.shape, generator=g)).int()
    expected = reference.linear_walk(target, tokens, row_starts, depth, tree.num_rows)
    assert_same(reference.walk(target, tokens, tree, row_starts), expected)
    flat = [x.to(device) for x in (target, tokens, row_starts, tree.num_rows)]
    linear = kernels.linear_walk(*flat[:3], depth, flat[3], poisoned_walk(3, depth, device))
    assert_same(linear, expected)
    assert_same(kernels.walk(*flat[:2], on(tree, device), flat[2], poisoned_walk(3, depth, device)), expected)


# ---- from logits ----


@given(seed=seeds, vocabulary=st.integers(1, 80), kind=st.sampled_from(["smooth", "ties", "holes"]))
@example(seed=0, vocabulary=20_000, kind="ties")
@example(seed=0, vocabulary=33_000, kind="smooth")
def test_greedy_walk_is_argmax_then_walk(device, seed, vocabulary, kind) -> None:
    step = Step(seed, 3, 3, 9, 0.0, True)
    rows = step.target.shape[0]
    for dtype in (torch.float32, torch.bfloat16):
        logits = random_logits(seed, (rows, vocabulary), kind, dtype)
        tokens = (step.tokens % vocabulary).int()
        expected = reference.greedy_walk(logits, tokens, step.tree, step.row_starts)
        out = poisoned_walk(3, step.tree.max_depth, device)
        flat = (logits.to(device), tokens.to(device))
        assert_same(kernels.greedy_walk(*flat, on(step.tree, device), step.row_starts.to(device), out), expected)


def test_greedy_walk_breaks_ties_across_chunks_by_lowest_id(device) -> None:
    logits = torch.zeros(2, 40_000)
    logits[0, [39_999, 17_000, 16_500]] = 5.0
    logits[1] = float("nan")
    tree = Tree.empty(2, 1, 1, device)
    tree.num_rows.fill_(1)
    starts = torch.tensor([0, 1, 2], dtype=torch.int32, device=device)
    walk = kernels.greedy_walk(logits.to(device), torch.zeros(2, dtype=torch.int32, device=device), tree, starts)
    assert walk.emitted[:, 0].tolist() == [16_500, 0]


@pytest.mark.gpu
def test_greedy_walk_at_full_size(device) -> None:
    tree = reference.best_first(random_table(0, 4, 15, 64, False, 500), spine=15)
    tokens = tree.tokens.flatten()
    row_starts = uniform_row_starts(4, 65, "cpu")
    logits = random_logits(1, (4 * 65, 151_936), "ties", torch.bfloat16)
    for b in range(4):
        row = int(tree.depths[b].argmax()) if b else 0  # the path to a deepest node; none for request 0
        while row > 0:
            parent = int(tree.parents[b, row])
            logits[b * 65 + parent, tokens[b * 65 + row]] = 9.0
            row = parent
    expected = reference.greedy_walk(logits, tokens, tree, row_starts)
    assert expected.num_accepted[1:].tolist() == [15, 15, 15]
    flat = (logits.to(device), tokens.to(device))
    assert_same(kernels.greedy_walk(*flat, on(tree, device), row_starts.to(device)), expected)


# ---- the distribution of what is emitted ----

LENGTH = 3  # tokens of the sequences that are counted


def target_conditionals(seed: int) -> torch.Tensor:
    """[VOCABULARY + 1] * LENGTH prefix grid x VOCABULARY: the target's next-token distribution after every prefix."""
    return (torch.randn(VOCABULARY**LENGTH, VOCABULARY, generator=generator(seed)) * 1.5).softmax(-1)


def prefix_index(prefix: tuple[int, ...]) -> int:
    """Prefixes shorter than LENGTH, numbered."""
    return sum(VOCABULARY**i for i in range(len(prefix))) + int("".join(map(str, prefix)) or "0", VOCABULARY)


def emitted_sequences(device: torch.device, draws: int, seed: int, target_seed: int) -> torch.Tensor:
    """One step per draw from the same tree, then the target alone, to LENGTH tokens; counts of each sequence."""
    g = generator(seed)
    conditionals = target_conditionals(target_seed)
    table = random_table(4, 1, LENGTH, 14, False, VOCABULARY)
    tree = reference.best_first(table)
    rows = tree.nodes + 1
    prefixes: list[tuple[int, ...]] = [()]
    for row in range(1, rows):
        prefixes.append((*prefixes[int(tree.parents[0, row])], int(tree.tokens[0, row])))
    batch = on(Tree(**{n: x.expand(draws, *x.shape[1:]).contiguous() for n, x in tree.tensors().items()},
                    horizon=LENGTH), device)  # fmt: skip
    target = torch.zeros(draws, rows, dtype=torch.int32)
    for row, prefix in enumerate(prefixes):
        if len(prefix) < LENGTH:  # a node of the last depth emits a token past the sequences that are counted
            p = conditionals[prefix_index(prefix)]
            target[:, row] = torch.multinomial(p, draws, replacement=True, generator=g)
    walk = walk_many(target.flatten().to(device), batch)
    counts = torch.zeros((VOCABULARY,) * LENGTH)
    for emitted, count in zip(walk.emitted.tolist(), walk.num_emitted.tolist(), strict=True):
        sequence = tuple(emitted[: min(count, LENGTH)])
        while len(sequence) < LENGTH:
            p = conditionals[prefix_index(sequence)]
            sequence = (*sequence, int(torch.multinomial(p, 1, generator=g)))
        counts[sequence] += 1
    return counts


def walk_many(target: torch.Tensor, batch: Tree) -> Walk:
    """By the kernel; in the interpreter (20 ms a request) by the reference, held to the kernel in a part."""
    tokens, rows = batch.tokens.flatten(), batch.nodes + 1
    row_starts = uniform_row_starts(batch.batch, rows, target.device)
    if target.is_cuda:
        return kernels.walk(target, tokens, batch, row_starts)
    walk = reference.walk(target, tokens, batch, row_starts)
    part = Tree(**{n: x[:100] for n, x in batch.tensors().items()}, horizon=batch.horizon)
    some = kernels.walk(target[: 100 * rows], tokens[: 100 * rows], part, row_starts[:101])
    assert_same(some, Walk(**{n: x[:100] for n, x in walk.tensors().items()}))
    return walk


def chi_square_p(counts: torch.Tensor, seed: int) -> float:
    """Probability of counts this far from the target's joint distribution; cells expecting under 5 are one cell."""
    conditionals = target_conditionals(seed)
    expected = torch.empty_like(counts)
    for sequence in product(range(VOCABULARY), repeat=LENGTH):
        p = 1.0
        for i, token in enumerate(sequence):
            p *= float(conditionals[prefix_index(sequence[:i]), token])
        expected[sequence] = p * float(counts.sum())
    rare = expected < 5
    observed = torch.cat([counts[~rare], counts[rare].sum()[None]]).double()
    wanted = torch.cat([expected[~rare], expected[rare].sum()[None]]).double()
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    freedom = torch.tensor((len(wanted) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_sampled_walk_emits_the_targets_own_distribution(device, seed) -> None:
    draws = 3000 if device.type == "cpu" else 50_000
    counts = emitted_sequences(device, draws, seed, target_seed=7)
    assert chi_square_p(counts, 7) > 1e-3
    assert chi_square_p(counts, 8) < 1e-9  # the test can tell: another target


# ---- positions and batch order ----


@given(seed=seeds, batch=st.integers(1, 4), nodes=st.integers(1, 40), cut=st.booleans())
def test_positions_are_root_plus_depth_in_place(device, seed, batch, nodes, cut) -> None:
    step = Step(seed, batch, 4, nodes, 0.5, cut)
    positions = torch.arange(int(step.row_starts[-1]) + 3) * 7
    expected = reference.write_positions(positions.clone(), step.tree, step.row_starts)
    actual = positions.to(device)
    assert kernels.write_positions(actual, on(step.tree, device), step.row_starts.to(device)) is actual
    assert torch.equal(actual.cpu(), expected)


@given(seed=seeds, nodes=st.integers(1, 40))
def test_stage_gathers_slots_and_cuts_trees(device, seed, nodes) -> None:
    step = Step(seed, 5, 4, nodes, 0.5, True)
    slots = torch.tensor([4, 1, -1, 0], dtype=torch.int32)
    row_starts = step.row_starts[:5]
    expected = reference.stage(step.tree, slots, row_starts, poisoned_tree(4, nodes, 4, "cpu"))
    out = poisoned_tree(4, nodes, 4, device)
    kernels.stage(on(step.tree, device), slots.to(device), row_starts.to(device), out)
    assert_same(out, expected)
    for b in range(4):  # no row is ever fully masked, and a cut tree sees only itself
        dense = unpack_bits(expected.ancestors[b], nodes + 1)
        assert dense.diagonal().all()
        others = dense & ~torch.eye(nodes + 1, dtype=torch.bool)
        assert not others[:, int(expected.num_rows[b]) :].any()


def test_buffers_of_more_requests_than_the_step_has(device: torch.device) -> None:
    """An engine's buffers are made for its largest batch: what lies behind the step's requests stays as it is."""
    logits = torch.randn(3, 4, 30, generator=torch.Generator().manual_seed(5))
    tree = reference.build(logits, 6)
    trees = Tree(**{name: x.to(device) for name, x in tree.tensors().items()}, horizon=4)
    row_starts = torch.arange(0, 15, 7, dtype=torch.int32, device=device)  # two of the three
    tokens = trees.tokens[:2].flatten()
    target = torch.randint(0, 30, (14,), generator=torch.Generator().manual_seed(6)).int().to(device)
    target[0], target[7] = tokens[1], tokens[8]
    out = Walk.empty(3, 4, device)
    out.num_accepted.fill_(9)
    kernels.walk(target, tokens, trees, row_starts, out)
    first = Tree(**{name: x[:2].cpu() for name, x in trees.tensors().items()}, horizon=4)
    expected = reference.walk(target.cpu(), tokens.cpu(), first, row_starts.cpu())
    for name, value in expected.tensors().items():
        assert torch.equal(getattr(out, name)[:2].cpu(), value), name
    assert int(out.num_accepted[2]) == 9

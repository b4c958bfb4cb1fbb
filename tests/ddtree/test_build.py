"""Build: the table, the best-first tree, links and ancestor words."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from ddtree.cases import (
    INF,
    assert_same,
    budgets_of,
    generator,
    poisoned_tree,
    random_logits,
    random_table,
    seeds,
    table_on,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specaudit.ddtree import kernels, reference
from specaudit.ddtree.layout import Table, pack_bits, unpack_bits

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# Each power of two is a compilation on a GPU, and sorts are slow in the interpreter.
NODES = st.sampled_from([1, 2, 7, 16, 33]) if torch.cuda.is_available() else st.integers(1, 9)


def assert_same_table(actual: Table, expected: Table) -> None:
    assert torch.equal(actual.ids.cpu(), expected.ids.cpu())
    torch.testing.assert_close(actual.lse.cpu(), expected.lse.cpu(), atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(actual.logprobs.cpu(), expected.logprobs.cpu(), atol=1e-5, rtol=1e-6)


# ---- stage one ----


@settings(max_examples=15)  # each takes seconds: a compilation on a GPU, sorts in the interpreter
@given(
    seed=seeds,
    batch=st.integers(1, 2),
    horizon=st.integers(1, 2),
    vocabulary=st.integers(1, 700),
    nodes=NODES,
    kind=st.sampled_from(["smooth", "ties", "holes"]),
    dtype=st.sampled_from(DTYPES),
    temperature=st.sampled_from([None, 0.0, 0.5, 1.7]),
)
@example(seed=0, batch=1, horizon=1, vocabulary=1, nodes=1, kind="smooth", dtype=torch.bfloat16, temperature=None)
@example(seed=1, batch=2, horizon=1, vocabulary=512, nodes=9, kind="holes", dtype=torch.float32, temperature=0.3)
def test_table_is_the_reference_table(
    device, seed, batch, horizon, vocabulary, nodes, kind, dtype, temperature
) -> None:
    logits = random_logits(seed, (batch, horizon, vocabulary), kind, dtype)
    scale = None if temperature is None else torch.full((batch,), temperature)
    if scale is not None:
        scale[-1] = 1.0  # requests of one batch differ
    expected = reference.draft_table(logits, nodes, scale)
    actual = kernels.draft_table(logits.to(device), nodes, None if scale is None else scale.to(device))
    assert_same_table(actual, expected)


@pytest.mark.parametrize("layout", ["one group", "ascending", "constant", "impossible", "certain"])
def test_table_of_rows_that_defeat_a_sampled_threshold(device, layout) -> None:
    vocabulary, nodes = 3000, 8
    row = torch.linspace(-4, 4, vocabulary)
    if layout == "one group":
        row[1600:1616] = 10 + torch.rand(16, generator=generator(0))
    elif layout == "constant":
        row = torch.zeros(vocabulary)
    elif layout == "impossible":
        row = torch.full((vocabulary,), -INF)
        row[7] = float("nan")
    elif layout == "certain":
        row = torch.full((vocabulary,), -INF)
        row[2999] = INF
    logits = row.expand(1, 1, vocabulary)
    actual = kernels.draft_table(logits.to(device), nodes)
    assert_same_table(actual, reference.draft_table(logits, nodes))
    if layout == "constant":
        assert actual.ids[0, 0].tolist() == list(range(nodes))
    if layout == "impossible":
        assert actual.lse.item() == -INF
        assert (actual.logprobs == -INF).all()
    if layout == "certain":
        assert actual.ids[0, 0, 0] == 2999
        assert actual.logprobs[0, 0, :2].tolist() == [0.0, -INF]


def test_table_reads_across_chunks_and_strided_positions(device) -> None:
    logits = random_logits(3, (1, 2, 20_000), "smooth", torch.bfloat16)
    view = logits[:, 1:]  # an engine hands out slices
    assert_same_table(kernels.draft_table(view.to(device), 64), reference.draft_table(view, 64))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("batch", "horizon", "vocabulary", "nodes"),
    [(1, 15, 151_936, 64), (16, 15, 151_936, 64), (1, 32, 262_144, 512), (2, 7, 128_256, 200), (3, 15, 50_257, 128)],
)
def test_table_at_full_size(device, dtype, batch, horizon, vocabulary, nodes) -> None:
    for kind in ("smooth", "ties"):
        logits = random_logits(5, (batch, horizon, vocabulary), kind, dtype).to(device)
        temperature = torch.linspace(0.5, 1.5, batch, device=device)
        actual = kernels.draft_table(logits, nodes, temperature)
        assert_same_table(actual, reference.draft_table(logits, nodes, temperature))


@pytest.mark.parametrize("shape", [(1, 33, 8), (1, 1, 262_145)])
def test_table_beyond_the_limits_is_refused(device, shape) -> None:
    with pytest.raises(ValueError, match="at most"):
        kernels.draft_table(torch.zeros(shape, device=device), 4)
    with pytest.raises(ValueError, match="at most"):
        kernels.draft_table(torch.zeros(1, 1, 8, device=device), 513)


# ---- stage two ----


@given(
    seed=seeds,
    batch=st.integers(1, 3),
    horizon=st.integers(1, 6),
    nodes=st.integers(1, 40),
    ties=st.booleans(),
    width=st.sampled_from([1, 2, 5, 60]),
    spine=st.sampled_from([0, 0, 2, 99]),
    bonus=st.sampled_from([None, None, 0.3, -0.2]),
)
@example(seed=0, batch=1, horizon=1, nodes=1, ties=True, width=1, spine=0, bonus=None)
@example(seed=0, batch=2, horizon=3, nodes=40, ties=True, width=2, spine=0, bonus=None)
@example(seed=0, batch=2, horizon=6, nodes=40, ties=True, width=5, spine=99, bonus=0.3)
def test_tree_is_the_reference_tree(device, seed, batch, horizon, nodes, ties, width, spine, bonus) -> None:
    table = random_table(seed, batch, horizon, nodes, ties, width)
    budgets = budgets_of(seed, batch, nodes)
    extra = None if bonus is None else torch.linspace(bonus, 0, horizon)
    expected = reference.best_first(table, budgets, spine, extra, poisoned_tree(batch, nodes, horizon, "cpu"))
    actual = kernels.best_first(
        table_on(table, device),
        budgets.to(device),
        spine,
        None if extra is None else extra.to(device),
        poisoned_tree(batch, nodes, horizon, device),
    )
    assert_same(actual, expected)


@pytest.mark.gpu
@pytest.mark.parametrize(("horizon", "nodes"), [(15, 16), (15, 64), (32, 512), (7, 511), (15, 65)])
@pytest.mark.parametrize("ties", [False, True])
def test_tree_at_full_size(device, horizon, nodes, ties) -> None:
    table = random_table(11, 8, horizon, nodes, ties, 1000)
    budgets = torch.tensor([nodes, nodes // 2, 0, -1, 1, nodes, 3, nodes + 1], dtype=torch.int32)
    for spine in (0, horizon):
        actual = kernels.best_first(table_on(table, device), budgets.to(device), spine)
        assert_same(actual, reference.best_first(table, budgets, spine))


@given(seed=seeds, horizon=st.integers(1, 4), width=st.integers(1, 4), nodes=st.integers(1, 30), ties=st.booleans())
def test_the_reference_heap_finds_the_first_of_all_paths(seed, horizon, width, nodes, ties) -> None:
    """All paths at once, sorted by the documented total order; the heap must find its first N, in that order."""
    table = random_table(seed, 1, horizon, nodes, ties, width)
    steps = table.logprobs[0]
    widths = [min(nodes, width)] * horizon
    paths = [path for depth in range(1, horizon + 1) for path in product(*(range(w) for w in widths[:depth]))]
    score = {(): torch.zeros(())}
    for path in paths:  # shorter ones come first
        score[path] = score[path[:-1]] + steps[len(path) - 1, path[-1]]
    place: dict[tuple[int, ...], int] = {(): 0}
    for depth in range(1, horizon + 1):  # parents are placed among their own depth before their children need it
        same = [p for p in paths if len(p) == depth and score[p] > -INF]
        same.sort(key=lambda p: (-score[p].item(), place[p[:-1]], p[-1]))
        place.update({p: i for i, p in enumerate(same)})
    best = [p for p in paths if score[p] > -INF]
    best.sort(key=lambda p: (-score[p].item(), len(p), place[p]))

    tree = reference.best_first(table)
    found: list[tuple[int, ...]] = [()]
    for row in range(1, int(tree.num_rows[0])):
        found.append((*found[int(tree.parents[0, row])], int(tree.ranks[0, row])))
    assert found[1:] == best[:nodes]
    assert tree.scores[0, 1 : len(found)].tolist() == [score[p].item() for p in best[:nodes]]


@given(seed=seeds, horizon=st.integers(1, 5), nodes=st.integers(1, 40))
def test_every_prefix_is_a_tree_and_the_links_say_what_the_parents_say(device, seed, horizon, nodes) -> None:
    table = random_table(seed, 2, horizon, nodes, False, 50)
    tree = kernels.best_first(table_on(table, device), budgets_of(seed, 2, nodes).to(device))
    for b in range(2):
        count = int(tree.num_rows[b])
        parents, ranks = tree.parents[b].tolist(), tree.ranks[b].tolist()
        assert all(0 <= parents[row] < row for row in range(1, count))
        assert parents[count:] == [-1] * (nodes + 1 - count)
        above = [{row} for row in range(nodes + 1)]
        for row in range(1, count):
            above[row] |= above[parents[row]]
        dense = unpack_bits(tree.ancestors[b], nodes + 1)
        assert [set(row.nonzero()[:, 0].tolist()) for row in dense] == above
        for row in range(count):
            child, children = int(tree.first_child[b, row]), []
            while child >= 0:
                children.append(child)
                child = int(tree.next_sibling[b, child])
            assert children == [r for r in range(1, count) if parents[r] == row]
            assert [ranks[r] for r in children] == list(range(len(children)))
            assert tree.depths[b, row] == len(above[row]) - 1


# ---- both stages ----


def test_build_is_both_stages_for_a_mixed_batch(device) -> None:
    logits = random_logits(2, (4, 2, 300), "smooth", torch.bfloat16)
    budgets = torch.tensor([8, 0, -1, 4], dtype=torch.int32)
    temperature = torch.tensor([1.0, 0.0, 1.0, 0.6])
    on_device = [x.to(device) for x in (temperature, budgets)]
    table = kernels.draft_table(logits.to(device), 8, on_device[0])
    host = table_on(table, torch.device("cpu"))
    expected = reference.best_first(host, budgets, spine=2)
    assert_same(kernels.build(logits.to(device), 8, *on_device, spine=2), expected)
    assert expected.num_rows.tolist() == [9, 3, 0, 5]
    chain = logits[1].float().argmax(-1)
    assert expected.tokens[1, 1:3].tolist() == chain.tolist()
    assert expected.parents[1, 1:3].tolist() == [0, 1]


def test_a_tree_holds_every_path_when_there_are_fewer_than_nodes(device) -> None:
    logits = torch.tensor([[[0.0, 1.0, -INF], [2.0, float("nan"), 1.0]]])  # two ids at each position: 2 + 4 paths
    tree = kernels.build(logits.to(device), 20)
    assert tree.num_rows.tolist() == [7]
    assert sorted(tree.depths[0, 1:7].tolist()) == [1, 1, 2, 2, 2, 2]
    assert set(tree.tokens[0, 1:7].tolist()) == {0, 1, 2}


def test_an_impossible_position_ends_chain_spine_and_tree(device) -> None:
    logits = torch.randn(3, 4, 30, generator=generator(0))
    logits[:, 2] = -INF
    budgets = torch.tensor([12, 0, 12], dtype=torch.int32)
    tree = kernels.build(logits.to(device), 12, budgets=budgets.to(device), spine=4)
    assert tree.num_rows.tolist() == [13, 3, 13]
    assert tree.depths.max() == 2


def test_the_spine_comes_first_and_whole(device) -> None:
    logits = torch.zeros(1, 5, 40)  # flat: without a spine no tree of 8 nodes reaches depth 2
    plain = kernels.build(logits.to(device), 8)
    assert plain.depths.max() == 1
    tree = kernels.build(logits.to(device), 8, spine=5)
    assert tree.parents[0, 1:6].tolist() == [0, 1, 2, 3, 4]
    assert tree.depths[0, 6:].tolist() == [1, 1, 1]


@given(seed=seeds, rows=st.sampled_from([1, 2, 31, 32, 33, 65, 70]))
def test_ancestor_mask_of_any_parents(device, seed, rows) -> None:
    g = generator(seed)
    parents = torch.tensor(
        [[-1 if row == 0 else int(torch.randint(-1, row, (), generator=g)) for row in range(rows)] for _ in range(2)],
        dtype=torch.int32,
    )
    words = torch.full((2, rows, -(-rows // 32)), 7, dtype=torch.int32)
    expected = reference.ancestor_mask(parents, words.clone())
    assert torch.equal(kernels.ancestor_mask(parents.to(device), words.to(device)).cpu(), expected)
    assert torch.equal(pack_bits(unpack_bits(expected, rows)), expected)

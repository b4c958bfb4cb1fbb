"""Rows as sequences of their own: which keys each gets, in which order, and how they are divided."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from specaudit.ddtree import reference
from specaudit.ddtree.engine import exact_setup
from specaudit.ddtree.engine.context import attach
from specaudit.ddtree.engine.exact import Exact, pages
from specaudit.ddtree.engine.schedule import (
    ORDER,
    ROWS,
    RUNS,
    Blocks,
    Layout,
    Order,
    expected_runs,
    flash_blocks,
    layout_of,
    order_of,
    rounded,
)
from specaudit.ddtree.engine.settings import Settings
from specaudit.ddtree.engine.state import TreeState
from specaudit.ddtree.layout import Tree

NODES, HORIZON, BLOCK = 40, 5, 4  # 41 rows: two ancestor words
CACHE = {"block_size": BLOCK, "unit": BLOCK}
LAYOUT = Layout((ROWS, RUNS), (ROWS,), 2)  # of vLLM 0.20.1


def trees(requests: int, device: torch.device) -> Tree:
    logits = torch.randn(requests, HORIZON, 50, generator=torch.Generator().manual_seed(3))
    budgets = torch.tensor([NODES, 7, 0, 33][:requests], dtype=torch.int32)
    made = reference.build(logits, NODES, budgets=budgets)
    return Tree(**{name: x.to(device) for name, x in made.tensors().items()}, horizon=HORIZON)


def path(tree: Tree, b: int, row: int) -> list[int]:
    """The nodes from the first below the root to the row itself."""
    found: list[int] = []
    while row > 0 and int(tree.parents[b, row]) >= 0:
        found.insert(0, row)
        row = int(tree.parents[b, row])
    return found


@pytest.mark.parametrize("unit", [BLOCK, 3 * BLOCK])
@pytest.mark.parametrize(("lengths", "padded"), [([41, 8, 1], 50), ([3, 2, 1, 5], 16)])
@pytest.mark.parametrize("layout", [LAYOUT, Layout((RUNS, ROWS, ORDER), (RUNS, ROWS, ORDER), 1)])
def test_every_row_gets_its_context_and_its_ancestors_in_order(
    lengths: list[int], padded: int, unit: int, layout: Layout, device: torch.device
) -> None:
    requests = len(lengths)
    tree = trees(4, device)
    exact = Exact(Order(8, 1, 5, 11, 4, 4), layout, 50, 700, HORIZON, device, block_size=BLOCK, unit=unit)
    exact.table.fill_(-1)
    contexts = [9, 601, 1, 30][:requests]  # the root counted in
    starts = torch.tensor([0, *lengths]).cumsum(0).int().to(device)
    table = torch.randperm(4 * 180, generator=torch.Generator().manual_seed(1)).int().view(4, 180).to(device)
    slots = torch.randperm(5000, generator=torch.Generator().manual_seed(2))[:padded].to(device)
    lens = torch.tensor(contexts, dtype=torch.int32, device=device)
    made = exact.prepare(tree, lens, starts, padded, table, slots)

    assert made.starts.tolist() == list(range(padded + 1))
    first = 0
    for b, (context_len, length) in enumerate(zip(contexts, lengths, strict=True)):
        positions = torch.arange(context_len, device=device)
        before = table[b, positions // BLOCK] * unit + positions % BLOCK
        for row in range(length):
            nodes = path(tree, b, row)
            own = slots[first : first + length][nodes]
            expected = torch.cat([before, own // BLOCK * unit + own % BLOCK]).tolist()
            assert made.lens[first + row] == len(expected)
            assert made.table[first + row, : len(expected)].tolist() == expected
        first += length
    assert made.lens[first:].tolist() == [0] * (padded - first)
    aligned, roles = rounded(padded), layout.of(made.splits)
    assert len(made.schedule) == len(roles) * aligned + 1
    vectors = {role: made.schedule[i * aligned :][:padded].tolist() for i, role in enumerate(roles)}
    assert vectors[ROWS] == [layout.value] * padded
    assert vectors.get(ORDER, list(range(padded))) == list(range(padded))
    assert min(vectors.get(RUNS, [1])) >= 1
    assert made.schedule[-1] == 0


def divided(order: Order, contexts: list[int], device: torch.device, depth: int = 0) -> list[int]:
    """Runs of the root's row of each request, or of a row of that depth."""
    exact = Exact(order, LAYOUT, 400, 2000, HORIZON, device, **CACHE)
    tree = trees(4, device)
    requests = len(contexts)
    tree.depths[:, 0] = depth
    starts = torch.arange(requests + 1, dtype=torch.int32, device=device)
    table = torch.zeros(requests, 600, dtype=torch.int32, device=device)
    slots = torch.zeros(requests, dtype=torch.int64, device=device)
    lens = torch.tensor(contexts, dtype=torch.int32, device=device)
    made = exact.prepare(tree, lens, starts, requests, table, slots)
    if made.splits == 1:
        assert len(made.schedule) == rounded(requests) + 1
        return [1] * requests
    return made.schedule[rounded(requests) :][:requests].tolist()


@pytest.mark.parametrize(
    ("order", "contexts", "runs"),
    [
        # the chain has keys of 5 more rows: 106, 406 and 513 of them are 1, 4 and 5 blocks of 128, 10 in the batch
        (Order(128, 1, 1, 11, 32, 8), [101, 401, 508], [1, 4, 4]),  # a multiprocessor has one; 508 keys are 4 blocks
        (Order(128, 1, 2, 11, 32, 8), [101, 401, 508], [1, 2, 2]),  # it has two: so has a run
        (Order(128, 1, 5, 11, 32, 8), [101, 401, 508], [1, 1, 1]),
        (Order(128, 1, 1, 11, 2, 8), [101, 401, 508], [1, 2, 2]),  # at most two runs
        (Order(128, 1, 1, 11, 32, 2), [101, 401, 508], [1, 1, 1]),  # three requests are not divided
        (Order(192, 1, 1, 110, 32, 8), [188], [1]),  # the chain's last rows begin a block that this row has no part in
    ],
)
def test_a_row_is_divided_as_its_chain_is(
    order: Order, contexts: list[int], runs: list[int], device: torch.device
) -> None:
    assert divided(order, contexts, device) == runs


@pytest.mark.parametrize("blocks", [1, 7, 29, 30, 31, 60, 90, 91, 120, 240])
def test_host_and_kernel_count_a_multiprocessors_blocks_alike(blocks: int, device: torch.device) -> None:
    """30 blocks of 4 heads fill 132 multiprocessors exactly, so whole numbers are met."""
    order = Order(8, 1, 4, 132, 32, 8)
    runs = -(-blocks // order.share(blocks))
    in_a_run = -(-blocks // min(runs, 32))
    assert divided(order, [8 * blocks - HORIZON], device) == [-(-blocks // in_a_run)]


def test_a_row_behind_a_block_has_one_run_more(device: torch.device) -> None:
    order = Order(192, 1, 1, 110, 32, 8)
    assert divided(order, [190], device, depth=2) == [1]
    assert divided(order, [190], device, depth=3) == [2]


@pytest.mark.parametrize(
    ("head_size", "packed_rows", "expected"),
    [
        (64, 32, Blocks(64, 192)),
        (64, 65, None),
        (80, 32, None),
        (128, 64, Blocks(64, 128)),
        (128, 65, Blocks(128, 128)),
        (256, 16, None),
    ],
)
def test_blocks_are_flash_attention_3s(head_size: int, packed_rows: int, expected: Blocks | None) -> None:
    blocks = flash_blocks(head_size, packed_rows)
    assert blocks == expected
    if blocks is not None:  # 132 multiprocessors, 8 KV heads: up to 15 blocks of a batch are at most one each
        order = order_of(blocks, 8, packed_rows, 132, 32, 30)
        assert [order.share(n) for n in (0, 15, 16, 30, 31)] == [1, 1, 2, 2, 3]
        assert order_of(blocks, 8, blocks.rows + 1, 132, 32, 30).rows == 2 * order.rows


def test_a_row_without_a_slot_is_given_a_page_that_exists(device: torch.device) -> None:
    """Dummy steps have no slots, and may meet the trees of the step before."""
    exact = Exact(Order(8, 1, 5, 11, 4, 4), LAYOUT, 50, 64, HORIZON, device, **CACHE)
    starts = torch.tensor([0, 41], dtype=torch.int32, device=device)
    lens = torch.tensor([9], dtype=torch.int32, device=device)
    table = torch.zeros(1, 16, dtype=torch.int32, device=device)
    slots = torch.full((41,), -1, dtype=torch.int64, device=device)
    made = exact.prepare(trees(1, device), lens, starts, 41, table, slots)
    assert int(made.table.min()) >= 0


def test_batch_invariant_chains_are_not_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    made = attached(monkeypatch, True)
    assert made is not None
    assert made.order.most_runs == 1


def test_room_for_runs_is_what_a_batch_can_have() -> None:
    exact = Exact(Order(128, 1, 5, 22, 32, 8), LAYOUT, 8, 2048, HORIZON, torch.device("cpu"), **CACHE)
    assert [exact.splits(n, 17 * n) for n in (1, 4, 5, 8, 9)] == [16, 16, 8, 8, 1]
    assert exact.splits(8, 993) == 1  # the library gives more sequences no runs of their own


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_pages_of_one_key_are_the_caches_keys(layout: str) -> None:
    blocks, heads, size = 5, 3, 8
    if layout == "NHD":
        cache = torch.randn(2, blocks, BLOCK, heads, size)[0]
    else:
        cache = torch.randn(blocks, heads, BLOCK, 2 * size).transpose(1, 2)[..., :size]
    paged, unit = pages(cache)
    for block in range(blocks):
        for offset in range(BLOCK):
            assert torch.equal(paged[block * unit + offset, 0], cache[block, offset])
    with pytest.raises(ValueError, match="not made of keys"):
        pages(torch.randn(blocks * (BLOCK * heads * size + 1)).as_strided(
            (blocks, BLOCK, heads, size), (BLOCK * heads * size + 1, heads * size, size, 1)
        ))  # fmt: skip


def schedule(*vectors: list[int]) -> Tensor:
    return torch.tensor([x for vector in vectors for x in [*vector, 0, 0, 0]] + [0], dtype=torch.int32)


def test_a_schedules_layout_is_read_off_the_librarys_own() -> None:
    runs, rows, order = [1, 2, 1, 1, 1], [2] * 5, [1, 0, 2, 3, 4]
    assert layout_of(schedule(rows, runs), schedule(rows), runs) == LAYOUT
    ordered = layout_of(schedule(rows, [2, 1, 1, 1, 1], order), schedule(rows, order), runs)
    assert ordered == Layout((ROWS, RUNS, ORDER), (ROWS, ORDER), 2)
    same = schedule([1] * 5, [1] * 5, order)
    assert layout_of(schedule(runs, [1] * 5, order), same, runs) == Layout((RUNS, ROWS, ORDER), (RUNS, ROWS, ORDER), 1)


@pytest.mark.parametrize(
    ("divided", "whole"),
    [
        (schedule([2] * 5, [1, 3, 1, 1, 1]), schedule([2] * 5)),  # other runs than expected: other blocks of keys
        (schedule([2] * 5, [1, 2, 1, 1, 1], [7] * 5), schedule([2] * 5)),
        (schedule([2] * 5, [1, 2, 1, 1, 1]), schedule([3] * 5)),
        (schedule([2] * 5, [1, 2, 1, 1, 1])[:-2], schedule([2] * 5)),
        (schedule([1, 2, 1, 1, 1]), schedule([1] * 5)),
    ],
)
def test_a_schedule_of_another_layout_is_noticed(divided: Tensor, whole: Tensor) -> None:
    assert layout_of(divided, whole, [1, 2, 1, 1, 1]) is None


def test_runs_of_the_librarys_own_schedule() -> None:
    assert expected_runs(Order(192, 1, 4, 132, 0, 0), [100, 384, 100, 100, 100], 4) == [1, 2, 1, 1, 1]
    assert expected_runs(Order(128, 1, 32, 132, 0, 0), [100, 256, 100, 100, 100], 4) == [1, 1, 1, 1, 1]


LAYER = {
    "headdim": 128, "kv_cache_dtype": torch.bfloat16, "num_heads_kv": 8, "num_heads_q": 32, "max_num_splits": 32,
    "max_cudagraph_size": 512,
}  # fmt: skip


def attached(
    monkeypatch: pytest.MonkeyPatch,
    exact: bool,
    version: int = 3,
    known: bool = True,
    caches: tuple[Tensor, ...] = (),
    **changed: Any,
) -> Exact | None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(exact_setup, "schedule_layout", lambda *_: LAYOUT if known else None)
    plain = {"sliding_window": (-1, -1), "alibi_slopes": None, "logits_soft_cap": 0, "sinks": None}
    caches = caches or (torch.zeros(2, 6, 16, 8, 128),)
    layers = {
        f"target{i}": SimpleNamespace(impl=SimpleNamespace(**plain, vllm_flash_attn_version=version), kv_cache=cache)
        for i, cache in enumerate(caches)
    }
    builder = SimpleNamespace(**LAYER | changed, model_config=SimpleNamespace(max_model_len=4090))
    group = SimpleNamespace(
        layer_names=[*layers],
        backend=SimpleNamespace(get_name=lambda: "FLASH_ATTN"),
        metadata_builders=[builder],
    )
    settings = Settings(budget=16, max_batch=30, exact=exact, horizon=15)
    state = TreeState(settings, 128, torch.device("cpu"))
    attach([[group]], layers, set(), state)
    return state.exact


def test_exact_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made = attached(monkeypatch, True)
    assert made is not None
    assert made.order == Order(128, 1, 8, 132, 32, 32)
    assert (made.capacity, made.table.shape[1]) == (512, 4096)  # what is captured, a little more than 30 trees
    assert attached(monkeypatch, False) is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"version": 2}, "FlashAttention 3"),
        ({"kv_cache_dtype": torch.float8_e4m3fn}, "bf16 or fp16"),
        ({"headdim": 80}, "heads of 128"),
        ({"max_num_splits": 0}, "full CUDA graphs"),
        ({"known": False}, "a schedule of FlashAttention 3"),
        ({"caches": (torch.zeros(2, 6, 16, 8, 128), torch.zeros(2, 6, 32, 8, 128))}, "one layout"),
    ],
)
def test_where_it_cannot_be_had_it_is_refused(
    changed: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=f"exact needs .*{reason}.*: leave it out"):
        attached(monkeypatch, True, **changed)

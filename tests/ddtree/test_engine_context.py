"""The attention branch in a batch of trees, chains and prompt rows, with plain torch in FlashAttention's place."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from specaudit.ddtree import reference
from specaudit.ddtree.engine.context import attach, forward, plan
from specaudit.ddtree.engine.exact import Exact
from specaudit.ddtree.engine.rows import prepare
from specaudit.ddtree.engine.schedule import ROWS, RUNS, Layout, Order
from specaudit.ddtree.engine.settings import Settings
from specaudit.ddtree.engine.slots import scatter
from specaudit.ddtree.engine.state import TREE, Step, TreeState
from specaudit.ddtree.layout import Tree, unpack_bits

NODES, HORIZON, SLOTS = 6, 4, 4
HEADS, KV_HEADS, SIZE, BLOCK = 4, 2, 16, 4


def plain_flash() -> ModuleType:
    """The engine benchmarks' FlashAttention in plain torch; they are no package of this one."""
    spec = spec_from_file_location("plain_flash", Path(__file__).parents[2] / "benchmarks" / "engine" / "flash.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def common(lengths: list[int], device: torch.device) -> SimpleNamespace:
    starts = torch.tensor([0, *lengths]).cumsum(0).int().to(device)
    return SimpleNamespace(
        num_reqs=len(lengths), num_actual_tokens=sum(lengths), max_query_len=max(lengths), query_start_loc=starts
    )


def state_of_trees(device: torch.device, mixed: str = "chain") -> TreeState:
    state = TreeState(Settings(budget=NODES, max_batch=4, horizon=HORIZON, mixed=mixed), SLOTS, device)
    logits = torch.randn(SLOTS, HORIZON, 20, generator=torch.Generator().manual_seed(0))
    tree = reference.build(logits, NODES, budgets=torch.tensor([NODES, 3, NODES, NODES], dtype=torch.int32))
    moved = Tree(**{name: x.to(device) for name, x in tree.tensors().items()}, horizon=HORIZON)
    chains = torch.zeros(SLOTS, state.horizon, dtype=torch.int64, device=device)
    scatter(state, moved, chains, torch.arange(SLOTS, device=device))
    return state


def test_a_step_without_trees_is_left_to_the_engine(device: torch.device) -> None:
    state = state_of_trees(device)
    assert plan(None, common([7, 7], device)) is None
    state.step = Step(2, 10, False)
    assert plan(state, common([5, 5], device)) is None
    state.step = None
    assert plan(state, common([5, 5], device)) is None  # the chain's graph is captured


def test_a_prompt_chunk_of_a_trees_very_length_is_no_padding(device: torch.device) -> None:
    """Two whole trees and a prompt of 1 + N tokens: no graph runs, and the prompt's rows are the engine's."""
    state, rows = state_of_trees(device, mixed="tree"), 1 + NODES
    scheduled = SimpleNamespace(
        has_prefill=True,
        num_draft_tokens_np=np.array([NODES, NODES, 0]),
        num_scheduled_tokens=np.array([rows, rows, rows]),
        idx_mapping_np=np.array([0, 1, 2]),
    )
    state.kinds[:2] = TREE
    assert state.begin_step(scheduled, None) is None
    made = plan(state, common([rows] * 3, device))
    assert made is not None
    assert (made.requests, made.rows, made.scheduled) == (2, 2 * rows, False)
    assert made.rest_row_starts is not None
    assert made.rest_row_starts.tolist() == [0, rows]
    assert state.begin_step(scheduled, rows) == rows  # the engine found it uniform: every request decodes
    whole = plan(state, common([rows] * 3, device))
    assert whole is not None
    assert whole.requests == 3


def test_a_graph_of_trees_covers_its_padding_requests(device: torch.device) -> None:
    state = state_of_trees(device)
    rows = 1 + NODES
    state.step = Step(2, 2 * rows, True, True)
    padded = common([rows, rows, 0, 0], device)
    padded.num_actual_tokens, padded.max_query_len = 4 * rows, rows
    made = plan(state, padded)
    assert made is not None
    assert (made.requests, made.rows, made.max_rows, made.scheduled) == (4, 4 * rows, rows, True)
    state.step = None  # in capture
    captured = plan(state, common([rows] * 3, device))
    assert captured is not None
    assert (captured.requests, captured.rows, captured.scheduled) == (3, 3 * rows, True)


@pytest.mark.parametrize("exact", [False, True], ids=["two parts", "exact"])
@pytest.mark.parametrize("lengths", [[7, 3, 7], [7, 7, 4, 1], [7, 2, 11]])
def test_every_row_sees_its_context_and_its_ancestors(
    device: torch.device, lengths: list[int], exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leading requests are trees (whole or cut), the rest prompt rows or a decode of one row, as in a mixed batch."""
    backends = ModuleType("vllm.v1.attention.backends.fa_utils")
    backends.flash_attn_varlen_func = plain_flash().flash_attn_varlen_func  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, backends.__name__, backends)

    state, trees, requests = state_of_trees(device), 2, len(lengths)
    if exact:
        state.exact = Exact(
            Order(8, 1, 1, 11, 4, 4),
            Layout((ROWS, RUNS), (ROWS,), 2),
            4 * (1 + NODES),
            32,
            HORIZON,
            device,
            block_size=BLOCK,
            unit=BLOCK,
        )
    batch = common(lengths, device)
    contexts = [5, 9, 6, 3][:requests]
    state.step = Step(trees, sum(lengths[:trees]), True)
    computed = torch.tensor([*contexts, *[0] * (SLOTS - requests)], dtype=torch.int32, device=device)
    slots = torch.arange(requests, device=device)
    positions = torch.cat([c + torch.arange(n) for c, n in zip(contexts, lengths, strict=True)]).to(device)
    table = torch.arange(1, 1 + 8 * SLOTS, dtype=torch.int32, device=device).view(SLOTS, 8)
    prepare(state, positions.clone(), slots, batch.query_start_loc, computed, torch.ones_like(computed), trees)

    generator = torch.Generator().manual_seed(1)
    cache = torch.randn(2, 1 + 8 * SLOTS, BLOCK, KV_HEADS, SIZE, generator=generator).to(device)
    query = torch.randn(sum(lengths), HEADS, SIZE, generator=generator).to(device)
    owners = torch.repeat_interleave(torch.arange(requests), torch.tensor(lengths)).to(device)
    slot_mapping = table[owners, positions // BLOCK].long() * BLOCK + positions % BLOCK
    batch.block_table_tensor, batch.slot_mapping = table[:requests], slot_mapping
    planned = plan(state, batch)
    assert planned is not None
    assert (planned.sequences is not None) == exact
    assert not planned.scheduled  # a mixed batch, or one without a context part
    metadata = SimpleNamespace(
        ddtree=planned, max_seq_len=32, block_table=table[:requests], scheduler_metadata=None,
        max_num_splits=0, slot_mapping=slot_mapping, num_actual_tokens=sum(lengths),
        seq_lens=computed[:requests] + torch.tensor(lengths, device=device).int(),
    )  # fmt: skip
    impl = SimpleNamespace(scale=SIZE**-0.5, vllm_flash_attn_version=3)
    one = torch.ones(requests, KV_HEADS, device=device)
    output = torch.full_like(query, float("nan"))
    forward(impl, metadata, query, cache[0], cache[1], output, (None, one, one), SimpleNamespace())

    keys, values = (x[table[:requests].long()].flatten(1, 2) for x in cache)
    first = 0
    for b, (context, count) in enumerate(zip(contexts, lengths, strict=True)):
        own = torch.ones(count, count, dtype=torch.bool, device=device).tril()
        if b < trees and exact:  # inert rows are the root's
            own = unpack_bits(state.batch.ancestors[b], 1 + NODES)[:count, :count].clone()
            own[:, 0] = True
            own[(state.batch.depths[b, :count] == 0).nonzero().flatten(), 1:] = False
        elif b < trees:
            own = unpack_bits(state.batch.ancestors[b], 1 + NODES)[:count, :count]
            own[:, 0] = True  # the context part has the root, so inert rows see it, too
        visible = torch.cat([torch.ones(count, context, dtype=torch.bool, device=device), own], 1)
        expected = dense(query[first : first + count], keys[b], values[b], visible)
        torch.testing.assert_close(output[first : first + count], expected, rtol=1e-4, atol=1e-5)
        first += count


def dense(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    seen = visible.shape[1]
    k, v = (x[:seen].repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", query, k) * SIZE**-0.5
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"sliding_window": (1023, 0)}, "a sliding window"),
        ({"alibi_slopes": object()}, "ALiBi"),
        ({"logits_soft_cap": 30.0}, "logits soft-capping"),
        ({"sinks": object()}, "attention sinks"),
        ({"dcp_world_size": 2}, "decode context parallelism"),
    ],
)
def test_a_layer_that_the_tree_kernel_does_not_compute_is_refused(changed: dict[str, Any], reason: str) -> None:
    plain = {"sliding_window": (-1, -1), "alibi_slopes": None, "logits_soft_cap": 0, "sinks": None}
    layers = {"draft": SimpleNamespace(impl=None), "target": SimpleNamespace(impl=SimpleNamespace(**plain | changed))}
    builder = SimpleNamespace()
    group = SimpleNamespace(
        layer_names=["draft", "target"],
        backend=SimpleNamespace(get_name=lambda: "FLASH_ATTN"),
        metadata_builders=[builder],
    )
    settings = Settings(budget=NODES, max_batch=4, exact=False, horizon=HORIZON)
    state = TreeState(settings, SLOTS, torch.device("cpu"))
    with pytest.raises(ValueError, match=f"target layer target uses {reason}.*: use the stock chain"):
        attach([[group]], layers, {"draft"}, state)
    layers["target"].impl = SimpleNamespace(**plain)
    attach([[group]], layers, {"draft"}, state)
    assert builder.ddtree is state
    group.backend = SimpleNamespace(get_name=lambda: "TRITON_ATTN")
    with pytest.raises(ValueError, match="runs on TRITON_ATTN: set attention backend FLASH_ATTN"):
        attach([[group]], layers, {"draft"}, state)

"""Short contexts: right within rounding, and rounded as FlashAttention 3 rounds a chain, almost everywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from ddtree.test_attention import NAN, Batch, Shape, assert_close, make
from torch import Tensor

from specaudit.ddtree import attention, short_attention
from specaudit.ddtree import attention_reference as reference
from specaudit.ddtree.layout import unpack_bits


def depths_of(batch: Batch) -> Tensor:
    """[B, R]: how many rows above itself each row sees, the root's 0."""
    rows = batch.ancestors.shape[1]
    return (unpack_bits(batch.ancestors, rows).sum(-1) - 1).to(torch.int32)


def run(module, batch: Batch, lens: Tensor | None = None, runs: int = 1, keys: int = 128, **more) -> Tensor:
    out = batch.empty_out()
    lens = batch.context_lens + 1 if lens is None else lens
    module.short_tree_attention(
        out,
        batch.query,
        batch.key_cache,
        batch.value_cache,
        batch.row_starts,
        batch.ancestors,
        depths_of(batch),
        batch.slot_mapping,
        batch.block_table,
        lens,
        torch.full_like(lens, runs),
        max_rows=batch.shape.max_rows,
        scale=batch.scale,
        keys=keys,
        **more,
    )
    return out


SHAPES = {
    "bf16": Shape((17, 5), (40, 7)),
    "fp32": Shape((17, 5), (140, 7), dtype=torch.float32),
    "two blocks": Shape((17, 9), (200, 127), dtype=torch.float16),
    "N=64": Shape((65,), (126,), heads=2, kv_heads=1, dtype=torch.float16),
    "one node": Shape((2, 2), (128, 64), dtype=torch.float16),
    "a root alone": Shape((1, 2), (128, 5), dtype=torch.float16),
    "four blocks": Shape((9,), (480,), heads=2, kv_heads=1, dtype=torch.float16),
    "empty context": Shape((17, 9), (0, 0)),
    "padded requests": Shape((9, 0, 33, 2, 0), (5, 3, 255, 0, 0), dtype=torch.float16),
    "head size 80": Shape((9,), (130,), head_size=80, dtype=torch.float16),
    "head size 128": Shape((9,), (130,), head_size=128),
    "GQA 7": Shape((9, 4), (130, 3), heads=7, kv_heads=1, dtype=torch.float16),
    "HND": Shape((17, 5), (140, 7), layout="HND"),
}


@pytest.mark.parametrize(("keys", "runs"), [(128, 1), (128, 2), (192, 1), (192, 3)])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_context_and_tree_in_one(shape: Shape, keys: int, runs: int, device: torch.device) -> None:
    batch = make(shape, device)
    want = batch.empty_out().float()
    batch.paged(reference, want)
    assert_close(run(short_attention, batch, runs=runs, keys=keys), want, shape.dtype)


def same(a: Tensor, b: Tensor) -> float:
    """The share of equal elements."""
    return float((a == b).float().mean())


@pytest.mark.parametrize("context", [20, 120, 127, 128, 191, 250, 383, 440])
@pytest.mark.parametrize(("keys", "runs"), [(128, 1), (128, 2), (128, 4), (192, 1), (192, 3)])
def test_rounded_as_a_chain_is(context: int, keys: int, runs: int, device: torch.device) -> None:
    """Contexts whose trees lie within a block, across its end and behind it; queries long enough for sharp weights."""
    batch = make(Shape((17,), (context,), dtype=torch.float16, seed=context), device)
    batch = replace(batch, query=batch.query * 2)
    want = run(reference, batch, runs=runs, keys=keys)
    assert same(run(short_attention, batch, runs=runs, keys=keys), want) > 0.97
    out, lse = batch.context()
    batch.tree(attention, out, lse)
    assert same(out, want) < 0.75  # a merge of two parts is as correct, and rounds elsewhere


def test_runs_are_apart(device: torch.device) -> None:
    """One maximum for all blocks and one each round differently, in the reference and here."""
    batch = make(Shape((17,), (440,), dtype=torch.float16), device)
    batch = replace(batch, query=batch.query * 2)
    one, four = (run(reference, batch, runs=runs) for runs in (1, 4))
    assert same(one, four) < 0.95
    assert same(run(short_attention, batch, runs=1), four) < 0.95


def test_scores_far_apart_neither_overflow_nor_vanish(device: torch.device) -> None:
    """The first block seen is far above, or far below, the rest: by more powers of two than fp32 has."""
    for sign in (1.0, -1.0):
        batch = make(Shape((17,), (300,), dtype=torch.float16), device)
        slots = reference.table_slots(batch.block_table[0], torch.arange(300, device=device), batch.shape.block_size)
        block, offset = slots // batch.shape.block_size, slots % batch.shape.block_size
        batch.query.abs_()
        batch.key_cache[block[:128], offset[:128]] = 40 * sign
        batch.key_cache[block[128:256], offset[128:256]] = -40 * sign
        want = batch.empty_out().float()
        batch.paged(reference, want)
        for runs in (1, 4):
            assert_close(run(short_attention, batch, runs=runs), want, torch.float16)


def test_requests_without_a_length_are_left_alone(device: torch.device) -> None:
    """Theirs is the other way: a context part, and the tree part, which leaves those with a length alone."""
    batch = make(Shape((9, 17, 5), (30, 200, 100), dtype=torch.float16), device)
    short = torch.tensor([31, 0, 101], dtype=torch.int32, device=device)
    out = run(short_attention, batch, short)
    assert out[:9].isfinite().all()
    assert out[9:26].isnan().all()
    part, lse = batch.context()
    part[:9], part[26:] = NAN, NAN
    batch.tree(attention, part, lse, slot_mapping=batch.slot_mapping, done=short)
    assert part[:9].isnan().all()
    assert part[26:].isnan().all()
    want = batch.empty_out().float()
    batch.paged(reference, want)
    assert_close(torch.cat([out[:9], part[9:26], out[26:]]), want, torch.float16)


@pytest.mark.parametrize("tile", [attention.Tile(16, 64, 1, 1), attention.Tile(64, 64, 8, 2)])
def test_every_cut_gives_the_same(tile: attention.Tile, device: torch.device) -> None:
    batch = make(Shape((17, 41), (40, 200), dtype=torch.float16), device)
    assert same(run(short_attention, batch, tile=tile), run(short_attention, batch)) > 0.97


def test_what_it_is_not_for_is_refused(device: torch.device) -> None:
    with pytest.raises(ValueError, match="at most 64 nodes"):
        run(short_attention, make(Shape((66,), (3,), heads=1, kv_heads=1), device))
    with pytest.raises(ValueError, match="heads of 128"):
        run(short_attention, make(Shape((3,), (3,), heads=1, kv_heads=1, head_size=256), device))


@pytest.mark.parametrize(
    ("head_size", "packed_rows", "rows", "keys"),
    [(64, 32, 64, 192), (64, 65, 192, 128), (80, 32, 192, 128), (128, 64, 64, 128), (128, 65, 128, 128)],
)
def test_blocks_are_flash_attentions_own(head_size: int, packed_rows: int, rows: int, keys: int) -> None:
    blocks = short_attention.flash_blocks(head_size, packed_rows)
    assert blocks == (rows, keys)
    # 132 multiprocessors, 8 KV heads: up to 15 blocks of a batch are at most one each
    factor = short_attention.share_factor(8, blocks, packed_rows, 132)
    assert 14 * factor < 1 < 16 * factor
    assert short_attention.share_factor(8, blocks, rows + 1, 132) == 2 * factor

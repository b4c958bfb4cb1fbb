"""The attention kernels against `attention_reference.py`: same inputs, the reference in fp32.

Every slot of the caches that no row may read holds NaN, every buffer that a kernel writes starts as NaN.
"""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from specaudit.ddtree import attention
from specaudit.ddtree import attention_reference as reference
from specaudit.ddtree.layout import pack_bits, words_of

# Triton 3.6's interpreter makes an int of an array of one element in every loop.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning")

NAN = float("nan")
# Relative error ||x - reference|| / ||reference||: the rounding of the output plus that of the softmax weights.
TOLERANCE = {torch.float32: 5e-6, torch.float16: 1.5e-3, torch.bfloat16: 8e-3}


@dataclass(frozen=True)
class Shape:
    """A batch: per request the rows of its tree (0: padded request), how many of them are inert, and its context."""

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    inert: tuple[int, ...] = ()
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    block_size: int = 16
    dtype: torch.dtype = torch.bfloat16
    cache_dtype: torch.dtype | None = None  # e4m3, or the same as dtype
    query_dtype: torch.dtype | None = None  # e4m3, or the same as dtype
    layout: str = "NHD"
    chain: bool = False
    seed: int = 0

    @property
    def max_rows(self) -> int:
        return max(self.rows)


@dataclass
class Batch:
    shape: Shape
    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    row_starts: Tensor
    context_lens: Tensor
    block_table: Tensor
    slot_mapping: Tensor
    ancestors: Tensor
    dense: list[Tensor]
    scales: dict[str, Tensor | None]

    @property
    def scale(self) -> float:
        return self.shape.head_size**-0.5

    def empty_out(self) -> Tensor:
        return torch.full(self.query.shape, NAN, dtype=self.shape.dtype, device=self.query.device)

    def context(self) -> tuple[Tensor, Tensor]:
        """What the engine's context kernel would give, rounded to the engine's type."""
        out, lse = reference.context_attention(
            self.query,
            self.key_cache,
            self.value_cache,
            self.row_starts,
            self.context_lens,
            self.block_table,
            scale=self.scale,
            **self.scales,
        )
        return out.to(self.shape.dtype), lse

    def tree(self, module, out: Tensor, lse: Tensor, **how) -> None:
        how = how or {"slot_mapping": self.slot_mapping}
        module.tree_attention(
            out,
            lse,
            self.query,
            self.key_cache,
            self.value_cache,
            self.row_starts,
            self.ancestors,
            max_rows=self.shape.max_rows,
            scale=self.scale,
            **how,
            **self.scales,
        )

    def paged(self, module, out: Tensor, splits: int = 1, **how) -> None:
        size = attention.scratch_size(len(self.query), self.shape.heads, self.shape.head_size, splits)
        module.paged_tree_attention(
            out,
            self.query,
            self.key_cache,
            self.value_cache,
            self.row_starts,
            self.context_lens,
            self.block_table,
            self.ancestors,
            max_rows=self.shape.max_rows,
            scale=self.scale,
            splits=splits,
            **{"scratch": torch.full((size,), NAN, device=out.device), **how},
            **self.scales,
        )


def random_tree(rows: int, inert: int, chain: bool, rng: random.Random) -> Tensor:
    """Ancestors of a random tree, parents before children, in dense form: [rows, rows] bool."""
    dense = torch.eye(rows, dtype=torch.bool)
    for row in range(1, rows - inert):
        dense[row] |= dense[row - 1 if chain else rng.randrange(max(0, row - 8), row)]
    return dense


def empty_cache(blocks: int, shape: Shape, device: torch.device) -> tuple[Tensor, Tensor]:
    """Key and value views [blocks, block_size, kv_heads, head_size] of NaN in one of three memory layouts."""
    dtype = shape.cache_dtype or shape.dtype
    n, h, d = shape.block_size, shape.kv_heads, shape.head_size
    fill = 448.0 if dtype == torch.float8_e4m3fn else NAN
    if shape.layout == "NHD":
        both = torch.full((2, blocks, n, h, d), fill, device=device).to(dtype)
        return both[0], both[1]
    if shape.layout == "HND":
        both = torch.full((blocks, 2, h, n, d), fill, device=device).to(dtype).transpose(2, 3)
        return both[:, 0], both[:, 1]
    interleaved = torch.full((blocks, h, n, 2 * d), fill, device=device).to(dtype).transpose(1, 2)
    key, value = interleaved.split(d, -1)
    return key, value


def make(shape: Shape, device: torch.device) -> Batch:
    rng = random.Random(shape.seed)
    generator = torch.Generator().manual_seed(shape.seed)

    def noise(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(device)

    inert = shape.inert or (0,) * len(shape.rows)
    total, requests = sum(shape.rows), len(shape.rows)
    needed = [-(-(c + r) // shape.block_size) for c, r in zip(shape.contexts, shape.rows, strict=True)]
    blocks = list(range(1, 1 + sum(needed)))
    rng.shuffle(blocks)
    table = torch.zeros(requests, max(needed) + 1, dtype=torch.int32)  # block 0 stays NaN: stale entries point there
    key_cache, value_cache = empty_cache(1 + sum(needed), shape, device)
    slots = []
    dense = []
    ancestors = torch.zeros(requests, shape.max_rows + 2, words_of(shape.max_rows + 2), dtype=torch.int32)
    ancestors[:] = pack_bits(torch.eye(shape.max_rows + 2, dtype=torch.bool))
    for b, (context, rows) in enumerate(zip(shape.contexts, shape.rows, strict=True)):
        table[b, : needed[b]] = torch.tensor([blocks.pop() for _ in range(needed[b])], dtype=torch.int32)
        positions = torch.arange(context + rows)
        at = reference.table_slots(table[b], positions, shape.block_size)
        for cache in (key_cache, value_cache):
            rows_kv = noise(context + rows, shape.kv_heads, shape.head_size).to(cache.dtype)
            blocks_at = (at // shape.block_size).tolist()
            for i, (block, offset) in enumerate(zip(blocks_at, (at % shape.block_size).tolist(), strict=True)):
                cache[block, offset] = rows_kv[i]
        slots.append(at[context:])
        dense.append(random_tree(rows, inert[b], shape.chain, rng))
        if rows:
            ancestors[b, :rows] = 0
            ancestors[b, :rows, : words_of(rows)] = pack_bits(dense[-1])
    starts = torch.tensor([0, *shape.rows]).cumsum(0).to(torch.int32)
    e4m3_query = shape.query_dtype == torch.float8_e4m3fn
    e4m3_cache = shape.cache_dtype == torch.float8_e4m3fn
    return Batch(
        shape,
        query=noise(total, shape.heads, shape.head_size).to(shape.query_dtype or shape.dtype),
        key_cache=key_cache,
        value_cache=value_cache,
        row_starts=starts.to(device),
        context_lens=torch.tensor(shape.contexts, dtype=torch.int32, device=device),
        block_table=table.to(device),
        slot_mapping=torch.cat(slots).to(device),
        ancestors=ancestors.to(device),
        dense=dense,
        scales={
            "query_scale": torch.tensor([1.25], device=device) if e4m3_query else None,
            "key_scale": torch.tensor(0.5, device=device) if e4m3_cache else None,
            "value_scale": torch.tensor([3.0], device=device) if e4m3_cache else None,
        },
    )


def assert_close(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    assert got.isfinite().all()
    error = (got.double() - want.double()).norm() / want.double().norm()
    assert error < TOLERANCE[dtype], f"relative error {error:.2e}"


E4M3 = torch.float8_e4m3fn
SHAPES = {
    "bf16": Shape((17, 5), (40, 7)),
    "fp16": Shape((17, 5), (40, 7), dtype=torch.float16),
    "fp32": Shape((17, 5), (40, 7), dtype=torch.float32),
    "one node": Shape((2, 2), (33, 64), dtype=torch.float16),
    "word boundary": Shape((32, 33, 34), (16, 15, 17), heads=2, kv_heads=2, dtype=torch.float16),
    "N=64": Shape((65,), (20,), heads=2, kv_heads=1),
    "different sizes, inert rows, padded requests": Shape(
        (9, 0, 33, 2, 0), (5, 3, 70, 0, 0), inert=(3, 0, 30, 0, 0), dtype=torch.float16
    ),
    "empty context": Shape((17, 9), (0, 0), inert=(4, 8)),
    "head size 80": Shape((9,), (21,), head_size=80, dtype=torch.float16),
    "head size 128": Shape((9,), (21,), head_size=128),
    "head size 192": Shape((9,), (21,), head_size=192, heads=2, kv_heads=1, dtype=torch.float16),
    "head size 256": Shape((9,), (21,), head_size=256, heads=2, kv_heads=1),
    "head size 256 fp32": Shape((9,), (21,), head_size=256, heads=2, kv_heads=1, dtype=torch.float32),
    "no GQA": Shape((9, 4), (21, 3), heads=3, kv_heads=3),
    "GQA 7": Shape((9, 4), (21, 3), heads=7, kv_heads=1, dtype=torch.float16),
    "GQA 8, MQA": Shape((9, 4), (21, 3), heads=8, kv_heads=1),
    "block size 1": Shape((9, 4), (21, 3), block_size=1),
    "block size 48": Shape((9, 4), (60, 3), block_size=48),
    "block size 128": Shape((9, 4), (125, 3), block_size=128),
    "HND": Shape((17, 5), (40, 7), layout="HND"),
    "K and V interleaved": Shape((17, 5), (40, 7), layout="interleaved", dtype=torch.float16),
    "e4m3 cache, bf16": Shape((17, 5), (40, 7), cache_dtype=E4M3),
    "e4m3 cache, fp16": Shape((17, 5), (40, 7), cache_dtype=E4M3, dtype=torch.float16, layout="interleaved"),
    "e4m3 cache, fp32": Shape((17, 5), (40, 7), cache_dtype=E4M3, dtype=torch.float32),
    "e4m3 cache and query": Shape((17, 5), (40, 7), cache_dtype=E4M3, query_dtype=E4M3),
}
CASES = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())


@CASES
def test_tree_part_merges_into_the_context_part(shape: Shape, device: torch.device) -> None:
    batch = make(shape, device)
    out, lse = batch.context()
    want = out.float()
    batch.tree(reference, want, lse)
    batch.tree(attention, out, lse)
    assert_close(out, want, shape.dtype)


@pytest.mark.parametrize("name", ["bf16", "one node", "N=64", "different sizes, inert rows, padded requests", "GQA 7"])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["in place", "to a buffer"])
def test_root_in_the_context_part(name: str, elsewhere: bool, device: torch.device) -> None:
    """The context kernel is given the root's key too: one row less to attend to, and the same result."""
    shape = SHAPES[name]
    batch = make(shape, device)
    root = (batch.row_starts.diff() > 0).int()
    with_root = replace(batch, context_lens=batch.context_lens + root)
    out, lse = with_root.context()
    want = out.float()
    batch.tree(reference, want, lse, slot_mapping=batch.slot_mapping, root_in_context=True)
    if not any(shape.inert):  # an inert row sees the root here, and does not otherwise
        together = batch.empty_out().float()
        batch.paged(reference, together)
        assert_close(want, together, shape.dtype)
    merged = torch.full_like(out, NAN) if elsewhere else None
    batch.tree(attention, out, lse, slot_mapping=batch.slot_mapping, merged=merged, root_in_context=True)
    assert_close(out if merged is None else merged, want, shape.dtype)


@CASES
def test_context_and_tree_together(shape: Shape, device: torch.device) -> None:
    batch = make(shape, device)
    want = batch.empty_out().float()
    batch.paged(reference, want)
    for splits in (1, 3):
        out = batch.empty_out()
        batch.paged(attention, out, splits)
        assert_close(out, want, shape.dtype)


def test_the_two_references_agree(device: torch.device) -> None:
    """Merging by log-sum-exp is exact: the tree part on top of the context part is one softmax over both."""
    batch = make(replace(SHAPES["different sizes, inert rows, padded requests"], dtype=torch.float32), device)
    out, lse = batch.context()
    batch.tree(reference, out, lse)
    want = batch.empty_out()
    batch.paged(reference, want)
    torch.testing.assert_close(out, want, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("splits", [1, 2, 5])
def test_chain_shaped_tree_is_causal_attention(splits: int, device: torch.device) -> None:
    batch = make(Shape((16,), (50,), chain=True, dtype=torch.float32), device)
    slots = reference.table_slots(batch.block_table[0], torch.arange(66, device=device), batch.shape.block_size)
    key, value = reference.gather_kv(batch.key_cache, slots), reference.gather_kv(batch.value_cache, slots)
    query = torch.cat([torch.zeros(50, *batch.query.shape[1:], device=device), batch.query])
    want = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), is_causal=True, enable_gqa=True
    ).transpose(0, 1)[50:]
    out, lse = batch.context()
    batch.tree(attention, out, lse)
    assert_close(out, want, torch.float32)
    batch.paged(attention, out, splits)
    assert_close(out, want, torch.float32)


def test_block_table_and_slot_mapping_find_the_same_rows(device: torch.device) -> None:
    batch = make(SHAPES["different sizes, inert rows, padded requests"], device)
    by_slot, lse = batch.context()
    by_table = by_slot.clone()
    batch.tree(attention, by_slot, lse)
    batch.tree(attention, by_table, lse, block_table=batch.block_table, context_lens=batch.context_lens)
    assert torch.equal(by_slot, by_table)


def test_a_row_without_a_slot_counts_as_zeros_and_poisons_nothing(device: torch.device) -> None:
    """Engines give padding rows the slot -1; only inert rows are such, and no other row sees them."""
    shape = Shape((17, 9), (5, 0), inert=(6, 3))
    batch = make(shape, device)
    batch.slot_mapping[[12, 16, 17 + 8]] = -1
    out, lse = batch.context()
    want = out.float()
    batch.tree(reference, want, lse)
    batch.tree(attention, out, lse)
    assert_close(out, want, shape.dtype)
    assert (out[17 + 8] == 0).all()  # no context, and its own row is zeros


@pytest.mark.parametrize("absent", [float("-inf"), float("inf")])
def test_no_context_ignores_what_the_context_kernel_left(absent: float, device: torch.device) -> None:
    batch = make(SHAPES["empty context"], device)
    out = batch.empty_out()
    lse = torch.full((batch.shape.heads, len(batch.query)), absent, device=device)
    batch.tree(attention, out, lse)
    want = batch.empty_out().float()
    batch.paged(reference, want)
    assert_close(out, want, batch.shape.dtype)
    alone = 17 + 8  # an inert row sees itself alone: its output is its own V
    own = reference.gather_kv(batch.value_cache, batch.slot_mapping[alone : alone + 1])[0]
    assert torch.equal(out[alone].float(), own.repeat_interleave(2, 0))


def test_merged_buffer_leaves_the_context_part_alone(device: torch.device) -> None:
    batch = make(SHAPES["different sizes, inert rows, padded requests"], device)
    out, lse = batch.context()
    before = out.clone()
    merged = torch.full((len(out) + 3, *out.shape[1:]), NAN, dtype=out.dtype, device=device)
    batch.tree(attention, out, lse, slot_mapping=batch.slot_mapping, merged=merged)
    assert torch.equal(out, before)
    assert merged[len(out) :].isnan().all()
    batch.tree(attention, out, lse)
    assert torch.equal(merged[: len(out)], out)


def test_rows_of_no_request_are_not_written(device: torch.device) -> None:
    """An engine pads the flat batch past its last request."""
    batch = make(Shape((5, 3), (9, 30)), device)
    batch.query = torch.cat([batch.query, batch.query[:4]])
    out = batch.empty_out()
    batch.paged(attention, out, splits=2)
    assert out[:8].isfinite().all()
    assert out[8:].isnan().all()


def test_strided_output_and_query(device: torch.device) -> None:
    """Q is often a slice of a fused QKV projection, and the lse a slice of a longer buffer."""
    batch = make(SHAPES["fp16"], device)
    want, lse = batch.context()
    fused = torch.zeros(len(want), 8, 64, dtype=torch.float16, device=device)
    fused[:, 2:6] = batch.query
    out = torch.full((len(want), 6, 64), NAN, dtype=torch.float16, device=device)[:, 1:5]
    out.copy_(want)
    long_lse = torch.zeros(4, len(want) + 7, device=device)
    long_lse[:, : len(want)] = lse
    batch.tree(attention, want, lse)
    batch.query = fused[:, 2:6]
    batch.tree(attention, out, long_lse[:, : len(want)])
    assert torch.equal(out, want)


def test_largest_tree(device: torch.device) -> None:
    shape = Shape((513, 2), (3, 20), heads=1, kv_heads=1, dtype=torch.float16)
    batch = make(shape, device)
    out, lse = batch.context()
    want = out.float()
    batch.tree(reference, want, lse)
    batch.tree(attention, out, lse, slot_mapping=batch.slot_mapping, tile=attention.Tile(64, 64, 4, 1))
    assert_close(out, want, shape.dtype)
    batch.paged(attention, out, splits=4)
    assert_close(out, want, shape.dtype)


@pytest.mark.parametrize(
    "tile",
    [
        attention.Tile(16, 16, 1, 1),
        attention.Tile(16, 16, 1, 1, early=True),
        attention.Tile(64, 32, 4, 3),
        attention.Tile(128, 64, 8, 2, early=True),
    ],
)
def test_every_cut_gives_the_same(tile: attention.Tile, device: torch.device) -> None:
    shape = Shape((17, 41), (40, 90), dtype=torch.float16)
    batch = make(shape, device)
    out, lse = batch.context()
    want = out.float()
    batch.tree(reference, want, lse)
    batch.tree(attention, out, lse, slot_mapping=batch.slot_mapping, tile=tile)
    assert_close(out, want, shape.dtype)
    batch.paged(attention, out, splits=2, tile=tile)
    assert_close(out, want, shape.dtype)


@pytest.mark.parametrize(
    ("requests", "nodes", "keys", "splits", "block_n"),
    [
        (1, 16, 317, 3, 64),  # two tiles a split, while every program has a multiprocessor of its own
        (1, 64, 365, 3, 64),
        (8, 16, 317, 1, 64),  # 128 programs: two splits of two tiles are not worth their merge
        (8, 64, 365, 1, 32),  # 320 programs: one wave of narrow ones
        (1, 16, 4117, 13, 64),
        (1, 64, 4165, 6, 64),  # 240 programs are a wave; eight splits would be 320
        (8, 16, 4117, 2, 64),
        (8, 64, 4165, 3, 64),
        (1, 64, 32833, 13, 64),
        (32, 64, 1_000_000, 7, 64),  # 33.9 waves
        (1, 0, 1_000_000, 33, 64),
        (1, 64, 20, 1, 64),
    ],
)
def test_paged_plan_fills_whole_waves(requests: int, nodes: int, keys: int, splits: int, block_n: int) -> None:
    """On 132 multiprocessors with 32 query and 8 KV heads of 128; the fastest of those measured on an H200, or next to
    it (benchmarks/ddtree_attention.py --only cuts)."""
    tile, got = attention.paged_plan(requests, 8, 4 * (1 + nodes), keys, 132, 128, 2, 2)
    assert (got, tile) == (splits, attention.Tile(64, block_n, 4, 2))


def test_paged_plan_splits_at_most_64_ways() -> None:
    assert attention.paged_plan(1, 1, 4, 1_000_000, 132, 128, 2, 2)[1] == 64


def test_arguments_that_do_not_fit_are_refused(device: torch.device) -> None:
    batch = make(SHAPES["fp16"], device)
    out, lse = batch.context()
    with pytest.raises(ValueError, match="slot_mapping"):
        batch.tree(attention, out, lse, block_table=batch.block_table)
    with pytest.raises(ValueError, match="scratch of"):
        batch.paged(attention, out, splits=2, scratch=None)
    for wrong, message in (
        ({"query": batch.query[:, :3]}, "do not fit together"),
        ({"ancestors": batch.ancestors[:, :16]}, "ancestor words"),
        ({"ancestors": batch.ancestors.long()}, "ancestor words"),
        ({"key_cache": batch.key_cache.to(E4M3), "value_cache": batch.value_cache.to(E4M3)}, "needs key_scale"),
        ({"query": batch.query.to(E4M3)}, "needs query_scale"),
        ({"query": batch.query.transpose(0, 2).contiguous().transpose(0, 2)}, "contiguous"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(batch, **wrong).tree(attention, out, lse)


@pytest.mark.gpu
@pytest.mark.parametrize("cache_dtype", [None, E4M3])
def test_capture_and_replay_with_other_lengths(cache_dtype: torch.dtype | None, device: torch.device) -> None:
    """One graph, captured once, serves every length: rows, contexts, trees and slots are read on the GPU."""
    first = make(Shape((65, 65), (300, 2), dtype=torch.bfloat16, cache_dtype=cache_dtype), device)
    tree_out, lse = first.context()
    paged_out = first.empty_out()
    scratch = torch.full((attention.scratch_size(130, 4, 64, 4),), NAN, device=device)
    inputs = ("query", "row_starts", "context_lens", "block_table", "slot_mapping", "ancestors")

    def launch() -> None:
        first.tree(attention, tree_out, lse)
        attention.paged_tree_attention(
            paged_out,
            first.query,
            first.key_cache,
            first.value_cache,
            first.row_starts,
            first.context_lens,
            first.block_table,
            first.ancestors,
            max_rows=65,
            scale=first.scale,
            splits=4,
            scratch=scratch,
            **first.scales,
        )

    launch()  # compiles
    torch.cuda.synchronize()
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            launch()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocated
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()

    for seed, (rows, contexts, inert) in enumerate(
        [((65, 65), (280, 17), (0, 50)), ((3, 40), (0, 211), (0, 0)), ((64, 0), (129, 0), (8, 0))], start=1
    ):
        other = make(Shape(rows, contexts, inert, dtype=torch.bfloat16, cache_dtype=cache_dtype, seed=seed), device)
        want = other.empty_out().float()
        other.paged(reference, want)
        for name in inputs:
            source, buffer = getattr(other, name), getattr(first, name)
            buffer[tuple(slice(0, s) for s in source.shape)] = source
        first.key_cache[: len(other.key_cache)] = other.key_cache
        first.value_cache[: len(other.value_cache)] = other.value_cache
        part, part_lse = other.context()
        tree_out[: len(part)], lse[:, : part.shape[0]] = part, part_lse
        paged_out.fill_(NAN)
        graph.replay()
        torch.cuda.synchronize()
        assert_close(tree_out[: len(part)], want, torch.bfloat16)
        assert_close(paged_out[: len(part)], want, torch.bfloat16)
        assert paged_out[len(part) :].isnan().all()

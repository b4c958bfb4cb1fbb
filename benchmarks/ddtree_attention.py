"""Attention over draft trees on one GPU: what the tree part adds to the context kernel, and the stand-alone kernel.

    python benchmarks/ddtree_attention.py [--json FILE] [--only errors tree paged sweep cuts]

32 query heads and 8 KV heads of 128, bf16, a paged cache of blocks of 16. An arm is a CUDA graph of 36 layers, each
with its own caches as far as they fit; the arms of a table are replayed in turn; a figure is the median per layer.

Arms: `context`, FlashAttention 2 as torch carries it, not causal, over the context and the root; `context + tree`, the
same followed by the tree part; `tree`, the tree part alone; `rooted`, context + tree with the root left to the tree;
`written`, both after the rows' keys and values were written, as a layer does it (else they come from HBM);
`causal`, one FlashAttention call over context and rows, what a chain of as many rows costs; `paged`, context and tree
in one kernel; `sdpa`, torch's attention with a dense mask; where vLLM is installed, too, `context 3` and `3 + tree`,
with its FlashAttention 3 as an engine calls it. Errors are relative to fp64. `sweep` times other cuts of
the tree part, `cuts` of the kernel for both.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
import triton
from ddtree import CUDA, Figures, line, medians
from torch import Tensor

try:
    from flash_3 import Call
except ImportError:
    Call = None  # type: ignore[assignment,misc]

from specaudit.ddtree import attention
from specaudit.ddtree.layout import pack_bits, unpack_bits

HEADS, KV_HEADS, SIZE, BLOCK, LAYERS = 32, 8, 128, 16, 36
SCALE = SIZE**-0.5
CACHE_BYTES = 8 << 30
# batch, nodes, context: no multiple of a tile, as almost every context
SHAPES = tuple((batch, nodes, context) for context in (300, 4100) for batch in (1, 8) for nodes in (16, 64))
Operation = Callable[[], object]


@dataclass
class Layer:
    query: Tensor  # [B * R, Hq, D]
    cache: Tensor  # [2, B * blocks, BLOCK, Hkv, D]
    out: Tensor


@dataclass
class Case:
    """B requests with a context of the same length and a random tree of N nodes each."""

    batch: int
    nodes: int
    context: int

    def __post_init__(self) -> None:
        g = torch.Generator().manual_seed(self.nodes)
        self.rows = 1 + self.nodes
        self.total = self.batch * self.rows
        blocks = -(-(self.context + self.rows) // BLOCK)
        self.capacity = blocks * BLOCK
        dense = torch.eye(self.rows, dtype=torch.bool).expand(self.batch, -1, -1).clone()
        for b in range(self.batch):
            for row in range(1, self.rows):
                dense[b, row] |= dense[b, int(torch.randint(max(0, row - 8), row, (), generator=g))]
        self.ancestors = pack_bits(dense).to(CUDA)
        self.row_starts = torch.arange(0, self.total + 1, self.rows, dtype=torch.int32, device=CUDA)
        self.context_lens = torch.full((self.batch,), self.context, dtype=torch.int32, device=CUDA)
        self.root_lens = self.context_lens + 1
        self.full_lens = self.context_lens + self.rows
        # consecutive blocks: FlashAttention in torch reads no block table, ours reads it all the same
        self.block_table = torch.arange(self.batch * blocks, dtype=torch.int32, device=CUDA).view(self.batch, blocks)
        self.key_starts = torch.arange(self.batch + 1, dtype=torch.int32, device=CUDA) * self.capacity
        positions = self.context + torch.arange(self.rows, device=CUDA)
        self.slots = (torch.arange(self.batch, device=CUDA)[:, None] * self.capacity + positions).flatten()
        cache_bytes = 2 * 2 * self.batch * self.capacity * KV_HEADS * SIZE
        count = max(2, min(LAYERS, CACHE_BYTES // cache_bytes))
        self.layers = [self.layer() for _ in range(count)]
        self.tile, self.splits = attention.paged_plan(
            self.batch,
            KV_HEADS,
            self.rows * HEADS // KV_HEADS,
            self.context + self.rows,
            torch.cuda.get_device_properties(0).multi_processor_count,
            SIZE,
            2,
            2,
        )

    def layer(self) -> Layer:
        query = torch.randn(self.total, HEADS, SIZE, device=CUDA).bfloat16()
        cache = torch.randn(2, self.block_table.numel(), BLOCK, KV_HEADS, SIZE, device=CUDA).bfloat16()
        return Layer(query, cache, torch.empty_like(query))

    def flash(self, layer: Layer, keys: Tensor, causal: bool = False) -> tuple[Tensor, Tensor]:
        """(out [T, Hq, D], lse [Hq, T]) of FlashAttention 2 over the first `keys` [B] of each request."""
        key, value = layer.cache.view(2, -1, KV_HEADS, SIZE)
        return self.flash_over(layer, key, value, self.key_starts, self.context + self.rows, causal, keys)

    def flash_over(
        self,
        layer: Layer,
        key: Tensor,
        value: Tensor,
        key_starts: Tensor,
        most_keys: int,
        causal: bool,
        keys: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            layer.query,
            key,
            value,
            self.row_starts,
            key_starts,
            self.rows,
            most_keys,
            0.0,
            causal,
            False,
            scale=SCALE,
            seqused_k=keys,
        )
        return out, lse

    def flash_3(
        self, layer: Layer, keys: Tensor, schedule: Tensor | None = None, causal: bool = False
    ) -> tuple[Tensor, Tensor]:
        """As `flash`, through the block table."""
        return self.call_3().attend(layer.query, *layer.cache, keys, causal, schedule)

    def call_3(self) -> Call:
        return Call(HEADS, KV_HEADS, SIZE, BLOCK, self.rows, self.capacity, self.row_starts, self.block_table)

    def context_3_and_tree(self, layer: Layer, schedule: Tensor | None = None) -> Tensor:
        out, lse = self.flash_3(layer, self.root_lens, schedule)
        self.tree(layer, out, lse)
        return out

    def two_flash_parts(self, layer: Layer) -> Tensor:
        """A chain as engines do it when context and rows are apart: two calls, each rounded to bf16, merged in fp32."""
        first, first_lse = self.flash(layer, self.context_lens)
        key, value = layer.cache.view(2, -1, KV_HEADS, SIZE)[:, self.slots]
        second, second_lse = self.flash_over(layer, key, value, self.row_starts, self.rows, True, None)
        weight = (first_lse - torch.logaddexp(first_lse, second_lse)).exp().T[..., None]
        return (weight * first.float() + (1 - weight) * second.float()).bfloat16()

    def tree(
        self,
        layer: Layer,
        out: Tensor,
        lse: Tensor,
        root_in_context: bool = True,
        tile: attention.Tile | None = None,
        merged: Tensor | None = None,
    ) -> None:
        attention.tree_attention(
            out,
            lse,
            layer.query,
            layer.cache[0],
            layer.cache[1],
            self.row_starts,
            self.ancestors,
            max_rows=self.rows,
            scale=SCALE,
            slot_mapping=self.slots,
            merged=merged,
            root_in_context=root_in_context,
            tile=tile,
        )

    def context_and_tree(
        self, layer: Layer, root_in_context: bool = True, tile: attention.Tile | None = None
    ) -> Tensor:
        out, lse = self.flash(layer, self.root_lens if root_in_context else self.context_lens)
        self.tree(layer, out, lse, root_in_context, tile)
        return out

    def write(self, layer: Layer) -> None:
        """As a layer does before its attention: the rows' keys and values go into the cache."""
        rows = layer.query[:, :KV_HEADS]
        for cache in layer.cache:
            cache.view(-1, KV_HEADS, SIZE).index_copy_(0, self.slots, rows)

    def written(self, layer: Layer, tree: bool) -> None:
        self.write(layer)
        if tree:
            self.context_and_tree(layer)
        else:
            self.flash(layer, self.root_lens)

    def paged(
        self, layer: Layer, scratch: Tensor, splits: int | None = None, tile: attention.Tile | None = None
    ) -> Tensor:
        attention.paged_tree_attention(
            layer.out,
            layer.query,
            layer.cache[0],
            layer.cache[1],
            self.row_starts,
            self.context_lens,
            self.block_table,
            self.ancestors,
            max_rows=self.rows,
            scale=SCALE,
            splits=splits or self.splits,
            scratch=scratch,
            tile=tile or self.tile,
        )
        return layer.out

    def scratch(self, splits: int) -> Tensor:
        return torch.empty(attention.scratch_size(self.total, HEADS, SIZE, splits), device=CUDA)

    def visible(self) -> Tensor:
        """[B, R, context + R]"""
        context = torch.ones(self.batch, self.rows, self.context, dtype=torch.bool, device=CUDA)
        return torch.cat([context, unpack_bits(self.ancestors, self.rows)], -1)

    def sdpa(self, layer: Layer, visible: Tensor) -> Tensor:
        query = layer.query.view(self.batch, self.rows, HEADS, SIZE).transpose(1, 2)
        key, value = (
            x.view(self.batch, self.capacity, KV_HEADS, SIZE)[:, : self.context + self.rows].transpose(1, 2)
            for x in layer.cache
        )
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=visible[:, None], scale=SCALE, enable_gqa=True
        )
        return out.transpose(1, 2).reshape(self.total, HEADS, SIZE)

    def exact(self, layer: Layer, visible: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(out [T, Hq, D], lse [Hq, T]) in fp64, over context and tree, or over the keys that visible
        [B, R, context + R] has."""
        visible = self.visible() if visible is None else visible
        outs, lses = [], []
        for b in range(self.batch):
            key, value = (
                x.view(self.batch, self.capacity, KV_HEADS, SIZE)[b, : self.context + self.rows].double()
                for x in layer.cache
            )
            query = layer.query[b * self.rows : (b + 1) * self.rows].double()
            group = HEADS // KV_HEADS
            scores = torch.einsum("nhd,mhd->hnm", query, key.repeat_interleave(group, 1)) * SCALE
            scores = scores.masked_fill(~visible[b], float("-inf"))
            outs.append(torch.einsum("hnm,mhd->nhd", scores.softmax(-1), value.repeat_interleave(group, 1)))
            lses.append(scores.logsumexp(-1))
        return torch.cat(outs), torch.cat(lses, 1)

    def tree_after_exact_context(self, layer: Layer) -> Tensor:
        """What the tree part alone does to the error: its context part has fp32 of an fp64 result."""
        visible = self.visible()
        visible[:, :, self.context + 1 :] = False
        out, lse = (x.float() for x in self.exact(layer, visible))
        merged = torch.empty_like(layer.query)
        self.tree(layer, out, lse, merged=merged)
        return merged

    def every(self, operation: Callable[[Layer], object]) -> list[Operation]:
        return [partial(operation, self.layers[i % len(self.layers)]) for i in range(LAYERS)]


def section_errors() -> Figures:
    print("\nerror against fp64: relative norm (largest element)")
    figures: Figures = {}
    for batch, nodes, context in (*SHAPES, (1, 64, 32768)):
        case = Case(batch, nodes, context)
        layer = case.layers[0]
        exact, _ = case.exact(layer)
        causal = case.flash(layer, case.full_lens, causal=True)[0]
        chain = torch.ones(case.rows, case.rows, dtype=torch.bool, device=CUDA).tril()
        results = {
            "flash + tree": case.context_and_tree(layer),
            "exact context + tree": case.tree_after_exact_context(layer),
            "paged": case.paged(layer, case.scratch(case.splits)),
            "sdpa": case.sdpa(layer, case.visible()),
        }
        chains = {}
        if Call is not None:
            results["flash 3 + tree"] = case.context_3_and_tree(layer)
            chains["chain: stock flash 3, causal"] = case.flash_3(layer, case.full_lens, causal=True)[0]
        figure: Figures = {name: error(got, exact) for name, got in results.items()}
        case.ancestors = pack_bits(chain).expand(batch, -1, -1).contiguous()
        exact, _ = case.exact(layer)
        chains["chain: stock flash, causal"] = causal
        chains["chain: two stock parts merged"] = case.two_flash_parts(layer)
        chains["chain: flash + tree"] = case.context_and_tree(layer)
        chains["chain: paged"] = case.paged(layer, case.scratch(case.splits))
        figure |= {name: error(got, exact) for name, got in chains.items()}
        figures[f"B={batch} N={nodes} context {context}"] = figure
        print(f"  B={batch} N={nodes} context {context}")
        for name, text in figure.items():
            print(f"    {name:<30}{text}", flush=True)
    return figures


def error(got: Tensor, exact: Tensor) -> str:
    if not got.isfinite().all():
        return "not finite"
    difference = got.double() - exact
    return f"{difference.norm() / exact.norm():.2e} ({difference.abs().max():.1e})"


def section_tree() -> Figures:
    print("\ntree part, beyond the context kernel, us a layer (bar: 8)")
    figures: Figures = {}
    for batch, nodes, context in SHAPES:
        case = Case(batch, nodes, context)
        parts = [case.flash(layer, case.root_lens) for layer in case.layers]
        arms = {
            "context": case.every(partial(case.flash, keys=case.root_lens)),
            "context + tree": case.every(case.context_and_tree),
            "tree": [partial(case.tree, case.layers[i % len(parts)], *parts[i % len(parts)]) for i in range(LAYERS)],
            "paged": case.every(partial(case.paged, scratch=case.scratch(case.splits))),
            "causal": case.every(partial(case.flash, keys=case.full_lens, causal=True)),
            "rooted": case.every(partial(case.context_and_tree, root_in_context=False)),
            "written, context": case.every(partial(case.written, tree=False)),
            "written, context + tree": case.every(partial(case.written, tree=True)),
        }
        if Call is not None:
            schedule = case.call_3().schedule(case.root_lens, causal=False)
            arms["context 3"] = case.every(partial(case.flash_3, keys=case.root_lens, schedule=schedule))
            arms["3 + tree"] = case.every(partial(case.context_3_and_tree, schedule=schedule))
        figure: Figures = medians(arms)
        for name in ("context + tree", "paged", "rooted"):
            figure[f"{name}, beyond"] = figure[name] - figure["context"]
        if "context 3" in figure:
            for name in ("3 + tree", "paged"):
                figure[f"{name}, beyond 3"] = figure[name] - figure["context 3"]
        figure["written, beyond"] = figure["written, context + tree"] - figure["written, context"]
        figures[f"B={batch} N={nodes} context {context}"] = figure
        line(f"B={batch} N={nodes} context {context}", figure)
    return figures


def section_paged() -> Figures:
    print("\ncontext and tree in one kernel, us a layer")
    figures: Figures = {}
    for context in (256, 4096, 32768):
        for batch, nodes in ((1, 16), (1, 64), (8, 16), (8, 64)):
            case = Case(batch, nodes, context)
            scratch, visible = case.scratch(case.splits), case.visible()
            figure: Figures = medians(
                {
                    "paged": case.every(partial(case.paged, scratch=scratch)),
                    "flash + tree": case.every(case.context_and_tree),
                    "sdpa": case.every(partial(case.sdpa, visible=visible)),
                },
                rounds=10,
            )
            figure["splits"] = case.splits
            figure["keys a step"] = case.tile.block_n
            figures[f"B={batch} N={nodes} context {context}"] = figure
            line(f"B={batch} N={nodes} context {context}", figure)
    return figures


def section_sweep() -> Figures:
    """Other cuts of the tree part: (rows, keys, warps, stages), the fastest first."""
    figures: Figures = {}
    for batch, nodes in ((1, 16), (1, 64), (8, 16), (8, 64)):
        case = Case(batch, nodes, 1024)
        out, lse = case.flash(case.layers[0], case.root_lens)
        keys = (16, 32) if nodes == 16 else (32, 64)
        tiles = [attention.Tile(m, n, 4, s) for m in (16, 32, 64) for n in keys for s in (1, 2)]
        tiles += [attention.Tile(16, keys[-1], 2, 1), attention.Tile(64, keys[-1], 8, 1), attention.Tile(64, 16, 4, 2)]
        arms: dict[str, list[Operation]] = {
            str(tuple(tile)): [partial(case.tree, layer, out, lse, tile=tile) for layer in case.layers[:18]]
            for tile in tiles
        }
        figures[f"tree B={batch} N={nodes}"] = fastest(medians(arms, rounds=9), f"tree B={batch} N={nodes}")
    return figures


def section_cuts() -> Figures:
    """Other cuts of the kernel for context and tree, and other numbers of splits, the fastest first."""
    figures: Figures = {}
    tiles = [attention.Tile(*cut) for cut in ((64, 64, 4, 1), (64, 64, 4, 2), (64, 32, 4, 2), (128, 32, 8, 2))]
    for batch, nodes, context in (*SHAPES, (1, 64, 32768)):
        case = Case(batch, nodes, context)
        arms: dict[str, list[Operation]] = {
            "context": [partial(case.flash, layer, case.root_lens) for layer in case.layers[:12]]
        }
        for tile in tiles:
            for splits in (x for x in (1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 26, 33) if 64 * x <= context):
                paged = partial(case.paged, scratch=case.scratch(splits), splits=splits, tile=tile)
                arms[f"{tuple(tile)} x{splits}"] = [partial(paged, layer) for layer in case.layers[:12]]
        name = f"paged B={batch} N={nodes} context {context}"
        times = medians(arms, rounds=7)
        print(f"\ncontext {times['context']:.2f}; {tuple(case.tile)} x{case.splits} is planned", end="")
        figures[name] = fastest(times, name)
    return figures


def fastest(times: dict[str, float], name: str, count: int = 8) -> dict[str, float]:
    ordered = dict(sorted(times.items(), key=lambda item: item[1]))
    print(f"\n{name}: " + ", ".join(f"{tile} {us:.2f}" for tile, us in list(ordered.items())[:count]), flush=True)
    return ordered


SECTIONS = {
    "errors": section_errors,
    "tree": section_tree,
    "paged": section_paged,
    "sweep": section_sweep,
    "cuts": section_cuts,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write every figure here")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=["errors", "tree", "paged"])
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing was measured", file=sys.stderr)
        return 2
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    figures: Figures = {"device": torch.cuda.get_device_name()}
    for name in arguments.only:
        figures[name] = SECTIONS[name]()
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

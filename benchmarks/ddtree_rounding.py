"""Attention of a chain by FlashAttention 3, as an installed vLLM carries it, and of trees: equal bits, and time.

    PYTHONPATH=SITE python benchmarks/ddtree_rounding.py [--json FILE]

Bits: a chain of 15 tokens as a tree of that shape, the share of bf16 elements that are FlashAttention 3's own. `exact`:
every row a sequence of its own; `merged`: its context part with the tree part merged in; `chain of 14`: itself, with a
row less. Time: one layer as an engine launches it, in CUDA graphs, in turn; `sequences` once for all layers of a step.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
from ddtree import CUDA, Figures, line, medians
from flash_3 import SPLITS, Call
from torch import Tensor

from specaudit.ddtree import attention
from specaudit.ddtree.engine.context import rows_alone
from specaudit.ddtree.engine.exact import Exact, Sequences, pages
from specaudit.ddtree.engine.exact_setup import schedule_layout
from specaudit.ddtree.engine.schedule import RUNS, flash_blocks, order_of, rounded
from specaudit.ddtree.layout import pack_bits

BLOCK, HORIZON, LAYERS, LONGEST = 16, 15, 36, 2048


@dataclass
class Case:
    """B requests of equal context; N nodes in a chain of the horizon's length, others below its root."""

    heads: int
    kv_heads: int
    size: int
    batch: int
    context: int
    nodes: int = HORIZON
    layers: int = 1

    def __post_init__(self) -> None:
        self.rows = 1 + self.nodes
        blocks = -(-(self.context + self.rows) // BLOCK)
        self.table = torch.randperm(self.batch * blocks, device=CUDA).int().view(self.batch, blocks)
        positions = self.context + torch.arange(self.rows, device=CUDA)
        self.slots = (self.table[:, positions // BLOCK].long() * BLOCK + positions % BLOCK).flatten()
        self.starts = torch.arange(self.batch + 1, dtype=torch.int32, device=CUDA) * self.rows
        self.queries = [
            2 * torch.randn(self.batch * self.rows, self.heads, self.size, device=CUDA).bfloat16()
            for _ in range(self.layers)
        ]
        shape = (2, self.batch * blocks, BLOCK, self.kv_heads, self.size)
        self.caches = [torch.randn(shape, device=CUDA).bfloat16() for _ in range(self.layers)]
        row = torch.arange(self.rows)
        depth = torch.where(row <= HORIZON, row, 1)
        sees = (row[None] <= row[:, None]) & (row <= HORIZON)[:, None] | (row == 0)[None] | torch.eye(len(row)).bool()
        self.ancestors = pack_bits(sees).expand(self.batch, -1, -1).contiguous().to(CUDA)
        self.depths = depth.int().expand(self.batch, -1).contiguous().to(CUDA)
        multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
        packed = (1 + HORIZON) * self.heads // self.kv_heads
        blocks = flash_blocks(self.size, packed)
        assert blocks is not None
        order = order_of(blocks, self.kv_heads, packed, multiprocessors, SPLITS, 32)
        total = self.batch * self.rows
        builder = SimpleNamespace(
            num_heads_q=self.heads, num_heads_kv=self.kv_heads, headdim=self.size, kv_cache_dtype=torch.bfloat16
        )
        layout = schedule_layout(
            builder, order_of(blocks, self.kv_heads, self.heads // self.kv_heads, multiprocessors, 0, 0), CUDA
        )
        assert layout is not None
        self.layout = layout
        unit = pages(self.caches[0][0])[1]
        self.exact = Exact(order, layout, total, LONGEST, HORIZON, CUDA, block_size=BLOCK, unit=unit)
        self.tree_links = SimpleNamespace(depths=self.depths, ancestors=self.ancestors, batch=self.batch)
        self.sequences = self.prepare()

    def runs(self) -> int:
        """Of the first row."""
        roles = self.layout.of(self.sequences.splits)
        return int(self.sequences.schedule[roles.index(RUNS) * rounded(self.batch * self.rows)]) if RUNS in roles else 1

    def prepare(self) -> Sequences:
        total, lens = self.batch * self.rows, self.full(self.context + 1)
        return self.exact.prepare(
            self.tree_links,
            lens,
            self.starts,
            total,
            self.table,
            self.slots,
        )

    def full(self, value: int) -> Tensor:
        return torch.full((self.batch,), value, dtype=torch.int32, device=CUDA)

    def flash(
        self, layer: int, lens: Tensor, causal: bool, rows: int | None = None, schedule: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        rows = rows or self.rows
        query = self.queries[layer].view(self.batch, self.rows, self.heads, self.size)[:, :rows].flatten(0, 1)
        return self.call(rows).attend(query, *self.caches[layer], lens, causal, schedule)

    def call(self, rows: int) -> Call:
        starts = self.starts // self.rows * rows if rows != self.rows else self.starts
        return Call(self.heads, self.kv_heads, self.size, BLOCK, rows, LONGEST, starts, self.table)

    def alone(self, layer: int) -> Tensor:
        """Every row a sequence of its own, by the engine's own call."""
        impl = SimpleNamespace(scale=self.size**-0.5, vllm_flash_attn_version=3)
        out = torch.empty_like(self.queries[layer])
        rows_alone(self.sequences, impl, self.queries[layer], *self.caches[layer], out)
        return out

    def tree(self, layer: int, out: Tensor, lse: Tensor) -> None:
        attention.tree_attention(
            out,
            lse,
            self.queries[layer],
            *self.caches[layer],
            self.starts,
            self.ancestors,
            max_rows=self.rows,
            scale=self.size**-0.5,
            slot_mapping=self.slots,
            root_in_context=True,
        )

    def in_two_parts(self, layer: int, context: Tensor, schedule: Tensor) -> None:
        out, lse = self.flash(layer, context, False, schedule=schedule)
        self.tree(layer, out, lse)


SHAPES = {"8 / 4 heads of 64": (8, 4, 64), "32 / 8 heads of 128": (32, 8, 128)}


def bits() -> Figures:
    print("\nequal to FlashAttention 3's own chain, share of the bf16 elements")
    figures: Figures = {}
    for name, shape in SHAPES.items():
        for batch in (1, 8, 32):
            for context in (60, 120, 185, 200, 250, 480, 1000, 2000):
                case = Case(*shape, batch, context)
                chain, _ = case.flash(0, case.full(context + case.rows), True)
                shorter, _ = case.flash(0, case.full(context + case.rows - 1), True, case.rows - 1)
                merged, lse = case.flash(0, case.full(context + 1), False)
                case.tree(0, merged, lse)
                without_last = chain.view(batch, case.rows, *chain.shape[1:])[:, :-1].flatten(0, 1)
                figure = {
                    "exact": share(case.alone(0), chain),
                    "merged": share(merged, chain),
                    "chain of 14": share(shorter, without_last),
                    "runs": case.runs(),
                }
                label = f"{name}, B={batch}, context {context}"
                print(f"{label:<44}" + "  ".join(f"{k} {v:.5g}" for k, v in figure.items()), flush=True)
                figures[label] = figure
    return figures


def share(a: Tensor, b: Tensor) -> float:
    return float((a == b).float().mean())


def times() -> Figures:
    print("\none layer, us")
    figures: Figures = {}
    for name, shape in SHAPES.items():
        for batch, nodes in ((1, 15), (1, 16), (1, 64), (7, 64), (8, 16), (30, 16)):
            for context in (250, 1000, 2000):
                case = Case(*shape, batch, context, nodes, layers=LAYERS)
                chain = Case(*shape, batch, context, layers=LAYERS)
                whole, root = chain.full(context + chain.rows), case.full(context + 1)
                by_root = case.call(case.rows).schedule(root, causal=False)
                by_chain = chain.call(chain.rows).schedule(whole, causal=True)
                arms = {
                    "chain": [partial(chain.flash, i, whole, True, None, by_chain) for i in range(LAYERS)],
                    "exact": [partial(case.alone, i) for i in range(LAYERS)],
                    "merged": [partial(case.in_two_parts, i, root, by_root) for i in range(LAYERS)],
                    "sequences": [case.prepare] * LAYERS,
                }
                figure = medians(arms, rounds=15)
                label = f"{name}, B={batch} N={nodes} context {context}"
                line(label, figure)
                figures[label] = figure
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write every figure here")
    arguments = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    figures: Figures = {"device": torch.cuda.get_device_name(), "bits": bits(), "times": times()}
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Every DDTree kernel once, small, for compute-sanitizer; with --stock only Triton's own reductions, sorts
and products.

PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck  python benchmarks/ddtree_sanitize.py
compute-sanitizer --tool racecheck python benchmarks/ddtree_sanitize.py            (and again with --stock)
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import triton
import triton.language as tl
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from specaudit.ddtree import kernels
from specaudit.ddtree.attention import paged_tree_attention, scratch_size, tree_attention
from specaudit.ddtree.layout import KVCaches, Tree, Walk, uniform_row_starts

CUDA = torch.device("cuda")


@triton.jit
def stock(x_ptr, keys_ptr, out_ptr, top_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    x = tl.load(x_ptr + at)
    tl.store(out_ptr, tl.sum(x, axis=0) + tl.max(x, axis=0))
    tl.store(top_ptr + tl.arange(0, 64), tl.topk(tl.load(keys_ptr + at), 64))


@triton.jit
def stock_products(x_ptr, out_ptr, SIZE: tl.constexpr, STEPS: tl.constexpr):
    """Two products, the second of the softmax of the first, in a loop: what any attention in Triton consists of."""
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    x = tl.load(x_ptr + at)
    total = tl.zeros((SIZE, SIZE), tl.float32)
    for step in range(STEPS):
        y = tl.load(x_ptr + (1 + step) * SIZE * SIZE + at)
        scores = tl.dot(x, y.T)
        weights = tl.exp(scores - tl.max(scores, axis=1)[:, None])
        total = tl.dot((weights / tl.sum(weights, axis=1)[:, None]).to(y.dtype), y, total)
    tl.store(out_ptr + at, total)


def run_stock() -> None:
    products = torch.randn(5, 64, 64, device=CUDA).bfloat16()
    stock_products[(4,)](products, torch.empty(64, 64, device=CUDA), SIZE=64, STEPS=4, num_stages=2)
    x, keys = torch.randn(1024, device=CUDA), torch.randperm(1024, device=CUDA)
    stock[(4,)](x, keys, torch.empty(1, device=CUDA), torch.empty(64, dtype=torch.int64, device=CUDA), SIZE=1024)


def run_ours(batch: int, horizon: int, vocabulary: int, nodes: int) -> None:
    """Sizes that are multiples of nothing: an access past an end then leaves its allocation."""
    logits = torch.randn(batch, horizon, vocabulary, device=CUDA).bfloat16()
    budgets = torch.tensor([nodes, 0, -1, 5][:batch], dtype=torch.int32, device=CUDA)
    temperature = torch.ones(batch, device=CUDA)
    tree = kernels.build(logits, nodes, temperature, budgets, 2, torch.zeros(horizon, device=CUDA))
    rows = nodes + 1
    starts = uniform_row_starts(batch, rows, CUDA)
    staged = Tree.empty(batch, nodes, horizon, CUDA)
    kernels.stage(tree, torch.arange(batch, dtype=torch.int32, device=CUDA), starts, staged)
    kernels.write_positions(torch.arange(batch * rows, device=CUDA), staged, starts)
    kernels.ancestor_mask(tree.parents, torch.empty_like(tree.ancestors))
    tokens = staged.tokens.flatten()
    walk = kernels.greedy_walk(torch.randn(batch * rows, vocabulary, device=CUDA), tokens, staged, starts)
    kernels.walk(agreeing(staged), tokens, staged, starts, walk)
    kernels.linear_walk(agreeing(staged), tokens, starts, horizon, None, Walk.empty(batch, horizon, CUDA))
    storage = torch.randn(6, -(-batch * rows // 4), 4, 3, 8, device=CUDA).bfloat16()
    mapping = torch.randperm(batch * rows, device=CUDA)
    kernels.commit_kv(KVCaches.of(list(storage)), mapping, walk, starts)
    hidden = torch.randn(batch * rows, 37, device=CUDA).bfloat16()
    kernels.commit_rows(
        hidden, walk, starts, torch.empty(batch, 1 + walk.accepted.shape[1], 37, device=CUDA).bfloat16()
    )
    kernels.commit_rows(hidden, walk, starts)


def run_attention(context: int, nodes: int, size: int, dtype: torch.dtype, splits: int) -> None:
    """Two requests and an inert one. The caches end with the last row's slot: a key past it leaves its allocation."""
    heads, kv_heads, block, requests, rows = 6, 2, 4, 3, nodes + 1
    blocks = -(-(context + rows) // block)
    starts = torch.tensor([0, rows, 2 * rows, 2 * rows], dtype=torch.int32, device=CUDA)
    lens = torch.full((requests,), context, dtype=torch.int32, device=CUDA)
    table = torch.randperm(requests * blocks, device=CUDA).int().view(requests, blocks)
    query = torch.randn(2 * rows, heads, size, device=CUDA).bfloat16()
    key, value = (torch.randn(requests * blocks, block, kv_heads, size, device=CUDA).to(dtype) for _ in range(2))
    scales = {}
    if dtype == torch.float8_e4m3fn:
        scales = {name: torch.ones(1, device=CUDA) for name in ("key_scale", "value_scale")}
    logits = torch.randn(requests, 5, 4001, device=CUDA)
    tree = kernels.build(logits, nodes, torch.ones(requests, device=CUDA), None, 0, None)
    positions = context + torch.arange(rows, device=CUDA)
    slots = (table[:2, positions // block].long() * block + positions % block).flatten()
    out, lse = torch.randn_like(query), torch.randn(heads, 2 * rows, device=CUDA)
    given = {"max_rows": rows, "scale": size**-0.5, **scales}
    common = (query, key, value, starts)
    for root_in_context in (False, True):
        tree_attention(out, lse, *common, tree.ancestors, slot_mapping=slots, root_in_context=root_in_context, **given)
    tree_attention(out, lse, *common, tree.ancestors, block_table=table, context_lens=lens, **given)
    scratch = torch.empty(scratch_size(2 * rows, heads, size, splits), device=CUDA)
    paged_tree_attention(out, *common, lens, table, tree.ancestors, splits=splits, scratch=scratch, **given)


def agreeing(tree: Tree) -> Tensor:
    """Target tokens that lead to the deepest last node of each tree."""
    target = torch.zeros_like(tree.tokens)
    for b in range(tree.batch):
        row = int(tree.depths[b].argmax())
        while row > 0:
            parent = int(tree.parents[b, row])
            target[b, parent] = tree.tokens[b, row]
            row = parent
    return target.flatten()


if __name__ == "__main__":
    if "--stock" in sys.argv:
        run_stock()
    else:
        run_ours(4, 3, 8999, 21)
        run_ours(1, 15, 20_001, 64)
        run_attention(37, 21, 64, torch.bfloat16, 1)
        run_attention(301, 64, 128, torch.bfloat16, 3)
        run_attention(0, 5, 128, torch.float8_e4m3fn, 1)
    torch.cuda.synchronize()
    print("ran", "stock reductions" if "--stock" in sys.argv else "every kernel")

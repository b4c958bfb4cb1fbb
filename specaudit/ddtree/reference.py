"""DDTree step by step in plain torch and Python (arXiv:2604.12989): what the kernels are held against.

kernels.py has the same functions with the same signatures. Letters and tensors: layout.py.

Rules both follow
    logits       NaN counts as -inf; +inf, also after the division by the temperature, as the largest float32.
    table        ranks are by logit as given, highest first, equal logits by lowest id. logprob = min(x / T - lse, 0).
    score        of a path: its positions' (logprob + bonus), added in float32 from the root down.
    best first   grow the tree by the best child that is not in it yet. Total order: highest score, then lowest depth,
                 then lowest parent row, then lowest rank. A path of score -inf never becomes a node.
    walk         -1, as a target's token or as a node's, matches nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from ctypes import c_float
from itertools import pairwise
from math import isinf

import torch
from torch import Tensor

from .layout import KVCaches, Table, Tree, Walk, pack_bits

FLOAT32_MAX = torch.finfo(torch.float32).max


# ---- build ----


def draft_table(logits: Tensor, nodes: int, temperature: Tensor | None = None, out: Table | None = None) -> Table:
    """Stage one: the `nodes` most probable tokens of each position.

    logits [B, K, V] float32, bfloat16 or float16. temperature [B] float32 divides the logits; values <= 0 (a greedy
    request) mean 1, as does None.
    """
    batch, horizon, _ = logits.shape
    out = out or Table.empty(batch, horizon, nodes, logits.device)
    x = logits.float()
    x = torch.where(x.isnan(), -torch.inf, x)
    y = (x / _divisor(temperature, batch, x.device)[:, None, None]).clamp(max=FLOAT32_MAX)
    lse = y.double().logsumexp(-1).float()  # [B, K]
    order = x.sort(dim=-1, descending=True, stable=True).indices[..., :nodes]  # stable: equal logits by lowest id
    logprobs = (y.gather(-1, order) - lse[..., None]).clamp(max=0.0)

    rank = torch.arange(order.shape[-1], device=x.device)
    depth = 1 + torch.arange(horizon, device=x.device)
    usable = (rank <= nodes - depth[:, None]) & (x.gather(-1, order) > -torch.inf)
    out.logprobs.fill_(-torch.inf)
    out.ids.zero_()
    out.logprobs[..., : order.shape[-1]] = torch.where(usable, logprobs, -torch.inf)
    out.ids[..., : order.shape[-1]] = torch.where(usable, order, 0).to(out.ids.dtype)
    out.lse.copy_(lse)
    return out


def best_first(
    table: Table,
    budgets: Tensor | None = None,
    spine: int = 0,
    depth_bonus: Tensor | None = None,
    out: Tree | None = None,
) -> Tree:
    """Stage two: grow each request's tree, best node first, until its budget is spent.

    budgets [B] int32: nodes of each request, at most N (None: N); 0 is the greedy chain of min(K, N) nodes instead of a
    tree; below 0 the request is inert. spine: the first `spine` nodes of the greedy chain come first, whatever their
    score (at least K: the chain is kept whole). depth_bonus [K] float32 is added to every step at that depth; with a
    bonus a child may score above its parent, and still comes after it.
    """
    batch, horizon, nodes = table.logprobs.shape
    out = out or Tree.empty(batch, nodes, horizon, table.logprobs.device)
    bonus = [0.0] * horizon if depth_bonus is None else depth_bonus.tolist()
    for b in range(batch):
        budget = nodes if budgets is None else min(int(budgets[b]), nodes)
        if budget < 0:
            _store(out, b, None)
            continue
        chain = budget == 0
        limit = min(horizon, nodes) if chain else budget
        grown = _Growing(table.logprobs[b].tolist(), bonus)
        grown.grow(limit, spine=limit if chain else min(spine, limit), chain_only=chain)
        _store(out, b, grown, table.ids[b])
    return out


def build(
    logits: Tensor,
    nodes: int,
    temperature: Tensor | None = None,
    budgets: Tensor | None = None,
    spine: int = 0,
    depth_bonus: Tensor | None = None,
    out: Tree | None = None,
) -> Tree:
    """draft_table, then best_first: draft logits [B, K, V] to trees of at most `nodes` nodes."""
    return best_first(draft_table(logits, nodes, temperature), budgets, spine, depth_bonus, out)


class _Growing:
    """One tree while it grows; lists indexed by row, the root first."""

    def __init__(self, logprobs: list[list[float]], bonus: list[float]) -> None:
        self.logprobs = logprobs  # [K][N]
        self.bonus = bonus
        self.parents = [-1]
        self.depths = [0]
        self.ranks = [0]
        self.scores = [0.0]

    def grow(self, limit: int, spine: int, chain_only: bool) -> None:
        """Add nodes until there are `limit`, or no path of positive probability is left."""
        heap: list[tuple[float, int, int, int]] = []  # (-score, depth of the parent, parent row, rank): the total order
        for row in range(spine):  # row is both the last node of the chain and its depth
            child = self.child(row, rank=0)
            if child is None:
                break
            self.add(child)
            self.push(heap, row, rank=1)
        if chain_only:
            return
        self.push(heap, len(self.parents) - 1, rank=0)
        while heap and len(self.parents) <= limit:
            best = heapq.heappop(heap)
            _, _, parent, rank = best
            self.add(best)
            self.push(heap, parent, rank + 1)  # its next sibling
            self.push(heap, len(self.parents) - 1, rank=0)  # its first child

    def child(self, parent: int, rank: int) -> tuple[float, int, int, int] | None:
        depth = self.depths[parent]  # of the parent: the row of the table that holds its children
        if depth >= len(self.logprobs) or rank >= len(self.logprobs[depth]):
            return None
        step = _float32(self.logprobs[depth][rank] + self.bonus[depth])
        score = _float32(self.scores[parent] + step)
        return None if isinf(score) else (-score, depth, parent, rank)

    def push(self, heap: list[tuple[float, int, int, int]], parent: int, rank: int) -> None:
        child = self.child(parent, rank)
        if child is not None:
            heapq.heappush(heap, child)

    def add(self, child: tuple[float, int, int, int]) -> None:
        cost, parent_depth, parent, rank = child
        self.parents.append(parent)
        self.depths.append(parent_depth + 1)
        self.ranks.append(rank)
        self.scores.append(-cost)


def _store(out: Tree, b: int, grown: _Growing | None, ids: Tensor | None = None) -> None:
    """Write request b: links and ancestor words from the parents, everything past the last node inert."""
    rows = out.nodes + 1
    inert = {"parents": -1, "depths": 0, "ranks": 0, "scores": 0, "first_child": -1, "next_sibling": -1}
    for name, value in inert.items():
        getattr(out, name)[b].fill_(value)
    out.tokens[b, 1:].zero_()
    out.num_rows[b] = 0
    dense = torch.eye(rows, dtype=torch.bool)
    if grown is not None and ids is not None:
        count = len(grown.parents)
        out.num_rows[b] = count
        last_child = [-1] * count
        for row in range(1, count):
            parent, depth, rank = grown.parents[row], grown.depths[row], grown.ranks[row]
            out.parents[b, row], out.depths[b, row] = parent, depth
            out.ranks[b, row], out.scores[b, row] = rank, grown.scores[row]
            out.tokens[b, row] = ids[depth - 1, rank]
            if last_child[parent] < 0:
                out.first_child[b, parent] = row
            else:
                out.next_sibling[b, last_child[parent]] = row
            last_child[parent] = row
            dense[row] |= dense[parent]
    out.ancestors[b] = pack_bits(dense).to(out.ancestors.device)


# ---- positions and staging ----


def ancestor_mask(parents: Tensor, out: Tensor) -> Tensor:
    """parents [B, R] -> ancestor words [B, R, W] in `out`. Parents precede children; a row of parent -1 sees itself."""
    batch, rows = parents.shape
    for b in range(batch):
        dense = torch.eye(rows, dtype=torch.bool)
        for row, parent in enumerate(parents[b].tolist()):
            if parent >= 0:
                dense[row] |= dense[parent]
        out[b] = pack_bits(dense).to(out.device)
    return out


def write_positions(positions: Tensor, tree: Tree, row_starts: Tensor) -> Tensor:
    """positions [T], in place: each row of a request gets the root's position + its depth.

    The root's position is what stands in its row already. Inert rows inside the request get the root's position; rows
    of an inert request and rows outside every request keep theirs.
    """
    for b, start, stop in _requests(row_starts):
        if tree.num_rows[b] > 0:
            positions[start:stop] = positions[start] + tree.depths[b, : stop - start].to(positions.dtype)
    return positions


def stage(tree: Tree, slots: Tensor, row_starts: Tensor, out: Tree) -> Tree:
    """Gather request slots into batch order: out[b] = tree[slots[b]], cut to the rows that are scheduled.

    slots [B] int32 or int64, -1 for padding; row_starts [B + 1]. out holds B requests and the same N. A cut tree is a
    tree: rows past the cut become inert and links to them -1.
    """
    for b, start, stop in _requests(row_starts):
        slot = int(slots[b])
        count = 0 if slot < 0 else min(int(tree.num_rows[slot]), stop - start)
        _store(out, b, None)
        out.num_rows[b] = count
        if count == 0:
            continue
        for name in ("tokens", "parents", "depths", "ranks", "scores", "ancestors"):
            getattr(out, name)[b, 1:count] = getattr(tree, name)[slot, 1:count]
        for name in ("first_child", "next_sibling"):
            link = getattr(tree, name)[slot, :count]
            getattr(out, name)[b, :count] = torch.where(link < count, link, -1)
    return out


# ---- walk ----


def walk(target: Tensor, tokens: Tensor, tree: Tree, row_starts: Tensor, out: Walk | None = None) -> Walk:
    """Descend from the root while a child carries the target's token.

    target [T] int: the target's token at each row (argmax, or a sample of its processed distribution; -1: none).
    tokens [T] int: the ids that ran in the forward pass, row 0 of each request being the root.
    row_starts [B + 1] int32: request b has the rows row_starts[b] to row_starts[b + 1] and uses its first num_rows.
    Emits the accepted tokens and the target's token at the last accepted row. Greedy and sampled alike, and lossless:
    every emitted token is the target's own.
    """
    out = out or Walk.empty(tree.batch, tree.max_depth, target.device, target.dtype)
    out.accepted.fill_(-1)
    out.emitted.fill_(-1)
    for b, start, stop in _requests(row_starts):
        rows = min(int(tree.num_rows[b]), stop - start)
        path: list[int] = []
        emitted: list[int] = []
        row = 0
        while row < rows:
            token = int(target[start + row])
            if token < 0:
                break
            emitted.append(token)
            row = _child_with(token, tree, b, row, rows, tokens[start:stop])
            if row < 0:
                break
            path.append(row)
        out.accepted[b, : len(path)] = torch.tensor(path, dtype=torch.int32)
        out.emitted[b, : len(emitted)] = torch.tensor(emitted, dtype=out.emitted.dtype)
        out.num_accepted[b] = len(path)
        out.num_emitted[b] = len(emitted)
    return out


def greedy_walk(logits: Tensor, tokens: Tensor, tree: Tree, row_starts: Tensor, out: Walk | None = None) -> Walk:
    """walk at temperature 0 from target logits [T, V]: argmax, ties to the lowest id, NaN counting as -inf."""
    return walk(greedy_tokens(logits), tokens, tree, row_starts, out)


def greedy_tokens(logits: Tensor) -> Tensor:
    """[T, V] -> [T] int32."""
    x = logits.float()
    x = torch.where(x.isnan(), -torch.inf, x)
    best = x == x.amax(-1, keepdim=True)
    return best.int().argmax(-1).to(torch.int32)  # argmax of 0 and 1 gives the first


def linear_walk(
    target: Tensor,
    tokens: Tensor,
    row_starts: Tensor,
    depth: int,
    num_rows: Tensor | None = None,
    out: Walk | None = None,
) -> Walk:
    """The strict walk of a chain: row i + 1 is accepted while its token is the target's at row i, up to `depth`."""
    batch = row_starts.shape[0] - 1
    out = out or Walk.empty(batch, depth, target.device, target.dtype)
    out.accepted.fill_(-1)
    out.emitted.fill_(-1)
    for b, start, stop in _requests(row_starts):
        rows = stop - start if num_rows is None else min(stop - start, int(num_rows[b]))
        accepted = emitted = 0
        while emitted < rows and target[start + emitted] >= 0:
            out.emitted[b, emitted] = target[start + emitted]
            emitted += 1
            if emitted == rows or accepted == depth or tokens[start + emitted] != target[start + emitted - 1]:
                break
            out.accepted[b, accepted] = emitted
            accepted += 1
        out.num_accepted[b] = accepted
        out.num_emitted[b] = emitted
    return out


def _child_with(token: int, tree: Tree, b: int, row: int, rows: int, tokens: Tensor) -> int:
    child = int(tree.first_child[b, row])
    while 0 <= child < rows:
        if int(tokens[child]) == token:
            return child
        child = int(tree.next_sibling[b, child])
    return -1


# ---- commit ----


def commit_kv(caches: KVCaches, slot_mapping: Tensor, walk: Walk, row_starts: Tensor) -> None:
    """Move the accepted nodes' KV to the first slots of their request, in every view of `caches`.

    slot_mapping [T] int64: the slot each row of this step was written to. Row accepted[b, j] moves to the slot of row
    1 + j. All reads come before all writes: one move's source may be another's destination. Negative slots are skipped.
    """
    moves = [(int(slot_mapping[s]), int(slot_mapping[d])) for s, d in _moves(walk, row_starts)]
    moves = [(s, d) for s, d in moves if s >= 0 and d >= 0]
    block_size = caches.row[0]
    for view in caches.views:
        read = [view[s // block_size, s % block_size].clone() for s, _ in moves]
        for (_, d), content in zip(moves, read, strict=True):
            view[d // block_size, d % block_size] = content


def commit_rows(rows: Tensor, walk: Walk, row_starts: Tensor, out: Tensor | None = None) -> Tensor:
    """The same for plain rows [T, C] of the flat batch: root and accepted rows first, in chain order.

    In place without `out`. With out [B, 1 + D, C]: row 0 and the accepted rows of each request, the rest untouched.
    """
    if out is None:
        read = [(d, rows[s].clone()) for s, d in _moves(walk, row_starts)]
        for d, content in read:
            rows[d] = content
        return rows
    for b, start, stop in _requests(row_starts):
        if stop > start:
            kept = [0, *walk.accepted[b, : int(walk.num_accepted[b])].tolist()]
            out[b, : len(kept)] = rows[start:stop][kept]
    return out


def _moves(walk: Walk, row_starts: Tensor) -> Iterator[tuple[int, int]]:
    """(source row, destination row) in the flat batch."""
    for b, start, _ in _requests(row_starts):
        for j in range(int(walk.num_accepted[b])):
            yield start + int(walk.accepted[b, j]), start + 1 + j


# ---- small things ----


def _requests(row_starts: Tensor) -> Iterator[tuple[int, int, int]]:
    starts = row_starts.tolist()
    for b, (start, stop) in enumerate(pairwise(starts)):
        yield b, start, stop


def _divisor(temperature: Tensor | None, batch: int, device: torch.device) -> Tensor:
    """[B] float32, 1 where no positive temperature is given."""
    if temperature is None:
        return torch.ones(batch, device=device)
    return torch.where(temperature > 0, temperature, 1.0).float()


def _float32(x: float) -> float:
    """Round to float32: the sum of two float32 values, taken in double and rounded once, is the float32 sum."""
    return c_float(x).value

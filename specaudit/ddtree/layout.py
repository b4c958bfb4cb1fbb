"""The tensors of a batch of draft trees.

Letters, used everywhere in this package:
    B  requests in the (padded) batch        K  drafter horizon: positions drafted at once
    N  node capacity of a tree               R = 1 + N  rows of a request: row 0 is the root, rows 1..N are the nodes
    D = min(K, N)  deepest possible node     W = ceil(R / 32)  ancestor words of a row
    V  vocabulary                            T  rows of the flat batch, all requests one after another

A *row* is a place in the target's forward pass. Row 0, the root, carries the last emitted token; row i > 0 carries node
i. A request's KV slot of row i is context + i, its RoPE position context + depth. Parents come before children, so the
first m rows of a tree are again a tree: a scheduler may cut the list anywhere.

*Inert* rows fill a request up to R rows: parent -1 (as the root's), depth 0, no links, only their own ancestor bit, and
a token id that may be embedded (0). An *inert request* has num_rows == 0; all its rows are inert.

All shapes are fixed by (B, N, K), never by the data, so everything here can live in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import gcd

import torch
from torch import Tensor

WORD_BITS = 32
"""Ancestor bits per int32 word: bit j % 32 of word j // 32 of row i is set when row j is row i or its ancestor."""

MAX_NODES = 512
MAX_HORIZON = 32
MAX_VOCABULARY = 262_144


@dataclass(frozen=True, slots=True)
class Table:
    """The N best tokens of every drafted position, best first (stage one of the build).

    Entries that no tree of N nodes can use (rank > N - depth, with depth from 1 and ranks from 0) and entries of
    probability zero are (-inf, id 0); in a row they only follow the usable ones.
    """

    logprobs: Tensor  # [B, K, N] float32, each <= 0, non-increasing along N
    ids: Tensor  # [B, K, N] int32; equal logits are ordered by lowest id
    lse: Tensor  # [B, K] float32: log-sum-exp of logits / temperature; -inf for a position without a finite logit

    @staticmethod
    def empty(batch: int, horizon: int, nodes: int, device: torch.device | str) -> Table:
        return Table(
            logprobs=torch.empty(batch, horizon, nodes, dtype=torch.float32, device=device),
            ids=torch.empty(batch, horizon, nodes, dtype=torch.int32, device=device),
            lse=torch.empty(batch, horizon, dtype=torch.float32, device=device),
        )


@dataclass(frozen=True, slots=True)
class Tree:
    """A batch of draft trees, one request per leading index."""

    tokens: Tensor  # [B, R] int32 or int64; row 0 belongs to the caller and is never written here
    parents: Tensor  # [B, R] int32 row of the parent, less than the row itself; -1 for the root and for inert rows
    depths: Tensor  # [B, R] int32, 0 for the root and for inert rows
    ranks: Tensor  # [B, R] int32 rank of the token at its position, from 0; 0 for the root and for inert rows
    scores: Tensor  # [B, R] float32 log-probability of the path; 0 for the root and for inert rows
    first_child: Tensor  # [B, R] int32 row of the most probable child, -1 for none
    next_sibling: Tensor  # [B, R] int32 row of the parent's next child, -1 for none
    ancestors: Tensor  # [B, R, W] int32 bits: the row itself, its ancestors, the root; inert rows only themselves
    num_rows: Tensor  # [B] int32: root + nodes, at least 1; 0 for an inert request
    horizon: int  # K

    @staticmethod
    def empty(
        batch: int, nodes: int, horizon: int, device: torch.device | str, token_dtype: torch.dtype = torch.int32
    ) -> Tree:
        """Buffers for `batch` trees, all requests inert: legal to attend over, walk and commit as they are."""
        rows = 1 + nodes
        tree = Tree(
            tokens=torch.zeros(batch, rows, dtype=token_dtype, device=device),
            parents=torch.full((batch, rows), -1, dtype=torch.int32, device=device),
            depths=torch.zeros(batch, rows, dtype=torch.int32, device=device),
            ranks=torch.zeros(batch, rows, dtype=torch.int32, device=device),
            scores=torch.zeros(batch, rows, dtype=torch.float32, device=device),
            first_child=torch.full((batch, rows), -1, dtype=torch.int32, device=device),
            next_sibling=torch.full((batch, rows), -1, dtype=torch.int32, device=device),
            ancestors=torch.zeros(batch, rows, words_of(rows), dtype=torch.int32, device=device),
            num_rows=torch.zeros(batch, dtype=torch.int32, device=device),
            horizon=horizon,
        )
        tree.ancestors.copy_(pack_bits(torch.eye(rows, dtype=torch.bool, device=device)))
        return tree

    @property
    def batch(self) -> int:
        return self.parents.shape[0]

    @property
    def nodes(self) -> int:
        """N, the capacity."""
        return self.parents.shape[1] - 1

    @property
    def max_depth(self) -> int:
        """D."""
        return min(self.horizon, self.nodes)

    def tensors(self) -> dict[str, Tensor]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "horizon"}


@dataclass(frozen=True, slots=True)
class Walk:
    """What a step accepted and emitted."""

    accepted: Tensor  # [B, D] int32 rows of the accepted nodes in chain order (accepted[j] > j), then -1
    emitted: Tensor  # [B, 1 + D] int32 or int64: the accepted tokens and the target's next token, then -1
    num_accepted: Tensor  # [B] int32
    num_emitted: Tensor  # [B] int32: num_accepted + 1, or one less when the target gave no token (-1) where it ended

    @staticmethod
    def empty(batch: int, depth: int, device: torch.device | str, token_dtype: torch.dtype = torch.int32) -> Walk:
        return Walk(
            accepted=torch.full((batch, depth), -1, dtype=torch.int32, device=device),
            emitted=torch.full((batch, 1 + depth), -1, dtype=token_dtype, device=device),
            num_accepted=torch.zeros(batch, dtype=torch.int32, device=device),
            num_emitted=torch.zeros(batch, dtype=torch.int32, device=device),
        )

    def tensors(self) -> dict[str, Tensor]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, slots=True)
class KVCaches:
    """Paged caches of many layers as views [blocks, block_size, heads, head_size]: K and V of a layer are two views.

    NHD and HND differ only in strides. Slot s is (s // block_size, s % block_size). Built once, when the caches are
    allocated: the pointer table then has a fixed address.
    """

    views: tuple[Tensor, ...]
    pointers: Tensor  # [len(views)] int64 data pointers, on the device
    unit: int  # bytes moved at a time: 1, 2, 4 or 8, dividing every pointer, stride and row
    strides: tuple[int, int, int]  # block, slot in block, head: in units
    row: tuple[int, int, int]  # block_size, heads, units per head

    @staticmethod
    def of(views: tuple[Tensor, ...] | list[Tensor]) -> KVCaches:
        """Raises ValueError when the views do not share shape, strides, type size and device."""
        first = views[0]
        size = first.element_size()
        if first.dim() != 4 or first.stride(3) != 1:
            raise ValueError("a cache view must be [blocks, block_size, heads, head_size] with a contiguous head")
        for view in views:
            same = (view.shape, view.stride(), view.element_size(), view.device)
            if same != (first.shape, first.stride(), size, first.device):
                raise ValueError("cache views of one commit must agree in shape, strides, type size and device")
        spans = [stride * size for stride in first.stride()[:3]]
        head_bytes = first.shape[3] * size
        unit = gcd(8, head_bytes, *spans, *(view.data_ptr() for view in views))
        block, slot, head = (span // unit for span in spans)
        return KVCaches(
            views=tuple(views),
            pointers=torch.tensor([view.data_ptr() for view in views], dtype=torch.int64, device=first.device),
            unit=unit,
            strides=(block, slot, head),
            row=(first.shape[1], first.shape[2], head_bytes // unit),
        )


def words_of(rows: int) -> int:
    """W: int32 words that hold one bit per row."""
    return -(-rows // WORD_BITS)


def pack_bits(dense: Tensor) -> Tensor:
    """bool [..., R] -> int32 words [..., W]."""
    rows = dense.shape[-1]
    padded = torch.zeros(*dense.shape[:-1], words_of(rows) * WORD_BITS, dtype=torch.int64, device=dense.device)
    padded[..., :rows] = dense
    bits = padded.view(*dense.shape[:-1], -1, WORD_BITS) << torch.arange(WORD_BITS, device=dense.device)
    return _as_int32(bits.sum(-1))


def unpack_bits(words: Tensor, rows: int) -> Tensor:
    """int32 words [..., W] -> bool [..., rows]: the dense form of an ancestor mask, for tests and for reading."""
    bits = (words.unsqueeze(-1) >> torch.arange(WORD_BITS, dtype=torch.int32, device=words.device)) & 1
    return bits.flatten(-2)[..., :rows].bool()


def uniform_row_starts(batch: int, rows: int, device: torch.device | str) -> Tensor:
    """Row starts [B + 1] int32 of a flat batch in which every request has `rows` rows (an engine: query_start_loc)."""
    return torch.arange(0, (batch + 1) * rows, rows, dtype=torch.int32, device=device)


def _as_int32(words: Tensor) -> Tensor:
    """The low 32 bits of int64 words, with the sign that int32 gives them."""
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)

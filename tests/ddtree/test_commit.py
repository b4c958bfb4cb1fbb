"""Commit: paged KV caches and plain rows, under every pattern in which moves can overlap."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from ddtree.cases import generator

from specaudit.ddtree import kernels, reference
from specaudit.ddtree.layout import KVCaches, Walk, uniform_row_starts

NODES = 6
PATTERNS = [rows for count in range(NODES + 1) for rows in combinations(range(1, NODES + 1), count)]
"""Every set of rows that a walk of 6 nodes can accept: 64, the empty one and the chain among them."""


def walk_of(patterns: list[tuple[int, ...]], device: torch.device | str) -> Walk:
    walk = Walk.empty(len(patterns), NODES, device)
    for b, rows in enumerate(patterns):
        walk.accepted[b, : len(rows)] = torch.tensor(rows, dtype=torch.int32)
        walk.num_accepted[b] = len(rows)
    return walk


def walk_on(walk: Walk, device: torch.device) -> Walk:
    return Walk(**{name: x.to(device) for name, x in walk.tensors().items()})


def contents(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Random bytes: NaN patterns and negative zeros move like anything else."""
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256, (*shape[:-1], shape[-1] * size), generator=generator(seed), dtype=torch.uint8)
    return raw.view(dtype)


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)


def caches_like(layout: str, dtype: torch.dtype, blocks: int, block_size: int, heads: int, size: int) -> torch.Tensor:
    """K and V of a layer in the orders engines keep them; `views` takes [blocks, slots, heads, size] of it."""
    shapes = {
        "NHD": (2, blocks, block_size, heads, size),  # K or V, ...
        "HND": (2, blocks, heads, block_size, size),
        "interleaved": (blocks, 2, block_size, heads, size),
        "packed": (blocks, block_size, heads, 2 * size),  # K and V of a head side by side
    }
    return contents(shapes[layout], dtype, seed=blocks)


def views(storage: torch.Tensor, layout: str) -> list[torch.Tensor]:
    if layout == "NHD":
        return list(storage)
    if layout == "HND":
        return [view.transpose(1, 2) for view in storage]
    if layout == "interleaved":
        return list(storage.unbind(1))
    return list(storage.chunk(2, dim=-1))


LAYOUTS = ["NHD", "HND", "interleaved", "packed"]
TYPES = [(torch.bfloat16, 2, 8, 4), (torch.float16, 1, 5, 16), (torch.uint8, 2, 12, 3), (torch.float8_e4m3fn, 1, 3, 4)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "heads", "size", "block_size"), TYPES)
def test_every_overlap_pattern_in_paged_caches(device, layout, dtype, heads, size, block_size) -> None:
    """In the interpreter each layout and each type meets all of them once, and every fourth in all other pairs."""
    all_of_them = device.type == "cuda" or LAYOUTS.index(layout) == [t[0] for t in TYPES].index(dtype)
    patterns = PATTERNS if all_of_them else PATTERNS[3::4]
    requests, rows = len(patterns), NODES + 1
    blocks = -(-requests * rows // block_size) + 3
    storage = caches_like(layout, dtype, blocks, block_size, heads, size)
    # request 0 has slots in a row over block borders; with the second mapping slots lie anywhere, in any order
    in_a_row = torch.arange(requests * rows) + 5
    anywhere = torch.randperm(blocks * block_size, generator=generator(0))[: requests * rows]
    walk, row_starts = walk_of(patterns, "cpu"), uniform_row_starts(requests, rows, "cpu")
    for mapping in (in_a_row, anywhere):
        expected, actual = storage.clone(), storage.to(device)
        reference.commit_kv(KVCaches.of(views(expected, layout)), mapping, walk, row_starts)
        caches = KVCaches.of(views(actual, layout))
        kernels.commit_kv(caches, mapping.to(device), walk_on(walk, device), row_starts.to(device))
        assert torch.equal(as_bytes(actual).cpu(), as_bytes(expected))


def test_copying_one_row_after_another_would_lose_rows(device) -> None:
    """The patterns above do overlap: a copy from the last move to the first differs for some of them."""
    lossy = 0
    for rows in PATTERNS:
        content = list(range(NODES + 1))
        for j in reversed(range(len(rows))):
            content[1 + j] = content[rows[j]]
        lossy += content[1 : 1 + len(rows)] != list(rows)
    assert lossy > 20


def test_commit_skips_slots_that_do_not_exist_and_requests_without_rows(device) -> None:
    storage = contents((1, 8, 4, 1, 8), torch.bfloat16, 0)
    walk = walk_of([(3, 4), (), (3, 5)], device)
    row_starts = torch.tensor([0, 7, 7, 14], dtype=torch.int32, device=device)
    mapping = torch.arange(14, device=device) + 8
    mapping[3] = mapping[8] = -1  # request 0's first source, request 2's first destination
    actual = storage.to(device)
    kernels.commit_kv(KVCaches.of([actual[0]]), mapping, walk, row_starts)
    flat, before = actual[0].flatten(0, 1).cpu(), storage[0].flatten(0, 1)
    moved = {10: 12, 17: 20}  # destination: source, by slot
    for slot in range(32):
        assert torch.equal(as_bytes(flat[slot]), as_bytes(before[moved.get(slot, slot)]))


@pytest.mark.parametrize(("dtype", "columns"), [(torch.bfloat16, 70), (torch.float32, 3), (torch.uint8, 5)])
def test_every_overlap_pattern_in_plain_rows(device, dtype, columns) -> None:
    requests, rows = len(PATTERNS), NODES + 1
    walk, row_starts = walk_of(PATTERNS, "cpu"), uniform_row_starts(requests, rows, "cpu")
    flat = contents((requests * rows, columns), dtype, 1)
    expected = reference.commit_rows(flat.clone(), walk, row_starts)
    on_device = (walk_on(walk, device), row_starts.to(device))
    assert torch.equal(as_bytes(kernels.commit_rows(flat.to(device), *on_device)).cpu(), as_bytes(expected))

    out = contents((requests, 1 + NODES, columns), dtype, 2)
    expected = reference.commit_rows(flat, walk, row_starts, out.clone())
    actual = kernels.commit_rows(flat.to(device), *on_device, out.to(device))
    assert torch.equal(as_bytes(actual).cpu(), as_bytes(expected))


def test_views_that_do_not_agree_are_refused(device) -> None:
    first, other = torch.zeros(4, 2, 1, 8, device=device), torch.zeros(4, 2, 1, 16, device=device)
    with pytest.raises(ValueError, match="must agree"):
        KVCaches.of([first, other])
    with pytest.raises(ValueError, match="contiguous head"):
        KVCaches.of([first.transpose(2, 3)])


def test_what_a_larger_step_accepted_is_not_moved_again(device: torch.device) -> None:
    """A batch shrank: the walk still holds what requests behind it accepted in an earlier step."""
    walk = walk_on(walk_of([(2,), (3, 5)], "cpu"), device)
    storage = contents((2, 8, 4, 2, 8), torch.bfloat16, seed=3).to(device)
    before = storage.clone()
    mapping = torch.arange(14, device=device)
    row_starts = torch.tensor([0, 7], dtype=torch.int32, device=device)
    kernels.commit_kv(KVCaches.of(list(storage)), mapping, walk, row_starts)
    flat, old = storage.flatten(1, 2), before.flatten(1, 2)
    assert torch.equal(as_bytes(flat[:, 1]), as_bytes(old[:, 2]))
    assert torch.equal(as_bytes(flat[:, 7:]), as_bytes(old[:, 7:]))

"""Inputs for the kernel tests, and what they share."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from specaudit.ddtree import reference
from specaudit.ddtree.layout import Table, Tree, Walk

INF = float("inf")
seeds = st.integers(0, 2**31 - 1)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_logits(seed: int, shape: tuple[int, ...], kind: str, dtype: torch.dtype) -> torch.Tensor:
    """`smooth`: no ties in float32. `ties`: seven values. `holes`: ties with NaN, both infinities and both zeros."""
    g = generator(seed)
    if kind == "smooth":
        return (torch.randn(shape, generator=g) * 3).to(dtype)
    x = torch.randint(-3, 4, shape, generator=g).float()
    if kind == "holes":
        special = torch.tensor([float("nan"), -INF, -INF, -0.0, INF])
        pick = torch.randint(0, 40, shape, generator=g)
        x = torch.where(pick < 5, special[pick.clamp(max=4)], x)
    return x.to(dtype)


def random_table(seed: int, batch: int, horizon: int, nodes: int, ties: bool, width: int) -> Table:
    """A table as draft_table leaves it, from a vocabulary of `width` ids: steps of 1/4 when ties are wanted."""
    g = generator(seed)
    logits = torch.randn(batch, horizon, width, generator=g) * 2
    if ties:
        logits = (logits.log_softmax(-1) * 4).round() / 4
    table = reference.draft_table(logits, nodes)
    if ties:
        logprobs = torch.where(table.logprobs.isinf(), table.logprobs, (table.logprobs * 4).round() / 4)
        return Table(logprobs, table.ids, table.lse)
    return table


def on(tree_or_other: Tree, device: torch.device) -> Tree:
    return Tree(**{name: x.to(device) for name, x in tree_or_other.tensors().items()}, horizon=tree_or_other.horizon)


def table_on(table: Table, device: torch.device) -> Table:
    return Table(table.logprobs.to(device), table.ids.to(device), table.lse.to(device))


def poisoned_tree(batch: int, nodes: int, horizon: int, device: torch.device | str) -> Tree:
    """Buffers full of an earlier step: whatever a build leaves unwritten shows. Row 0 of tokens is the caller's."""
    tree = Tree.empty(batch, nodes, horizon, device)
    for x in tree.tensors().values():
        x.fill_(7)
    return tree


def poisoned_walk(batch: int, depth: int, device: torch.device | str) -> Walk:
    walk = Walk.empty(batch, depth, device)
    for x in walk.tensors().values():
        x.fill_(7)
    return walk


def assert_same(actual: Tree | Walk, expected: Tree | Walk) -> None:
    """Bit for bit, every tensor."""
    for name, want in expected.tensors().items():
        got = actual.tensors()[name].cpu()
        assert torch.equal(got, want.cpu()), f"{name}:\n{got}\nis not\n{want}"


def budgets_of(seed: int, batch: int, nodes: int) -> torch.Tensor:
    """Every kind of budget: inert, chain, small, all, more than fits."""
    return torch.randint(-1, nodes + 3, (batch,), generator=generator(seed), dtype=torch.int32)

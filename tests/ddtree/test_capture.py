"""One step from draft logits to committed KV in a CUDA graph: no wait, no copy to the host, fixed memory."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from ddtree.cases import assert_same, generator

from specaudit.ddtree import kernels, reference
from specaudit.ddtree.layout import KVCaches, Tree, Walk, uniform_row_starts

pytestmark = pytest.mark.gpu

BATCH, SLOTS, HORIZON, NODES, VOCABULARY = 4, 6, 7, 20, 3000
ROWS = NODES + 1


@dataclass
class Step:
    """Static buffers of a step; `fill` puts another step's inputs into them."""

    draft_logits: torch.Tensor
    temperature: torch.Tensor
    budgets: torch.Tensor
    slots: torch.Tensor
    row_starts: torch.Tensor
    target_logits: torch.Tensor
    positions: torch.Tensor
    slot_mapping: torch.Tensor
    cache: torch.Tensor
    hidden: torch.Tensor
    built: Tree
    staged: Tree
    walk: Walk
    kept: torch.Tensor

    @staticmethod
    def empty(device: torch.device) -> Step:
        return Step(
            draft_logits=torch.empty(SLOTS, HORIZON, VOCABULARY, dtype=torch.bfloat16, device=device),
            temperature=torch.ones(SLOTS, device=device),
            budgets=torch.zeros(SLOTS, dtype=torch.int32, device=device),
            slots=torch.zeros(BATCH, dtype=torch.int32, device=device),
            row_starts=uniform_row_starts(BATCH, ROWS, device),
            target_logits=torch.empty(BATCH * ROWS, VOCABULARY, dtype=torch.bfloat16, device=device),
            positions=torch.zeros(BATCH * ROWS, dtype=torch.int64, device=device),
            slot_mapping=torch.zeros(BATCH * ROWS, dtype=torch.int64, device=device),
            cache=torch.empty(3, 2, 16, 16, 2, 32, dtype=torch.bfloat16, device=device),
            hidden=torch.empty(BATCH * ROWS, 48, dtype=torch.bfloat16, device=device),
            built=Tree.empty(SLOTS, NODES, HORIZON, device),
            staged=Tree.empty(BATCH, NODES, HORIZON, device),
            walk=Walk.empty(BATCH, HORIZON, device),
            kept=torch.zeros(BATCH, 1 + HORIZON, 48, dtype=torch.bfloat16, device=device),
        )

    def fill(self, seed: int) -> None:
        g = generator(seed)

        def put(buffer: torch.Tensor, values: torch.Tensor) -> None:
            buffer.copy_(values.to(buffer.dtype))

        put(self.draft_logits, torch.randn(self.draft_logits.shape, generator=g) * 3)
        put(self.temperature, torch.rand(SLOTS, generator=g) + 0.5)
        put(self.budgets, torch.randint(-1, NODES + 1, (SLOTS,), generator=g))
        put(self.slots, torch.randperm(SLOTS, generator=g)[:BATCH])
        widths = torch.randint(0, ROWS + 1, (BATCH,), generator=g)
        put(self.row_starts, torch.cat([torch.zeros(1, dtype=torch.int64), widths.cumsum(0)]))
        logits = torch.randn(BATCH * ROWS, VOCABULARY, generator=g)
        logits[:, self.draft_logits[int(self.slots[0]), 0].argmax()] += 5  # some agreement
        put(self.target_logits, logits)
        put(self.positions, torch.randint(0, 1000, self.positions.shape, generator=g))
        put(self.slot_mapping, torch.randperm(16 * 16, generator=g)[: BATCH * ROWS])
        put(self.cache, torch.randn(self.cache.shape, generator=g))
        put(self.hidden, torch.randn(self.hidden.shape, generator=g))
        self.kept.zero_()

    def run(self, made_by=kernels) -> None:
        made_by.build(self.draft_logits, NODES, self.temperature, self.budgets, spine=2, out=self.built)
        self.after_build(made_by)

    def after_build(self, made_by=kernels) -> None:
        made_by.stage(self.built, self.slots, self.row_starts, self.staged)
        made_by.write_positions(self.positions, self.staged, self.row_starts)
        tokens = self.staged.tokens.flatten()  # in an engine: the input ids of the forward pass
        made_by.greedy_walk(self.target_logits, tokens, self.staged, self.row_starts, self.walk)
        made_by.commit_kv(self.caches(), self.slot_mapping, self.walk, self.row_starts)
        made_by.commit_rows(self.hidden, self.walk, self.row_starts, self.kept)

    def caches(self) -> KVCaches:
        if not hasattr(self, "_caches"):
            self._caches = KVCaches.of([self.cache[layer, kv] for layer in range(3) for kv in range(2)])
        return self._caches

    def results(self) -> list[torch.Tensor]:
        trees = [*self.built.tensors().values(), *self.staged.tensors().values(), *self.walk.tensors().values()]
        return [x.clone() for x in (*trees, self.positions, self.cache, self.kept)]


@pytest.fixture
def step(device: torch.device) -> Step:
    step = Step.empty(device)
    step.fill(0)
    step.run()  # compiles
    torch.cuda.synchronize()
    return step


def test_a_captured_step_replays_on_new_inputs(step, device) -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run()
    for seed in range(1, 6):
        step.fill(seed)
        graph.replay()
        replayed = step.results()
        step.fill(seed)
        step.run()
        for got, want in zip(replayed, step.results(), strict=True):
            assert torch.equal(got, want)
        step.fill(seed)
        expected = Step.empty("cpu")
        for name in ("slots", "row_starts", "target_logits", "positions", "slot_mapping", "cache", "hidden"):
            getattr(expected, name).copy_(getattr(step, name))
        expected.built = Tree(**{n: x.cpu() for n, x in step.built.tensors().items()}, horizon=HORIZON)
        graph.replay()
        expected.after_build(reference)
        assert_same(step.staged, expected.staged)
        assert_same(step.walk, expected.walk)
        assert torch.equal(step.positions.cpu(), expected.positions)
        assert torch.equal(step.cache.cpu(), expected.cache)
        assert torch.equal(step.kept.cpu(), expected.kept)


def test_a_replay_allocates_nothing(step) -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(10):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_a_step_never_waits_for_the_device(step) -> None:
    step.caches()
    try:
        torch.cuda.set_sync_debug_mode("error")  # torch's own operations raise when they synchronise
        step.run()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_profiler_sees_kernels_only(step) -> None:
    """No copy to the host and no synchronisation from draft logits to committed KV."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    step.caches()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        step.run()
    names = [event.key for event in profile.key_averages()]
    forbidden = ("DtoH", "HtoD", "Synchronize", "aten::item", "_local_scalar_dense")
    # leaving the profiler synchronises once by itself
    seen = [n for n in names if any(f in n for f in forbidden) and n != "cudaDeviceSynchronize"]
    assert seen == []
    for kernel in ("_scan", "_select", "_grow", "_link", "_stage", "_argmax_chunk", "_walk", "_commit_kv"):
        assert any(name == kernel for name in names), f"{kernel} is not among {names}"

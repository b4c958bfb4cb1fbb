"""DDTree on one GPU: build, walk, commit, attention; medians, against other ways to do the same.

    python benchmarks/ddtree.py [--json FILE] [--quick]

Every arm but the host path is a CUDA graph that holds the operation many times, over inputs that together exceed the L2
cache where they are large; the arms of a table are replayed in turn, and a figure is the median over the rounds of one
replay divided by the operations in it. The host path is timed by the clock, synchronised before and after.

Arms: ours; `host`, as the authors' code works (top-k to the CPU, a heap in Python, the mask in numpy, the walk in
Python); `torch.topk + logsumexp` alone; a linear strict walk; and the floor: bytes that must move over the measured
bandwidth of a device-to-device copy.
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from specaudit.ddtree import build, kernels, reference, table
from specaudit.ddtree.layout import KVCaches, Table, Tree, Walk, uniform_row_starts

K, V = 15, 151_936
CUDA = torch.device("cuda")
Figures = dict[str, Any]


# ---- timing ----


def graph_of(operations: list[Callable[[], object]]) -> tuple[torch.cuda.CUDAGraph, int]:
    """One graph that runs every operation once, after a warm-up outside of it."""
    for operation in operations:
        operation()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for operation in operations:
            operation()
    return graph, len(operations)


def medians(arms: dict[str, list[Callable[[], object]]], rounds: int = 30) -> dict[str, float]:
    """Microseconds per operation of each arm, the arms in turn."""
    graphs = {name: graph_of(operations) for name, operations in arms.items()}
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, (graph, count) in graphs.items():
            graph.replay()  # clocks up, and nothing of another arm left in the queue
            torch.cuda.synchronize()
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) * 1000 / count)
    return {name: statistics.median(values) for name, values in times.items()}


def wall(operation: Callable[[], object], rounds: int) -> float:
    """Median microseconds by the clock."""
    operation()
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        operation()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Bytes per microsecond of a large device-to-device copy, read and written bytes counted."""
    source = torch.randint(0, 255, (1 << 32,), dtype=torch.uint8, device=CUDA)
    target = torch.empty_like(source)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(9):
        begin.record()
        target.copy_(source)  # on its own: as a node of a graph the same copy is slower
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000)
    return 2 * source.numel() / statistics.median(times)


def line(label: str, figures: Figures, unit: str = "us") -> None:
    cells = "  ".join(f"{k} {v:.1f}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items())
    print(f"{label:<34}{cells}  ({unit})", flush=True)


# ---- the host path ----


def host_build(logits: Tensor, nodes: int) -> tuple[Tensor, Tensor, Tensor, list[list[dict[int, int]]]]:
    """Top-k and log-sum-exp on the GPU, everything else on the CPU, the results back to the GPU."""
    x = logits.float()
    values, ids = torch.topk(x, min(nodes, x.shape[-1]), dim=-1)
    logprobs = (values - torch.logsumexp(x, dim=-1, keepdim=True)).cpu().numpy()
    tokens = ids.cpu().numpy()
    batch, horizon, width = logprobs.shape
    all_tokens = np.zeros((batch, nodes + 1), dtype=np.int64)
    all_depths = np.zeros((batch, nodes + 1), dtype=np.int64)
    masks = np.zeros((batch, nodes + 1, nodes + 1), dtype=bool)
    children: list[list[dict[int, int]]] = []
    for b in range(batch):
        heap = [(-float(logprobs[b, 0, 0]), 0, 0, 0)]  # cost, parent, depth of the parent, rank
        links: list[dict[int, int]] = [{}]
        mask = masks[b]
        mask[0, 0] = True
        row = 0
        while heap and row < nodes:
            cost, parent, depth, rank = heapq.heappop(heap)
            row += 1
            token = int(tokens[b, depth, rank])
            all_tokens[b, row], all_depths[b, row] = token, depth + 1
            links[parent][token] = row
            links.append({})
            mask[row] = mask[parent]
            mask[row, row] = True
            if rank + 1 < width:
                step = float(logprobs[b, depth, rank + 1]) - float(logprobs[b, depth, rank])
                heapq.heappush(heap, (cost - step, parent, depth, rank + 1))
            if depth + 1 < horizon:
                heapq.heappush(heap, (cost - float(logprobs[b, depth + 1, 0]), row, depth + 1, 0))
        children.append(links)
    moved = [torch.from_numpy(a).to(CUDA, non_blocking=True) for a in (all_tokens, all_depths, masks)]
    return moved[0], moved[1], moved[2], children


def host_walk(target: Tensor, children: list[list[dict[int, int]]]) -> tuple[list[list[int]], list[int]]:
    wanted = target.view(len(children), -1).tolist()
    paths, bonus = [], []
    for links, tokens in zip(children, wanted, strict=True):
        row, path = 0, []
        while tokens[row] in links[row]:
            row = links[row][tokens[row]]
            path.append(row)
        paths.append(path)
        bonus.append(tokens[row])
    return paths, bonus


# ---- sections ----


def draft_logits(batch: int, sets: int) -> list[Tensor]:
    """Peaked like a drafter's: a few likely ids per position, a long tail."""
    made = []
    for seed in range(sets):
        g = torch.Generator(CUDA).manual_seed(seed)
        x = torch.randn(batch, K, V, generator=g, device=CUDA)
        x.scatter_add_(
            2,
            torch.randint(0, V, (batch, K, 24), generator=g, device=CUDA),
            6 + 6 * torch.rand(batch, K, 24, generator=g, device=CUDA),
        )
        made.append(x.bfloat16())
    return made


def section_build(bandwidth: float, quick: bool) -> Figures:
    print("\nbuild: logits [B, 15, 151936] bf16 -> trees")
    figures: Figures = {}
    for batch, nodes in ((1, 16), (1, 64), (16, 16), (16, 64), (32, 16), (32, 64)):
        if not (quick and nodes == 16):
            figures[f"B={batch} N={nodes}"] = figure = build_case(batch, nodes, bandwidth, 3 if quick else 9)
            line(f"B={batch} N={nodes}", figure)
    return figures


def build_case(batch: int, nodes: int, bandwidth: float, host_rounds: int) -> Figures:
    inputs = draft_logits(batch, max(2, 32 // batch))
    trees = [Tree.empty(batch, nodes, K, CUDA) for _ in inputs]
    budgets = torch.full((batch,), nodes, dtype=torch.int32, device=CUDA)

    def ours(i: int) -> None:
        kernels.build(inputs[i], nodes, None, budgets, out=trees[i])

    def library(i: int) -> None:
        torch.topk(inputs[i], nodes, dim=-1)
        torch.logsumexp(inputs[i].float(), dim=-1)

    every = range(len(inputs))
    figure: Figures = medians(
        {
            "ours": [partial(ours, i) for i in every],
            "ours, in L2": [partial(ours, 0)] * 8,
            "topk+lse": [partial(library, i) for i in every],
        }
    )
    figure["host"] = wall(lambda: host_build(inputs[0], nodes), host_rounds)
    figure["floor"] = inputs[0].numel() * 2 / bandwidth
    figure["host / ours"] = figure["host"] / figure["ours"]
    return figure


def section_build_parts() -> Figures:
    figures: Figures = {}
    print("\nbuild, launch by launch, N=64 (each alone in a graph)")
    for batch in (1, 16):
        x = draft_logits(batch, 1)[0]
        best, tree = Table.empty(batch, K, 64, CUDA), Tree.empty(batch, 64, K, CUDA)
        with recorded_launches() as launches:
            kernels.draft_table(x, 64, out=best)
            kernels.best_first(best, out=tree)
        figure = medians({name: [launch] * 20 for name, launch in launches})
        figures[f"B={batch}"] = figure
        line(f"B={batch}", figure)
    return figures


class recorded_launches:
    """Collects the launches of both stages of the build, as (kernel's name, call that repeats it)."""

    places = ((table, "_scan"), (table, "_select"), (build, "_grow"), (build, "_link"))

    def __enter__(self) -> list[tuple[str, Callable[[], object]]]:
        self.launches: list[tuple[str, Callable[[], object]]] = []
        self.kept = [(module, name, getattr(module, name)) for module, name in self.places]
        for module, name, kernel in self.kept:
            setattr(module, name, _Recorder(name, kernel, self.launches))
        return self.launches

    def __exit__(self, *_: object) -> None:
        for module, name, kernel in self.kept:
            setattr(module, name, kernel)


class _Recorder:
    def __init__(self, name: str, kernel: Any, launches: list[tuple[str, Callable[[], object]]]) -> None:
        self.name, self.kernel, self.launches = name, kernel, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        def launch(*args: object, **options: object) -> object:
            self.launches.append((self.name, lambda: self.kernel[grid](*args, **options)))
            return self.kernel[grid](*args, **options)

        return launch


def accepting_target(tree: Tree, accepted: int) -> tuple[Tensor, Tensor]:
    """(target, tokens) [B * R]: the walk follows the greedy chain for `accepted` nodes."""
    tokens = tree.tokens.clone()
    target = torch.full_like(tokens, V - 1)
    row = torch.zeros(tree.batch, dtype=torch.int64, device=CUDA)
    every = torch.arange(tree.batch, device=CUDA)
    for _ in range(accepted):
        child = tree.first_child[every, row].long()
        target[every, row] = torch.where(child > 0, tokens[every, child], V - 1)
        row = torch.where(child > 0, child, row)
    return target.flatten(), tokens.flatten()


def section_walk() -> Figures:
    print("\nwalk: target tokens -> accepted rows, emitted tokens, N=64 (linear: the strict walk of 64 drafts)")
    figures: Figures = {}
    for batch in (1, 4, 16, 64):
        figures[f"B={batch}"] = figure = walk_case(batch)
        line(f"B={batch}", figure)
    return figures


def walk_case(batch: int) -> Figures:
    logits = draft_logits(1, 1)[0]
    tree = kernels.build(logits.expand(batch, K, V), 64, spine=K)
    starts = uniform_row_starts(batch, 65, CUDA)
    out, chain = Walk.empty(batch, K, CUDA), Walk.empty(batch, 64, CUDA)
    figure: Figures = {}
    for accepted in (4, 15):
        target, tokens = accepting_target(tree, accepted)
        agrees = torch.arange(65, device=CUDA) < accepted
        strict = torch.where(agrees, tokens.view(batch, 65).roll(-1, 1), V - 1).flatten()
        arms = {
            "walk": [partial(kernels.walk, target, tokens, tree, starts, out)] * 20,
            "linear": [partial(kernels.linear_walk, strict, tokens, starts, 64, None, chain)] * 20,
        }
        figure |= {f"{name}, {accepted} accepted": value for name, value in medians(arms).items()}
        if not int(out.num_accepted[0]) == accepted == int(chain.num_accepted[0]):
            raise AssertionError(f"walked {int(out.num_accepted[0])} and {int(chain.num_accepted[0])}, not {accepted}")
    links = host_build(logits, 64)[3] * batch
    figure["host"] = wall(lambda: host_walk(target, links), 20)
    figure["walk / linear"] = round(figure["walk, 4 accepted"] / figure["linear, 4 accepted"], 2)
    return figure


def section_greedy(bandwidth: float) -> Figures:
    print("\nlogits [B * 65, 151936] bf16 -> emitted tokens, argmax included")
    figures: Figures = {}
    for batch in (1, 4, 16):
        figures[f"B={batch}"] = figure = greedy_case(batch, bandwidth)
        line(f"B={batch}", figure)
    return figures


def greedy_case(batch: int, bandwidth: float) -> Figures:
    tree = kernels.build(draft_logits(1, 1)[0].expand(batch, K, V), 64)
    starts, out = uniform_row_starts(batch, 65, CUDA), Walk.empty(batch, K, CUDA)
    tokens = tree.tokens.flatten()
    sets = [torch.randn(batch * 65, V, device=CUDA).bfloat16() for _ in range(max(2, 8 // batch))]
    figure: Figures = medians(
        {
            "ours": [partial(kernels.greedy_walk, x, tokens, tree, starts, out) for x in sets] * 2,
            "ours, same logits": [partial(kernels.greedy_walk, sets[0], tokens, tree, starts, out)] * 8,
            "torch.argmax": [partial(torch.argmax, x, -1) for x in sets] * 2,
        }
    )
    figure["floor"] = sets[0].numel() * 2 / bandwidth
    return figure


def section_commit(bandwidth: float) -> Figures:
    print("\ncommit: 4 accepted of 64, 36 layers, 8 KV heads of 128, bf16, one launch")
    figures: Figures = {}
    for batch, layout in ((1, "NHD"), (1, "HND"), (16, "NHD")):
        figures[f"B={batch} {layout}"] = figure = commit_case(batch, layout, bandwidth)
        line(f"B={batch} {layout}", figure)
    return figures


def commit_case(batch: int, layout: str, bandwidth: float) -> Figures:
    blocks, rows = batch * 8 + 8, [2, 9, 17, 40]
    inner = (16, 8) if layout == "NHD" else (8, 16)
    storage = torch.randn(72, blocks, *inner, 128, device=CUDA).bfloat16()  # K and V of 36 layers
    views = [view if layout == "NHD" else view.transpose(1, 2) for view in storage]
    starts = uniform_row_starts(batch, 65, CUDA)
    mapping = torch.arange(batch * 65, device=CUDA) + 5
    walk = Walk.empty(batch, K, CUDA)
    walk.accepted[:, :4] = torch.tensor(rows, dtype=torch.int32)
    walk.num_accepted.fill_(4)
    source, target = mapping.view(batch, 65)[:, rows].flatten(), mapping.view(batch, 65)[:, 1:5].flatten()

    def library() -> None:
        for view in views:
            view[target // 16, target % 16] = view[source // 16, source % 16]

    figure: Figures = medians(
        {
            "ours": [partial(kernels.commit_kv, KVCaches.of(views), mapping, walk, starts)] * 20,
            "torch, per layer": [library],
        }
    )
    figure["floor"] = 2 * batch * 4 * 72 * 8 * 128 * 2 / bandwidth
    return figure


def section_step() -> Figures:
    """What the profiler sees from draft logits to emitted tokens, twice: launched one by one, and as a graph."""
    x = draft_logits(1, 1)[0]
    tree, staged, out = (Tree.empty(1, 64, K, CUDA), Tree.empty(1, 64, K, CUDA), Walk.empty(1, K, CUDA))
    starts, slots = uniform_row_starts(1, 65, CUDA), torch.zeros(1, dtype=torch.int32, device=CUDA)
    logits, positions = torch.randn(65, V, device=CUDA).bfloat16(), torch.arange(65, device=CUDA)
    tokens = staged.tokens.flatten()

    def step() -> None:
        kernels.build(x, 64, out=tree)
        kernels.stage(tree, slots, starts, staged)
        kernels.write_positions(positions, staged, starts)
        kernels.greedy_walk(logits, tokens, staged, starts, out)

    graph, _ = graph_of([step])
    figures: Figures = {"whole step, graph": medians({"step": [step] * 10})["step"]}
    for name, operation in (("launched", step), ("graph", graph.replay)):
        torch.cuda.synchronize()
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities, acc_events=True) as profile:
            operation()
        events = {event.key: event.count for event in profile.key_averages()}
        copies = sum(n for key, n in events.items() if "Memcpy" in key)
        # the profiler itself synchronises the device once when it stops
        waits = sum(n for key, n in events.items() if "Synchronize" in key) - events.get("cudaDeviceSynchronize", 0)
        launches = sum(n for key, n in events.items() if key.startswith("_"))
        figures |= {f"{name}: copies": copies, f"{name}: waits": waits, f"{name}: kernels": launches}
    print("\nprofiler, draft logits to emitted tokens, B=1 N=64")
    line("step", figures)
    return figures


def section_correct() -> Figures:
    """The figures above are of kernels that give the reference's result on these inputs."""
    x = draft_logits(4, 1)[0]
    best = kernels.draft_table(x, 64)
    expected = reference.draft_table(x, 64)
    tree = kernels.best_first(best)
    want = reference.best_first(Table(best.logprobs.cpu(), best.ids.cpu(), best.lse.cpu()))
    figures = {
        "ids equal": torch.equal(best.ids, expected.ids),
        "lse error": float((best.lse - expected.lse).abs().max()),
        "trees equal": all(torch.equal(tree.tensors()[n].cpu(), t) for n, t in want.tensors().items()),
    }
    print(f"\nagainst the reference, B=4 N=64: {figures}")
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write every figure here")
    parser.add_argument("--quick", action="store_true", help="N=64 only, fewer host rounds, no attention")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing was measured", file=sys.stderr)
        return 2
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    print(f"device-to-device copy: {bandwidth / 1e6:.2f} TB/s, read and written bytes counted")
    figures: Figures = {"device": torch.cuda.get_device_name(), "copy TB/s": bandwidth / 1e6}
    figures["reference"] = section_correct()
    figures["build"] = section_build(bandwidth, arguments.quick)
    figures["build parts"] = section_build_parts()
    figures["walk"] = section_walk()
    figures["logits to tokens"] = section_greedy(bandwidth)
    figures["commit"] = section_commit(bandwidth)
    figures["step"] = section_step()
    if not arguments.quick:
        # imported here: it takes its timing from this file
        import ddtree_attention

        figures["attention errors"] = ddtree_attention.section_errors()
        figures["attention"] = ddtree_attention.section_tree()
        figures["attention, one kernel"] = ddtree_attention.section_paged()
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

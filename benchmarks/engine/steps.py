"""What a step costs: a chain-shaped tree against the stock chain, on the given pair and at the size of a real model;
prompts beside running requests; memory with a large vocabulary.
"""

from __future__ import annotations

import random
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from . import shapes
from .arms import GIB, chain, policy, tree
from .command import Setting
from .figures import lower_bound
from .pool import Engines
from .requests import greedy

CHAIN_SHAPED = {"spine": 15}
TOY_EXTRA_MS, LARGE_RATIO, PREFILL_RATIO, EXTRA_BYTES = 0.12, 1.03, 0.98, 10**9


def run(given: Setting) -> None:
    parts = {"small": small, "large": large, "prefill": prefill, "memory": memory}
    for name in given.only(list(parts)):
        parts[name](given)


def small(given: Setting) -> None:
    """A tree of N = K = 15 nodes, all of them its spine, is the chain's shape and not the chain's path."""
    arms = [chain(horizon=15, seqs=8), tree(15, "chain-shaped", seqs=8, ddtree=CHAIN_SHAPED)]
    with Engines(arms, given.pair, given.places, given.clock) as engines:
        requests = greedy(given.prompts[:8], given.tokens)
        times = alternate(engines, given, requests)
    rows = [[name, median(values), len(values)] for name, values in times.items()]
    given.report.table("step time, batch 1, ms", ["arm", "median of medians", "measurements"], rows)
    extra = median(a - b for a, b in zip(times["chain-shaped"], times["chain"], strict=True))
    given.report.bar(
        "a chain-shaped tree's step, more than the chain's, ms", extra, f"<= {TOY_EXTRA_MS}", extra <= TOY_EXTRA_MS
    )


def alternate(
    engines: Engines, given: Setting, requests: list[dict[str, Any]], at_once: int = 1
) -> dict[str, list[float]]:
    """Per arm, the median interval between two steps' outputs of each measurement, in ms."""
    names = engines.names(["chain", "chain-shaped"])
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(1 + given.options.pairs):
        if number > 3 and given.clock.left < 20:
            break
        for name in names if number % 2 else names[::-1]:
            answer = engines[name].ask("trace", given.clock.need(5), requests=requests, at_once=at_once)
            intervals = [1e3 * (b - a) for one in answer["times"] for a, b in pairwise(one[1:])]
            if number:
                times[name].append(median(intervals))
    return times


def large(given: Setting) -> None:
    """Qwen3-8B's shape, weights made up: nothing is accepted, so every step is alike."""
    pair = shapes.write(Path(tempfile.gettempdir()) / "qwen3-8b-shape", shapes.QWEN3_8B)
    room = {"max_model_len": 36864, "kv_cache_memory_bytes": 20 * GIB, "gpu_memory_utilization": 0.3}
    arms = [
        chain(horizon=15, seqs=4).with_engine(**room),
        tree(15, "chain-shaped", seqs=4, ddtree=CHAIN_SHAPED).with_engine(**room),
    ]
    generator = random.Random(0)
    with Engines(arms, pair, given.places, given.clock) as engines:
        rows = []
        for context in (256, 4096, 32768):
            prompt = [generator.randrange(10, 150_000) for _ in range(context)]
            times = alternate(engines, given, greedy([prompt], 48))
            ratios = [a / b for a, b in zip(times["chain-shaped"], times["chain"], strict=True)]
            rows.append([context, median(times["chain"]), median(times["chain-shaped"]), median(ratios), len(ratios)])
            given.report.bar(
                f"8B shape, context {context}: step / chain's",
                median(ratios),
                f"<= {LARGE_RATIO}",
                median(ratios) <= LARGE_RATIO,
            )
        given.report.table(
            "step time at Qwen3-8B's shape, ms", ["context", "chain", "chain-shaped tree", "ratio", "pairs"], rows
        )


def prefill(given: Setting) -> None:
    """Prompt tokens per second while eight requests decode: tree rows leave those behind them to the stock kernel."""
    budget = given.options.budgets[0]
    limits = {"max_num_batched_tokens": 2048}
    arms = [chain(seqs=16).with_engine(**limits), policy(budget, "tree", seqs=16).with_engine(**limits)]
    generator = random.Random(1)
    prompts = [[generator.randrange(10, 4000) for _ in range(1000)] for _ in range(96)]
    decoding, asked = greedy(given.prompts[:8], 1900), greedy(prompts, 1)
    with Engines(arms, given.pair, given.places, given.clock) as engines:
        speeds: dict[str, list[float]] = {name: [] for name in engines.names(["chain", "tree"])}
        early = False
        for number in range(1 + given.options.pairs):
            if number > 3 and given.clock.left < 15:
                break
            for name in list(speeds)[:: 1 if number % 2 else -1]:
                answer = engines[name].ask("mixed", given.clock.need(5), decoding=decoding, prompts=asked, at_once=4)
                early |= answer["ended_early"]
                if number:
                    speeds[name].append(answer["prompt_tokens_s"])
    ratios = [a / b for a, b in zip(speeds["tree"], speeds["chain"], strict=True)]
    given.report.table(
        "prompt tokens per second in mixed batches",
        ["arm", "median", "measurements"],
        [[name, median(values), len(values)] for name, values in speeds.items()],
    )
    given.report.keep("decoders ended early", early)
    bound = lower_bound(ratios)
    given.report.bar(
        f"prefill in mixed batches / chain's (bound {bound:.3f})",
        median(ratios),
        f">= {PREFILL_RATIO}",
        median(ratios) >= PREFILL_RATIO,
    )


def memory(given: Setting) -> None:
    """Peak of torch's allocations above rest at V = 151,936, 32 requests, N = 64."""
    pair = shapes.write(Path(tempfile.gettempdir()) / "wide-shape", shapes.WIDE)
    arms = [chain(horizon=15, seqs=32), tree(64, seqs=32)]
    requests = greedy(given.prompts[:32], 24)
    rows, peaks = [], {}
    with Engines([arm.with_engine(max_model_len=1024) for arm in arms], pair, given.places, given.clock) as engines:
        for name in engines.names([arm.name for arm in arms]):
            seen = engines[name].ask("memory", given.clock.need(10), requests=requests)
            peaks[name] = seen["peak"]
            rows.append([name, *(round(seen[part] / 1e6) for part in ("at_rest", "peak", "reserved"))])
    given.report.table("memory at V = 151,936, batch 32, MB", ["arm", "at rest", "peak", "reserved"], rows)
    extra = peaks["tree 64"] - peaks["chain"]
    given.report.bar(
        "peak above the chain's, bytes",
        extra,
        f"<= {EXTRA_BYTES} (fp32 logits are chunked at 1 GB)",
        extra <= EXTRA_BYTES,
    )

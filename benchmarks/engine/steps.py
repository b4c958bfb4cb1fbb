import random
import tempfile
from argparse import Namespace
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from . import shapes, shared
from .arms import GIB, Arm, chain, policy, tree
from .figures import lower_bound
from .part import Part, Setting, choose
from .pool import EngineFailed, Engines
from .requests import greedy

CHAIN_SHAPED = "chain-shaped"
TOY_EXTRA_MS, LARGE_RATIO, PREFILL_RATIO, EXTRA_BYTES = 0.12, 1.03, 0.98, 10**9


def parts(options: Namespace, only: list[str]) -> dict[str, Part]:
    found = {
        "small": Part(small_arms, small, timed=True),
        "large": Part(large_arms, large, weight=2, timed=True),
        "large-prefill": Part(large_arms, large_prefill, timed=True),
        "prefill": Part(prefill_arms, prefill, timed=True),
        "memory": Part(memory_arms, memory),
    }
    return {name: found[name] for name in choose(list(found), only)}


def chain_shaped(horizon: int, seqs: int) -> Arm:
    """A tree of N = K nodes, all of them its spine, is the chain's shape and not the chain's path."""
    return tree(horizon, CHAIN_SHAPED, horizon=horizon, seqs=seqs, ddtree={"spine": horizon})


def small_arms(given: Setting) -> list[Arm]:
    options = given.options
    return [
        shared.stock_chain(options),
        chain_shaped(options.horizon, seqs=8).with_engine(**shared.captures(options)),
    ]


def small(given: Setting, engines: Engines) -> None:
    requests = greedy(given.prompts[:8], given.tokens)
    emitted: dict[str, float] = {}
    times = alternate(engines, given, requests, emitted=emitted)
    rows = [[name, median(values), emitted[name], len(values)] for name, values in times.items()]
    columns = ["arm", "median of medians", "tokens a step", "measurements"]
    given.report.table("step time, batch 1, ms", columns, rows)
    pairs = list(zip(times[CHAIN_SHAPED], times["chain"], strict=False))
    extra = median(a - b for a, b in pairs)
    given.report.timed_bar(
        "a chain-shaped tree's step, more than the chain's, ms",
        extra,
        f"<= {TOY_EXTRA_MS}",
        extra <= TOY_EXTRA_MS,
        len(pairs),
        given.options.pairs,
    )
    if extra > TOY_EXTRA_MS:
        where_it_goes(engines, given, CHAIN_SHAPED, "generate", requests=requests, at_once=1)


def where_it_goes(engines: Engines, given: Setting, tree: str, during: str, **asked: Any) -> None:
    """Of a bar that was missed: the host's functions that take the tree's steps longer than the chain's, and those
    that take them less; where there is time left."""
    seen = {}
    for name in ("chain", tree):
        if given.clock.left < 5:
            return
        answer = engines.attempt(name, "host_profile", given.clock.need(5), during=during, asked=asked)
        if not answer:
            return
        steps = answer["steps"] or 1
        seen[name] = {function: 1e6 * seconds / steps for function, seconds in answer["functions"].items()}
    rows = [[f, seen["chain"].get(f, 0.0), seen[tree].get(f, 0.0)] for f in {**seen["chain"], **seen[tree]}]
    rows.sort(key=lambda row: -abs(row[2] - row[1]))
    total = [sum(one.values()) for one in seen.values()]
    columns = ["function", "chain", tree]
    title = f"{during}: the host's own us per step under a profiler, where the arms differ most"
    given.report.table(title, columns, [["all of them", *total], *rows[:24]])


def alternate(
    engines: Engines,
    given: Setting,
    requests: list[dict[str, Any]],
    at_once: int = 1,
    emitted: dict[str, float] | None = None,
) -> dict[str, list[float]]:
    """Per arm, the median interval between two steps' outputs of each measurement, in ms.

    emitted: gets each arm's tokens per step, for steps are alike only where they emit alike. Raises EngineFailed: one
    of the two is not there.
    """
    times: dict[str, list[float]] = {"chain": [], CHAIN_SHAPED: []}
    with given.in_time():
        for number in range(1 + given.options.pairs):
            if number > 3 and given.clock.left < 10:
                break
            for name in list(times)[:: 1 if number % 2 else -1]:
                answer = engines[name].ask("trace", given.clock.need(5), requests=requests, at_once=at_once)
                intervals = [1e3 * (b - a) for one in answer["times"] for a, b in pairwise(one[1:])]
                if number:  # the first one warms up
                    times[name].append(median(intervals))
                elif emitted is not None:
                    steps = [len(step) for one in answer["steps"] for step in one]
                    emitted[name] = sum(steps) / len(steps)
    if not all(times.values()):
        raise EngineFailed("no time for a single pair")
    return times


def large_arms(given: Setting) -> list[Arm]:
    """Qwen3-8B's shape, weights made up: nothing is accepted, so every step is alike."""
    pair = shapes.write(Path(tempfile.gettempdir()) / "qwen3-8b-shape", shapes.QWEN3_8B)
    room = {"max_model_len": 36864, "kv_cache_memory_bytes": 20 * GIB, "gpu_memory_utilization": 0.3}
    both = [chain(horizon=15, seqs=4), shared.beside_prompts(given.options, chain_shaped(15, seqs=4))]
    return [replace(arm, pair=pair).with_engine(**room) for arm in both]


def large(given: Setting, engines: Engines) -> None:
    generator = random.Random(0)
    rows = []
    with given.in_time():
        for context in (256, 4096, 32768):
            given.clock.need(10)
            prompt = [generator.randrange(10, 150_000) for _ in range(context)]
            try:
                times = alternate(engines, given, greedy([prompt], 48))
            except EngineFailed as failed:  # the shorter contexts stay reported
                given.report.failed(f"context {context}: {failed}")
                break
            ratios = [a / b for a, b in zip(times[CHAIN_SHAPED], times["chain"], strict=False)]
            rows.append([context, median(times["chain"]), median(times[CHAIN_SHAPED]), median(ratios), len(ratios)])
            given.report.timed_bar(
                f"8B shape, context {context}: step / chain's",
                median(ratios),
                f"<= {LARGE_RATIO}",
                median(ratios) <= LARGE_RATIO,
                len(ratios),
                given.options.pairs,
            )
    given.report.table(
        "step time at Qwen3-8B's shape, ms", ["context", "chain", "chain-shaped tree", "ratio", "pairs"], rows
    )


def prefill_arms(given: Setting) -> list[Arm]:
    """V1: trees among ten requests need an engine for more than eight, and for no more than get trees."""
    options = given.options
    if options.runner == "v2":
        return [shared.stock_chain(options), shared.default_policy(options).named("tree")]
    both = [chain(horizon=options.horizon, seqs=16), policy(options.budgets[0], "tree", seqs=16)]
    return [arm.with_engine(**shared.captures(options)) for arm in both]


def prefill(given: Setting, engines: Engines) -> None:
    """What is judged first, with most of the time; the other load has what it leaves."""
    judged = replace(given, clock=given.clock.share(0.7))
    mixed(judged, engines, "tree", decoders=8, length=1000, count=400)
    mixed(given, engines, "tree", decoders=8, length=1000, count=100, at_once=2)


def large_prefill(given: Setting, engines: Engines) -> None:
    """Where a step takes the GPU longer than the host: trees beside the prompts."""
    mixed(given, engines, CHAIN_SHAPED, decoders=2, length=2000, count=24)


def mixed(
    given: Setting, engines: Engines, tree: str, decoders: int, length: int, count: int, at_once: int = 0
) -> None:
    """Prompt tokens per second while requests decode: beside prompts trees are chains by default, and trees where the
    arm says so; those leave the rows behind them to the stock kernel.

    Judged where prompts wait, so that every step is filled with them. at_once: so many come at a time, the next ones
    when those are through, with a step of those that decode in between; told beside it.
    """
    generator = random.Random(1)
    prompts = [[generator.randrange(10, 4000) for _ in range(length)] for _ in range(count)]
    asked = {"decoding": greedy(given.prompts[:decoders], 1900), "prompts": greedy(prompts, 1), "at_once": at_once}
    speeds: dict[str, list[float]] = {"chain": [], tree: []}
    decoded: dict[str, list[float]] = {"chain": [], tree: []}
    early = False
    with given.in_time():
        for number in range(1 + given.options.pairs):
            if number > 3 and given.clock.left < 10:
                break
            for name in list(speeds)[:: 1 if number % 2 else -1]:
                answer = engines[name].ask("mixed", given.clock.need(5), **asked)
                early |= answer["ended_early"]
                if number:
                    speeds[name].append(answer["prompt_tokens_s"])
                    decoded[name].append(answer["decoded_s"])
    ratios = [a / b for a, b in zip(speeds[tree], speeds["chain"], strict=False)]
    if not ratios:
        return
    load = f"{at_once} at a time" if at_once else "all waiting"
    given.report.table(
        f"prompt tokens per second beside {decoders} requests that decode, prompts {load}",
        ["arm", "median", "lowest", "highest", "tokens decoded per second", "measurements"],
        [
            [n, median(values), min(values), max(values), median(decoded[n]), len(values)]
            for n, values in speeds.items()
        ],
    )
    given.report.keep(f"decoders ended early, prompts {load}", early)
    given.report.keep(f"speeds, prompts {load}", speeds)
    ratio, bound = median(ratios), lower_bound(ratios)
    if at_once:
        given.report.say(f"prompts {load}: {ratio:.3f} times the chain's (bound {bound:.3f})")
        return
    given.report.timed_bar(
        f"prefill in mixed batches / chain's (bound {bound:.3f})",
        ratio,
        f">= {PREFILL_RATIO}",
        ratio >= PREFILL_RATIO,
        len(ratios),
        given.options.pairs,
    )
    if ratio < PREFILL_RATIO:
        where_it_goes(engines, given, tree, "mixed", **asked)


def memory_arms(given: Setting) -> list[Arm]:
    pair = shapes.write(Path(tempfile.gettempdir()) / "wide-shape", shapes.WIDE)
    return [replace(arm, pair=pair).with_engine(max_model_len=1024) for arm in (chain(seqs=32), tree(64, seqs=32))]


def memory(given: Setting, engines: Engines) -> None:
    """Peak of torch's allocations above rest at V = 151,936, 32 requests, N = 64."""
    requests = greedy(given.prompts[:32], 24)
    rows, peaks = [], {}
    for name in ("chain", "tree 64"):
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

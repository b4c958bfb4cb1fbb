"""Tokens per second, engines alternating: the stock chain against trees (batch 1) and against the default policy.

All engines of a batch are up at the same time on one GPU and answer in turn; a pair is one measurement of each, next to
each other, the order reversed every other time. Reported: the median of the pairs' ratios and its lower 95 % bound.
"""

from __future__ import annotations

from statistics import median

from .arms import Arm, chain, policy, tree
from .command import Setting
from .figures import lower_bound
from .pool import EngineFailed, Engines
from .requests import greedy

BATCH_1_WANTED = 1.10
POLICY_WANTED, POLICY_BOUND = 0.98, 0.96


def run(given: Setting) -> None:
    chosen = [int(name) for name in given.only([str(batch) for batch in given.options.batches])]
    if 1 in chosen:
        compare(given, [1])
    larger = [batch for batch in chosen if batch > 1]
    # on V2 the policy goes by the batch of each step: the same two engines serve all sizes
    for group in [larger] if larger and given.options.runner == "v2" else [[batch] for batch in larger]:
        compare(given, group)


def arms_of(batch: int, given: Setting) -> list[Arm]:
    """Batch 1: one engine per budget. Else the default policy, on V2 in an engine for the largest batch."""
    horizon, budgets, runner = given.options.horizon, given.options.budgets, given.options.runner
    if batch == 1:
        trees = [tree(budget, seqs=max(1, min(7, 512 // (1 + budget)))) for budget in budgets]
        return [chain(horizon=horizon, seqs=7), *trees]
    seqs = max(given.options.batches) if runner == "v2" else batch
    return [chain(horizon=horizon, seqs=seqs), policy(budgets[0], seqs=seqs)]


def same_captures(arms: list[Arm]) -> list[Arm]:
    """The same capture sizes for all: what one arm's graphs cover, the other's cover, too."""
    lengths = {1 + (arm.budget if arm.kind == "tree" else arm.horizon) for arm in arms} | {1 + arms[0].horizon}
    sizes = {length * count for length in lengths for count in (1, 2, 4, 8, 16, 24, 30, 32) if length * count <= 512}
    return [arm.with_engine(compilation_config={"cudagraph_capture_sizes": sorted(sizes | {512})}) for arm in arms]


def compare(given: Setting, batches: list[int]) -> None:
    arms = same_captures(arms_of(batches[0], given))
    with Engines(arms, given.pair, given.places, given.clock) as engines:
        if "chain" not in engines:
            raise EngineFailed("the stock chain did not start")
        for number, batch in enumerate(batches):
            alternate(engines, given, batch, share=1 / (len(batches) - number))


def alternate(engines: Engines, given: Setting, batch: int, share: float) -> None:
    """Measures one batch size in at most that share of the time that is left."""
    count = 8 if batch == 1 else batch
    prompts = (given.prompts * (1 + count // len(given.prompts)))[:count]
    requests = greedy(prompts, given.tokens if batch > 1 else min(given.tokens, 128))
    reserve = (1 - share) * given.clock.left
    speeds: dict[str, list[float]] = {name: [] for name in engines.names()}
    lengths: dict[str, float] = {}
    for number in range(1 + given.options.pairs):
        if number > 3 and given.clock.left - reserve < 10:
            break
        for name in engines.names()[:: 1 if number % 2 else -1]:
            answer = engines[name].ask("generate", given.clock.need(5), requests=requests, at_once=batch)
            emitted = sum(len(output["tokens"]) for output in answer["outputs"])
            if number:  # the first one warms up
                speeds[name].append(emitted / answer["seconds"])
            counters = answer["counters"]
            lengths[name] = 1 + counters["accepted"] / (counters["drafts"] or 1)
    report(given, batch, speeds, lengths)


def report(given: Setting, batch: int, speeds: dict[str, list[float]], lengths: dict[str, float]) -> None:
    stock, rows, best = speeds["chain"], [], None
    for name, values in speeds.items():
        ratios = [a / b for a, b in zip(values, stock, strict=False)]
        ratio, bound = median(ratios), lower_bound(ratios)
        rows.append([name, median(values), min(values), max(values), ratio, bound, lengths[name], len(values)])
        if name != "chain" and (best is None or ratio > best[1]):
            best = (name, ratio, bound)
    columns = ["arm", "tokens/s", "lowest", "highest", "ratio", "lower 95 %", "acceptance length", "pairs"]
    given.report.table(f"tokens per second, batch {batch}", columns, rows)
    given.report.keep(f"speeds, batch {batch}", speeds)
    if best is None:
        given.report.bar(f"batch {batch}: an arm with trees runs", 0, "1", False)
    elif batch == 1:
        given.report.bar(f"batch 1, best N ({best[0]})", best[1], f">= {BATCH_1_WANTED}", best[1] >= BATCH_1_WANTED)
    else:
        wanted = f"median >= {POLICY_WANTED}, bound {best[2]:.3f} >= {POLICY_BOUND}"
        met = best[1] >= POLICY_WANTED and best[2] >= POLICY_BOUND
        given.report.bar(f"batch {batch}, default policy", best[1], wanted, met)

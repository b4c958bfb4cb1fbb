"""Tokens per second, engines alternating: the stock chain against trees (batch 1) and against the default policy.

All engines are up at the same time on one GPU and answer in turn; a pair is one measurement of each, next to
each other, the order reversed every other time. Reported: the median of the pairs' ratios and its lower 95 % bound.
"""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from statistics import median

from . import shared
from .arms import Arm
from .figures import lower_bound
from .part import Part, Setting, choose
from .pool import EngineFailed, Engines
from .requests import greedy

BATCH_1_WANTED = 1.10
POLICY_WANTED, POLICY_BOUND = 0.98, 0.96


def parts(options: Namespace, only: list[str]) -> dict[str, Part]:
    """A part for each batch size, and `exact`: batch 1 with exact attention."""
    found = {
        str(batch): Part(partial(arms, batch), partial(alternate, batch), weight=2, timed=True)
        for batch in options.batches
    }
    # asked for by those who want the last bit, not the speed
    found["exact"] = Part(exact_arms, partial(alternate, 1, judged=False), weight=2, timed=True)
    return {name: found[name] for name in choose(list(found), only)}


def exact_arms(given: Setting) -> list[Arm]:
    stock, *trees = arms(1, given)
    return [stock, *map(shared.to_the_last_bit, trees)]


def arms(batch: int, given: Setting) -> list[Arm]:
    """Batch 1: one engine per budget. Else the default policy."""
    options = given.options
    if batch == 1:
        return [shared.stock_chain(options), *(shared.small_batch_tree(options, n) for n in options.budgets)]
    return [shared.stock_chain(options, batch), shared.default_policy(options, batch)]


def alternate(batch: int, given: Setting, engines: Engines, judged: bool = True) -> None:
    """Measures one batch size, the arms in turn. Not judged: that trees run is its only bar."""
    if "chain" not in engines:
        raise EngineFailed("the stock chain did not start")
    count = 8 if batch == 1 else batch
    prompts = (given.prompts * (1 + count // len(given.prompts)))[:count]
    requests = greedy(prompts, given.tokens if batch > 1 else min(given.tokens, 128))
    speeds: dict[str, list[float]] = {name: [] for name in engines.names()}
    lengths: dict[str, float] = {}
    broken: set[str] = set()  # not asked again: its pairs would stand beside others'
    with given.in_time():
        for number in range(1 + given.options.pairs):
            if number > 3 and given.clock.left < 10:
                break
            names = [name for name in engines.names() if name not in broken]
            for name in names[:: 1 if number % 2 else -1]:
                answer = engines.attempt(name, "generate", given.clock.need(5), requests=requests, at_once=batch)
                if answer is None:
                    broken.add(name)
                    continue
                emitted = sum(len(output["tokens"]) for output in answer["outputs"])
                if number:  # the first one warms up
                    speeds[name].append(emitted / answer["seconds"])
                counters = answer["counters"]
                lengths[name] = 1 + counters["accepted"] / (counters["drafts"] or 1)
    report(given, batch, {name: values for name, values in speeds.items() if values}, lengths, judged)


def report(given: Setting, batch: int, speeds: dict[str, list[float]], lengths: dict[str, float], judged: bool) -> None:
    if "chain" not in speeds:
        return
    stock, rows, best = speeds["chain"], [], None
    for name, values in speeds.items():
        ratios = [a / b for a, b in zip(values, stock, strict=False)]
        ratio, bound = median(ratios), lower_bound(ratios)
        rows.append([name, median(values), min(values), max(values), ratio, bound, lengths[name], len(values)])
        if name != "chain" and (best is None or ratio > best[1]):
            best = (name, ratio, bound, len(ratios))
    columns = ["arm", "tokens/s", "lowest", "highest", "ratio", "lower 95 %", "acceptance length", "pairs"]
    given.report.table(f"tokens per second, batch {batch}", columns, rows)
    given.report.keep(f"speeds, batch {batch}", speeds)
    if best is None or not judged:
        given.report.bar(f"batch {batch}: an arm with trees runs", int(best is not None), "1", best is not None)
        return
    name, ratio, bound, pairs = best
    if batch == 1:
        what, wanted, met = f"best N ({name})", f">= {BATCH_1_WANTED}", ratio >= BATCH_1_WANTED
    else:
        what, wanted = "default policy", f"median >= {POLICY_WANTED}, bound {bound:.3f} >= {POLICY_BOUND}"
        met = ratio >= POLICY_WANTED and bound >= POLICY_BOUND
    given.report.timed_bar(f"batch {batch}, {what}", ratio, wanted, met, pairs, given.options.pairs)

"""Acceptance length at batch 1, T = 0: stock chains of K and K - 1, trees; by depth, at the start and in the rest.

Beside it stands how many outputs equal the chain's; `lossless` judges that.
"""

from __future__ import annotations

from argparse import Namespace
from itertools import pairwise
from math import hypot
from statistics import mean, stdev
from typing import Any

from . import shared
from .arms import Arm
from .figures import equal
from .part import Part, Setting
from .pool import Engines
from .requests import greedy, tokens_of

FIRST = 64
WANTED = {16: 1.21, 64: 1.38}


def parts(options: Namespace, only: list[str]) -> dict[str, Part]:
    return {"": Part(arms, run, weight=2)}


def arms(given: Setting) -> list[Arm]:
    options = given.options
    stock = [shared.stock_chain(options), shared.shorter_chain(options)]
    return stock + [shared.small_batch_tree(options, budget) for budget in options.budgets]


def run(given: Setting, engines: Engines) -> None:
    answers: dict[str, dict[str, Any]] = {}
    with given.in_time():
        for name in engines.names():
            answer = measure(engines, name, given)
            if answer:
                answers[name] = answer
    figures = {name: summary(answer) for name, answer in answers.items()}
    report(given, figures)
    if "chain" not in answers:
        given.report.bar("the stock chain runs", 0, "1", False)
        return
    stock = tokens_of(answers["chain"])
    same = {name: equal(stock, tokens_of(answer)) for name, answer in answers.items()}
    given.report.table(
        f"outputs equal to the chain's, of {len(stock)}", ["arm", "equal"], [[n, s] for n, s in same.items()]
    )
    if any(answer["gave_up"] for answer in answers.values()):
        given.out_of_time()
    for budget in given.options.budgets:
        name = f"tree {budget}"
        if name not in figures:
            given.report.bar(f"{name} runs", 0, "1", False)
            continue
        judge(given, figures, name, budget)


def judge(given: Setting, figures: dict[str, dict[str, Any]], name: str, budget: int) -> None:
    ratio = figures[name]["tau"] / figures["chain"]["tau"]
    wanted = WANTED.get(budget)
    if wanted:
        given.report.bar(f"{name}: acceptance length / chain's", ratio, f">= {wanted}", ratio >= wanted)
    early, usual = (figures[n]["first"] / (figures[n]["rest"] or 1) for n in (name, "chain"))
    error = hypot(figures[name]["error"], figures["chain"]["error"])
    given.report.bar(
        f"{name}: first {FIRST} tokens / rest",
        early,
        f">= chain's {usual:.3f} - 2 standard errors of {error:.3f}",
        early >= usual - 2 * error,
    )


def measure(engines: Engines, name: str, given: Setting) -> dict[str, Any] | None:
    if engines.attempt(name, "generate", given.clock.need(8), requests=greedy(given.prompts[:2], 16)) is None:
        return None
    requests = greedy(given.prompts, given.tokens)
    answer: dict[str, Any] | None = engines.attempt(
        name, "trace", given.clock.need(8), requests=requests, at_once=1, give_up=given.clock.left
    )
    return answer


def summary(answer: dict[str, Any]) -> dict[str, Any]:
    """tau: emitted tokens per verification; its value in the first tokens of each prompt and in the rest, and the
    standard error of their ratio; intervals."""
    first: list[int] = []
    rest: list[int] = []
    intervals = []
    for steps, times in zip(answer["steps"], answer["times"], strict=True):
        seen = len(steps[0]) if steps else 0  # the prefill's token is no verification's
        for step in steps[1:]:
            (first if seen < FIRST else rest).append(len(step))
            seen += len(step)
        intervals += [b - a for a, b in pairwise(times[1:])]
    counters = answer["counters"]
    drafts = counters["drafts"] or 1
    emitted = sum(len(step) for steps in answer["steps"] for step in steps)
    return {
        "tau": 1 + counters["accepted"] / drafts,
        "first": mean(first or [0]),
        "rest": mean(rest or [0]),
        "error": hypot(*(stdev(part) / mean(part) / len(part) ** 0.5 for part in (first, rest) if len(part) > 1)),
        "depths": [round(n / drafts, 4) for n in counters["per_depth"][:16]],
        "tokens_s": emitted / answer["seconds"],
        "interval_ms": 1e3 * mean(intervals) if intervals else None,
        "drafts": counters["drafts"],
    }


def report(given: Setting, figures: dict[str, dict[str, Any]]) -> None:
    columns = ["arm", "acceptance length", f"first {FIRST}", "rest", "tokens/s (not alone on the GPU's host)", "steps"]
    rows = [
        [name, *(figure[part] for part in ("tau", "first", "rest", "tokens_s", "drafts"))]
        for name, figure in figures.items()
    ]
    given.report.table("acceptance, batch 1, T = 0", columns, rows)
    depth = max((len(figure["depths"]) for figure in figures.values()), default=0)
    given.report.table(
        "accepted at each depth, of all verifications",
        ["arm", *(str(d + 1) for d in range(depth))],
        [[name, *(figure["depths"] + [None] * depth)[:depth]] for name, figure in figures.items()],
    )

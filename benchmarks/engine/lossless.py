"""Losslessness: rule (a) against what two stock arms agree on, rule (b) by re-scoring, rule (c) in fp32; sampling.

(a) As many outputs equal the chain's as those of another stock chain do, less 4: of trees that were asked for `exact`
attention. Others round elsewhere, as two stock attention kernels do, and stand beside those in the table.
(b) See scoring.py: at most 0.1 % of the tokens beyond delta, or as many as a stock arm has.
At a temperature each emitted token is drawn again by a stock engine from the same prefix, with the same seed.
"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from . import shared
from .arms import Arm
from .figures import divergences, equal
from .part import Part, Setting, choose
from .pool import EngineFailed, Engines
from .requests import greedy, seeded, tokens_of, varied
from .scoring import Gaps, Scores, allowed_count, allowed_gap, delta_of, scored_by_stock

SAMPLES = 1024
OTHER_KERNEL = "none, TRITON_ATTN"


def parts(options: Namespace, only: list[str]) -> dict[str, Part]:
    found = {
        "greedy": Part(greedy_arms, at_zero, weight=4),
        "sampled": Part(sampled_arms, sampled, weight=2),
        "distribution": Part(distribution_arms, distribution),
        "exact": Part(exact_arms, exact),
    }
    return {name: found[name] for name in choose(list(found), only)}


# ---- T = 0 ----


def greedy_arms(given: Setting) -> list[Arm]:
    options = given.options
    other = shared.plain_decoding(options).named(OTHER_KERNEL).with_engine(attention_config={"backend": "TRITON_ATTN"})
    return [
        shared.plain_decoding(options),
        shared.stock_chain(options, shared.WIDE_BATCH),
        shared.shorter_chain(options, shared.WIDE_BATCH),
        other,  # a second correct kernel of the same engine: how far equality of whole outputs goes in bf16
        *(shared.wide_tree(options, budget) for budget in options.budgets),
        *(shared.to_the_last_bit(shared.wide_tree(options, budget)) for budget in options.budgets),
    ]


@dataclass
class Batch:
    """What each arm emitted at one batch size, and how a stock prefill scores it."""

    outputs: dict[str, list[list[int]]] = field(default_factory=dict)
    lengths: dict[str, float] = field(default_factory=dict)  # acceptance, the bonus token counted in
    scores: dict[str, Scores] = field(default_factory=dict)

    def same(self, a: str, b: str) -> int | None:
        return equal(self.outputs[a], self.outputs[b]) if a in self.outputs and b in self.outputs else None


def at_zero(given: Setting, engines: Engines) -> None:
    batches: dict[int, Batch] = {}
    delta: float | None = None
    with given.in_time():
        for size in (1, 8, 32):
            batch, decoded = measure(given, engines, size)
            if "chain" not in batch.scores:
                raise EngineFailed("the stock chain gave no outputs")
            if delta is None:
                delta = delta_of(decoded, batch.scores["chain"])
                given.report.keep("delta", delta)
            batches[size] = batch
    rows = [] if delta is None else [row for size in batches for row in judged(given, batches[size], size, delta)]
    given.report.table(
        "T = 0", ["arm", "batch", "equal to the chain", "of", "beyond delta", "worst gap", "acceptance length"], rows
    )


def measure(given: Setting, engines: Engines, size: int) -> tuple[Batch, list[dict[str, Any]]]:
    """Also the chain's outputs with their own log-probabilities, at batch 1."""
    prompts, tokens, decoded = given.prompts, [given.tokens] * len(given.prompts), []
    if size > 1:
        prompts = varied(given.prompts)
        tokens = [max(8, given.tokens * (1 + i % 3) // 3) for i in range(len(prompts))]
    batch = Batch()
    asked = {}
    for name in engines.names():
        more = {"logprobs": 1} if name == "chain" and size == 1 else {}
        asked[name] = {"requests": greedy(prompts, tokens, **more), "at_once": size}
    answers = engines.together("generate", given.clock.need(10), asked)
    for name, answer in answers.items():
        if answer is None:
            continue
        batch.outputs[name] = tokens_of(answer)
        counters = answer["counters"]
        if counters["drafts"]:
            batch.lengths[name] = 1 + counters["accepted"] / counters["drafts"]
        if name == "chain" and size == 1:
            decoded = answer["outputs"]
    for name, outputs in batch.outputs.items():
        batch.scores[name] = scored_by_stock(engines, given, greedy(prompts, tokens), outputs)
    return batch, decoded


def judged(given: Setting, batch: Batch, size: int, delta: float) -> list[list[Any]]:
    """The rows of one batch size; its bars on the way."""
    gaps = {name: Gaps.of(scores, delta) for name, scores in batch.scores.items()}
    exact = exact_names(given)
    trees = [*tree_names(given), *exact]
    stock = [one for name, one in gaps.items() if name not in trees]
    base = batch.same("chain", f"chain {given.options.horizon - 1}")
    kernels = batch.same("none", OTHER_KERNEL)
    for name in trees:
        where, same = f"{name}, batch {size}", batch.same("chain", name)
        if same is None:
            given.report.bar(f"{where} runs", 0, "1", False)
            continue
        if name in exact:
            given.report.bar(
                f"(a) {where}: equal to the chain (two stock kernels: {kernels})",
                same,
                f">= {base} - 4",
                None if base is None else same >= base - 4,
            )
        count, gap = allowed_count(gaps[name], stock), allowed_gap(stock, delta)
        given.report.bar(
            f"(b) {where}: tokens beyond delta {delta:.4g}, of {gaps[name].tokens}",
            gaps[name].beyond,
            f"<= {count}",
            gaps[name].beyond <= count,
        )
        given.report.bar(f"(b) {where}: largest gap", gaps[name].worst, f"<= {gap:.4g}", gaps[name].worst <= gap)
    return [
        [
            name,
            size,
            batch.same("chain", name),
            len(batch.outputs[name]),
            one.beyond,
            one.worst,
            batch.lengths.get(name),
        ]
        for name, one in gaps.items()
    ]


# ---- with a temperature ----


def sampled_arms(given: Setting) -> list[Arm]:
    options = given.options
    trees = [shared.wide_tree(options, budget) for budget in options.budgets]
    return [shared.plain_decoding(options), *trees, *map(shared.to_the_last_bit, trees)]


def sampled(given: Setting, engines: Engines) -> None:
    """Explicit seeds: V2's noise hangs on (seed, position, token), so a tree emits what plain decoding emits, where
    attention rounds alike. Its own measure is plain decoding again, one request after the other."""
    requests = seeded(given.prompts, given.tokens)
    plain = tokens_of(engines["none"].ask("generate", given.clock.need(10), requests=requests))
    rows: list[list[Any]] = []
    with given.in_time():
        stock: tuple[int, int] | None = None  # equal outputs, tokens drawn again differently
        for label, name, at_once in (
            ("none, alone", "none", 1),
            *((n, n, 0) for n in [*tree_names(given), *exact_names(given)]),
        ):
            answer = engines.attempt(name, "generate", given.clock.need(10), requests=requests, at_once=at_once)
            if answer is None:
                given.report.bar(f"T = 0.7, {label} runs", 0, "1", False)
                continue
            outputs = tokens_of(answer)
            same, again = equal(plain, outputs), redrawn(engines, given, requests, outputs)
            rows.append([label, same, len(plain), again, divergences(plain, outputs)[:4]])
            if name == "none":
                stock = (same, again)
            elif given.options.runner == "v2" and stock is not None:
                judge_sampled(given, label, (same, again), stock)
    given.report.table(
        "T = 0.7, a seed each",
        ["arm", "equal to plain decoding", "of", "redrawn differently", "first divergences"],
        rows,
    )


def tree_names(given: Setting) -> list[str]:
    return [f"tree {budget}" for budget in given.options.budgets]


def exact_names(given: Setting) -> list[str]:
    """Of the trees whose outputs are to be the chain's: two kernels that are right may differ at a near tie."""
    return [f"{name}, exact" for name in tree_names(given)]


def judge_sampled(given: Setting, name: str, own: tuple[int, int], stock: tuple[int, int]) -> None:
    same, again = own
    base, control = stock
    if name in exact_names(given):
        given.report.bar(f"(a) T = 0.7, {name}: equal to no speculation", same, f">= {base} - 4", same >= base - 4)
    given.report.bar(
        f"(b) T = 0.7, {name}: tokens drawn again differently (stock {control})",
        again,
        f"<= 1.5 x {control} + 3",
        again <= 1.5 * control + 3,
    )


def redrawn(engines: Engines, given: Setting, requests: list[dict[str, Any]], outputs: list[list[int]]) -> int:
    """Tokens that plain decoding draws differently from the very prefix: noise is keyed by absolute position."""
    single = [
        {"prompt": request["prompt"] + tokens[:place], "params": request["params"] | {"max_tokens": 1}}
        for request, tokens in zip(requests, outputs, strict=True)
        for place in range(0, len(tokens), 3)
    ]
    found = tokens_of(engines["none"].ask("generate", given.clock.need(10), requests=single))
    wanted = [tokens[place] for tokens in outputs for place in range(0, len(tokens), 3)]
    return sum(token[0] != want for token, want in zip(found, wanted, strict=True))


def distribution_arms(given: Setting) -> list[Arm]:
    return [shared.plain_decoding(given.options), shared.wide_tree(given.options, given.options.budgets[0])]


def distribution(given: Setting, engines: Engines) -> None:
    """Frequencies of the first tokens that a tree draws, without seeds, against plain decoding's and its own spread."""
    rows = []
    with given.in_time():
        for number, prompt in enumerate(given.prompts[:4]):
            requests = greedy([prompt] * SAMPLES, 3, temperature=0.7)
            plain = counted(engines, "none", requests, given)
            again = counted(engines, "none", requests, given)
            trees = counted(engines, f"tree {given.options.budgets[0]}", requests, given)
            rows.append([number, distance(plain, again), distance(plain, trees), distance(again, trees)])
    if not rows:
        return
    spread = max(row[1] for row in rows)
    worst = max(min(row[2], row[3]) for row in rows)
    given.report.table(
        f"total variation of 3-token outputs, {SAMPLES} samples",
        ["prompt", "plain / plain", "plain / tree", "plain again / tree"],
        rows,
    )
    given.report.bar(
        "a tree's distribution / two plain runs' own spread",
        worst,
        f"<= 1.25 x {spread:.3f}",
        worst <= 1.25 * spread,
    )


def counted(engines: Engines, name: str, requests: list[dict[str, Any]], given: Setting) -> Counter[str]:
    answer = engines[name].ask("generate", given.clock.need(5), requests=requests)
    return Counter(",".join(map(str, tokens)) for tokens in tokens_of(answer))


def distance(a: Counter[str], b: Counter[str]) -> float:
    return sum(abs(a[key] - b[key]) for key in a | b) / (2 * max(1, a.total()))


# ---- fp32 ----


def exact_arms(given: Setting) -> list[Arm]:
    options = given.options
    both = [shared.stock_chain(options), *(shared.wide_tree(options, budget) for budget in options.budgets)]
    return [shared.exact(arm) for arm in both]


def exact(given: Setting, engines: Engines) -> None:
    """Rule (c): in fp32 nothing rounds differently enough to matter, so outputs are the same."""
    prompts = (given.prompts * 2)[:64]
    prompts = [prompt[: len(prompt) - i // len(given.prompts)] for i, prompt in enumerate(prompts)]
    requests = greedy(prompts, min(given.tokens, 128))
    stock = tokens_of(engines["chain, fp32"].ask("generate", given.clock.need(20), requests=requests))
    for name in tree_names(given):
        answer = engines.attempt(f"{name}, fp32", "generate", given.clock.need(20), requests=requests)
        same = equal(stock, tokens_of(answer)) if answer else None
        given.report.bar(
            f"(c) {name}, fp32: equal to the chain, of {len(prompts)}",
            same,
            f">= {len(prompts) - 1}",
            same is not None and same >= len(prompts) - 1,
        )

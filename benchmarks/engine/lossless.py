"""Losslessness: rule (a) against what two stock arms agree on, rule (b) by re-scoring, rule (c) in fp32; sampling.

(a) stands beside what the stock chain of another FlashAttention version agrees on: outputs of two bf16 kernels part.
(b) Every emitted token, scored by a stock engine's prefill, lies within delta of the best one; delta is the 99.9th
percentile of the difference that two stock ways of computing the same logits show. Stock's own violations stand beside.
At a temperature each emitted token is drawn again by a stock engine from the same prefix, with the same seed.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from .arms import Arm, chain, none, tree
from .command import Setting
from .figures import divergences, equal, quantile
from .pool import Engines
from .requests import greedy, seeded, tokens_of, varied

PERCENTILE = 0.999
SAMPLES = 1024
OTHER_KERNEL = "chain, FlashAttention 2"


def run(given: Setting) -> None:
    parts = {"greedy": at_zero, "sampled": sampled, "distribution": distribution, "exact": exact}
    for name in given.only(list(parts)):
        parts[name](given)


# ---- T = 0 ----


def at_zero(given: Setting) -> None:
    horizon, budgets = given.options.horizon, given.options.budgets
    shorter = f"chain {horizon - 1}"
    arms = [none(seqs=128), chain(horizon=horizon), chain(shorter, horizon=horizon - 1)]
    arms += [tree(budget) for budget in budgets]
    # a second correct kernel of the same engine: how far equality of whole outputs goes in bf16
    arms.append(chain(OTHER_KERNEL, horizon=horizon).with_engine(attention_config={"flash_attn_version": 2}))
    with Engines(arms, given.pair, given.places, given.clock) as engines:
        judge = engines["none"]
        outputs: dict[tuple[str, int], list[list[int]]] = {}
        stock_logprobs: list[list[list[float]]] = []
        rows, scores = [], {}
        for batch in (1, 8, 32):
            prompts, tokens = (given.prompts, [given.tokens] * len(given.prompts))
            if batch > 1:
                prompts = varied(given.prompts)
                tokens = [max(8, given.tokens * (1 + i % 3) // 3) for i in range(len(prompts))]
            for name in engines.names():
                more = {"logprobs": 1} if name == "chain" and batch == 1 else {}
                answer = engines[name].ask(
                    "generate", given.clock.need(10), requests=greedy(prompts, tokens, **more), at_once=batch
                )
                outputs[name, batch] = tokens_of(answer)
                if more:
                    stock_logprobs = [output["logprobs"] for output in answer["outputs"]]
            for name in engines.names():
                sequences = [{"prompt": p, "tokens": t} for p, t in zip(prompts, outputs[name, batch], strict=True)]
                scores[name, batch] = judge.ask("score", given.clock.need(5), sequences=sequences)
        delta = differences(stock_logprobs, scores["chain", 1])
        given.report.keep("delta", delta)
        for batch in (1, 8, 32):
            base = equal(outputs["chain", batch], outputs[shorter, batch]) if shorter in engines else None
            for name in engines.names():
                same = equal(outputs["chain", batch], outputs[name, batch])
                beyond, worst = violations(scores[name, batch], delta)
                rows.append([name, batch, same, len(outputs[name, batch]), beyond, worst])
                if name.startswith("tree"):
                    where = f"{name}, batch {batch}"
                    wanted = None if base is None else base - 4
                    given.report.bar(
                        f"(a) {where}: equal to the chain",
                        same,
                        f">= {base} - 4",
                        wanted is not None and same >= wanted,
                    )
                    control = max(
                        violations(scores[n, batch], delta)[0] for n in engines.names() if not n.startswith("tree")
                    )
                    given.report.bar(
                        f"(b) {where}: tokens beyond delta {delta:.4g} (stock: {control})",
                        beyond,
                        f"<= {control}",
                        beyond <= control,
                    )
        given.report.table("T = 0", ["arm", "batch", "equal to the chain", "of", "beyond delta", "worst gap"], rows)


def differences(decoded: list[list[list[float]]], scored: list[list[list[float]]]) -> float:
    """delta: percentile of how far a stock chain's own log-probability lies from a stock prefill's of that token."""
    found = [
        abs(a[0] - b[0]) for one, other in zip(decoded, scored, strict=True) for a, b in zip(one, other, strict=True)
    ]
    return quantile(found, PERCENTILE)


def violations(scored: list[list[list[float]]], delta: float) -> tuple[int, float]:
    """How many tokens lie further than delta below the best, and the largest distance."""
    gaps = [best - own for sequence in scored for own, best, _ in sequence]
    return sum(gap > delta for gap in gaps), max(gaps, default=0.0)


# ---- with a temperature ----


def sampled(given: Setting) -> None:
    """Explicit seeds: V2's noise hangs on (seed, position, token), so a tree emits what plain decoding emits."""
    budgets = given.options.budgets
    arms = [none(seqs=128).with_engine(enable_prefix_caching=True), none("none, alone", seqs=1)]
    arms += [tree(budget) for budget in budgets]
    with Engines(arms, given.pair, given.places, given.clock) as engines:
        requests = seeded(given.prompts, given.tokens)
        outputs = {
            name: tokens_of(engines[name].ask("generate", given.clock.need(10), requests=requests))
            for name in engines.names()
        }
        plain, rows = outputs["none"], []
        base = equal(plain, outputs["none, alone"]) if "none, alone" in outputs else None
        control = None
        for name in ["none, alone", *(f"tree {budget}" for budget in budgets)]:
            if name not in outputs:
                given.report.bar(f"T = 0.7, {name} runs", 0, "1", False)
                continue
            again = redrawn(engines, given, requests, outputs[name])
            same = equal(plain, outputs[name])
            rows.append([name, same, len(plain), again, divergences(plain, outputs[name])[:4]])
            if name == "none, alone":
                control = again
            elif given.options.runner == "v2" and base is not None and control is not None:
                given.report.bar(
                    f"(a) T = 0.7, {name}: equal to no speculation", same, f">= {base} - 4", same >= base - 4
                )
                given.report.bar(
                    f"(b) T = 0.7, {name}: tokens drawn again differently (stock {control})",
                    again,
                    f"<= 1.5 x {control} + 3",
                    again <= 1.5 * control + 3,
                )
        given.report.table(
            "T = 0.7, a seed each",
            ["arm", "equal to plain decoding", "of", "redrawn differently", "first divergences"],
            rows,
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


def distribution(given: Setting) -> None:
    """Frequencies of the first tokens that a tree draws, without seeds, against plain decoding's and its own spread."""
    budget = given.options.budgets[0]
    arms = [none(seqs=128), tree(budget)]
    with Engines(arms, given.pair, given.places, given.clock) as engines:
        rows = []
        for number, prompt in enumerate(given.prompts[:4]):
            requests = greedy([prompt] * SAMPLES, 3, temperature=0.7)
            plain = counted(engines, "none", requests, given)
            again = counted(engines, "none", requests, given)
            trees = counted(engines, f"tree {budget}", requests, given)
            rows.append([number, distance(plain, again), distance(plain, trees), distance(again, trees)])
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


def exact(given: Setting) -> None:
    """Rule (c): in fp32 nothing rounds differently enough to matter, so outputs are the same."""
    arms: list[Arm] = [chain(plain=True, seqs=64), *(tree(n, plain=True, seqs=64) for n in given.options.budgets)]
    with Engines(arms, given.pair, given.places, given.clock) as engines:
        prompts = (given.prompts * 2)[:64]
        prompts = [prompt[: len(prompt) - i // len(given.prompts)] for i, prompt in enumerate(prompts)]
        requests = greedy(prompts, min(given.tokens, 128))
        outputs = {
            name: tokens_of(engines[name].ask("generate", given.clock.need(20), requests=requests))
            for name in engines.names()
        }
        for name in (arm.name for arm in arms[1:]):
            same = equal(outputs["chain"], outputs[name]) if name in outputs else None
            given.report.bar(
                f"(c) {name}, fp32: equal to the chain, of {len(prompts)}",
                same,
                f">= {len(prompts) - 1}",
                same is not None and same >= len(prompts) - 1,
            )

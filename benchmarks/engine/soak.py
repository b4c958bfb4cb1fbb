"""Many requests of mixed length, temperature and budget, with aborts, in a cache that does not hold them: nothing dies,
every KV block is free at the end, and what was greedy is right.
"""

from __future__ import annotations

import random
from typing import Any

from .arms import none, tree
from .command import Setting
from .correctness import scored_by
from .figures import quantile
from .lossless import PERCENTILE, violations
from .pool import Engines
from .requests import tokens_of

AT_ONCE = 48


def run(given: Setting) -> None:
    budget = given.options.budgets[0]
    arm = tree(budget, "soak", seqs=AT_ONCE, ddtree={"max_batch": min(AT_ONCE, 512 // (1 + budget))})
    arm = arm.with_engine(max_model_len=512, num_gpu_blocks_override=2 * given.options.small_cache)
    requests = made(given)
    with Engines([arm, none(seqs=128)], given.pair, given.places, given.clock) as engines:
        engine = engines["soak"]
        before = engine.ask("blocks")
        answer = engine.ask(
            "trace", given.clock.need(30), requests=requests, at_once=AT_ONCE, give_up=0.75 * given.clock.left
        )
        after = engine.ask("blocks")
        kept = [i for i, r in enumerate(requests) if not r["params"]["temperature"] and "abort" not in r]
        outputs = tokens_of(answer)
        control = engines["none"].ask(
            "generate", given.clock.need(10), requests=[only(requests[i], logprobs=1) for i in kept[:64]]
        )
        delta = spread(engines, given, [requests[i] for i in kept[:64]], control)
        scored = scored_by(engines, given, [requests[i] for i in kept], [outputs[i] for i in kept])
    beyond, worst = violations(scored, delta)
    count = sum(len(outputs[i]) for i in kept)
    finished: dict[str, int] = {}
    for finish in answer["finish"]:
        finished[str(finish)] = finished.get(str(finish), 0) + 1
    preemptions = answer["counters"]["preemptions"]
    given.report.table(
        "soak",
        ["requests", "ended", "preemptions", "tokens", "seconds", "greedy tokens", "beyond delta", "worst"],
        [[len(requests), finished, preemptions, sum(map(len, outputs)), answer["seconds"], count, beyond, worst]],
    )
    wrong = sum(
        len(tokens) != r["params"]["max_tokens"]
        for tokens, r in zip(outputs, requests, strict=True)
        if "abort" not in r
    )
    given.report.bar("requests that ended", len(requests), str(given.options.requests), None not in answer["finish"])
    given.report.bar("requests of a wrong length", wrong, "0", not wrong)
    given.report.bar("preemptions", preemptions, "> 0", preemptions > 0)
    free, every = after["free_blocks"], after["all_blocks"]
    given.report.bar(
        "free KV blocks at the end", free, f"{before['free_blocks']} of {every}", free == before["free_blocks"]
    )
    allowed = max(2, round(count * 3 * (1 - PERCENTILE)))
    given.report.bar(
        f"(b) greedy tokens beyond delta {delta:.4g}, of {count}", beyond, f"<= {allowed}", beyond <= allowed
    )


def made(given: Setting) -> list[dict[str, Any]]:
    """Two in five greedy, the rest sampled in one way or another; one in seven is aborted."""
    generator, found = random.Random(7), []
    for number in range(given.options.requests):
        prompt = given.prompts[number % len(given.prompts)]
        start = generator.randrange(max(1, len(prompt) - 8))
        params: dict[str, Any] = {
            "temperature": 0.0 if number % 5 < 2 else generator.choice([0.5, 0.7, 1.0]),
            "max_tokens": generator.choice([1, 2, 7, 16, 40, 90, 150]),
            "ignore_eos": True,
            "detokenize": False,
        }
        if params["temperature"]:
            last = {"min_p": 0.1} if given.options.runner == "v2" else {"top_k": 5}
            params |= generator.choice([{}, {"seed": number}, {"top_k": 20}, {"top_p": 0.9}, last])
            params |= generator.choice([{}, {}, {"repetition_penalty": 1.1}, {"logprobs": 2}])
        request: dict[str, Any] = {"prompt": prompt[start:], "params": params}
        if number % 7 == 3:
            request["abort"] = generator.randrange(1, 60)
        found.append(request)
    return found


def only(request: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"prompt": request["prompt"], "params": request["params"] | more}


def spread(engines: Engines, given: Setting, requests: list[dict[str, Any]], control: dict[str, Any]) -> float:
    """delta: plain decoding's log-probabilities against a prefill's of the same tokens."""
    scored = scored_by(engines, given, requests, tokens_of(control))
    pairs = zip(control["outputs"], scored, strict=True)
    return quantile(
        (abs(a[0] - b[0]) for output, one in pairs for a, b in zip(output["logprobs"], one, strict=True)), PERCENTILE
    )

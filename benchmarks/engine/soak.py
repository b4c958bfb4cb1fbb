"""Many requests of mixed length, temperature and budget, with aborts, in a cache that does not hold them: nothing dies,
every KV block is free at the end, and what was greedy is right.
"""

from __future__ import annotations

import random
from argparse import Namespace
from typing import Any

from . import shared
from .arms import Arm
from .part import Part, Setting
from .pool import Engines
from .requests import tokens_of
from .scoring import PERCENTILE, Gaps, delta_of, scored_by_stock


def parts(options: Namespace, only: list[str]) -> dict[str, Part]:
    return {"": Part(arms, run, weight=2)}


def arms(given: Setting) -> list[Arm]:
    return [shared.small_cache(given.options).named("soak"), shared.plain_decoding(given.options)]


def run(given: Setting, engines: Engines) -> None:
    requests = made(given)
    engine = engines["soak"]
    before = engine.ask("blocks", given.clock.need(5))
    answer = engine.ask(
        "trace",
        given.clock.need(30),
        requests=requests,
        at_once=shared.small_cache(given.options).seqs,
        give_up=0.75 * given.clock.left,
    )
    after = engine.ask("blocks", 30)
    kept = [
        i
        for i, r in enumerate(requests)
        if not r["params"]["temperature"] and "abort" not in r and answer["finish"][i] is not None
    ]
    outputs = tokens_of(answer)
    few = [only(requests[i], logprobs=1) for i in kept[:64]]
    control = engines["none"].ask("generate", given.clock.need(10), requests=few)
    delta = delta_of(control["outputs"], scored_by_stock(engines, given, few, tokens_of(control)))
    scored = scored_by_stock(engines, given, [requests[i] for i in kept], [outputs[i] for i in kept])
    gaps = Gaps.of(scored, delta)
    beyond, worst = gaps.beyond, gaps.worst
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
        for tokens, r, finish in zip(outputs, requests, answer["finish"], strict=True)
        if "abort" not in r and finish is not None
    )
    ended = sum(finish is not None for finish in answer["finish"])
    given.report.bar("requests that ended", ended, str(len(requests)), ended == len(requests))
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
            params |= generator.choice([{}, {"seed": number}, {"top_k": 20}, {"top_p": 0.9}, {"top_k": 5}])
            params |= generator.choice([{}, {}, {"repetition_penalty": 1.1}, {"logprobs": 2}])
        request: dict[str, Any] = {"prompt": prompt[start:], "params": params}
        if number % 7 == 3:
            request["abort"] = generator.randrange(1, 60)
        found.append(request)
    return found


def only(request: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"prompt": request["prompt"], "params": request["params"] | more}

"""What the GPU is given in 100 decode steps: copies and waits against the stock chain's, kernels by name, and where the
host's time goes.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from . import shared
from .arms import Arm
from .part import Part, Setting
from .pool import EngineFailed, Engines
from .requests import greedy

TO_HOST = ("Memcpy DtoH", "Memcpy Device -> Host")
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
STEPS = 100


def parts(options: Namespace, only: list[str]) -> dict[str, Part]:
    return {"": Part(arms, run, weight=2)}


def arms(given: Setting) -> list[Arm]:
    options = given.options
    return [shared.stock_chain(options), *(shared.small_batch_tree(options, n) for n in options.budgets)]


def run(given: Setting, engines: Engines) -> None:
    requests = greedy(given.prompts[:1], 3 * STEPS)
    seen: dict[str, dict[str, Any]] = {}
    host: dict[str, dict[str, Any]] = {}
    with given.in_time():
        for name in engines.names():
            if answer := engines.attempt(name, "profile", given.clock.need(10), requests=requests):
                seen[name] = answer
        asked = {"requests": requests}
        for name in engines.names():
            if answer := engines.attempt(name, "host_profile", given.clock.need(5), during="generate", asked=asked):
                host[name] = answer
    report(given, seen, host)


def report(given: Setting, seen: dict[str, dict[str, Any]], host: dict[str, dict[str, Any]]) -> None:
    rows = [row(name, answer) for name, answer in seen.items()]
    columns = ["arm", "steps", "kernels", "GPU us", "copies to the host", *WAITS, "cudaLaunchKernel", "cudaGraphLaunch"]
    given.report.table("per decode step, batch 1", columns, rows)
    if "chain" not in seen:
        raise EngineFailed("the stock chain was not profiled")
    stock = counts(seen["chain"])
    for budget in given.options.budgets:
        name = f"tree {budget}"
        if name not in seen:
            given.report.bar(f"{name} runs", 0, "1", False)
            continue
        own = counts(seen[name])
        for what in ("to host", "waits"):
            # one in a hundred steps: prefill, warm-up and the end of a profile are in there, too
            met = own[what] <= stock[what] + 0.05
            given.report.bar(f"{name}: {what} per step", own[what], f"<= chain's {stock[what]:.3f}", met)
        given.report.table(
            f"{name}: kernels that the chain does not launch, or in another number",
            ["kernel", "per step", "chain's", "us each"],
            kernels(seen[name], seen["chain"]),
        )
        if name not in host:
            continue
        ours = sorted(host[name]["ours"].items(), key=lambda item: -item[1])[:12]
        steps = host[name]["steps"] or 1
        given.report.table(
            f"{name}: host time in the installed package, us per step (with everything it calls, under a profiler)",
            ["function", "us"],
            [[function, 1e6 * seconds / steps] for function, seconds in ours],
        )


def counts(answer: dict[str, Any]) -> dict[str, float]:
    steps = answer["counters"]["drafts"] or 1
    to_host = sum(n for name, n in answer["kernels"].items() if name.startswith(TO_HOST))
    waits = sum(answer["calls"].get(name, 0) for name in WAITS)
    return {"to host": to_host / steps, "waits": waits / steps}


def row(name: str, answer: dict[str, Any]) -> list[Any]:
    steps = answer["counters"]["drafts"] or 1
    calls = [answer["calls"].get(call, 0) / steps for call in (*WAITS, "cudaLaunchKernel", "cudaGraphLaunch")]
    total, micros = sum(answer["kernels"].values()), sum(answer["micros"].values())
    return [name, steps, total / steps, micros / steps, counts(answer)["to host"], *calls]


def kernels(answer: dict[str, Any], stock: dict[str, Any]) -> list[list[Any]]:
    steps, stock_steps = answer["counters"]["drafts"] or 1, stock["counters"]["drafts"] or 1
    found = []
    for name, number in answer["kernels"].items():
        own, other = number / steps, stock["kernels"].get(name, 0) / stock_steps
        if abs(own - other) > 0.2:
            found.append([name.replace("|", "/")[:90], own, other, answer["micros"][name] / number])
    return sorted(found, key=lambda line: -line[1] * line[3])[:24]

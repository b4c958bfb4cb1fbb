"""Switched off, a patched engine is the stock engine: the same token ids, the same kernels in the same numbers."""

from __future__ import annotations

import re
from argparse import Namespace
from dataclasses import replace

from . import shared
from .arms import Arm
from .figures import equal
from .part import Part, Setting
from .pool import Engines
from .requests import greedy, tokens_of

OFF = "installed, off"
VARIANT = re.compile(r"void at::native::(?:unrolled|vectorized)_elementwise_kernel<(?:\d+, )?(.*?), std::array")


def parts(options: Namespace, only: list[str]) -> dict[str, Part]:
    return {"": Part(arms, run)}


def arms(given: Setting) -> list[Arm]:
    stock = shared.stock_chain(given.options)
    return [stock, replace(stock, name=OFF, patched=True)]


def work(name: str) -> str:
    """What a kernel does: torch's element-wise ones have variants for other alignments."""
    variant = VARIANT.match(name)
    return f"element-wise {variant[1]}" if variant else name


def by_work(kernels: dict[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, number in kernels.items():
        found[work(name)] = found.get(work(name), 0) + number
    return found


def run(given: Setting, engines: Engines) -> None:
    requests = greedy(given.prompts, given.tokens)
    outputs = {
        name: tokens_of(engines[name].ask("generate", given.clock.need(10), requests=requests, at_once=8))
        for name in ("chain", OFF)
    }
    one = greedy(given.prompts[:1], given.tokens)
    seen = {name: engines[name].ask("profile", given.clock.need(15), requests=one) for name in ("chain", OFF)}
    again = engines["chain"].ask("profile", given.clock.need(15), requests=one)["kernels"]
    same = equal(outputs["chain"], outputs[OFF])
    given.report.bar(
        "switched off: outputs equal to stock's", same, str(len(given.prompts)), same == len(given.prompts)
    )
    mine, theirs = seen[OFF]["kernels"], seen["chain"]["kernels"]
    steady = {name for name in {*theirs, *again} if theirs.get(name) == again.get(name)}  # some copies come and go
    names = {n for n in {*mine, *theirs} if mine.get(n) != theirs.get(n) and n in steady | {*mine} - {*theirs}}
    mine, theirs = by_work(mine), by_work(theirs)
    different = sorted(name for name in set(map(work, names)) if mine.get(name) != theirs.get(name))
    given.report.table(
        "kernels in other numbers",
        ["kernel", "stock", "off"],
        [[n[:90], theirs.get(n), mine.get(n)] for n in different],
    )
    given.report.bar("switched off: kernels in other numbers", len(different), "0", not different)

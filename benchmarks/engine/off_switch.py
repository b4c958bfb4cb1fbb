"""Switched off, a patched engine is the stock engine: the same token ids, the same kernels in the same numbers."""

from __future__ import annotations

from dataclasses import replace

from .arms import chain
from .command import Setting
from .figures import equal
from .pool import Engines
from .requests import greedy, tokens_of


def run(given: Setting) -> None:
    stock = chain(horizon=given.options.horizon, seqs=8)
    arms = [stock, replace(stock, name="installed, off", patched=True)]
    with Engines(arms, given.pair, given.places, given.clock) as engines:
        requests = greedy(given.prompts, given.tokens)
        outputs = {
            name: tokens_of(engines[name].ask("generate", given.clock.need(10), requests=requests, at_once=8))
            for name in engines.names()
        }
        one = greedy(given.prompts[:1], given.tokens)
        seen = {name: engines[name].ask("profile", given.clock.need(15), requests=one) for name in engines.names()}
        again = engines["chain"].ask("profile", given.clock.need(15), requests=one)["kernels"]
    off = arms[1].name
    same = equal(outputs["chain"], outputs[off])
    given.report.bar(
        "switched off: outputs equal to stock's", same, str(len(given.prompts)), same == len(given.prompts)
    )
    mine, theirs = seen[off]["kernels"], seen["chain"]["kernels"]
    steady = {name for name in {*theirs, *again} if theirs.get(name) == again.get(name)}  # some copies come and go
    different = sorted(
        name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name) and name in steady | {*mine} - {*theirs}
    )
    given.report.table(
        "kernels in other numbers",
        ["kernel", "stock", "off"],
        [[n[:90], theirs.get(n), mine.get(n)] for n in different],
    )
    given.report.bar("switched off: kernels in other numbers", len(different), "0", not different)

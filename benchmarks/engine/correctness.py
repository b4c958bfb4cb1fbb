"""Cases that a tree must get right: each runs on an engine with trees and is judged by stock engines.

Greedy outputs: every token re-scored by a stock prefill (scoring.py), no more of them beyond delta than the chain's
count in the same case and one, or 0.1 %. Processing that depends on the tokens before a row: in fp32, all outputs but
one are plain decoding's. Others: what the case's own check says. An engine that dies is that case's failure.
"""

from __future__ import annotations

from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from . import checks, shared
from .arms import Arm
from .cases import GROUPS, Case, Group
from .figures import equal
from .part import Part, Setting, choose
from .pool import EngineFailed, Engines
from .requests import greedy, tokens_of
from .scoring import Gaps, allowed_count, allowed_gap, delta_of, scored_by_stock


@dataclass(frozen=True)
class Reference:
    """What two stock ways of computing the same logits differ by on the benchmark's prompts."""

    delta: float
    gaps: Gaps


def parts(options: Namespace, only: list[str]) -> dict[str, Part]:
    groups = {name: GROUPS[name] for name in choose(list(GROUPS), only)}
    return {"": Part(partial(arms, groups), partial(run, groups), weight=5)}


def arms(groups: dict[str, Group], given: Setting) -> list[Arm]:
    options = given.options
    needed = [shared.plain_decoding(options), shared.stock_chain(options, shared.WIDE_BATCH)]
    needed += [group.arm(options) for group in groups.values()]
    if any(group.plain for group in groups.values()):
        needed += [shared.exact(arm) for arm in needed[:2]]
    return needed


def run(groups: dict[str, Group], given: Setting, engines: Engines) -> None:
    """Groups at the same time: each has an engine of its own, beside the stock ones that judge."""
    reference = measured_reference(given, engines)
    with ThreadPoolExecutor(len(groups)) as threads:
        ended = [threads.submit(run_group, name, group, reference, given, engines) for name, group in groups.items()]
    for one in ended:
        one.result()


def run_group(name: str, group: Group, reference: Reference, given: Setting, engines: Engines) -> None:
    arm, rows = group.arm(given.options), []
    with given.in_time():
        for case in group.cases(given, engines):
            rows.append(judged(given, engines, arm, case, reference))
    given.report.table(
        f"{name}: {arm.name}",
        ["case", "requests", "beyond delta", "chain's", "equal to the chain", "equal to plain", "chain's to plain",
         "note"],
        rows,
    )  # fmt: skip


def measured_reference(given: Setting, engines: Engines) -> Reference:
    requests = greedy(given.prompts, 96, logprobs=1)
    answer = engines["chain"].ask("generate", given.clock.need(20), requests=requests)
    scores = scored_by_stock(engines, given, requests, tokens_of(answer))
    delta = delta_of(answer["outputs"], scores)
    given.report.keep("delta", delta)
    return Reference(delta, Gaps.of(scores, delta))


def judged(given: Setting, engines: Engines, arm: Arm, case: Case, reference: Reference) -> list[Any]:
    """The case's row; its bar on the way."""
    what = f"{arm.name}, {case.name}"
    seconds = given.clock.need(8)
    try:
        answer = engines[arm.name].ask(case.op, seconds, requests=case.requests, at_once=case.at_once)
    except EngineFailed as failed:
        given.report.bar(what, 0, "runs", False)
        return [case.name, len(case.requests), None, None, None, None, None, str(failed)[:120]]
    problem = "unfinished after its time" if answer.get("gave_up") else ""
    problem = problem or (case.check(answer, case.requests) if case.check else "")
    beyond = chained = same = likely = chain_likely = None
    if case.scored:
        worse, beyond, chained, same = judged_by_score(given, engines, case, tokens_of(answer), reference)
        problem = problem or worse
    if case.like:
        worse, likely, chain_likely = judged_by_likeness(given, engines, case, tokens_of(answer))
        problem = problem or worse
    if case.twice:
        problem = problem or judged_by_repetition(given, engines, case, checks.repeated(answer))
    given.report.bar(what, None if problem else 1, problem or "right", not problem)
    return [case.name, len(case.requests), beyond, chained, same, likely, chain_likely, problem]


def judged_by_score(
    given: Setting, engines: Engines, case: Case, tokens: list[list[int]], reference: Reference
) -> tuple[str, int, int, int]:
    """What is wrong, tokens beyond delta, the chain's, outputs equal to the chain's. Aborted requests do not count."""
    kept = [r for r in case.requests if "abort" not in r]
    outputs = [t for t, r in zip(tokens, case.requests, strict=True) if "abort" not in r]
    limits = [max(1, len(emitted)) for emitted in outputs]  # the chain's own model length may be another
    asked = [
        {"prompt": r["prompt"], "params": r["params"] | {"max_tokens": n}} for r, n in zip(kept, limits, strict=True)
    ]
    stock = tokens_of(engines["chain"].ask("generate", given.clock.need(5), requests=asked))
    own, chain = (
        Gaps.of(scored_by_stock(engines, given, kept, emitted), reference.delta) for emitted in (outputs, stock)
    )
    count, gap = allowed_count(own, [chain], more=1), allowed_gap([chain, reference.gaps], reference.delta)
    problem = ""
    if own.beyond > count:
        problem = f"{own.beyond} of {own.tokens} tokens beyond delta, {count} may be (the chain has {chain.beyond})"
    elif own.worst > gap:
        problem = f"a token {own.worst:.3g} below the best, stock arms' are at most {gap / 2:.3g}"
    return problem, own.beyond, chain.beyond, equal(outputs, stock)


def judged_by_repetition(given: Setting, engines: Engines, case: Case, same: int) -> str:
    """What is wrong. Requests of another step are computed in a batch of another size, which may round otherwise: most
    come again, or as many as the chain's, one less, and half of them at least."""
    half = len(case.requests) // 2
    stock = checks.repeated(engines["chain"].ask("generate", given.clock.need(5), requests=case.requests))
    few = same < max(half // 2, min(half - max(2, half // 4), stock - 1))
    return f"{same} of {half} seeded outputs came again, {stock} of the chain's" if few else ""


def judged_by_likeness(
    given: Setting, engines: Engines, case: Case, tokens: list[list[int]]
) -> tuple[str, int, int | None]:
    """What is wrong, outputs equal to plain decoding's, the chain's; all in fp32."""
    requests = case.requests
    plain = tokens_of(engines["none, fp32"].ask("generate", given.clock.need(5), requests=requests))
    chain = engines.attempt("chain, fp32", "generate", given.clock.need(5), requests=requests)
    same, stock = equal(plain, tokens), equal(plain, tokens_of(chain)) if chain else None
    problem = f"{same} of {len(plain)} equal to plain decoding (the chain: {stock})" if same < len(plain) - 1 else ""
    return problem, same, stock

"""Cases that a tree must get right: each runs on an engine with trees and is judged by stock engines.

Greedy outputs: every token re-scored by a stock prefill, no more of them beyond delta than a stock chain has in the
same case. Others: what the case's own check says. An engine that dies is that case's failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .arms import Arm, chain, none, tree
from .command import Setting
from .figures import equal, quantile
from .lossless import PERCENTILE, violations
from .pool import EngineFailed, Engines
from .requests import greedy, seeded, tokens_of, varied

Requests = list[dict[str, Any]]
Check = Callable[[dict[str, Any], Requests], str]


@dataclass(frozen=True)
class Case:
    """requests, and how they are asked. scored: greedy, judged by a stock prefill. check: what else must hold."""

    name: str
    requests: Requests
    op: str = "generate"
    at_once: int = 0
    scored: bool = True
    check: Check | None = None
    like: bool = False  # judged by how many outputs equal plain decoding's, against the chain's number


def run(given: Setting) -> None:
    groups = {
        "usual": usual, "short": short, "narrow": narrow, "small": small, "cached": cached,
        "processors": processors, "grammar": grammar,
    }  # fmt: skip
    chosen = given.only(list(groups))
    arms = [groups[name](given, None)[0] for name in chosen]
    with Engines([none(seqs=128), chain(seqs=32), *arms], given.pair, given.places, given.clock) as engines:
        delta = reference_delta(given, engines)
        for name in chosen:
            arm, cases = groups[name](given, engines)
            rows = [judged(given, engines, arm, case, delta) for case in cases]
            given.report.table(
                f"{name}: {arm.name}",
                ["case", "requests", "beyond delta", "chain's", "equal to the chain", "note"],
                rows,
            )


def reference_delta(given: Setting, engines: Engines) -> float:
    """As lossless.py: a stock chain's log-probabilities against a stock prefill's."""
    answer = engines["chain"].ask("generate", given.clock.need(20), requests=greedy(given.prompts, 96, logprobs=1))
    sequences = [
        {"prompt": p, "tokens": output["tokens"]} for p, output in zip(given.prompts, answer["outputs"], strict=True)
    ]
    scored = engines["none"].ask("score", given.clock.need(10), sequences=sequences)
    pairs = zip(answer["outputs"], scored, strict=True)
    found = [abs(a[0] - b[0]) for output, one in pairs for a, b in zip(output["logprobs"], one, strict=True)]
    delta = quantile(found, PERCENTILE)
    given.report.keep("delta", delta)
    return delta


def judged(given: Setting, engines: Engines, arm: Arm, case: Case, delta: float) -> list[Any]:
    what = f"{arm.name}, {case.name}"
    begun = given.clock.need(8)
    try:
        answer = engines[arm.name].ask(case.op, begun, requests=case.requests, at_once=case.at_once)
    except EngineFailed as failed:
        given.report.bar(what, 0, "runs", False)
        return [case.name, len(case.requests), None, None, None, str(failed)[:120]]
    problem = case.check(answer, case.requests) if case.check else ""
    beyond = stock_beyond = same = None
    if case.scored:
        kept = [r for r in case.requests if "abort" not in r]
        stock = engines["chain"].ask("generate", given.clock.need(5), requests=plain(kept))
        outputs = [t for t, r in zip(tokens_of(answer), case.requests, strict=True) if "abort" not in r]
        same = equal(outputs, tokens_of(stock))
        beyond, stock_beyond = (
            violations(scored_by(engines, given, kept, tokens), delta)[0] for tokens in (outputs, tokens_of(stock))
        )
        if beyond > stock_beyond + 1:
            problem = problem or f"{beyond} tokens beyond delta, the chain has {stock_beyond}"
    if case.like:
        plainly, chained = (
            tokens_of(engines[n].ask("generate", given.clock.need(5), requests=plain(case.requests)))
            for n in ("none", "chain")
        )
        same, base = equal(plainly, tokens_of(answer)), equal(plainly, chained)
        if same < base - 4:
            problem = problem or f"{same} equal to plain decoding, the chain has {base}"
    given.report.bar(what, None if problem else 1, problem or "right", not problem)
    return [case.name, len(case.requests), beyond, stock_beyond, same, problem]


def plain(requests: Requests) -> Requests:
    return [{"prompt": request["prompt"], "params": request["params"]} for request in requests]


def scored_by(engines: Engines, given: Setting, requests: Requests, outputs: list[list[int]]) -> Any:
    sequences = [{"prompt": r["prompt"], "tokens": t} for r, t in zip(requests, outputs, strict=True) if t]
    return engines["none"].ask("score", given.clock.need(5), sequences=sequences)


# ---- checks ----


def lengths_hold(answer: dict[str, Any], requests: Requests) -> str:
    """max_tokens is kept to the token."""
    for tokens, request in zip(tokens_of(answer), requests, strict=True):
        if "abort" not in request and len(tokens) != request["params"]["max_tokens"]:
            return f"{len(tokens)} tokens in place of {request['params']['max_tokens']}"
    return ""


def stops_at_model_length(length: int) -> Check:
    def check(answer: dict[str, Any], requests: Requests) -> str:
        for tokens, request in zip(tokens_of(answer), requests, strict=True):
            if len(tokens) + len(request["prompt"]) != length:
                return f"ended at {len(tokens) + len(request['prompt'])}, the model's length is {length}"
        return ""

    return check


def logprobs_fit(answer: dict[str, Any], requests: Requests) -> str:
    """Every emitted token is the best of its own row at T = 0: rows are those of the accepted path."""
    wrong = sum(own != best for output in answer["outputs"] for own, best, _ in output["logprobs"])
    count = sum(len(output["logprobs"]) for output in answer["outputs"])
    tokens = sum(len(output["tokens"]) for output in answer["outputs"])
    if count != tokens:
        return f"{count} log-probabilities for {tokens} tokens"
    return f"{wrong} of {count} tokens are not their row's best" if wrong else ""


def preempts(answer: dict[str, Any], requests: Requests) -> str:
    return lengths_hold(answer, requests) or ("" if answer["counters"]["preemptions"] else "nothing was preempted")


def accepts(answer: dict[str, Any], requests: Requests) -> str:
    counters = answer["counters"]
    return lengths_hold(answer, requests) or ("" if counters["accepted"] else "nothing was accepted")


def repeats(answer: dict[str, Any], requests: Requests) -> str:
    """The second half of the requests is the first again, seed and all."""
    outputs = tokens_of(answer)
    half = len(outputs) // 2
    same = equal(outputs[:half], outputs[half:])
    return "" if same >= half - max(2, half // 4) else f"{same} of {half} seeded outputs came again"


def absent(words: list[list[int]]) -> Check:
    def check(answer: dict[str, Any], requests: Requests) -> str:
        for tokens in tokens_of(answer):
            for word in words:
                if any(tokens[i : i + len(word)] == word for i in range(len(tokens))):
                    return f"{word} was emitted"
        return lengths_hold(answer, requests)

    return check


def stopped(answer: dict[str, Any], requests: Requests) -> str:
    """Ends at the stop token, which is the last one, and nothing follows it."""
    ended = 0
    for output, request in zip(answer["outputs"], requests, strict=True):
        stops = request["params"]["stop_token_ids"]
        places = [i for i, token in enumerate(output["tokens"]) if token in stops]
        if places and places[0] != len(output["tokens"]) - 1:
            return f"{len(output['tokens']) - 1 - places[0]} tokens after the stop token"
        ended += bool(places)
    return "" if ended else "no request met its stop token: the case shows nothing"


STOPS = ["return", "\n\n", "self"]


def stop_strings_hold(answer: dict[str, Any], requests: Requests) -> str:
    """The text ends before the stop string, and some request met one."""
    held = sum(any(stop in output["text"] for stop in STOPS) for output in answer["outputs"])
    if held:
        return f"{held} texts hold a stop string"
    ended = any(output["finish"] == "stop" for output in answer["outputs"])
    return "" if ended else "no request met a stop string: the case shows nothing"


# ---- groups of cases, each on one engine ----


def usual(given: Setting, engines: Engines | None) -> tuple[Arm, list[Case]]:
    """Batches of 1, 8 and 32, mixed prompt lengths and budgets, sampling, stops, log-probabilities, aborts."""
    prompts, mixed = given.prompts, varied(given.prompts)
    budgets = [8 + 11 * (i % 13) for i in range(len(prompts))]
    frequent = frequent_token(given)
    top = {"top_k": 20, "top_p": 0.9}
    aborts = [dict(r, **({"abort": 5 + i} if i % 3 == 0 else {})) for i, r in enumerate(greedy(mixed, budgets))]
    again = seeded(mixed[:8], 64)
    twice = again + again
    sampled = seeded(mixed, 48, **top)
    cases = [Case(f"batch {n}", greedy(mixed, budgets), at_once=n, check=lengths_hold) for n in (1, 8, 32)]
    cases += [
        Case("requests that come and go", greedy(mixed * 2, budgets * 2), op="trace", at_once=20, check=lengths_hold),
        Case("log-probabilities", greedy(mixed, 48, logprobs=5), check=logprobs_fit),
        Case("seeds come again", twice, scored=False, check=repeats),
        Case("top-k and top-p", sampled, scored=False, check=lengths_hold),
        Case(
            "greedy among sampled",
            [r for ab in zip(greedy(mixed, 32), seeded(mixed, 32), strict=True) for r in ab],
            scored=False,
            check=lengths_hold,
        ),
        Case("stop tokens", greedy(mixed, 96, stop_token_ids=frequent), scored=False, check=stopped),
        Case("stop strings", greedy(mixed, 96, stop=STOPS, detokenize=True), scored=False, check=stop_strings_hold),
        Case("aborted on the way", aborts, op="trace", check=lengths_hold),
        Case("slots used again", greedy(mixed[:8] * 6, 24), op="trace", at_once=3, check=lengths_hold),
        Case("long prompts in chunks", greedy([p * 24 for p in prompts[:8]], 48), check=lengths_hold),
        Case("prompts of one token", greedy([p[:1] for p in prompts[:8]], 32), check=lengths_hold),
    ]
    if given.options.runner == "v2":  # V1 refuses it, and a logit bias, beside speculation
        cases.append(Case("min-p", seeded(mixed, 48, min_p=0.05), scored=False, check=lengths_hold))
    limits = {"max_num_batched_tokens": 1024}  # chunked prefill and mixed batches, all the time
    return tree(given.options.budgets[0], "tree", seqs=32).with_engine(**limits), cases


def frequent_token(given: Setting) -> list[int]:
    """Tokens that the prompts hold often: the target will emit one of them."""
    counts: dict[int, int] = {}
    for prompt in given.prompts:
        for token in prompt:
            counts[token] = counts.get(token, 0) + 1
    return sorted(counts, key=lambda token: -counts[token])[:3]


def small(given: Setting, engines: Engines | None) -> tuple[Arm, list[Case]]:
    """A KV cache that does not hold what runs: requests are preempted and come back into other slots."""
    arm = tree(given.options.budgets[0], "tree, small cache", seqs=16)
    arm = arm.with_engine(max_model_len=512, num_gpu_blocks_override=given.options.small_cache)
    case = Case("preempted", greedy(given.prompts, given.tokens), op="trace", at_once=16, check=preempts)
    return arm, [case]


def cached(given: Setting, engines: Engines | None) -> tuple[Arm, list[Case]]:
    """Prefix caching: the second time, prompts and what was generated lie in the cache, committed."""
    arm = tree(given.options.budgets[0], "tree, prefix cache", seqs=32).with_engine(enable_prefix_caching=True)
    once = greedy([p * 4 for p in given.prompts], 64)
    return arm, [
        Case("filling the cache", once, check=lengths_hold),
        Case("from the cache", once, check=lengths_hold),
        Case("from the cache, one by one", once[:8], at_once=1, check=lengths_hold),
    ]


def narrow(given: Setting, engines: Engines | None) -> tuple[Arm, list[Case]]:
    """N = 8 below K = 15, and batches that change between trees and the stock chain."""
    arm = tree(8, "N = 8, K = 15", seqs=32, ddtree={"max_batch": 4})
    mixed = varied(given.prompts)
    return arm, [
        Case("trees alone", greedy(mixed[:4], 96), check=accepts),
        Case("the chain alone", greedy(mixed, 96), check=accepts),
        Case(
            "back and forth", greedy(mixed, [16 + 9 * (i % 17) for i in range(len(mixed))]), op="trace", check=accepts
        ),
    ]


def short(given: Setting, engines: Engines | None) -> tuple[Arm, list[Case]]:
    """Lists that are cut: by max_tokens, by the model's length, by a token budget that leaves 1, 2 or N - 1 drafts."""
    budget = given.options.budgets[0]
    length = 128
    reserved = 8 * (given.options.horizon - 1) if given.options.runner == "v1" else 0  # what V1 keeps for its drafter
    arm = tree(budget, "tree, cut", seqs=8)
    arm = arm.with_engine(max_model_len=length, max_num_batched_tokens=128 + reserved)
    prompts = given.prompts
    few = [list(range(1, 1 + n)) for n in (1, 2, 3, budget - 1, budget)]
    ends = [1 + n % (budget + 4) for n in range(32)]
    return arm, [
        Case("max_tokens", greedy(prompts[:1] * 32, ends), check=lengths_hold),
        Case(
            "the model's length",
            greedy([p[: 40 + i] for i, p in enumerate(prompts[:20])], 1000),
            check=stops_at_model_length(length),
        ),
        # 8 x (1 + N) rows exceed the budget of 128 tokens: lists are cut wherever it ends
        Case("the token budget", greedy(varied(prompts), 48), op="trace", at_once=8, check=lengths_hold),
        Case("short prompts", greedy(few, 40), check=lengths_hold),
    ]


def processors(given: Setting, engines: Engines | None) -> tuple[Arm, list[Case]]:
    """Processing that reads the tokens before a row: a chain-shaped tree for that request, beside others' trees."""
    arm = tree(given.options.budgets[0], "tree, processors", seqs=32)
    mixed, frequent = varied(given.prompts), frequent_token(given)
    half = len(mixed) // 2
    penalised = greedy(mixed[:half], 64, repetition_penalty=1.3, frequency_penalty=0.4)
    words = engines["none"].ask("words", tokens=frequent) if engines else []
    cases = [
        Case(
            "penalties beside plain", penalised + greedy(mixed[half:], 64), scored=False, check=lengths_hold, like=True,
        ),
        Case(
            "bad words", greedy(mixed, 48, bad_words=[text for text, _ in words]), scored=False,
            check=absent([[token] for _, token in words]), like=True,
        ),
        Case(
            "allowed tokens", greedy(mixed, 32, allowed_token_ids=list(range(20, 400))), scored=False,
            check=only_allowed(20, 400), like=True,
        ),
        Case(
            "min_tokens", greedy(mixed, 64, min_tokens=20, stop_token_ids=frequent), scored=False,
            check=at_least(20), like=True,
        ),
    ]  # fmt: skip
    if given.options.runner == "v2":
        biased = greedy(mixed, 32, logit_bias={str(frequent[0]): -100})
        cases.append(Case("logit bias", biased, scored=False, check=absent([frequent[:1]]), like=True))
    return arm, cases


def grammar(given: Setting, engines: Engines | None) -> tuple[Arm, list[Case]]:
    """Structured output, beside plain requests. Last: it needs a grammar library and the model's tokenizer."""
    pattern = "(ab|cd){4,12}"
    limits = {"structured_outputs": {"regex": pattern}, "ignore_eos": False, "detokenize": True}
    asked = greedy(given.prompts[:8], 64, **limits) + greedy(given.prompts[8:16], 64)
    arm = tree(given.options.budgets[0], "tree, grammar", seqs=16)
    return arm, [Case("structured output", asked, scored=False, check=matches(pattern))]


def only_allowed(first: int, last: int) -> Check:
    def check(answer: dict[str, Any], requests: Requests) -> str:
        outside = sum(not first <= token < last for tokens in tokens_of(answer) for token in tokens)
        return f"{outside} tokens that were not allowed" if outside else lengths_hold(answer, requests)

    return check


def at_least(count: int) -> Check:
    def check(answer: dict[str, Any], requests: Requests) -> str:
        shortest = min(len(tokens) for tokens in tokens_of(answer))
        return "" if shortest >= count else f"an output of {shortest} tokens, {count} are the least"

    return check


def matches(pattern: str) -> Check:
    def check(answer: dict[str, Any], requests: Requests) -> str:
        for output in answer["outputs"][: len(requests) // 2]:
            if output["finish"] == "stop" and not re.fullmatch(pattern, output["text"]):
                return f"{output['text'][:40]!r} does not match"
        return ""

    return check

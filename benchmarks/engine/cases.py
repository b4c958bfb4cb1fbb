"""Cases that a tree must get right, in groups: the cases of a group run on one engine."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace

from . import checks, shared
from .arms import Arm, tree
from .checks import Check, Requests, lengths_hold
from .part import Setting
from .pool import Engines
from .requests import greedy, seeded, varied

SHORT_LENGTH = 128


@dataclass(frozen=True)
class Case:
    """requests, and how they are asked. scored: greedy, judged by a stock prefill. check: what else must hold.

    like: the outputs are plain decoding's, in fp32: where the tokens before a row change its logits, no prefill can
    score them again. twice: the second half of the requests is the first again, seeds and all.
    """

    name: str
    requests: Requests
    op: str = "generate"
    at_once: int = 0
    scored: bool = True
    check: Check | None = None
    like: bool = False
    twice: bool = False


@dataclass(frozen=True)
class Group:
    """One engine with trees and what it is asked. The cases may ask a stock engine for what they need."""

    arm: Callable[[Namespace], Arm]
    cases: Callable[[Setting, Engines], list[Case]]
    plain: bool = False  # in fp32, beside plain decoding and the chain in fp32


def usual(given: Setting, engines: Engines) -> list[Case]:
    """Batches of 1, 8 and 32, mixed prompt lengths and budgets, sampling, stops, log-probabilities, aborts."""
    prompts, mixed = given.prompts, varied(given.prompts)
    budgets = [8 + 11 * (i % 13) for i in range(len(prompts))]
    frequent = frequent_tokens(given)
    top = {"top_k": 20, "top_p": 0.9}
    aborts = [dict(r, **({"abort": 5 + i} if i % 3 == 0 else {})) for i, r in enumerate(greedy(mixed, budgets))]
    again = seeded(mixed[:8], 64)
    twice = again + again
    sampled = seeded(mixed, 48, **top)
    cases = [Case(f"batch {n}", greedy(mixed, budgets), at_once=n, check=lengths_hold) for n in (1, 8, 32)]
    cases += [
        Case("requests that come and go", greedy(mixed * 2, budgets * 2), op="trace", at_once=20, check=lengths_hold),
        # a prompt's chunk of 1 + N tokens beside whole trees looks like a batch of trees
        Case(
            "prompts as long as a tree",
            greedy([prompt[: 1 + given.options.budgets[0]] for prompt in prompts], budgets),
            op="trace",
            at_once=3,
            check=lengths_hold,
        ),
        Case("log-probabilities", greedy(mixed, 48, logprobs=5), check=checks.logprobs_fit),
        Case("seeds come again", twice, scored=False, twice=True),
        Case("top-k and top-p", sampled, scored=False, check=lengths_hold),
        Case(
            "greedy among sampled",
            [r for ab in zip(greedy(mixed, 32), seeded(mixed, 32), strict=True) for r in ab],
            scored=False,
            check=lengths_hold,
        ),
        Case("stop tokens", greedy(mixed, 96, stop_token_ids=frequent), scored=False, check=checks.stopped),
        Case(
            "stop strings",
            greedy(mixed, 96, stop=checks.STOPS, detokenize=True),
            scored=False,
            check=checks.stop_strings_hold,
        ),
        Case("aborted on the way", aborts, op="trace", check=lengths_hold),
        Case("slots used again", greedy(mixed[:8] * 6, 24), op="trace", at_once=3, check=lengths_hold),
        Case("long prompts in chunks", greedy([p * 24 for p in prompts[:8]], 48), check=lengths_hold),
        Case("prompts of one token", greedy([p[:1] for p in prompts[:8]], 32), check=lengths_hold),
    ]
    return cases


def usual_arm(options: Namespace) -> Arm:
    """Chunked prefill and mixed batches, all the time."""
    return shared.wide_tree(options, options.budgets[0]).named("tree").with_engine(max_num_batched_tokens=1024)


def mixed(given: Setting, engines: Engines) -> list[Case]:
    """The usual ones that hold prompts most of the time."""
    names = ("requests that come and go", "prompts as long as a tree", "log-probabilities", "seeds come again",
             "top-k and top-p", "long prompts in chunks", "prompts of one token")  # fmt: skip
    return [case for case in usual(given, engines) if case.name in names]


def mixed_arm(options: Namespace) -> Arm:
    """Trees beside prompts (on V1 the usual engine)."""
    return shared.beside_prompts(options, usual_arm(options)).named("tree, beside prompts")


def frequent_tokens(given: Setting, count: int = 3) -> list[int]:
    """Tokens that the prompts hold often: the target will emit one of them."""
    counts: dict[int, int] = {}
    for prompt in given.prompts:
        for token in prompt:
            counts[token] = counts.get(token, 0) + 1
    return sorted(counts, key=lambda token: -counts[token])[:count]


def small(given: Setting, engines: Engines) -> list[Case]:
    """A KV cache that does not hold what runs: requests are preempted and come back into other slots."""
    return [Case("preempted", greedy(given.prompts, given.tokens), op="trace", at_once=16, check=checks.preempts)]


def cached(given: Setting, engines: Engines) -> list[Case]:
    """Prefix caching: the second time, prompts and what was generated lie in the cache, committed."""
    once = greedy([p * 4 for p in given.prompts], 64)
    return [
        Case("filling the cache", once, check=lengths_hold),
        Case("from the cache", once, check=lengths_hold),
        Case("from the cache, one by one", once[:8], at_once=1, check=lengths_hold),
    ]


def cached_arm(options: Namespace) -> Arm:
    arm = shared.wide_tree(options, options.budgets[0]).named("tree, prefix cache")
    return arm.with_engine(enable_prefix_caching=True)


def narrow(given: Setting, engines: Engines) -> list[Case]:
    """N = 8 below K = 15, and batches that change between trees and the stock chain."""
    mixed = varied(given.prompts)
    return [
        Case("trees alone", greedy(mixed[:4], 96), check=checks.accepts),
        Case("the chain alone", greedy(mixed, 96), check=checks.accepts),
        Case(
            "back and forth",
            greedy(mixed, [16 + 9 * (i % 17) for i in range(len(mixed))]),
            op="trace",
            check=checks.accepts,
        ),
    ]


def narrow_arm(options: Namespace) -> Arm:
    horizon = options.horizon
    arm = tree(8, f"N = 8, K = {horizon}", horizon=horizon, seqs=shared.WIDE_BATCH, ddtree={"max_batch": 4})
    return arm.with_engine(**shared.captures(options, 9))


def short(given: Setting, engines: Engines) -> list[Case]:
    """Lists that are cut: by max_tokens, by the model's length, by a token budget that leaves 1, 2 or N - 1 drafts."""
    budget = given.options.budgets[0]
    prompts = given.prompts
    few = [list(range(1, 1 + n)) for n in (1, 2, 3, budget - 1, budget)]
    ends = [1 + n % (budget + 4) for n in range(32)]
    return [
        Case("max_tokens", greedy(prompts[:1] * 32, ends), check=lengths_hold),
        Case(
            "the model's length",
            greedy([p[: 40 + i] for i, p in enumerate(prompts[:20])], 1000),
            check=checks.stops_at_model_length(SHORT_LENGTH),
        ),
        # 8 x (1 + N) rows exceed the budget of 128 tokens: lists are cut wherever it ends
        Case("the token budget", greedy(varied(prompts), 48), op="trace", at_once=8, check=lengths_hold),
        Case("short prompts", greedy(few, 40), check=lengths_hold),
    ]


def short_arm(options: Namespace) -> Arm:
    reserved = 8 * (options.horizon - 1) if options.runner == "v1" else 0  # what V1 keeps for its drafter
    arm = tree(options.budgets[0], "tree, cut", seqs=8)
    return arm.with_engine(max_model_len=SHORT_LENGTH, max_num_batched_tokens=SHORT_LENGTH + reserved)


def processors(given: Setting, engines: Engines) -> list[Case]:
    """Processing that reads the tokens before a row: a chain-shaped tree for that request, beside others' trees.

    Min-p and a logit bias are no cases: beside speculation, vLLM refuses the request (0.20.1 and 0.33.0 alike).
    """
    mixed, frequent = varied(given.prompts), frequent_tokens(given)
    half = len(mixed) // 2
    penalised = greedy(mixed[:half], 64, repetition_penalty=1.3, frequency_penalty=0.4)
    candidates = frequent_tokens(given, 64)
    words = (engines.attempt("none", "words", given.clock.need(5), tokens=candidates) or [])[:3]
    cases = [
        Case("penalties beside plain", penalised + greedy(mixed[half:], 64), check=lengths_hold),
        Case(
            "bad words",
            greedy(mixed, 48, bad_words=[text for text, _ in words]),
            check=checks.absent([[token] for _, token in words]),
        ),
        Case(
            "allowed tokens",
            greedy(mixed, 32, allowed_token_ids=list(range(20, 400))),
            check=checks.only_allowed(20, 400),
        ),
        Case("min_tokens", greedy(mixed, 64, min_tokens=20, stop_token_ids=frequent), check=checks.goes_on_for(20)),
    ]
    return [replace(case, scored=False, like=True) for case in cases]


def processors_arm(options: Namespace) -> Arm:
    return shared.exact(shared.wide_tree(options, options.budgets[0]))


def grammar(given: Setting, engines: Engines) -> list[Case]:
    """Structured output, beside plain requests. Last: it needs a grammar library and the model's tokenizer."""
    pattern = "(ab|cd){4,12}"
    limits = {"structured_outputs": {"regex": pattern}, "ignore_eos": False, "detokenize": True}
    asked = greedy(given.prompts[:8], 64, **limits) + greedy(given.prompts[8:16], 64)
    return [Case("structured output", asked, scored=False, check=checks.matches(pattern))]


def grammar_arm(options: Namespace) -> Arm:
    return shared.wide_tree(options, options.budgets[0])


#: In the order of importance. The small cache is the soak's, the grammar's engine that of losslessness.
GROUPS = {
    "usual": Group(usual_arm, usual),
    "mixed": Group(mixed_arm, mixed),
    "short": Group(short_arm, short),
    "narrow": Group(narrow_arm, narrow),
    "small": Group(shared.small_cache, small),
    "cached": Group(cached_arm, cached),
    "processors": Group(processors_arm, processors, plain=True),
    "grammar": Group(grammar_arm, grammar),
}

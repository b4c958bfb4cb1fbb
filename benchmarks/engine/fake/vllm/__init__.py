"""As much of vLLM as worker.py uses, without a model: rehearses every benchmark on a machine without a GPU.

The next token is a hash of the last three, so outputs do not depend on how they are batched; a chain accepts up to 4
tokens a step, a tree up to 6. What shall go wrong stands in the environment: FAKE_REFUSES=N, the engine with trees of N
nodes does not start; FAKE_DIES=N, it ends when it is first asked for tokens; FAKE_WRONG=bf16, a tree's fifth token is
another one outside of fp32; FAKE_WRONG=always, in fp32, too.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from .sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams"]
__version__ = "0.0.0"
VOCABULARY = 4096
BLOCK = 16


@dataclass
class Request:
    name: str
    prompt: list[int]
    params: Any
    tokens: list[int] = field(default_factory=list)


if find_spec("soak"):
    raise ImportError("the benchmark's own modules hide what an engine imports: requests, for one")


class LLM:
    def __init__(self, **arguments: Any) -> None:
        drafting = arguments.get("speculative_config")
        tree = (arguments.get("additional_config") or {}).get("ddtree")
        self.depth = 0 if not drafting else 6 if tree else 4
        self.width = tree["budget"] if tree else drafting["num_speculative_tokens"] if drafting else 0
        if tree and os.environ.get("FAKE_REFUSES") == str(tree["budget"]):
            raise ValueError("no trees of that size")
        self.dies = bool(tree) and os.environ.get("FAKE_DIES") == str(tree["budget"])
        wrong = os.environ.get("FAKE_WRONG")
        self.wrong = bool(tree) and (wrong == "always" or (wrong == "bf16" and arguments.get("dtype") != "float32"))
        self.random = random.Random(1)
        self.counts = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}
        self.per_depth = [0] * self.width
        self.llm_engine = Stepping(self)
        self.requests: dict[str, Request] = {}

    def generate(self, prompts: list[Any], params: Any, use_tqdm: bool = False) -> list[Any]:
        many = params if isinstance(params, list) else [params] * len(prompts)
        found = []
        for number, (prompt, one) in enumerate(zip(prompts, many, strict=True)):
            refuse_words_with_space(one)
            self.refuse_beside_drafts(one)
            request = Request(str(number), prompt["prompt_token_ids"], one)
            finish = None
            while finish is None:
                _, finish = self.advance(request)
            found.append(self.output(request, request.tokens, finish))
        return found

    def refuse_beside_drafts(self, params: Any) -> None:
        """As vLLM 0.20.1 and 0.33.0."""
        if self.width and (getattr(params, "min_p", 0) or getattr(params, "logit_bias", None)):
            raise ValueError("The min_p and logit_bias sampling parameters are not yet supported with speculation.")

    def advance(self, request: Request) -> tuple[list[int], str | None]:
        if self.dies:
            print("CUDA error: an illegal memory access was encountered", flush=True)
            os._exit(1)
        accepted = self.random.randint(0, min(self.depth, self.width)) if request.tokens and self.depth else 0
        if request.tokens and self.depth:
            self.counts["drafts"] += 1
            self.counts["draft_tokens"] += self.width
            self.counts["accepted_tokens"] += accepted
            for depth in range(accepted):
                self.per_depth[depth] += 1
        new: list[int] = []
        for _ in range(accepted + 1):
            other = int(self.wrong and len(request.tokens) == 4)
            new.append((following(request.prompt + request.tokens, request.params.seed) + other) % VOCABULARY)
            request.tokens.append(new[-1])
            if len(request.tokens) == request.params.max_tokens:
                return new, "length"
        return new, None

    def output(self, request: Request, tokens: list[int], finish: str | None) -> Any:
        entries = [{t: SimpleNamespace(logprob=-0.5), t + 1: SimpleNamespace(logprob=-2.0)} for t in tokens]
        prompt = [None, *({t: SimpleNamespace(logprob=-0.5)} for t in request.prompt[1:])]
        one = SimpleNamespace(token_ids=tokens, text="", finish_reason=finish, logprobs=entries)
        return SimpleNamespace(
            request_id=request.name, outputs=[one], finished=finish is not None, prompt_logprobs=prompt
        )

    def get_tokenizer(self) -> Any:
        return Tokenizer()

    def get_metrics(self) -> list[Any]:
        found = [SimpleNamespace(name=f"vllm:spec_decode_num_{n}", value=v) for n, v in self.counts.items()]
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        return [*found, SimpleNamespace(name=name, values=self.per_depth)]


class Tokenizer:
    """Every third token is spaces alone, every other third one begins with a space."""

    def decode(self, ids: list[int]) -> str:
        token = ids[0]
        return (f"w{token}", f" w{token}", " " * token)[token % 3]

    def encode(self, text: str, **_: Any) -> list[int]:
        return [int(text.strip()[1:]) if text.strip() else len(text)]


def refuse_words_with_space(params: Any) -> None:
    """As vLLM 0.20.1, where such a word becomes no token at all, or others than it was made of."""
    if any(word != word.strip() or not word for word in getattr(params, "bad_words", ())):
        raise IndexError("list index out of range")


class Stepping:
    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        pool = SimpleNamespace(get_num_free_blocks=lambda: 99 - len(llm.requests), num_gpu_blocks=100)
        runner = SimpleNamespace(rejection_sampler=None, speculator=None)
        core = SimpleNamespace(
            scheduler=SimpleNamespace(kv_cache_manager=SimpleNamespace(block_pool=pool)),
            model_executor=SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner)),
        )
        self.engine_core = SimpleNamespace(engine_core=core)

    def add_request(self, name: str, prompt: dict[str, list[int]], params: Any) -> None:
        self.llm.refuse_beside_drafts(params)
        self.llm.requests[name] = Request(name, prompt["prompt_token_ids"], params)

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            self.llm.requests.pop(name, None)

    def step(self) -> list[Any]:
        found = []
        for name, request in list(self.llm.requests.items()):
            new, finish = self.llm.advance(request)
            found.append(self.llm.output(request, new, finish))
            if finish:
                del self.llm.requests[name]
        return found


def following(tokens: list[int], seed: int | None) -> int:
    a, b, c = ([0, 0, *tokens])[-3:]
    return (a * 31 + b * 17 + c * 7 + 3 + (seed or 0)) % VOCABULARY

"""One engine in one process: reads operations as JSON lines from a descriptor, writes answers to another.

`python worker.py COMMANDS ANSWERS`, with the engine's interpreter. The first operation is `start`; each of the others
is a function of this file or of operations.py. What the engine prints goes where this process prints.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [path for path in sys.path if path != str(HERE)]  # engines import modules of everyday names (requests)

COUNTERS = {
    "vllm:spec_decode_num_drafts": "drafts",
    "vllm:spec_decode_num_draft_tokens": "drafted",
    "vllm:spec_decode_num_accepted_tokens": "accepted",
    "vllm:num_preemptions": "preemptions",
}
PER_DEPTH = "vllm:spec_decode_num_accepted_tokens_per_pos"


class Worker:
    def __init__(self) -> None:
        self.llm: Any = None
        self.number = 0

    # ---- start ----

    def start(self, arguments: dict[str, Any], plain: bool) -> dict[str, Any]:
        """What runs, and how many seconds the import and the engine's own start took."""
        begun = time.monotonic()
        import vllm

        engine_class = vllm.LLM  # imported at its first use
        if plain:
            runpy.run_path(str(HERE / "flash.py"))["attend_in_plain_torch"]()
        imported = time.monotonic()
        self.llm = engine_class(**arguments)
        facts: dict[str, Any] = {"vllm": vllm.__version__, **self.classes(), **self.blocks()}
        ready = time.monotonic()
        return facts | {"import_s": round(imported - begun, 1), "engine_s": round(ready - imported, 1)}

    def refusal(self, arguments: dict[str, Any]) -> str:
        """The message with which a configuration is refused, empty when it is taken. Starts nothing."""
        from vllm.engine.arg_utils import EngineArgs

        try:
            EngineArgs(**arguments).create_engine_config()
        except Exception as refused:
            return str(refused)
        return ""

    # ---- what an engine is asked ----

    def generate(self, requests: list[dict[str, Any]], at_once: int = 0) -> dict[str, Any]:
        """As a user calls it. Each request: `prompt` (token ids) and `params` (of SamplingParams)."""
        groups = [requests[i : i + at_once] for i in range(0, len(requests), at_once)] if at_once else [requests]
        before, begun = self.counters(), time.perf_counter()
        found = []
        for group in groups:
            prompts = [{"prompt_token_ids": request["prompt"]} for request in group]
            found += self.llm.generate(prompts, [sampling(r["params"]) for r in group], use_tqdm=False)
        seconds = time.perf_counter() - begun
        return {
            "outputs": [output_of(output) for output in found],
            "seconds": seconds,
            "counters": difference(before, self.counters()),
        }

    def trace(self, requests: list[dict[str, Any]], at_once: int = 0, give_up: float = 120) -> dict[str, Any]:
        """Step by step: what each step emitted for each request, when, and what was stopped on the way.

        A request may say `abort`: it is aborted once that many tokens were emitted. At most `at_once` run at a time.
        After `give_up` seconds what still runs is aborted, and has no `finish`.
        """
        engine, begun = self.llm.llm_engine, time.perf_counter()
        waiting = collections.deque(enumerate(requests))
        live: dict[str, int] = {}
        emitted: list[list[list[int]]] = [[] for _ in requests]
        finish: list[str | None] = [None for _ in requests]
        times: list[list[float]] = [[] for _ in requests]
        before = self.counters()
        with self.leaving_none(live):
            while (waiting or live) and time.perf_counter() - begun < give_up:
                while waiting and (not at_once or len(live) < at_once):
                    place, request = waiting.popleft()
                    live[self.add(request["prompt"], request["params"])] = place
                for output in engine.step():
                    place = live.get(output.request_id, -1)
                    if place < 0:
                        continue
                    one = output.outputs[0]
                    if len(one.token_ids):
                        emitted[place].append(list(one.token_ids))
                        times[place].append(time.perf_counter() - begun)
                    count = sum(map(len, emitted[place]))
                    if output.finished:
                        finish[place] = str(one.finish_reason)
                        del live[output.request_id]
                    elif count >= requests[place].get("abort", 1 << 60):
                        finish[place] = "aborted"
                        del live[output.request_id]
                        engine.abort_request([output.request_id])
        return {
            "steps": emitted,
            "times": times,
            "finish": finish,
            "gave_up": None in finish,
            "seconds": time.perf_counter() - begun,
            "counters": difference(before, self.counters()),
        }

    def score(self, sequences: list[dict[str, Any]], at_once: int = 64) -> list[list[list[float]]]:
        """Each: `prompt`, `tokens`. Per token its log-probability, the best one, and whether it is the best: by a
        prefill of prompt and tokens together."""
        params = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 1, "detokenize": False}
        found: list[list[list[float]]] = []
        for i in range(0, len(sequences), at_once):
            group = sequences[i : i + at_once]
            prompts = [{"prompt_token_ids": s["prompt"] + s["tokens"]} for s in group]
            outputs = self.llm.generate(prompts, sampling(params), use_tqdm=False)
            for sequence, output in zip(group, outputs):  # noqa: B905 (interpreters of engines may be old)
                places = output.prompt_logprobs[len(sequence["prompt"]) :]
                found.append([graded(place, token) for place, token in zip(places, sequence["tokens"])])  # noqa: B905
        return found

    def blocks(self) -> dict[str, int]:
        """KV blocks: free ones and all. One is the null block, never free."""
        pool = core_of(self.llm).scheduler.kv_cache_manager.block_pool
        return {"free_blocks": pool.get_num_free_blocks(), "all_blocks": pool.num_gpu_blocks}

    def classes(self) -> dict[str, str]:
        """Which runner, proposer and sampler really run."""
        runner = core_of(self.llm).model_executor.driver_worker
        runner = getattr(runner, "worker", runner).model_runner
        named = {"runner": runner, "verifier": getattr(runner, "rejection_sampler", None)}
        named["proposer"] = getattr(runner, "speculator", None) or getattr(runner, "drafter", None)
        return {role: type(o).__name__ for role, o in named.items() if o is not None}

    def words(self, tokens: list[int]) -> list[tuple[str, int]]:
        """Texts without space around them that the tokenizer turns into that one token again."""
        tokenizer = self.llm.get_tokenizer()
        texts = [(tokenizer.decode([token]), token) for token in tokens]
        # a bad word loses the spaces before it, and one of spaces alone is an IndexError in vLLM 0.20
        whole = [(text, token) for text, token in texts if text and text.strip() == text]
        return [(text, t) for text, t in whole if tokenizer.encode(text, add_special_tokens=False) == [t]]

    def counters(self) -> dict[str, Any]:
        found: dict[str, Any] = dict.fromkeys(COUNTERS.values(), 0) | {"per_depth": []}
        for metric in self.llm.get_metrics():
            if metric.name in COUNTERS:
                found[COUNTERS[metric.name]] += int(metric.value)
            elif metric.name == PER_DEPTH:
                found["per_depth"] = list(map(int, metric.values))
        return found

    # ----

    def add(self, prompt: list[int], params: dict[str, Any]) -> str:
        from vllm.sampling_params import RequestOutputKind

        chosen = sampling(params)
        chosen.output_kind = RequestOutputKind.DELTA
        self.number += 1
        name = f"r{self.number}"
        self.llm.llm_engine.add_request(name, {"prompt_token_ids": prompt}, chosen)
        return name

    @contextlib.contextmanager
    def leaving_none(self, live: dict[str, int]) -> Iterator[None]:
        """Aborts what is live at the end, also after a failure: others use this engine."""
        try:
            yield
        except Exception:
            with contextlib.suppress(Exception):  # of a broken engine, the first words are told
                self.clear(live)
            raise
        self.clear(live)

    def clear(self, live: dict[str, int]) -> None:
        """Aborts these, and takes the steps that are still in flight after the last request ended."""
        if live:
            self.llm.llm_engine.abort_request(list(live))
        for _ in range(8):
            self.llm.llm_engine.step()


def core_of(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core


def sampling(params: dict[str, Any]) -> Any:
    from vllm import SamplingParams

    given = dict(params)
    if "structured_outputs" in given:
        from vllm.sampling_params import StructuredOutputsParams

        given["structured_outputs"] = StructuredOutputsParams(**given["structured_outputs"])
    if "logit_bias" in given:
        given["logit_bias"] = {
            int(token): bias for token, bias in given["logit_bias"].items()
        }  # JSON made texts of them
    return SamplingParams(**given)


def output_of(output: Any) -> dict[str, Any]:
    one = output.outputs[0]
    tokens = list(one.token_ids)
    found = {"tokens": tokens, "finish": str(one.finish_reason), "text": one.text[-200:]}
    if one.logprobs:
        found["logprobs"] = [graded(place, token) for place, token in zip(one.logprobs, tokens)]  # noqa: B905
    return found


def graded(place: dict[int, Any], token: int) -> list[float]:
    """[log-probability of the token, the best log-probability, 1 when the token has it]."""
    own, best = place[token].logprob, max(entry.logprob for entry in place.values())
    return [own, best, float(own == best)]


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    old = before["per_depth"] + [0] * len(after["per_depth"])
    depths = [b - a for a, b in zip(old, after["per_depth"])]  # noqa: B905
    return {name: after[name] - before[name] for name in COUNTERS.values()} | {"per_depth": depths}


def operations(worker: Worker) -> Callable[[str], Callable[..., Any]]:
    """Looks an operation up: this file's, or one of operations.py."""
    others = runpy.run_path(str(HERE / "operations.py"))

    def find(name: str) -> Callable[..., Any]:
        return getattr(worker, name, None) or functools.partial(others[name], worker)

    return find


def send(descriptor: int, answer: dict[str, Any]) -> bool:
    """Whether anybody took it."""
    data = json.dumps(answer).encode() + b"\n"
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except BrokenPipeError:
        return False
    return True


def main() -> int:
    commands, answers = os.fdopen(int(sys.argv[1]), "r", encoding="utf-8"), int(sys.argv[2])
    find = operations(Worker())
    for line in commands:
        message = json.loads(line)
        try:
            answer = {"result": find(message.pop("op"))(**message)}
        except Exception as failed:
            traceback.print_exc()
            answer = {"error": f"{type(failed).__name__}: {failed}"[:2000]}
        if not send(answers, answer):
            break
    return 0


if __name__ == "__main__":
    sys.exit(main())

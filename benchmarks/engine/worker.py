"""One engine in one process: reads operations as JSON lines from a descriptor, writes answers to another.

`python worker.py COMMANDS ANSWERS`, with the engine's interpreter. The first operation is `start`; each of the others
is a function of this file. What the engine prints goes where this process prints.
"""

from __future__ import annotations

import collections
import cProfile
import json
import os
import pstats
import runpy
import sys
import time
import traceback
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
        begun = time.monotonic()
        import vllm

        if plain:
            attend_in_plain_torch()
        self.llm = vllm.LLM(**arguments)
        facts = {"vllm": vllm.__version__, "seconds": round(time.monotonic() - begun, 1), **self.classes()}
        return facts | self.blocks()

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
        """
        engine, begun = self.llm.llm_engine, time.perf_counter()
        waiting = collections.deque(enumerate(requests))
        live: dict[str, int] = {}
        emitted: list[list[list[int]]] = [[] for _ in requests]
        finish: list[str | None] = [None for _ in requests]
        times: list[list[float]] = [[] for _ in requests]
        before = self.counters()
        while waiting or live:
            if time.perf_counter() - begun > give_up:
                raise TimeoutError(f"{len(live)} requests unfinished after {give_up:.0f} s")
            while waiting and (not at_once or len(live) < at_once):
                place, request = waiting.popleft()
                name = self._add(request["prompt"], request["params"])
                live[name] = place
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
        self._drain()
        return {
            "steps": emitted,
            "times": times,
            "finish": finish,
            "seconds": time.perf_counter() - begun,
            "counters": difference(before, self.counters()),
        }

    def mixed(
        self, decoding: list[dict[str, Any]], prompts: list[dict[str, Any]], at_once: int, give_up: float = 120
    ) -> dict[str, Any]:
        """Prompts per second beside requests that go on decoding: those start first and are aborted at the end."""
        engine, begun = self.llm.llm_engine, time.perf_counter()
        decoders = {self._add(request["prompt"], request["params"]): 0 for request in decoding}
        while min(decoders.values()) == 0:
            for output in engine.step():
                decoders[output.request_id] += len(output.outputs[0].token_ids)
        first, started = sum(decoders.values()), time.perf_counter()
        waiting: collections.deque[dict[str, Any]] = collections.deque(prompts)
        live: set[str] = set()
        ended_early = False
        while waiting or live:
            if time.perf_counter() - begun > give_up:
                raise TimeoutError("prompts unfinished")
            while waiting and len(live) < at_once:
                request = waiting.popleft()
                live.add(self._add(request["prompt"], request["params"]))
            for output in engine.step():
                if output.request_id in decoders:
                    decoders[output.request_id] += len(output.outputs[0].token_ids)
                    ended_early |= output.finished
                elif output.finished:
                    live.discard(output.request_id)
        seconds = time.perf_counter() - started
        engine.abort_request(list(decoders))
        self._drain()
        tokens = sum(len(request["prompt"]) for request in prompts)
        decoded = sum(decoders.values()) - first
        return {"prompt_tokens_s": tokens / seconds, "decoded": decoded, "ended_early": ended_early}

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

    def profile(self, requests: list[dict[str, Any]], warm: int = 1) -> dict[str, Any]:
        """Kernels, copies and waits of one `generate`, by torch's profiler, which sees inside CUDA graphs."""
        import torch

        for _ in range(warm):
            self.generate(requests)
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profiler:
            answer = self.generate(requests)
            torch.cuda.synchronize()
        kernels: collections.Counter[str] = collections.Counter()
        micros: collections.Counter[str] = collections.Counter()
        calls: collections.Counter[str] = collections.Counter()
        for event in profiler.events():
            if str(event.device_type).endswith("CUDA"):
                kernels[event.name] += 1
                micros[event.name] += event.time_range.elapsed_us()
            elif event.name.startswith("cuda"):
                calls[event.name] += 1
        return {"kernels": kernels, "micros": micros, "calls": calls, **answer}

    def host_profile(self, requests: list[dict[str, Any]]) -> dict[str, Any]:
        """Where the host spends a `generate`: own seconds by file, those of the installed package by function."""
        self.generate(requests)
        profiler = cProfile.Profile()
        profiler.enable()
        answer = self.generate(requests)
        profiler.disable()
        files: collections.Counter[str] = collections.Counter()
        ours: collections.Counter[str] = collections.Counter()
        for (file, _, name), (_, _, own, total, _) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
            files[file] += own
            if "specaudit_ddtree" in file:
                ours[f"{os.path.basename(file)}:{name}"] += total
        return {"files": dict(files.most_common(25)), "ours": dict(ours.most_common(25)), **answer}

    def memory(self, requests: list[dict[str, Any]]) -> dict[str, float]:
        """Peak bytes that torch gave out and held during a `generate`."""
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        at_rest = torch.cuda.memory_allocated()
        self.generate(requests)
        torch.cuda.synchronize()
        return {
            "at_rest": at_rest,
            "peak": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
        }

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
        """Texts that the tokenizer turns into that one token again."""
        tokenizer = self.llm.get_tokenizer()
        texts = [(tokenizer.decode([token]), token) for token in tokens]
        return [(text, t) for text, t in texts if text and tokenizer.encode(text, add_special_tokens=False) == [t]]

    def counters(self) -> dict[str, Any]:
        found: dict[str, Any] = dict.fromkeys(COUNTERS.values(), 0) | {"per_depth": []}
        for metric in self.llm.get_metrics():
            if metric.name in COUNTERS:
                found[COUNTERS[metric.name]] += int(metric.value)
            elif metric.name == PER_DEPTH:
                found["per_depth"] = list(map(int, metric.values))
        return found

    # ----

    def _add(self, prompt: list[int], params: dict[str, Any]) -> str:
        from vllm.sampling_params import RequestOutputKind

        chosen = sampling(params)
        chosen.output_kind = RequestOutputKind.DELTA
        self.number += 1
        name = f"r{self.number}"
        self.llm.llm_engine.add_request(name, {"prompt_token_ids": prompt}, chosen)
        return name

    def _drain(self) -> None:
        """Steps that are still in flight after the last request ended."""
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


def attend_in_plain_torch() -> None:
    """FlashAttention's backend with its kernel replaced by plain torch, which takes fp32: for an exact comparison."""
    import torch
    from vllm.v1.attention.backends import fa_utils, flash_attn

    flash_attn_varlen_func = runpy.run_path(str(HERE / "flash.py"))["flash_attn_varlen_func"]
    for module in (fa_utils, flash_attn):
        for name in list(vars(module)):
            if name in ("flash_attn_varlen_func", "_FA4_DENSE_ATTENTION_KERNEL"):
                setattr(module, name, flash_attn_varlen_func)
    flash_attn.FlashAttentionBackend.supported_dtypes = [torch.float16, torch.bfloat16, torch.float32]
    builder = flash_attn.FlashAttentionMetadataBuilder
    if hasattr(builder, "_get_scheduler_metadata"):
        builder._get_scheduler_metadata = lambda self, **_: None
    else:
        flash_attn.get_scheduler_metadata = lambda **_: None


def main() -> int:
    commands = os.fdopen(int(sys.argv[1]), "r", encoding="utf-8")
    answers = os.fdopen(int(sys.argv[2]), "w", encoding="utf-8")
    worker = Worker()
    for line in commands:
        message = json.loads(line)
        try:
            answer = {"result": getattr(worker, message.pop("op"))(**message)}
        except Exception as failed:
            traceback.print_exc()
            answer = {"error": f"{type(failed).__name__}: {failed}"[:2000]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

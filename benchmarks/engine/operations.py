"""More operations of worker.py: prompts beside running requests, kernels, the host's functions, memory.

Loaded by the worker in the engine's process; each takes the worker first.
"""

from __future__ import annotations

import collections
import cProfile
import functools
import os
import pstats
import time
from typing import Any


def mixed(
    worker: Any, decoding: list[dict[str, Any]], prompts: list[dict[str, Any]], at_once: int, give_up: float = 120
) -> dict[str, Any]:
    """Prompts per second beside requests that go on decoding: those start first and are aborted at the end.

    at_once: how many prompts the engine has at a time; 0: all of them wait in its queue from the start.
    """
    engine, begun = worker.llm.llm_engine, time.perf_counter()
    live: dict[str, int] = {}
    waiting = collections.deque(prompts)
    asked: set[str] = set()
    ended_early = False
    with worker.leaving_none(live):
        for request in decoding:
            live[worker.add(request["prompt"], request["params"])] = 0
        decoders = dict(live)
        while min(decoders.values()) == 0:
            if time.perf_counter() - begun > give_up:
                raise TimeoutError("no tokens of those that decode")
            for output in engine.step():
                decoders[output.request_id] += len(output.outputs[0].token_ids)

        def ask(count: int) -> None:
            for _ in range(min(count, len(waiting))):
                request = waiting.popleft()
                name = worker.add(request["prompt"], request["params"])
                asked.add(name)
                live[name] = 0

        ask(at_once or len(waiting))
        first, started = sum(decoders.values()), time.perf_counter()
        while asked:
            if time.perf_counter() - begun > give_up:
                raise TimeoutError("prompts unfinished")
            for output in engine.step():
                if output.request_id in decoders:
                    decoders[output.request_id] += len(output.outputs[0].token_ids)
                    ended_early |= output.finished
                elif output.finished:
                    asked.discard(output.request_id)
                    del live[output.request_id]
            ask(at_once - len(asked))
        seconds = time.perf_counter() - started
    tokens = sum(len(request["prompt"]) for request in prompts)
    decoded = sum(decoders.values()) - first
    return {"prompt_tokens_s": tokens / seconds, "decoded_s": decoded / seconds, "ended_early": ended_early}


def profile(worker: Any, requests: list[dict[str, Any]], warm: int = 1) -> dict[str, Any]:
    """Kernels, copies and waits of one `generate`, by torch's profiler, which sees inside CUDA graphs.

    Raises RuntimeError: it saw no kernel, and what it did not see must not count as none.
    """
    import torch

    for _ in range(warm):
        worker.generate(requests)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        answer = worker.generate(requests)
        torch.cuda.synchronize()
    kernels: collections.Counter[str] = collections.Counter()
    micros: collections.Counter[str] = collections.Counter()
    calls: collections.Counter[str] = collections.Counter()
    for event in profiler.events():
        if event.is_user_annotation:  # a name that torch gives to a stretch of kernels, on the device's side, too
            continue
        if str(event.device_type).endswith("CUDA"):
            kernels[event.name] += 1
            micros[event.name] += event.time_range.elapsed_us()
        elif event.name.startswith("cuda"):
            calls[event.name] += 1
    if not kernels:
        raise RuntimeError("torch's profiler saw no kernel on this machine")
    return {"kernels": kernels, "micros": micros, "calls": calls, **answer}


def host_profile(worker: Any, during: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Where the host spends `generate` or `mixed`: steps of the engine, own seconds by function, and those of the
    installed package with everything they call."""
    run = functools.partial(mixed, worker) if during == "mixed" else worker.generate
    run(**asked)
    engine, steps = worker.llm.llm_engine, 0
    step = engine.step

    def counted() -> Any:
        nonlocal steps
        steps += 1
        return step()

    engine.step = counted
    try:
        with cProfile.Profile() as profiler:
            answer = run(**asked)
    finally:
        del engine.step  # the class's own again
    functions: collections.Counter[str] = collections.Counter()
    ours: collections.Counter[str] = collections.Counter()
    for (file, _, name), (_, _, own, total, _) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        where = f"{os.path.basename(file)}:{name}" if file != "~" else name
        functions[where] += own
        if "specaudit_ddtree" in file:
            ours[where] += total
    return {"steps": steps, "functions": functions, "ours": dict(ours.most_common(25)), **answer}


def memory(worker: Any, requests: list[dict[str, Any]]) -> dict[str, float]:
    """Peak bytes that torch gave out and held during a `generate`."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    at_rest = torch.cuda.memory_allocated()
    worker.generate(requests)
    torch.cuda.synchronize()
    return {
        "at_rest": at_rest,
        "peak": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
    }

"""Runs on the GPU host, with the engine's interpreter, in processes of its own: one engine per mode, results as JSON.

Stdlib and vLLM only; travels alone. It lies in a folder with ``job.json``, and writes there:

    state.json      what is done now: {"phase": …, "since": seconds since the start, "pid": …}
    MODE.json       numbers of one mode
    log.txt         everything that the engine prints
    exit            exit status of the whole run, written last

``python runner.py`` runs the job, each mode as ``python runner.py MODE`` in a process group of its own: a mode that
hangs or crashes is that mode's result. Nothing outlives the time limit of the job.

A job: ``target``, ``draft``, ``prompts`` (token ids or texts; null: those in ``prompts_file``), ``count`` of them,
``modes`` (name -> keyword arguments of ``LLM``), ``train`` (arguments of train.py, or null), ``tokens``,
``temperature``, ``seed``, ``batches``, ``repeats``, ``memory``, ``limit`` (seconds), ``environment``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

COUNTERS = {
    "vllm:spec_decode_num_drafts": "drafts",
    "vllm:spec_decode_num_draft_tokens": "drafted",
    "vllm:spec_decode_num_accepted_tokens": "accepted",
}
PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"
WARM_UP_TOKENS = 24
LOG = "log.txt"
TAIL = 8000


def write(name: str, value: Any) -> None:
    """Writes a JSON file that is whole or absent."""
    with open(name + ".new", "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.replace(name + ".new", name)


# --- the whole job --------------------------------------------------------------------------------------------------


def run(job: dict[str, Any]) -> int:
    """Trains a pair when the job says so, then runs each mode; returns how many failed."""
    start = time.monotonic()
    failed = 0

    def phase(name: str) -> None:
        write("state.json", {"phase": name, "since": round(time.monotonic() - start, 1), "pid": os.getpid()})

    environment = {**os.environ, **job["environment"]}
    if job["train"]:
        phase("training")
        command, begun = [sys.executable, "train.py", *job["train"]], _logged()
        why = _ended(command, job["limit"] - (time.monotonic() - start), environment)
        if why:
            write("training.json", _failure("training", why, begun))
            return 1
    for mode in job["modes"]:
        phase(mode)
        left, begun = job["limit"] - (time.monotonic() - start), _logged()
        why = _ended([sys.executable, os.path.abspath(__file__), mode], left, environment)
        if why and not os.path.exists(f"{mode}.json"):
            write(f"{mode}.json", _failure(mode, why, begun))
        failed += bool(why)
    phase("done")
    return failed


def _failure(mode: str, why: str, begun: int) -> dict[str, Any]:
    """A mode without numbers: why, and the end of what it wrote to the log, which begins at ``begun``."""
    log = ""
    with contextlib.suppress(OSError), open(LOG, "rb") as file:
        file.seek(max(begun, _logged() - TAIL))
        log = file.read().decode("utf-8", "replace")
    return {"mode": mode, "error": why, "log": log, "python": sys.executable}


def _logged() -> int:
    """Bytes in the log so far."""
    try:
        return os.path.getsize(LOG)
    except OSError:
        return 0


def _ended(command: list[str], seconds: float, environment: dict[str, str]) -> str:
    """Runs a command in a process group of its own and leaves none of it behind; says what went wrong, or nothing."""
    if seconds <= 0:
        return "was not started: the time limit of the run was reached"
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    status = None
    try:
        status = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"did not end within {seconds:.0f} s"
    finally:
        if status is None or _alive(process.pid):
            for number in (signal.SIGTERM, signal.SIGKILL):
                _signal(process.pid, number)
                time.sleep(0.5 if number == signal.SIGTERM else 0)
        process.wait()
    if status < 0:
        return f"was ended by signal {-status} ({signal.strsignal(-status)})"
    return "" if status == 0 else f"ended with exit status {status}"


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, number)


# --- one mode -------------------------------------------------------------------------------------------------------


def measure(job: dict[str, Any], mode: str) -> dict[str, Any]:
    """Starts an engine, generates, and returns what was counted and timed."""
    import vllm

    prompts = _prompts(job)
    arguments = job["modes"][mode]
    speculative = arguments.get("speculative_config")
    if speculative is not None and not speculative.get("num_speculative_tokens"):
        speculative["num_speculative_tokens"] = _block_size(speculative["model"]) - 1
    drafts = scheduled_drafts(arguments)
    started = time.monotonic()
    engine = vllm.LLM(
        model=job["target"],
        max_model_len=positions(_longest(job["target"]), max(map(len, prompts)) + job["tokens"], drafts),
        max_num_seqs=max(job["batches"]),
        gpu_memory_utilization=job["memory"],
        enable_prefix_caching=False,
        disable_log_stats=False,
        seed=job["seed"],
        **arguments,
    )
    start_seconds = time.monotonic() - started
    steps = _timed_steps(engine)

    def generate(chosen: Sequence[list[int]], tokens: int, logprobs: int | None = None) -> list[Any]:
        parameters = vllm.SamplingParams(
            temperature=job["temperature"], seed=job["seed"] if job["temperature"] else None,
            max_tokens=tokens, ignore_eos=True, detokenize=False, logprobs=logprobs,
        )  # fmt: skip
        return list(engine.generate([{"prompt_token_ids": p} for p in chosen], parameters, use_tqdm=False))

    runs, texts = [], None
    for batch in job["batches"]:
        groups = [prompts[i : i + batch] for i in range(0, len(prompts), batch)]
        generate(groups[0], min(WARM_UP_TOKENS, job["tokens"]))
        for _ in range(job["repeats"]):
            steps.clear()
            before, begun = counted(engine.get_metrics()), time.perf_counter()
            outputs = [output for group in groups for output in generate(group, job["tokens"])]
            seconds = time.perf_counter() - begun
            runs.append({"batch": batch, **_difference(before, counted(engine.get_metrics())), "seconds": seconds})
            emitted = [list(output.outputs[0].token_ids) for output in outputs]
            runs[-1].update(emitted=sum(map(len, emitted)), prompts=len(prompts), step_seconds=_steady(steps))
            texts = texts or emitted
    return {
        "mode": mode,
        "start_seconds": start_seconds,
        "runs": runs,
        "texts": texts,
        "gaps": _gaps(generate, prompts, job) if mode == "none" and not job["temperature"] else None,
        "ran": _classes(engine),
        **facts(),
    }


def scheduled_drafts(arguments: dict[str, Any]) -> int:
    """Drafts of a step: the chain's tokens, or a tree's nodes where those are more."""
    chain = int((arguments.get("speculative_config") or {}).get("num_speculative_tokens", 0))
    tree = (arguments.get("additional_config") or {}).get("ddtree") or {}
    return max(chain, int(tree.get("budget", 0)))


def positions(limit: int | None, needed: int, drafts: int) -> int:
    """Positions to ask the engine for: what is needed and room for drafts, as far as the model goes.

    V1 stops drafting for a whole batch once its longest request, counted as if all drafts in flight were accepted,
    comes within a draft of the end; then the last tokens of every prompt are measured without drafts. On an H200 with
    0.20.1, 287 positions for 256 tokens gave an acceptance length of 2.56 where 2.68 is known, and 384 gave one of 2.23
    to a tree of 64 nodes, where 3.86 is known.
    """
    wanted = needed + 8 * (drafts + 1)
    return wanted if limit is None else max(needed, min(wanted, limit))


def _longest(model: str) -> int | None:
    """Positions that the model was made for, where its configuration lies on this machine and says so."""
    try:
        with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
    except (OSError, ValueError):
        return None
    limit = config.get("max_position_embeddings") or config.get("text_config", {}).get("max_position_embeddings")
    return None if limit is None else int(limit)


def _block_size(model: str) -> int:
    """The drafter's block: the last token and the positions that it drafts at once."""
    from transformers import PretrainedConfig

    config, _ = PretrainedConfig.get_config_dict(model)
    size = config.get("block_size") or config.get("dflash_config", {}).get("block_size")
    if not size:
        sys.exit(f"{model} says no block_size: name the number of draft tokens with --draft-tokens")
    return int(size)


def _prompts(job: dict[str, Any]) -> list[list[int]]:
    """Token ids; texts are encoded with the target's tokenizer."""
    prompts = job["prompts"]
    if prompts is None:
        with open(job["prompts_file"], encoding="utf-8") as file:
            prompts = json.load(file)
    prompts = prompts[: job["count"]]
    if any(isinstance(prompt, str) for prompt in prompts):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(job["target"], trust_remote_code=False)
        prompts = [tokenizer.encode(p) if isinstance(p, str) else p for p in prompts]
    return [list(map(int, prompt)) for prompt in prompts]


def counted(metrics: Sequence[Any]) -> dict[str, Any]:
    """The engine's own counters of speculative decoding, summed over its engines."""
    found: dict[str, Any] = {"drafts": 0, "drafted": 0, "accepted": 0, "per_position": []}
    for metric in metrics:
        if metric.name in COUNTERS:
            found[COUNTERS[metric.name]] += int(metric.value)
        elif metric.name == PER_POSITION:
            old, new = found["per_position"], list(map(int, metric.values))
            width = max(len(old), len(new))
            padded = [values + [0] * (width - len(values)) for values in (old, new)]
            found["per_position"] = [a + b for a, b in zip(*padded)]  # noqa: B905 (Python 3.9)
    return found


def _difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    earlier = before["per_position"] + [0] * len(after["per_position"])
    positions = [new - old for new, old in zip(after["per_position"], earlier)]  # noqa: B905
    return {**{key: after[key] - before[key] for key in ("drafts", "drafted", "accepted")}, "per_position": positions}


def _timed_steps(engine: Any) -> list[float]:
    """Wraps the engine's step, and returns the list that its durations go to."""
    durations: list[float] = []
    inner: Callable[[], Any] = engine.llm_engine.step

    def step() -> Any:
        begun = time.perf_counter()
        outputs = inner()
        durations.append(time.perf_counter() - begun)
        return outputs

    engine.llm_engine.step = step
    return durations


def _steady(durations: list[float]) -> float | None:
    """The median step: prefills and the last, thin steps do not move it."""
    ordered = sorted(durations)
    return ordered[len(ordered) // 2] if ordered else None


def _gaps(generate: Callable[..., list[Any]], prompts: list[list[int]], job: dict[str, Any]) -> list[dict[str, Any]]:
    """Per prompt what is generated with log probabilities on, and the gap between the two best tokens everywhere."""
    found = []
    batch = job["batches"][0]
    for at in range(0, len(prompts), batch):
        for output in generate(prompts[at : at + batch], job["tokens"], 2):
            best = output.outputs[0]
            gaps = []
            for place in best.logprobs or []:
                two = sorted((entry.logprob for entry in place.values()), reverse=True)[:2]
                gaps.append(round(two[0] - two[1], 5) if len(two) == 2 else None)
            found.append({"tokens": list(best.token_ids), "gaps": gaps})
    return found


def _classes(engine: Any) -> dict[str, str]:
    """Which runner, proposer and sampler really ran; only an engine in this process can be asked."""
    runner = engine.llm_engine
    for name in ("engine_core", "engine_core", "model_executor", "driver_worker", "worker", "model_runner"):
        runner = getattr(runner, name, runner if name == "worker" else None)
    named = {"runner": runner}
    for role, names in {"proposer": ("drafter", "speculator"), "verifier": ("rejection_sampler",)}.items():
        named[role] = next((getattr(runner, name) for name in names if getattr(runner, name, None) is not None), None)
    return {role: f"{type(o).__module__}.{type(o).__qualname__}" for role, o in named.items() if o is not None}


def facts() -> dict[str, Any]:
    """GPU, versions, and what the libraries were built for."""
    import platform

    import torch
    import vllm

    versions = {"python": platform.python_version(), "vllm": vllm.__version__, "torch": torch.__version__}
    versions["cuda"] = str(torch.version.cuda)
    try:
        import triton

        versions["triton"] = triton.__version__
    except ImportError:
        pass
    gpus: dict[str, int] = {}
    for number in range(torch.cuda.device_count()):
        major, minor = torch.cuda.get_device_capability(number)
        name = f"{torch.cuda.get_device_name(number)} (compute capability {major}.{minor})"
        gpus[name] = gpus.get(name, 0) + 1
    capability = ".".join(map(str, torch.cuda.get_device_capability())) if gpus else ""
    return {"versions": versions, "gpus": gpus, "capability": capability, "built_for": list(torch.cuda.get_arch_list())}


def main() -> int:
    """``runner.py`` runs the job, ``runner.py MODE`` one of its modes."""
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    with open("job.json", encoding="utf-8") as file:
        job = json.load(file)
    if len(sys.argv) > 1:
        write(f"{sys.argv[1]}.json", measure(job, sys.argv[1]))
        return 0
    failed = 1
    try:
        failed = run(job)
    finally:
        write("exit", failed)
    return failed


if __name__ == "__main__":
    sys.exit(main())

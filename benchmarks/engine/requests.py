"""Requests as worker.py takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "detokenize": False}


def greedy(prompts: Sequence[Sequence[int]], tokens: int | Sequence[int], **more: Any) -> list[dict[str, Any]]:
    """T = 0; `tokens` for all, or one number each."""
    budgets = [tokens] * len(prompts) if isinstance(tokens, int) else list(tokens)
    return [
        {"prompt": list(prompt), "params": GREEDY | {"max_tokens": budget} | more}
        for prompt, budget in zip(prompts, budgets, strict=True)
    ]


def seeded(
    prompts: Sequence[Sequence[int]], tokens: int | Sequence[int], temperature: float = 0.7, **more: Any
) -> list[dict[str, Any]]:
    """Sampled, each request with a seed of its own."""
    made = greedy(prompts, tokens, temperature=temperature, **more)
    for seed, request in enumerate(made):
        request["params"]["seed"] = 1000 + seed
    return made


def tokens_of(answer: dict[str, Any]) -> list[list[int]]:
    """Outputs of `generate`, or those of `trace`."""
    if "outputs" in answer:
        return [output["tokens"] for output in answer["outputs"]]
    return [[token for step in steps for token in step] for steps in answer["steps"]]


def varied(prompts: Sequence[Sequence[int]], shortest: int = 3) -> list[list[int]]:
    """Prompts of mixed length: each cut to another part of itself."""
    return [list(p[: max(shortest, len(p) * (1 + i % 4) // 4)]) for i, p in enumerate(prompts)]

"""Where each engine keeps what the classifier starts from. The only modules that know names of an engine's code."""

from __future__ import annotations

from specaudit.engines.base import Engine, RunnerAnchor, WorkerAnchor
from specaudit.engines.sglang import SGLANG
from specaudit.engines.vllm import VLLM

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (VLLM, SGLANG)}

__all__ = ["ENGINES", "Engine", "RunnerAnchor", "WorkerAnchor"]

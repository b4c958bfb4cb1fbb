"""Arms: which engine runs, with which arguments of `vllm.LLM`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

GIB = 1 << 30


@dataclass(frozen=True)
class Pair:
    """The models. `dummy`: configurations alone, weights made up by the engine."""

    target: str
    draft: str
    dummy: bool = False


@dataclass(frozen=True)
class Arm:
    """kind: `none`, `chain` or `tree`. Stock arms run the unpatched engine where there is one.

    horizon: K. budget: N. ddtree: more options of the switch. engine: more arguments of `LLM`.
    plain: fp32, eager, attention in plain torch (FlashAttention has no fp32). pair: models of its own.
    """

    name: str
    kind: str
    horizon: int = 15
    budget: int = 16
    seqs: int = 32
    patched: bool = False
    plain: bool = False
    ddtree: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    pair: Pair | None = None

    def arguments(self, pair: Pair) -> dict[str, Any]:
        """Keyword arguments of `LLM`."""
        pair = self.pair or pair
        given: dict[str, Any] = {
            "model": pair.target,
            "max_model_len": 2048,
            "max_num_seqs": self.seqs,
            "kv_cache_memory_bytes": 2 * GIB,  # 128 requests of the full length
            "gpu_memory_utilization": 0.05,  # the caches have their own size; this is what must be free at the start
            "enable_prefix_caching": False,
            "disable_log_stats": False,
            "seed": 0,
        }
        if pair.dummy:
            given |= {"load_format": "dummy", "skip_tokenizer_init": True}
        if self.kind != "none":
            drafting = {"method": "dflash", "model": pair.draft, "num_speculative_tokens": self.horizon}
            given["speculative_config"] = drafting
        if self.kind == "tree":
            given["additional_config"] = {"ddtree": {"budget": self.budget, **self.ddtree}}
        if self.plain:
            given |= {"dtype": "float32", "enforce_eager": True}
        return given | self.engine

    def key(self, pair: Pair) -> str:
        """Arms of the same key are one engine, whatever they are called."""
        return json.dumps([self.kind, self.patched, self.plain, self.arguments(pair)], sort_keys=True)

    def with_engine(self, **changed: Any) -> Arm:
        return replace(self, engine=self.engine | changed)

    def named(self, name: str) -> Arm:
        return replace(self, name=name)


def none(name: str = "none", **given: Any) -> Arm:
    return Arm(name, "none", **given)


def chain(name: str = "chain", horizon: int = 15, **given: Any) -> Arm:
    return Arm(name, "chain", horizon=horizon, **given)


def tree(budget: int, name: str = "", **given: Any) -> Arm:
    """A tree of `budget` nodes in every step: its batch limit is the engine's."""
    ddtree = {"max_batch": given.get("seqs", 32)} | given.pop("ddtree", {})
    return Arm(name or f"tree {budget}", "tree", budget=budget, patched=True, ddtree=ddtree, **given)


def policy(budget: int, name: str = "", **given: Any) -> Arm:
    """The default policy: a tree up to as many requests as fit one captured graph, then the stock chain."""
    return Arm(name or f"policy {budget}", "tree", budget=budget, patched=True, **given)

"""What `additional_config={"ddtree": {...}}` may say, and which engines the tree refuses to run in."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Any

from ..layout import MAX_HORIZON, MAX_NODES

KEY = "ddtree"
V1_MAX_BUDGET = 128  # MAX_SPEC_LEN of its sampler
CONFIG_NAMES = ("budget", "max_batch", "chain_max_batch", "mixed", "spine", "depth_bonus", "exact")
HORIZON = "_horizon"  # beside them once `install` has run
MIXED = ("chain", "tree")


@dataclass(frozen=True, slots=True)
class Settings:
    """The switch, validated.

    budget: N, nodes of a tree (1 to 512). max_batch: the largest number of running requests that get trees; above it
    the stock chain of K tokens runs, above chain_max_batch nothing is drafted (0: no limit). mixed: what is verified in
    a step that holds prompts, too: the trees' greedy chains ("chain") or the trees ("tree"). spine: nodes of the greedy
    chain that every tree keeps. depth_bonus: added to a node's log-probability per level. exact: attention rounds as
    the chain's does, to the last bit, at a cost that grows with nodes x context (engine/exact.py). horizon: K, filled
    in by `install`.
    """

    budget: int
    max_batch: int
    chain_max_batch: int = 0
    mixed: str = "chain"
    spine: int = 0
    depth_bonus: float = 0.0
    exact: bool = False
    horizon: int = 0

    @property
    def width(self) -> int:
        """Draft slots that the scheduler may hand out: the larger of a tree and, where the policy uses it, a chain."""
        return max(self.budget, self.horizon)

    def schedule(self, max_requests: int) -> list[tuple[int, int, int]]:
        """The policy as vLLM's own draft-count schedule: (first batch size, last batch size, tokens)."""
        tiers = [(1, min(self.max_batch, max_requests), self.budget)]
        chain_end = min(self.chain_max_batch or max_requests, max_requests)
        if chain_end > tiers[-1][1]:
            tiers.append((tiers[-1][1] + 1, chain_end, self.horizon))
        if tiers[-1][1] < max_requests:
            tiers.append((tiers[-1][1] + 1, max_requests, 0))
        return tiers


def default_max_batch(budget: int) -> int:
    """The largest batch that gets trees when the user names none: as many requests as fit one captured graph."""
    return max(1, 512 // (1 + budget))


def read(vllm_config: Any) -> Settings | None:
    """The settings of a configuration, None when the switch is absent. Raises ValueError for a bad value."""
    extra = vllm_config.additional_config
    section = extra.get(KEY) if isinstance(extra, dict) else None
    if section is None or vllm_config.speculative_config is None:
        return None
    return Settings(**_parsed(section))


def _parsed(section: Any) -> dict[str, Any]:
    """Fields of the settings. Raises ValueError, with the option and what it may be."""
    if not isinstance(section, dict):
        raise ValueError(f'ddtree: must be an object, such as {{"budget": 16}}, got {section!r}')
    unknown = sorted(set(section) - {*CONFIG_NAMES, HORIZON})
    if unknown:
        raise ValueError(f"ddtree: unknown option {unknown[0]!r}; known are {', '.join(CONFIG_NAMES)}")
    budget = _whole(section, "budget", 16, least=1)
    mixed, exact, bonus = section.get("mixed", MIXED[0]), section.get("exact", False), section.get("depth_bonus", 0.0)
    if mixed not in MIXED:
        raise ValueError(f"ddtree: mixed must be {' or '.join(MIXED)}, got {mixed!r}")
    if not isinstance(exact, bool):
        raise ValueError(f"ddtree: exact must be true or false, got {exact!r}")
    if isinstance(bonus, bool) or not isinstance(bonus, (int, float)) or not math.isfinite(bonus):
        raise ValueError(f"ddtree: depth_bonus must be a number, got {bonus!r}")
    return {
        "budget": budget,
        "max_batch": _whole(section, "max_batch", 0) or default_max_batch(budget),
        "chain_max_batch": _whole(section, "chain_max_batch", 0),
        "mixed": mixed,
        "spine": _whole(section, "spine", 0),
        "depth_bonus": float(bonus),
        "exact": exact,
        "horizon": section.get(HORIZON, 0),
    }


def _whole(section: dict[str, Any], name: str, default: int, least: int = 0) -> int:
    """A whole number; of nodes where it is `budget` or `spine`, of requests elsewhere."""
    value, most = section.get(name, default), MAX_NODES if name in ("budget", "spine") else None
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        limits = f"from {least} to {most}" if most is not None else f"of at least {least}"
        raise ValueError(f"ddtree: {name} must be a whole number {limits}, got {value!r}")
    return value


def refusals(vllm_config: Any, runner: str) -> list[str]:
    """One line for everything in the configuration that a tree would get wrong, each with what to use instead.

    runner: "v1" or "v2". Fields that a release does not have refuse nothing.
    """
    spec, model, parallel = vllm_config.speculative_config, vllm_config.model_config, vllm_config.parallel_config
    drafts = getattr(spec.draft_model_config, "architectures", None) or []
    attention = vllm_config.attention_config.backend
    use_v2 = bool(getattr(vllm_config, "use_v2_model_runner", False))

    def has(config: Any, name: str) -> Any:
        return getattr(config, name, None)

    checks = (
        (spec.method != "dflash", f"method {spec.method!r} drafts no positions in parallel: use method dflash"),
        (any(a != "DFlashDraftModel" for a in drafts), f"draft architecture {drafts} has its own head: use its chain"),
        (has(spec, "draft_sample_method") == "probabilistic", "probabilistic drafts: set draft_sample_method=greedy"),
        (
            spec.rejection_sample_method not in ("standard", "strict"),
            "the walk replaces rejection_sample_method: leave it at its default",
        ),
        (spec.use_local_argmax_reduction, "use_local_argmax_reduction yields no draft logits: switch it off"),
        (has(spec, "enable_adaptive_verification"), "adaptive verification changes draft counts: switch it off"),
        (parallel.pipeline_parallel_size > 1, "pipeline parallelism: use tensor parallelism"),
        (parallel.data_parallel_size > 1, "data parallelism: run one engine per replica behind a router"),
        (parallel.decode_context_parallel_size > 1, "decode context parallelism: set it to 1"),
        (parallel.prefill_context_parallel_size > 1, "prefill context parallelism: set it to 1"),
        (has(parallel, "enable_batch_sharded_sampling"), "batch-sharded sampling: switch it off"),
        (has(parallel, "enable_dbo"), "dual-batch overlap: switch it off"),
        (model.use_mla, "MLA attention: use the stock chain"),
        (model.is_hybrid or model.has_inner_state, "recurrent (hybrid) target: use the stock chain"),
        (model.uses_mrope, "M-RoPE positions: use the stock chain"),
        (model.get_sliding_window() is not None, "sliding-window target: use the stock chain"),
        (has(model, "uses_alibi"), "ALiBi target: use the stock chain"),
        (vllm_config.kv_transfer_config is not None, "a KV connector may save rows that are not committed: remove it"),
        (str(vllm_config.cache_config.cache_dtype).startswith("int4"), "INT4 KV cache: use fp8 or auto"),
        (has(vllm_config, "watermark_config") is not None, "watermarking: use the stock chain"),
        (has(model, "return_sampling_mask"), "sampling-mask output: use the stock chain"),
        (vllm_config.cache_config.kv_sharing_fast_prefill, "KV-sharing fast prefill: switch it off"),
        (
            getattr(vllm_config.compilation_config.cudagraph_mode, "name", "") == "FULL",
            "cudagraph_mode FULL captures mixed batches, too: use FULL_AND_PIECEWISE",
        ),
        (has(model, "disable_cascade_attn") is False, "cascade attention: leave disable_cascade_attn at its default"),
        (attention is not None and attention.name != "FLASH_ATTN", "trees need FLASH_ATTN: set attention_backend so"),
        (runner == "v2" and not use_v2, "vLLM picks its V1 runner here (it logs why): use what V2 supports"),
        (runner == "v1" and _v2_forced(), "this recipe is for the V1 model runner: unset VLLM_USE_V2_MODEL_RUNNER"),
        (runner == "v1" and not vllm_config.scheduler_config.async_scheduling, "asynchronous scheduling is off: on V1 "
         "the trees would be lost on the way through the scheduler: switch it on"),
        (runner == "v1" and bool(has(vllm_config, "lora_config")), "LoRA on V1 is untested: use the stock chain"),
    )  # fmt: skip
    return [line for refused, line in checks if refused]


def _v2_forced() -> bool:
    return os.environ.get("VLLM_USE_V2_MODEL_RUNNER", "0") not in ("", "0", "False", "false")


def install(vllm_config: Any, runner: str = "v2") -> None:
    """Hook of VllmConfig.__post_init__: K apart from N, the batch-size policy, the attention backend; off: nothing.

    Runs again on every copy of the configuration, so it changes nothing the second time (`horizon` is set by then).
    V1 knows no draft count per step: with more than `max_batch` possible requests the engine stays with its chain.

    Raises:
        ValueError: a bad option, or a configuration in which a tree would be wrong, one line per reason.
    """
    settings = read(vllm_config)
    if settings is None:
        return
    reasons = refusals(vllm_config, runner)
    if runner == "v1" and settings.budget > V1_MAX_BUDGET:
        reasons.append(f"the V1 sampler takes at most {V1_MAX_BUDGET} nodes: lower the budget")
    if not settings.horizon and (vllm_config.speculative_config.num_speculative_tokens or 0) > MAX_HORIZON:
        reasons.append(f"more than {MAX_HORIZON} draft tokens: lower num_speculative_tokens")
    if runner == "v1" and "mixed" in vllm_config.additional_config[KEY]:
        reasons.append("on V1, steps with prompts verify trees, too: leave mixed out")
    if reasons:
        raise ValueError("ddtree cannot run in this engine:\n" + "\n".join(f"  - {line}" for line in reasons))
    if settings.horizon:
        return
    max_requests = vllm_config.scheduler_config.max_num_seqs
    extra = dict(vllm_config.additional_config)
    if runner == "v1" and max_requests > settings.max_batch:
        del extra[KEY]
        vllm_config.additional_config = extra
        return
    spec = vllm_config.speculative_config
    settings = replace(settings, horizon=int(spec.num_speculative_tokens))
    vllm_config.additional_config = extra | {KEY: extra[KEY] | {HORIZON: settings.horizon}}
    tiers = settings.schedule(max_requests) if runner == "v2" else [(1, max_requests, settings.budget)]
    spec.num_speculative_tokens = max(tokens for _, _, tokens in tiers)
    if len(tiers) > 1:
        spec.num_speculative_tokens_per_batch_size = tiers
    if vllm_config.attention_config.backend is None:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        vllm_config.attention_config.backend = AttentionBackendEnum.FLASH_ATTN

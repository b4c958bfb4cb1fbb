"""Configurations that a tree would get wrong are refused before anything is loaded, each with one line.

Needs no GPU where vLLM can be imported without one.
"""

from __future__ import annotations

import json
import tempfile
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

from .arms import Arm, tree
from .part import Part, Setting, choose
from .pool import Engine, EngineFailed, Engines

SMALL: dict[str, Any] = {
    "hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8, "num_key_value_heads": 4,
    "num_hidden_layers": 6, "head_dim": 64, "vocab_size": 4096, "max_position_embeddings": 8192, "dtype": "bfloat16",
}  # fmt: skip
#: What is asked for -> arguments of the engine beside the tree's, a word of the line that refuses it.
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "pipeline parallelism": ({"pipeline_parallel_size": 2}, "pipeline"),
    "data parallelism": ({"data_parallel_size": 2}, "data parallelism"),
    "decode context parallelism": ({"tensor_parallel_size": 8, "decode_context_parallel_size": 2}, "decode context"),
    "prefill context parallelism": ({"prefill_context_parallel_size": 2}, "prefill context"),
    "KV connector": ({"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}}, "connector"),
    "batch-sharded sampling": ({"tensor_parallel_size": 2, "enable_batch_sharded_sampling": True}, "batch-sharded"),
    "adaptive verification": ({"speculative_config": {"enable_adaptive_verification": True}}, "adaptive"),
    "probabilistic drafts": ({"speculative_config": {"draft_sample_method": "probabilistic"}}, "probabilistic"),
    "local argmax": ({"speculative_config": {"use_local_argmax_reduction": True}}, "local_argmax"),
    "synthetic acceptance": (
        {"speculative_config": {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.0}},
        "rejection_sample_method",
    ),
    "INT4 KV cache": ({"kv_cache_dtype": "int4_per_token_head"}, "INT4"),
    "another attention backend": ({"attention_backend": "TRITON_ATTN"}, "FLASH_ATTN"),
    "graphs of mixed batches": ({"compilation_config": {"cudagraph_mode": "FULL"}}, "cudagraph_mode"),
    "an unknown option": ({"additional_config": {"ddtree": {"buget": 16}}}, "unknown option"),
    "a budget of 513": ({"additional_config": {"ddtree": {"budget": 513}}}, "1 to 512"),
}
#: Targets of other kinds, configurations alone -> a word of the line that refuses them.
TARGETS: dict[str, tuple[dict[str, Any], str]] = {
    "a sliding-window target": (
        SMALL | {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 1024},
        "sliding-window",
    ),
    "an M-RoPE target": (
        SMALL
        | {
            "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"],
            "rope_scaling": {"rope_type": "default", "mrope_section": [8, 12, 12]},
        },
        "M-RoPE",
    ),
    "an ALiBi target": (
        {"model_type": "bloom", "architectures": ["BloomForCausalLM"], "hidden_size": 512, "n_layer": 6, "n_head": 8},
        "ALiBi",
    ),
    "an MLA target": (SMALL | {"model_type": "deepseek_v2", "architectures": ["DeepseekV2ForCausalLM"]}, "MLA"),
    "a hybrid target": (SMALL | {"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"]}, "recurrent"),
}  # fmt: skip
V1_CASES: dict[str, tuple[dict[str, Any], str]] = {
    "synchronous scheduling": ({"async_scheduling": False}, "asynchronous scheduling"),
    "a budget of 128": ({"additional_config": {"ddtree": {"budget": 128}}}, "at most 127"),
}


def parts(options: Namespace, only: list[str]) -> dict[str, Part]:
    own = CASES | (V1_CASES if options.runner == "v1" else {})
    return {"": Part(lambda _: [], partial(run, choose([*own, *TARGETS], only), own))}


def run(chosen: list[str], own: dict[str, tuple[dict[str, Any], str]], given: Setting, engines: Engines) -> None:
    """Asks a process of its own, in which no engine runs."""
    cases = dict(own)
    folder = Path(tempfile.mkdtemp(prefix="targets-"))
    for name, (config, word) in TARGETS.items():
        model = folder / name.replace(" ", "-")
        model.mkdir()
        (model / "config.json").write_text(json.dumps(config))
        cases[name] = ({"model": str(model), "skip_tokenizer_init": True, "load_format": "dummy"}, word)
    arm = tree(16, "refusals", seqs=8)
    engine = Engine(arm, given.pair, given.places, start=False)
    with engine:
        plain = engine.ask("refusal", given.clock.need(30), arguments=arguments(arm, given, {}))
        given.report.bar("the plain tree is taken", 1 if not plain else None, plain[:300] or "taken", not plain)
        if plain:
            raise EngineFailed("what else is refused says nothing while the plain tree is")
        rows = []
        with given.in_time():
            for name in chosen:
                extra, word = cases[name]
                try:
                    said = engine.ask("refusal", given.clock.need(10), arguments=arguments(arm, given, extra))
                except EngineFailed as failed:
                    said = str(failed)
                lines = [line.strip() for line in said.splitlines() if word.lower() in line.lower()]
                ours = "ddtree" in said and bool(lines)
                rows.append(
                    [
                        name,
                        " ".join((lines or [said])[0].split())[:200] or "TAKEN",
                        "this recipe" if ours else "the engine itself" if said else "nobody",
                    ]
                )
                given.report.bar(name, int(ours), "refused with a line", bool(said))
    given.report.table("refused at the start", ["configuration", "line", "by"], rows)


def arguments(arm: Arm, given: Setting, extra: dict[str, Any]) -> dict[str, Any]:
    made = arm.arguments(given.pair)
    for name, value in extra.items():
        made[name] = made[name] | value if isinstance(made.get(name), dict) and name == "speculative_config" else value
    return made

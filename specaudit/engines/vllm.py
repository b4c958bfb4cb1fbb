"""vLLM's anchors, valid from 0.9.2 to 0.33.0 (names that a release does not have are simply not found in it)."""

from __future__ import annotations

from specaudit.engines.base import ConfigAnchor, Engine, GateAnchor, RunnerAnchor, WorkerAnchor

VLLM = Engine(
    name="vllm",
    package="vllm",
    files=(
        "vllm/config.py",
        "vllm/config/*.py",
        "vllm/envs.py",
        "vllm/engine/arg_utils.py",
        "vllm/_custom_ops.py",
        "vllm/platforms/*.py",
        "vllm/triton_utils/*.py",
        "vllm/utils/*.py",
        "vllm/utils.py",
        "vllm/spec_decode/*.py",
        "vllm/worker/*.py",
        "vllm/attention/*.py",
        "vllm/model_executor/layers/*sampler*.py",
        "vllm/model_executor/models/medusa.py",
        "vllm/model_executor/models/mlp_speculator.py",
        "vllm/v1/*.py",
        "vllm/specaudit_*.py",  # what recipes of `specaudit patch` install
    ),
    config=ConfigAnchor(
        cls="SpeculativeConfig",
        engine_cls="VllmConfig",
        paths=("vllm/config.py", "vllm/config/*.py"),
        objects={
            "speculative_config": "SpeculativeConfig",
            "vllm_config": "VllmConfig",
            "model_config": "ModelConfig",
            "draft_model_config": "ModelConfig",
        },
        renamed=(("ngram_prompt_lookup_max", "prompt_lookup_max"),),
        models=("model_config", "draft_model_config", "target_model_config", "hf_config", "hf_text_config"),
        named=("model", "draft_model_config", "target_model_config"),
        method_field="method",
        method_type="SpeculativeMethod",
        count_field="num_speculative_tokens",
        tree_field="speculative_token_tree",
        backend_field="attention_backend",
    ),
    runners=(
        RunnerAnchor(
            "v0",
            "vllm/spec_decode/spec_decode_worker.py",
            "SpecDecodeWorker",
            "sampler_output",
            ("execute_model", "generate_proposals"),
        ),
        RunnerAnchor("v1", "vllm/v1/worker/gpu_model_runner.py", "GPUModelRunner", "propose"),
        RunnerAnchor("v2", "vllm/v1/worker/gpu/model_runner.py", "GPUModelRunner", "propose"),
    ),
    workers=(WorkerAnchor("vllm/v1/worker/gpu_worker.py", "Worker"),),
    environment="envs",
    environment_path="vllm/envs.py",
    platform=("current_platform",),
    platform_default=("is_cuda", "is_cuda_alike", "supports_v1", "default_v1"),
    attention=("vllm/attention/*.py", "vllm/v1/attention/*.py", "vllm/specaudit_*.py"),
    backend_registries=(
        "vllm/platforms/cuda.py",
        "vllm/attention/backends/registry.py",
        "vllm/v1/attention/backends/registry.py",
    ),
    backend_setting=("AttentionConfig", "backend"),
    backend_flag="VLLM_ATTENTION_BACKEND",
    device_flags=("HAS_TRITON",),
    assumed=(("model_config.runner_type", "generate"),),
    gate=GateAnchor("vllm/engine/arg_utils.py", "EngineArgs", "_is_v1_supported_oracle", "VLLM_USE_V1", "v1", "v0"),
)

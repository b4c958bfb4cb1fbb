"""SGLang's anchors, valid from 0.5.9 to 0.5.23.

The scheduler keeps one worker that drafts and verifies; which class it is of is chosen by a method of the enumeration
of algorithms. Options are declared among the several hundred of the server and read all over the package, outside the
files named here, so nothing is said about which of them are honoured, and no path is drawn.
"""

from __future__ import annotations

from specaudit.engines.base import ConfigAnchor, Engine, RunnerAnchor

SGLANG = Engine(
    name="sglang",
    package="sglang",
    files=(
        "sglang/srt/speculative/*.py",
        "sglang/srt/managers/scheduler.py",
        "sglang/srt/managers/tp_worker.py",
        "sglang/srt/server_args.py",
        "sglang/srt/environ.py",
        "sglang/srt/layers/sampler.py",
        "sglang/srt/layers/attention/*_backend.py",
        "sglang/srt/layers/attention/triton_ops/*.py",
        "sglang/srt/layers/attention/wave_ops/*.py",
        "sglang/kernels/ops/speculative/*.py",
        "sglang/kernels/ops/attention/*attention*.py",
    ),
    config=ConfigAnchor(
        cls="ServerArgs",
        engine_cls="ServerArgs",
        paths=("sglang/srt/server_args.py", "sglang/srt/speculative/spec_info.py"),
        objects={"server_args": "ServerArgs", "cfg": "ServerArgs", "spec_algorithm": "SpeculativeAlgorithm"},
        method_field="speculative_algorithm",
        method_type="SpeculativeAlgorithm",
        count_field="speculative_num_draft_tokens",
        initialiser="_handle_speculative_decoding",
        backend_field="speculative_draft_attention_backend",
        named=("speculative_draft_model_path",),
        whole=False,
    ),
    runners=(
        RunnerAnchor(
            "scheduler",
            "sglang/srt/managers/scheduler.py",
            "Scheduler",
            "forward_batch_generation",
            keeps="draft_worker",
            verifies=True,
        ),
    ),
    workers=(),
    environment="envs",
    environment_path="sglang/srt/environ.py",
    platform=("current_platform",),
    platform_default=("is_cuda",),
    attention=(
        "sglang/srt/layers/attention/*_backend.py",
        "sglang/srt/layers/attention/triton_ops/*.py",
        "sglang/kernels/ops/attention/*attention*.py",
    ),
)

"""Configurations without weights: a target of Qwen3-8B's shape, a vocabulary of its size, and a drafter for either."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .arms import Pair

#: Qwen3-8B as its config.json states it.
QWEN3_8B = {
    "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
}  # fmt: skip
#: Few layers and the whole vocabulary: what the logits of many rows take.
WIDE = QWEN3_8B | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 4, "num_attention_heads": 16}
COMMON: dict[str, Any] = {
    "model_type": "qwen3", "rms_norm_eps": 1e-6, "max_position_embeddings": 40960, "rope_theta": 1e6,
    "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False, "dtype": "bfloat16",
    "bos_token_id": 151643, "eos_token_id": 151645, "pad_token_id": 151643,
}  # fmt: skip


def write(folder: Path, shape: dict[str, Any], block: int = 16, draft_layers: int = 5) -> Pair:
    """Both configurations below `folder`."""
    layers = shape["num_hidden_layers"]
    read = [max(0, round(1 + i * (layers - 4) / 4)) for i in range(5)] if layers >= 9 else list(range(layers - 1))
    target = COMMON | shape | {"architectures": ["Qwen3ForCausalLM"]}
    draft = (
        COMMON
        | shape
        | {
            "architectures": ["DFlashDraftModel"],
            "num_hidden_layers": draft_layers,
            "num_target_layers": layers,
            "block_size": block,
            "layer_types": ["full_attention"] * draft_layers,
            "dflash_config": {"mask_token_id": 151669, "target_layer_ids": read},
        }
    )
    for name, config in (("target", target), ("draft", draft)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(config, indent=1))
    return Pair(str(folder / "target"), str(folder / "draft"), dummy=True)

"""A DFlash drafter (arXiv:2602.06036) in plain torch, one request at a time.

The drafter reads what the target computed, the hidden states of a few of its layers at every accepted token, as keys
and values. Its queries are one block: the last token and K mask tokens after it. One pass, not causal within the block,
gives a distribution for each of the K next positions. It has no vocabulary of its own: embedding and output head are
the target's.

Parameters are named as in a checkpoint. safetensors is imported where a checkpoint is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Context = list[tuple[Tensor, Tensor]]
"""Keys and values of the accepted tokens in each drafter layer: [Hkv, S, D]."""


@dataclass(frozen=True, slots=True)
class DFlashConfig:
    """What a DFlash checkpoint's config.json says, in its names."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    block_size: int
    """1 + K: the last token and the positions drafted at once."""
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6

    @staticmethod
    def load(path: Path) -> DFlashConfig:
        """Reads config.json of a checkpoint folder. Raises ValueError for a drafter that this file does not model."""
        stored = json.loads((path / "config.json").read_text())
        rope = stored.get("rope_parameters") or stored.get("rope_scaling") or {}
        layers = set(stored.get("layer_types") or ["full_attention"])
        if (
            rope.get("rope_type", "default") != "default"
            or stored.get("attention_bias")
            or layers != {"full_attention"}
        ):
            raise ValueError(f"{path}: only plain rotary positions, full attention and no attention bias are supported")
        fields = {name: stored[name] for name in DFlashConfig.__slots__ if name in stored}
        fields["rope_theta"] = stored.get("rope_theta") or rope.get("rope_theta") or 1e6
        dflash = stored["dflash_config"]
        fields["target_layer_ids"] = tuple(dflash["target_layer_ids"])
        fields["mask_token_id"] = dflash["mask_token_id"]
        return DFlashConfig(**fields)


class DFlashDrafter(nn.Module):
    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.config = config
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(len(config.target_layer_ids) * hidden, hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(hidden, eps)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(hidden, eps)

    @staticmethod
    def load(path: Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> DFlashDrafter:
        from safetensors.torch import load_file

        drafter = DFlashDrafter(DFlashConfig.load(path))
        weights: dict[str, Tensor] = {}
        for file in sorted(path.glob("*.safetensors")):
            weights |= load_file(file)
        drafter.load_state_dict(weights)
        return drafter.to(device, dtype).eval()

    def empty_context(self) -> Context:
        weight = self.fc.weight
        empty = weight.new_empty(self.config.num_key_value_heads, 0, self.config.head_dim)
        return [(empty, empty) for _ in self.layers]

    def extend(self, context: Context, features: Tensor) -> Context:
        """The context with more accepted tokens: features [S, len(target_layer_ids) * hidden] of the target."""
        start = context[0][0].shape[1]
        positions = torch.arange(start, start + len(features), device=features.device)
        accepted = self.hidden_norm(self.fc(features))  # [S, hidden]
        longer = []
        for layer, (key, value) in self._with_context(context):
            new_key, new_value = layer.self_attn.key_value(accepted, positions)
            longer.append((torch.cat([key, new_key], 1), torch.cat([value, new_value], 1)))
        return longer

    def forward(self, block: Tensor, context: Context) -> Tensor:
        """block [1 + K, hidden]: embeddings of the last token and the masks -> [1 + K, hidden] for the output head."""
        start = context[0][0].shape[1]
        positions = torch.arange(start, start + len(block), device=block.device)
        x = block
        for layer, (key, value) in self._with_context(context):
            x = layer(x, positions, key, value)
        return cast(Tensor, self.norm(x))

    def _with_context(self, context: Context) -> Iterator[tuple[_Layer, tuple[Tensor, Tensor]]]:
        return zip(cast("Iterator[_Layer]", iter(self.layers)), context, strict=True)


class _Layer(nn.Module):
    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.mlp = _MLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, positions: Tensor, key: Tensor, value: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), positions, key, value)
        return cast(Tensor, x + self.mlp(self.post_attention_layernorm(x)))


class _Attention(nn.Module):
    """Queries from the block; keys and values from the context and the block. No mask: every position sees all."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        hidden, size = config.hidden_size, config.head_dim
        self.size, self.theta = size, config.rope_theta
        self.q_proj = nn.Linear(hidden, config.num_attention_heads * size, bias=False)
        self.k_proj = nn.Linear(hidden, config.num_key_value_heads * size, bias=False)
        self.v_proj = nn.Linear(hidden, config.num_key_value_heads * size, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * size, hidden, bias=False)
        self.q_norm = nn.RMSNorm(size, config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(size, config.rms_norm_eps)

    def key_value(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """x [S, hidden] -> two of [Hkv, S, D]."""
        key = self.k_norm(self._heads(self.k_proj(x)))
        return _rotate(key, positions, self.theta), self._heads(self.v_proj(x))

    def forward(self, x: Tensor, positions: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query = _rotate(self.q_norm(self._heads(self.q_proj(x))), positions, self.theta)
        own_key, own_value = self.key_value(x, positions)
        key, value = torch.cat([key, own_key], 1), torch.cat([value, own_value], 1)
        out = F.scaled_dot_product_attention(query[None], key[None], value[None], enable_gqa=True)[0]
        return cast(Tensor, self.o_proj(out.transpose(0, 1).flatten(1)))

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1, self.size).transpose(0, 1)  # [heads, S, D]


class _MLP(nn.Module):
    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x)))


def _rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary positions, halves convention: x [heads, S, D], positions [S]."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = positions[:, None].float() * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)

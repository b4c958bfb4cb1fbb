"""Trains a small target and a DFlash drafter for it on Python source found on this machine. Travels alone to the host.

Nothing is downloaded: a byte-level tokenizer is made from the files, a Qwen3-architecture model (23M parameters) learns
them, writes continuations of them, and a block drafter (arXiv:2602.06036) learns to foresee those. Both are written in
Hugging Face layout, as vLLM loads them, with prompts from files that neither has seen. Needs torch, tokenizers and
safetensors, which come with vLLM.

    python train.py FOLDER [--minutes 3.5] [--corpus DIR …] [--device cuda]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PAD, BOS, EOS, MASK = 0, 1, 2, 3
SPECIAL = ["<pad>", "<bos>", "<eos>", "<mask>"]


@dataclass(frozen=True)
class Shape:
    """Sizes of both models; ``block`` is the drafter's last token and the positions that it drafts at once."""

    hidden: int = 512
    inner: int = 1536
    heads: int = 8
    kv_heads: int = 4
    head: int = 64
    vocabulary: int = 4096
    layers: int = 6
    draft_layers: int = 2
    block: int = 16
    context: int = 512
    theta: float = 1e6
    eps: float = 1e-6

    @property
    def taps(self) -> list[int]:
        """Layers whose outputs the drafter reads."""
        return sorted({0, (self.layers - 1) // 2, self.layers - 2})


# --- models ---------------------------------------------------------------------------------------------------------


class Norm(nn.Module):
    """RMSNorm in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), self.eps).to(x.dtype)


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary positions by halves: x [B, heads, T, D], positions [B, T]."""
    half = x.shape[-1] // 2
    speed = theta ** (-torch.arange(half, device=x.device) / half)
    angle = positions[:, None, :, None].float() * speed
    low, high = x.float().chunk(2, -1)
    turned = torch.cat([low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()], -1)
    return turned.to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with normalised queries and keys; keys may come from elsewhere too."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head, shape.hidden, bias=False)
        self.q_norm, self.k_norm = Norm(shape.head, shape.eps), Norm(shape.head, shape.eps)

    def keys(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[B, T, hidden] -> two of [B, kv heads, T, D]."""
        key = rotate(self.k_norm(self._split(self.k_proj(x))), positions, self.shape.theta)
        return key, self._split(self.v_proj(x))

    def forward(self, x: Tensor, positions: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Mask [.., T, keys] of what each query sees; ``None``: causal."""
        query = rotate(self.q_norm(self._split(self.q_proj(x))), positions, self.shape.theta)
        groups = self.shape.heads // self.shape.kv_heads
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None)
        result: Tensor = self.o_proj(seen.transpose(1, 2).flatten(2))
        return result

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.shape.head).transpose(1, 2)


class Mlp(nn.Module):
    """Gated."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


class Layer(nn.Module):
    """Pre-norm transformer layer. ``extra`` are keys and values in front of the layer's own."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(shape), Mlp(shape)
        self.input_layernorm = Norm(shape.hidden, shape.eps)
        self.post_attention_layernorm = Norm(shape.hidden, shape.eps)

    def forward(
        self, x: Tensor, positions: Tensor, extra: tuple[Tensor, Tensor] | None = None, mask: Tensor | None = None
    ) -> Tensor:
        normed = self.input_layernorm(x)
        key, value = self.self_attn.keys(normed, positions)
        if extra is not None:
            key, value = torch.cat([extra[0], key], 2), torch.cat([extra[1], value], 2)
        x = x + self.self_attn(normed, positions, key, value, mask)
        result: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return result


class Body(nn.Module):
    """Embedding, layers and last norm of the target."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.eps)


class Target(nn.Module):
    """Qwen3 architecture; parameters are named as in a checkpoint (below ``model.``, and ``lm_head``)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Body(shape)
        self.lm_head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        initialise(self, shape.layers)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """ids [B, T] -> logits [B, T, V], and the tapped layers' outputs [B, T, taps x hidden]."""
        positions = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape[0], -1)
        x, tapped = self.model.embed_tokens(ids), []
        for number, layer in enumerate(self.model.layers):
            x = layer(x, positions)
            if number in self.shape.taps:
                tapped.append(x)
        return self.lm_head(self.model.norm(x)), torch.cat(tapped, -1)

    @torch.no_grad()
    def continued(self, ids: Tensor, length: int, temperature: float) -> Tensor:
        """ids [B, T] continued to [B, length], with keys and values kept."""
        batch, start = ids.shape
        kept: list[tuple[Tensor, Tensor] | None] = [None] * len(self.model.layers)
        new, done = ids, ids
        for end in range(start, length):
            positions = torch.arange(end - new.shape[1], end, device=ids.device).expand(batch, -1)
            x = self.model.embed_tokens(new)
            for number, layer in enumerate(self.model.layers):
                assert isinstance(layer, Layer)
                key, value = layer.self_attn.keys(layer.input_layernorm(x), positions)
                extra = kept[number]
                mask = None if new.shape[1] > 1 else torch.ones(1, end, dtype=torch.bool, device=ids.device)
                x = layer(x, positions, extra, mask)
                kept[number] = (
                    (key, value) if extra is None else (torch.cat([extra[0], key], 2), torch.cat([extra[1], value], 2))
                )
            logits = self.lm_head(self.model.norm(x[:, -1])).float()
            if temperature:
                new = torch.multinomial(torch.softmax(logits / temperature, -1), 1)
            else:
                new = logits.argmax(-1, keepdim=True)
            done = torch.cat([done, new], 1)
        return done


class Drafter(nn.Module):
    """DFlash: a block of one token and masks, over keys and values made from the target's tapped layers."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.fc = nn.Linear(len(shape.taps) * shape.hidden, shape.hidden, bias=False)
        self.hidden_norm = Norm(shape.hidden, shape.eps)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.draft_layers))
        self.norm = Norm(shape.hidden, shape.eps)
        initialise(self, shape.draft_layers)

    def forward(self, blocks: Tensor, positions: Tensor, tapped: Tensor, mask: Tensor) -> Tensor:
        """blocks [B, Q, hidden] at positions [B, Q], tapped [B, T, taps x hidden], mask [B, 1, Q, T + Q]."""
        context = self.hidden_norm(self.fc(tapped))
        places = torch.arange(context.shape[1], device=context.device).expand(context.shape[0], -1)
        for layer in self.layers:
            assert isinstance(layer, Layer)
            blocks = layer(blocks, positions, layer.self_attn.keys(context, places), mask)
        return self.norm(blocks)  # type: ignore[no-any-return]


def initialise(model: nn.Module, layers: int) -> None:
    """Small normal weights, smaller where a residual branch ends."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            ends = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * layers) if ends else 1))


# --- training -------------------------------------------------------------------------------------------------------


class Clock:
    """Learning rate over a time budget: warm-up, then a cosine down to a twentieth."""

    def __init__(self, seconds: float, peak: float) -> None:
        self.start, self.seconds, self.peak = time.monotonic(), seconds, peak

    def done(self) -> float:
        """Which part of the budget is spent."""
        return (time.monotonic() - self.start) / self.seconds

    def rate(self) -> float:
        """The learning rate now."""
        part = min(1.0, self.done())
        return self.peak * min(1.0, part / 0.03) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * part)))


def autocast(device: torch.device) -> torch.autocast:
    """bfloat16 on a GPU; a processor is faster in float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def train(model: nn.Module, clock: Clock, loss_of: object, name: str) -> None:
    """Steps of AdamW until the time is up."""
    fused = next(model.parameters()).is_cuda
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.03, fused=fused)
    step, told = 0, time.monotonic()
    while step == 0 or clock.done() < 1:
        for group in optimizer.param_groups:
            group["lr"] = clock.rate()
        loss, more = loss_of()  # type: ignore[operator]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if time.monotonic() - told > 10 or clock.done() >= 1:
            print(f"{name}: step {step}, {100 * clock.done():.0f} %, loss {loss.item():.3f}{more()}", flush=True)
            told = time.monotonic()


def train_target(model: Target, stream: Tensor, seconds: float, batch: int) -> None:
    """Next-token prediction on windows of the token stream [N]."""
    length = model.shape.context
    offsets = torch.arange(length + 1, device=stream.device)

    def loss_of() -> tuple[Tensor, object]:
        starts = torch.randint(0, len(stream) - length - 1, (batch,), device=stream.device)
        window = stream[starts[:, None] + offsets].long()
        with autocast(stream.device):
            logits, _ = model(window[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten()), lambda: ""

    train(model, Clock(seconds, 2e-3), loss_of, "target")


def continuations(model: Target, stream: Tensor, seconds: float, batch: int) -> Tensor:
    """What the target itself writes after pieces of the stream: [N, context] tokens. It drafts for no other text."""
    start, length = time.monotonic(), model.shape.context
    made: list[Tensor] = []
    with autocast(stream.device):
        while not made or time.monotonic() - start < seconds:
            prompt = random.randint(length // 16, length // 4)
            starts = torch.randint(0, len(stream) - prompt, (batch,), device=stream.device)
            ids = stream[starts[:, None] + torch.arange(prompt, device=stream.device)].long()
            made.append(model.continued(ids, length, temperature=random.choice((0.0, 0.7, 0.7))))
            print(f"continuations: {sum(map(len, made))} x {length} tokens", flush=True)
    return torch.cat(made)


def train_drafter(drafter: Drafter, target: Target, texts: Tensor, seconds: float, batch: int, anchors: int) -> None:
    """Blocks at random anchors: the token there and masks must foresee the tokens after it; near ones count more."""
    shape, device = target.shape, texts.device
    block, length = shape.block, texts.shape[1]
    weight = torch.exp(-torch.arange(block - 1, device=device) / 7.0)
    owner = torch.arange(anchors * block, device=device) // block
    own = (owner[:, None] == owner)[None]  # a block sees itself, in both directions

    def loss_of() -> tuple[Tensor, object]:
        text = texts[torch.randint(0, len(texts), (batch,), device=device)]
        anchor = torch.randint(length // 16, length - block, (batch, anchors), device=device)
        positions = (anchor[..., None] + torch.arange(block, device=device)).flatten(1)
        tokens = torch.full((batch, anchors, block), MASK, device=device)
        tokens[..., 0] = text.gather(1, anchor)
        before = torch.arange(length, device=device) < anchor.repeat_interleave(block, 1)[..., None]
        mask = torch.cat([before, own.expand(batch, -1, -1)], -1)[:, None]
        with autocast(device):
            with torch.no_grad():
                _, tapped = target(text)
                embedded = target.model.embed_tokens(tokens.flatten(1))
            hidden = drafter(embedded, positions, tapped, mask)
            logits = target.lm_head(hidden.view(batch, anchors, block, -1)[:, :, 1:])
        label = text.gather(1, positions).view(batch, anchors, block)[..., 1:]
        each = F.cross_entropy(logits.float().flatten(0, 2), label.flatten(), reduction="none").view(label.shape)
        right = (logits.detach().argmax(-1) == label).float()
        return (each * weight).sum(-1).mean() / weight.sum(), lambda: f", acceptance length {length_of(right):.2f}"

    train(drafter, Clock(seconds, 1.5e-3), loss_of, "drafter")


def length_of(right: Tensor) -> float:
    """Mean acceptance length, bonus included, of drafts [.., K] that are right (1) or wrong (0)."""
    return 1 + right.cumprod(-1).sum(-1).mean().item()


# --- text and files -------------------------------------------------------------------------------------------------


def corpus(folders: list[str], megabytes: float) -> list[str]:
    """Python files below some folders, in a fixed random order, tests and giants left out."""
    files = sorted({path for folder in folders for path in Path(folder).rglob("*.py") if "test" not in path.parts[-1]})
    random.Random(0).shuffle(files)
    texts, size = [], 0
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if 500 < len(text) < 200_000:
            texts.append(text)
            size += len(text)
        if size > megabytes * 1e6:
            break
    return texts


def write(folder: Path, config: dict[str, object], model: nn.Module) -> None:
    """A checkpoint in Hugging Face layout, bfloat16."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    weights = {name: p.detach().to("cpu", torch.bfloat16).contiguous() for name, p in model.state_dict().items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def configuration(shape: Shape, **more: object) -> dict[str, object]:
    """What both configurations say."""
    return {
        "model_type": "qwen3",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head,
        "vocab_size": shape.vocabulary,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.theta,
        "max_position_embeddings": 8192,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        **more,
    }


def tokenizer_of(texts: list[str], shape: Shape, folder: Path) -> object:
    """A byte-level BPE tokenizer of these texts, written for Hugging Face."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=shape.vocabulary, special_tokens=SPECIAL, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts[:1500], trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192}
    special = {"pad_token": SPECIAL[PAD], "bos_token": SPECIAL[BOS], "eos_token": SPECIAL[EOS]}
    (folder / "tokenizer_config.json").write_text(json.dumps({**named, **special}))
    return tokenizer


def make_pair(
    folder: Path, folders: list[str], minutes: float, device: str, shape: Shape, batch: int, megabytes: float = 60
) -> None:
    """Writes ``folder/target``, ``folder/draft`` and ``folder/prompts.json``; the last file says that all is there."""
    torch.manual_seed(0)
    random.seed(0)
    texts = corpus(folders, megabytes)
    if len(texts) < 40:
        sys.exit(f"Too few Python files lie below {', '.join(folders)} ({len(texts)}): name a folder with --corpus.")
    held_out, texts = texts[: len(texts) // 20][:64], texts[len(texts) // 20 :]
    tokenizer = tokenizer_of(texts, shape, folder / "target")
    encoded = tokenizer.encode_batch(texts)  # type: ignore[attr-defined]
    stream = torch.tensor([token for e in encoded for token in (BOS, *e.ids, EOS)], dtype=torch.int32, device=device)
    print(f"{len(texts)} files, {len(stream) / 1e6:.1f}M tokens", flush=True)
    seconds = 60 * minutes
    target = Target(shape).to(device)
    train_target(target, stream, 0.5 * seconds, batch)
    target.requires_grad_(False)
    written = continuations(target, stream, 0.12 * seconds, 4 * batch)
    drafter = Drafter(shape).to(device)
    train_drafter(drafter, target, written, 0.38 * seconds, max(1, batch // 2), anchors=12)
    plain = configuration(shape, architectures=["Qwen3ForCausalLM"], num_hidden_layers=shape.layers)
    write(folder / "target", plain, target)
    dflash = {"mask_token_id": MASK, "target_layer_ids": shape.taps}
    drafting = configuration(
        shape,
        architectures=["DFlashDraftModel"],
        num_hidden_layers=shape.draft_layers,
        num_target_layers=shape.layers,
        block_size=shape.block,
        layer_types=["full_attention"] * shape.draft_layers,
        dflash_config=dflash,
    )
    write(folder / "draft", drafting, drafter)
    prompts = [tokenizer.encode(text).ids[:64] for text in held_out]  # type: ignore[attr-defined]
    (folder / "prompts.json").write_text(json.dumps(prompts))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=3.5)
    parser.add_argument("--corpus", nargs="*", default=[])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():  # a processor would take hours, and all its memory
        sys.exit("no GPU: torch finds no CUDA device here; run this on a GPU host, or look at CUDA_VISIBLE_DEVICES")
    folders = options.corpus or [
        p for p in dict.fromkeys([*sys.path, os.path.dirname(os.__file__)]) if os.path.isdir(p)
    ]
    torch.set_float32_matmul_precision("high")
    make_pair(options.folder, folders, options.minutes, options.device, Shape(), options.batch)


if __name__ == "__main__":
    main()

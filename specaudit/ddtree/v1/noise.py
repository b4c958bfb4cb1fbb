# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Exponential noise to sample a tree's rows with: by request and *depth*, since of siblings one at most is visited.

A seeded request's noise is a function of its seed and the position, so its tokens depend neither on the order of a
tree's nodes nor on where its steps end, both of which a rounding in the drafter may change. The engine's own sampler
draws the tokens of steps without drafts; a request without any in a step of trees gets what it would get there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launch import cdiv, relaunched

BLOCK = 1024


@relaunched
@triton.jit(do_not_specialize=["root", "seed_low", "seed_high"])
def _noise_kernel(Noise, Positions, root, seed_low, seed_high, vocabulary, BLOCK: tl.constexpr):
    seed = seed_low.to(tl.uint64) | (seed_high.to(tl.uint64) << 31)  # one variant for all seeds
    depth = tl.program_id(0)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    zero = token * 0
    position = tl.load(Positions + root).to(tl.int32) + depth
    bits, _, _, _ = tl.philox(seed, token, zero + position, zero, zero)
    noise = -tl.log(tl.maximum(tl.uint_to_uniform_float(bits), 1e-10))
    tl.store(Noise + depth.to(tl.int64) * vocabulary + token, noise, mask=token < vocabulary)


def noise_of(
    logits: Tensor, counts: list[int], depth: int, positions: Tensor, generators: dict[int, torch.Generator]
) -> Tensor:
    """[B, 1 + depth, V] float32 of mean 1.

    Args:
        logits: [rows, V]; counts: rows of each request, its root first; positions: [rows] int64, of every row.
        generators: by request, of those that have a seed.
    """
    vocabulary = logits.shape[-1]
    noise = torch.empty(len(counts), 1 + depth, vocabulary, device=logits.device).exponential_()
    root = 0
    for request, count in enumerate(counts):
        generator = generators.get(request)
        if generator is not None and count == 1:
            noise[request, 0].exponential_(generator=generator)
        elif generator is not None:
            grid = (1 + depth, cdiv(vocabulary, BLOCK))
            low, high = (generator.initial_seed() >> shift & 0x7FFFFFFF for shift in (0, 31))
            _noise_kernel[grid](noise[request], positions, root, low, high, vocabulary, BLOCK=BLOCK)
        root += count
    return noise

"""The tree walk in the V1 rejection sampler's place.

The target's token at every row is its argmax or a sample of its processed distribution there; a batch whose requests
are all greedy needs no fp32 copy of the logits. Batches without trees take the engine's own sampler, untouched.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.rejection_sampler import GREEDY_TEMPERATURE, RejectionSampler, apply_sampling_constraints

from ..engine.order import path_rows
from ..kernels import greedy_walk, walk
from ..layout import Walk
from .minimum import Minimum, Minimums, idle, mask_stops
from .noise import noise_of
from .proposer import DDTreeProposer


def _row_by_row(sampling: Any, request: Tensor) -> tuple[Tensor, Any]:
    """Every row as a request of its own, in the terms of apply_sampling_constraints: its kernel gives a request 128
    rows at most, and a tree of 128 nodes has one more."""
    each = copy.copy(sampling)
    for name in ("temperature", "top_k", "top_p"):
        given = getattr(sampling, name)
        setattr(each, name, None if given is None else given[request])
    return torch.arange(1, len(request) + 1, dtype=torch.int32, device=request.device), each


class TreeRejectionSampler(RejectionSampler):
    """The engine's rejection sampler with a tree walk for batches that hold trees."""

    def __init__(self, sampler: Any, spec_config: Any, device: torch.device, proposer: DDTreeProposer) -> None:
        super().__init__(sampler, spec_config, device)
        self.proposer = proposer
        self._minimums = Minimums(device)
        self._every_row = False  # whether processors are asked for the last row of a request, too

    def forward(self, metadata: Any, draft_probs: Tensor | None, logits: Tensor, sampling_metadata: Any) -> Any:
        """logits [rows of all requests, V], a request's root first -> tokens [B, 1 + D] int32, -1 behind the last."""
        state = self.proposer.tree
        if state.step is None or not state.step.tree:
            return super().forward(metadata, draft_probs, logits, sampling_metadata)
        requests = len(metadata.num_draft_tokens)
        row_starts = torch.nn.functional.pad(metadata.cu_num_sampled_tokens, (1, 0))
        tokens = self.proposer.runner.input_ids.gpu[metadata.logits_indices]
        emitted = torch.empty(requests, 1 + state.batch.max_depth, dtype=torch.int32, device=logits.device)
        out = replace(state.walk, emitted=emitted)  # the runner reads it after the next step began
        processed, pending = logits, self._pending(requests)
        if not pending and self._is_plain(sampling_metadata):
            greedy_walk(logits, tokens, state.batch, row_starts, out)
        else:
            processed, target = self._target_tokens(metadata, logits, sampling_metadata, pending)
            walk(target, tokens, state.batch, row_starts, out)
        logprobs = None
        if sampling_metadata.max_num_logprobs is not None:
            source = processed if self.is_processed_logprobs_mode else logits
            logprobs = self._path_logprobs(source, out, row_starts, sampling_metadata.max_num_logprobs)
        return SamplerOutput(sampled_token_ids=out.emitted, logprobs_tensors=logprobs)

    def _pending(self, requests: int) -> list[tuple[int, Minimum]]:
        runner = self.proposer.runner
        batch, in_flight = runner.input_batch, 2 * self.proposer.tree.rows
        return self._minimums.pending(
            batch.req_ids[:requests], runner.requests, batch.num_prompt_tokens, batch.num_computed_tokens_cpu, in_flight
        )

    def _target_tokens(
        self, metadata: Any, logits: Tensor, sampling: Any, pending: list[tuple[int, Minimum]]
    ) -> tuple[Tensor, Tensor]:
        """The logits that were sampled from, and the target's token at every row [rows]."""
        rows = replace(  # every row is a target row: as many "drafts" as rows
            metadata,
            num_draft_tokens=[n + 1 for n in metadata.num_draft_tokens],
            cu_num_draft_tokens=metadata.cu_num_sampled_tokens,
        )
        self._every_row = True
        processed = self.apply_logits_processors(logits.to(torch.float32, copy=True), sampling, rows)
        self._every_row = False
        if pending:
            positions = self.proposer.runner.positions[metadata.logits_indices]
            mask_stops(processed, positions, rows.num_draft_tokens, pending)
        greedy = processed.argmax(-1).int()
        if sampling.all_greedy:
            return processed, greedy
        ends = metadata.cu_num_sampled_tokens.long()
        lengths = torch.diff(ends, prepend=ends.new_zeros(1))
        request = torch.arange(len(ends), device=ends.device).repeat_interleave(lengths, output_size=len(processed))
        processed = apply_sampling_constraints(processed, *_row_by_row(sampling, request))
        positions = self.proposer.runner.positions[metadata.logits_indices]
        deepest = self.proposer.tree.batch.max_depth
        # drafts behind a request without any are no tree: their rows are deeper, and only the root is used
        depths = (positions - positions[ends - lengths][request]).clamp(max=deepest)
        noise = noise_of(processed, rows.num_draft_tokens, deepest, positions, sampling.generators)
        sampled = processed.softmax(-1).div_(noise[request, depths]).argmax(-1).int()
        is_greedy = (sampling.temperature == GREEDY_TEMPERATURE)[request]
        return processed, torch.where(is_greedy, greedy, sampled)

    @staticmethod
    def _is_plain(sampling: Any) -> bool:
        unprocessed = sampling.no_penalties and not sampling.bad_words_token_ids
        unprocessed = unprocessed and sampling.allowed_token_ids_mask is None
        return bool(sampling.all_greedy and unprocessed and all(map(idle, sampling.logitsprocs.non_argmax_invariant)))

    def _combine_outputs_with_spec_tokens(
        self, output_token_ids: list[list[int]], spec_token_ids: list[list[int]] | None = None
    ) -> list[list[int]]:
        """The tokens before every row; the parent leaves out each request's last row."""
        if not self._every_row or spec_token_ids is None:
            return super()._combine_outputs_with_spec_tokens(output_token_ids, spec_token_ids)
        pairs = zip(output_token_ids, spec_token_ids, strict=False)
        return [[*out, *spec[:n]] for out, spec in pairs for n in range(len(spec) + 1)]

    def _path_logprobs(self, logits: Tensor, out: Walk, row_starts: Tensor, count: int) -> Any:
        """Log-probabilities of the emitted tokens [B * (1 + D)], from a request's rows in path order."""
        width = out.emitted.shape[1]
        order = path_rows(out.accepted[: row_starts.shape[0] - 1], row_starts, logits.shape[0])
        places = (row_starts[:-1, None] + torch.arange(width, device=logits.device)).clamp(max=logits.shape[0] - 1)
        chosen = logits[order[places.flatten()]].float()
        if not self.is_logits_logprobs_mode:
            chosen = self.sampler.compute_logprobs(chosen)
        return self.sampler.gather_logprobs(chosen, count, out.emitted.flatten().clamp(min=0).long())

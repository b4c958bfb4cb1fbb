"""The tree walk in the rejection sampler's place.

For every row of a tree the target's token is drawn from the processed target distribution at that row (argmax at
temperature 0), with the noise of the row's *depth* position: one node per depth is visited and no position is used
twice, so with a fixed seed the emitted tokens are those of decoding without speculation. Trees that are read as chains
are drawn and walked the same way; where nothing is drawn, and for batches without trees, the engine's own sampler is at
work, untouched.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.worker.gpu.input_batch import get_num_sampled_and_rejected
from vllm.v1.worker.gpu.metrics.logits import get_num_nans
from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.sample.states import NO_LOGPROBS
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler, get_max_chunk_logits

from ..engine.order import path_rows
from ..engine.state import TreeState
from ..kernels import greedy_walk, linear_walk, walk
from ..layout import Tree, Walk


def with_logits(input_batch: Any, count: int) -> tuple[Tensor, Tensor]:
    """Token ids and positions of the rows that have logits, `count` of them: all rows, in a batch of nothing but trees,
    and nothing need be gathered then."""
    rows = slice(count) if count == input_batch.num_tokens else input_batch.logits_indices
    return input_batch.input_ids[rows], input_batch.positions[rows]


class TreeRejectionSampler(RejectionSampler):
    """The engine's rejection sampler with a tree walk for batches that hold trees."""

    def __init__(self, *args: Any, state: TreeState, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.state = state
        self._first = 0  # batch row of the chunk in work

    def __call__(
        self, logits: Tensor, input_batch: Any, draft_logits: Tensor | None = None, invalid_drafts: Tensor | None = None
    ) -> SamplerOutput:
        """logits [num_logits, V] -> tokens [B, 1 + D] with counts, as the engine's sampler returns them."""
        step = self.state.step
        self._first = 0
        if step is None or not step.tree:
            return super().__call__(logits, input_batch, draft_logits, invalid_drafts)
        num_nans = get_num_nans(logits) if self.sampler.compute_nans else None
        tokens, positions = with_logits(input_batch, logits.shape[0])
        checked = tokens if invalid_drafts is None else tokens.masked_fill(invalid_drafts, -1)
        max_logprobs = self.sampler.sampling_states.max_num_logprobs(input_batch.idx_mapping_np)
        limit = get_max_chunk_logits(logits.shape[1])
        sampled, num_sampled, logprobs, masks = self._verify_in_chunks(
            logits, input_batch, None, tokens, positions, limit, max_logprobs, checked
        )
        num_sampled, num_rejected = get_num_sampled_and_rejected(
            num_sampled,
            input_batch.seq_lens,
            input_batch.cu_num_logits,
            input_batch.idx_mapping,
            self.sampler.req_states.prefill_len.gpu,
        )
        return SamplerOutput(
            sampled_token_ids=sampled,
            logprobs_tensors=logprobs,
            num_nans=num_nans,
            num_sampled=num_sampled,
            num_rejected=num_rejected,
            sampling_mask_tensors=masks,
        )

    def _verify(
        self,
        logits: Tensor,
        draft_logits: Tensor | None,
        draft_sampled: Tensor,
        pos: Tensor,
        cu_num_logits: Tensor,
        idx_mapping: Tensor,
        idx_mapping_np: Any,
        expanded_idx_mapping: Tensor,
        expanded_local_pos: Tensor,
        seq_lens_upper_bound_np: Any,
        verify_draft_sampled: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        step, states = self.state.step, self.sampler.sampling_states
        ours = step is not None and (step.tree or step.as_chains)
        draws = ours and bool(states.temperature.np[idx_mapping_np].any())
        if step is None or not (step.tree or draws):
            return super()._verify(
                logits,
                draft_logits,
                draft_sampled,
                pos,
                cu_num_logits,
                idx_mapping,
                idx_mapping_np,
                expanded_idx_mapping,
                expanded_local_pos,
                seq_lens_upper_bound_np,
                verify_draft_sampled,
            )
        processed = self.sampler.apply_sampling_params(
            logits,
            expanded_idx_mapping,
            idx_mapping,
            idx_mapping_np,
            pos,
            draft_sampled,
            expanded_local_pos,
            seq_lens_upper_bound_np,
        )
        first, requests = self._first, idx_mapping.shape[0]
        self._first += requests
        out = self._output(first, requests)
        if processed is logits and not draws:  # greedy, and nothing to process
            greedy_walk(logits, verify_draft_sampled, self._trees(first), cu_num_logits, out)
            return processed, out.emitted, out.num_emitted
        target = gumbel_sample(
            processed,
            expanded_idx_mapping,
            states.temperature.gpu,
            states.seeds.gpu,
            pos,
            apply_temperature=False,
            is_drafting=False,
            use_fp64=self.sampler.use_fp64_gumbel,
        )
        if step.tree:
            walk(target, verify_draft_sampled, self._trees(first), cu_num_logits, out)
        else:
            linear_walk(target, verify_draft_sampled, cu_num_logits, out.accepted.shape[1], out=out)
        return processed, out.emitted, out.num_emitted

    def _get_logprobs_tensors(
        self,
        sampled: Tensor,
        num_sampled: Tensor,
        logits: Tensor,
        cu_num_logits: Tensor,
        cu_num_logits_np: Any,
        max_num_logprobs: int,
    ) -> Any:
        """The engine pairs a request's i-th token with its i-th row: give it the rows in path order."""
        step = self.state.step
        if step is not None and step.tree and max_num_logprobs != NO_LOGPROBS:
            requests = cu_num_logits.shape[0] - 1
            chunk = slice(self._first - requests, self._first)
            logits = logits[path_rows(self.state.walk.accepted[chunk], cu_num_logits, logits.shape[0])]
        return super()._get_logprobs_tensors(
            sampled, num_sampled, logits, cu_num_logits, cu_num_logits_np, max_num_logprobs
        )

    def _trees(self, first: int) -> Tree:
        """The step's trees from that request on."""
        tree = self.state.batch
        return Tree(**{n: x[first:] for n, x in tree.tensors().items()}, horizon=tree.horizon) if first else tree

    def _output(self, first: int, requests: int) -> Walk:
        """The static walk from that request on, with emitted tokens and counts of their own: the engine copies those to
        the host while the next step already runs."""
        out = self.state.walk
        return Walk(
            accepted=out.accepted[first:] if first else out.accepted,
            emitted=out.emitted.new_empty(requests, out.emitted.shape[1]),
            num_accepted=out.num_accepted[first:] if first else out.num_accepted,
            num_emitted=out.num_emitted.new_empty(requests),
        )

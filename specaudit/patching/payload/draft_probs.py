"""Draft tokens drawn from the drafter's own distribution, and that distribution for the rejection sampler.

Put here by specaudit (recipe v1-draft-probs). Rejection sampling accepts a draft token x with probability
min(1, p(x) / q(x)) (Leviathan et al., arXiv:2211.17192); without q it has to take the draft for a certainty, q(x) = 1,
and accepts less than it could. For q to be the truth, the draft must be drawn from it.

Whatever is not known here (a request whose drafting was skipped, a draft that a grammar replaced, a drafter with logits
of another width) is handed on as a certainty: the output distribution is the target's in every case.
"""

from __future__ import annotations

from typing import Any

import torch

#: Temperatures below this mean greedy, as in the engine's own sampler.
GREEDY = 1e-5


class DraftProbs:
    """The draft distributions of one runner, from the step that drafts to the step that verifies."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.temperature: torch.Tensor | None = None  # [B]
        self.drawn: list[tuple[torch.Tensor, torch.Tensor]] = []  # per draft call: ids [R], probs [R, V]
        self.rows: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}  # request -> ids [K], probs [K, V]

    def begin(self, requests: list[str], alive: Any, sampling: Any) -> None:
        """A drafting step begins for these requests, in batch order."""
        self.settle(alive)
        self.requests = list(requests)
        self.temperature = None if sampling.all_greedy else sampling.temperature

    def settle(self, alive: Any) -> None:
        """Files what the last drafting step drew under its requests, and forgets requests that are no more."""
        drawn, batch = self.drawn, len(self.requests)
        self.drawn = []
        kept = {r: row for r, row in self.rows.items() if r in alive and r not in self.requests}
        # A row of a request that sits out would keep the whole step's tensor alive.
        self.rows = {r: (ids.clone(), probs.clone()) for r, (ids, probs) in kept.items()}
        if not drawn or not batch or any(ids.shape[0] % batch for ids, _ in drawn):
            return
        ids = torch.cat([ids.view(batch, -1) for ids, _ in drawn], dim=1)  # [B, K]
        probs = torch.cat([p.view(batch, -1, p.shape[-1]) for _, p in drawn], dim=1)  # [B, K, V]
        self.rows.update((r, (ids[i], probs[i])) for i, r in enumerate(self.requests))

    def sample(self, logits: torch.Tensor) -> torch.Tensor | None:
        """Draws one token per row of ``logits`` [R, V], R a multiple of the batch; ``None`` when the step is greedy."""
        if self.temperature is None or not self.requests or logits.shape[0] % len(self.requests):
            return None
        repeat = logits.shape[0] // len(self.requests)
        temperature = self.temperature[: len(self.requests)].repeat_interleave(repeat)
        greedy = temperature < GREEDY
        scale = torch.where(greedy, torch.ones_like(temperature), temperature)
        probs = (logits.float() / scale.unsqueeze(1)).softmax(dim=-1)
        noise = torch.empty_like(probs).exponential_()
        ids = torch.where(greedy, logits.argmax(dim=-1), (probs / noise).argmax(dim=-1))
        self.drawn.append((ids, probs))
        return ids

    def recall(self, requests: list[str], metadata: Any, width: int, alive: Any) -> torch.Tensor | None:
        """The distributions [N, V] behind the N drafts that are verified now, or ``None`` when none is known.

        Args:
            requests: in batch order.
            metadata: its ``num_draft_tokens`` says how many drafts of each, ``draft_token_ids`` [N] holds them.
            width: V of the target's logits.
            alive: requests that still run.
        """
        self.settle(alive)
        self.requests = []
        counts = metadata.num_draft_tokens
        known = {r: self.rows.pop(r, None) for r in requests}
        fits = {}
        for request, count in zip(requests, counts, strict=True):
            row = known[request]
            if row is not None and count and row[0].shape[0] >= count and row[1].shape[-1] == width:
                fits[request] = row
        if not fits:
            return None
        drafts = metadata.draft_token_ids.long()
        certain = torch.zeros(drafts.shape[0], width, device=drafts.device)
        certain.scatter_(1, drafts.clamp(min=0).unsqueeze(1), 1.0)
        start, parts = 0, []
        for request, count in zip(requests, counts, strict=True):
            part, row = certain[start : start + count], fits.get(request)
            if row is not None:
                same = row[0][:count] == drafts[start : start + count]
                part = torch.where(same.unsqueeze(1), row[1][:count], part)
            parts.append(part)
            start += count
        return torch.cat(parts).contiguous()


def begin(runner: Any, sampling_metadata: Any) -> None:
    """The runner is about to draft: its drafter draws from now on."""
    if not isinstance(getattr(runner.drafter, "draft_probs", None), DraftProbs):
        runner.drafter.draft_probs = DraftProbs()
    runner.drafter.draft_probs.begin(runner.input_batch.req_ids, runner.requests, sampling_metadata)


def recall(runner: Any, metadata: Any, width: int) -> torch.Tensor | None:
    """The draft distributions that the runner's rejection sampler needs now."""
    kept = getattr(getattr(runner, "drafter", None), "draft_probs", None)
    if not isinstance(kept, DraftProbs):
        return None
    return kept.recall(runner.input_batch.req_ids, metadata, width, runner.requests)

"""What v1-draft-probs installs: with it the emitted tokens still follow the target, and more drafts are accepted."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specaudit.patching.payload.draft_probs import DraftProbs, begin, recall

V, K, B = 12, 3, 2000


@dataclass
class Sampling:
    """What the engine's sampling metadata says of a batch."""

    temperature: torch.Tensor | None
    all_greedy: bool = False


@dataclass
class Metadata:
    """What is verified: how many drafts of each request, and which."""

    num_draft_tokens: list[int]
    draft_token_ids: torch.Tensor


def verify(target: torch.Tensor, drafts: torch.Tensor, q: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Rejection sampling of the first draft, as the paper has it: accepted [N], emitted token [N]."""
    rows = torch.arange(drafts.shape[0])
    p_draft = target[rows, drafts]
    q_draft = q[rows, drafts] if q is not None else torch.ones_like(p_draft)
    accepted = torch.rand(drafts.shape[0]) < p_draft / q_draft
    one_hot = torch.nn.functional.one_hot(drafts, V).float()
    rest = (target - (q if q is not None else one_hot * target)).clamp(min=0)
    recovered = torch.multinomial(rest / rest.sum(-1, keepdim=True), 1).squeeze(1)
    return accepted, torch.where(accepted, drafts, recovered)


def names(count: int, start: int = 0) -> list[str]:
    return [f"r{i}" for i in range(start, start + count)]


def test_the_target_distribution_is_kept_and_more_is_accepted_than_with_a_certainty() -> None:
    torch.manual_seed(0)
    target = torch.softmax(torch.randn(V), -1)
    logits = torch.log(target) + 0.4 * torch.randn(V)
    kept, alive = DraftProbs(), names(B)
    kept.begin(alive, alive, Sampling(torch.ones(B)))
    drafts = kept.sample(logits.expand(B, V).clone())
    assert drafts is not None
    probs = kept.recall(alive, Metadata([1] * B, drafts), V, alive)
    assert probs is not None
    torch.testing.assert_close(probs, torch.softmax(logits, -1).expand(B, V))
    many = target.expand(B, V)
    accepted, emitted = verify(many, drafts, probs)
    got = torch.bincount(emitted, minlength=V) / B
    assert (got - target).abs().sum() < 0.08  # 2000 draws: about 0.04 is expected
    certain, _ = verify(many, logits.argmax().expand(B), None)
    overlap = torch.minimum(target, probs[0]).sum()  # 1 - TV(p, q)
    assert abs(accepted.float().mean() - overlap) < 0.04
    assert accepted.float().mean() > certain.float().mean() + 0.2


def test_temperature_is_each_requests_own_and_a_greedy_request_takes_the_best() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]]).repeat(2, 1)
    kept, alive = DraftProbs(), names(2)
    kept.begin(alive, alive, Sampling(torch.tensor([0.0, 0.5])))
    ids = kept.sample(logits)
    assert ids is not None
    assert ids[0] == 2
    probs = kept.recall(alive, Metadata([1, 1], ids), 3, alive)
    assert probs is not None
    torch.testing.assert_close(probs[1], torch.softmax(logits[1] / 0.5, -1))


def test_a_greedy_step_is_left_to_the_engine() -> None:
    kept = DraftProbs()
    kept.begin(names(2), names(2), Sampling(None, all_greedy=True))
    assert kept.sample(torch.zeros(2, V)) is None
    assert kept.recall(names(2), Metadata([1, 1], torch.tensor([1, 2])), V, names(2)) is None


def test_one_call_per_position_and_all_positions_in_one_call_are_filed_alike() -> None:
    torch.manual_seed(1)
    logits = torch.randn(2, K, V)
    alive = names(2)
    one_by_one, at_once = DraftProbs(), DraftProbs()
    for kept in (one_by_one, at_once):
        kept.begin(alive, alive, Sampling(torch.ones(2)))
    stepwise = [one_by_one.sample(logits[:, k]) for k in range(K)]
    ids = torch.stack([step for step in stepwise if step is not None], 1)
    together = at_once.sample(logits.reshape(2 * K, V))
    assert together is not None
    first = one_by_one.recall(alive, Metadata([K, K], ids.flatten()), V, alive)
    second = at_once.recall(alive, Metadata([K, K], together), V, alive)
    expected = torch.softmax(logits, -1).reshape(2 * K, V)
    assert first is not None
    assert second is not None
    torch.testing.assert_close(first, expected)
    torch.testing.assert_close(second, expected)


def test_rows_follow_their_requests_through_reordering_truncation_and_sitting_out() -> None:
    torch.manual_seed(2)
    logits = torch.randn(3, K, V)
    expected = torch.softmax(logits, -1)
    kept, alive = DraftProbs(), ["a", "b", "c"]
    kept.begin(alive, alive, Sampling(torch.ones(3)))
    drawn = kept.sample(logits.reshape(3 * K, V))
    assert drawn is not None
    ids = drawn.view(3, K)
    # c comes first with two of its drafts, a has none scheduled, b sits this step out.
    probs = kept.recall(["c", "a"], Metadata([2, 0], ids[2, :2]), V, alive)
    assert probs is not None
    torch.testing.assert_close(probs, expected[2, :2])
    kept.begin(["c", "a"], alive, Sampling(torch.ones(2)))
    kept.sample(torch.randn(2 * K, V))
    later = kept.recall(["b"], Metadata([K], ids[1]), V, alive)
    assert later is not None
    torch.testing.assert_close(later, expected[1])


def test_what_is_not_known_is_a_certainty() -> None:
    torch.manual_seed(3)
    kept, alive = DraftProbs(), ["old", "new"]
    kept.begin(["old"], alive, Sampling(torch.ones(1)))
    drawn = kept.sample(torch.randn(2, V))
    assert drawn is not None
    replaced = (drawn[1] + 1) % V  # a grammar put another token in its place
    drafts = torch.tensor([int(drawn[0]), int(replaced), 5, -1])
    probs = kept.recall(["old", "new"], Metadata([2, 2], drafts), V, alive)
    assert probs is not None
    torch.testing.assert_close(probs.sum(-1), torch.ones(4))
    assert probs[0].max() < 1
    assert [int(row.argmax()) for row in probs[1:]] == [int(replaced), 5, 0]
    assert all(row.max() == 1 for row in probs[1:])


def test_a_row_is_used_once_and_forgotten_with_its_request() -> None:
    kept, alive = DraftProbs(), ["a", "b"]
    kept.begin(alive, alive, Sampling(torch.ones(2)))
    drawn = kept.sample(torch.randn(2, V))
    assert drawn is not None
    assert kept.recall(["a"], Metadata([1], drawn[:1]), V, alive) is not None
    assert kept.recall(["a"], Metadata([1], drawn[:1]), V, alive) is None  # drafting was skipped since
    kept.settle(["a"])
    assert kept.rows == {}


def test_logits_of_another_width_are_no_draft_distribution() -> None:
    kept, alive = DraftProbs(), ["a"]
    kept.begin(alive, alive, Sampling(torch.ones(1)))
    drawn = kept.sample(torch.randn(1, V))
    assert drawn is not None
    assert kept.recall(alive, Metadata([1], drawn), V + 4, alive) is None


def test_the_hooks_attach_to_a_runner_and_leave_other_drafters_alone() -> None:
    class Thing:
        """Attributes."""

    runner = Thing()
    runner.drafter, runner.input_batch, runner.requests = Thing(), Thing(), {"a": 1}  # type: ignore[attr-defined]
    runner.input_batch.req_ids = ["a"]  # type: ignore[attr-defined]
    assert recall(runner, Metadata([1], torch.tensor([3])), V) is None
    begin(runner, Sampling(torch.ones(1)))
    drawn = runner.drafter.draft_probs.sample(torch.randn(1, V))  # type: ignore[attr-defined]
    probs = recall(runner, Metadata([1], drawn), V)
    assert probs is not None
    assert probs.shape == (1, V)

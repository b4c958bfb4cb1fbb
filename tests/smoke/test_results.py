"""The arithmetic of a comparison, on results written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from specaudit.smoke.modes import NEEDS, arguments
from specaudit.smoke.present import lines
from specaudit.smoke.results import Divergence, Thresholds, equality, not_run_on, numbers, verdict
from specaudit.smoke.runner import counted, positions, scheduled_drafts


def result(texts: list[list[int]], gaps: list[dict[str, Any]] | None = None, **run: Any) -> dict[str, Any]:
    base = {"batch": 1, "drafts": 0, "drafted": 0, "accepted": 0, "emitted": 40, "per_position": [], "seconds": 2.0}
    return {"runs": [{**base, "step_seconds": 0.01, **run}], "texts": texts, "gaps": gaps}


def looked(*rows: tuple[list[int], list[float | None]]) -> list[dict[str, Any]]:
    return [{"tokens": tokens, "gaps": gaps} for tokens, gaps in rows]


def test_acceptance_length_counts_the_bonus() -> None:
    (row,) = numbers({"dflash": result([], drafts=10, drafted=150, accepted=17, per_position=[9, 5, 3])})
    assert row.acceptance_length == 2.7
    assert row.per_position == (0.9, 0.5, 0.3)
    assert (row.step_ms, row.tokens_per_second) == (10.0, 20.0)


def test_the_table_fits_80_columns_and_depths_that_no_tree_reached_are_left_out() -> None:
    big = {"drafts": 200_000, "drafted": 12_800_000, "accepted": 400_000, "emitted": 600_000, "seconds": 1.0}
    long = result([[1]], **big, per_position=[200_000, 100_000, 0, 50_000, *[0] * 60])
    said = [text for text, _ in lines("gpu1", {"none": result([[1]]), "ddtree-exact": long}, Thresholds())]
    assert [text for text in said if len(text) > 80] == []
    head, none, tree = said[4:7]
    assert head.split() == [
        "mode", "batch", "drafts", "drafted", "accepted", "emitted", "length", "step", "ms", "tok/s",
    ]  # fmt: skip
    assert len(none) == len(tree) == len(head)
    assert "  ddtree-exact, batch 1, accepted by position: 1.00 0.50 0.00 0.25" in said


def test_repeats_are_summed_and_speeds_are_medians() -> None:
    one = result([], drafts=10, accepted=10, per_position=[6, 4])
    one["runs"] += [{**one["runs"][0], "seconds": 4.0, "per_position": [6, 2, 2]}, {**one["runs"][0], "seconds": 2.5}]
    (row,) = numbers({"dflash": one})
    assert (row.drafts, row.accepted, row.acceptance_length) == (30, 30, 2.0)
    assert row.per_position == (18 / 30, 10 / 30, 2 / 30)
    assert row.tokens_per_second == 16.0


def test_a_divergence_has_its_position_tokens_and_the_gap_there() -> None:
    reference = looked(([1, 2, 3], [0.5, 0.25, 0.125]), ([1, 2, 3], [1, 1, 1]), ([9, 2, 3], [1, 1, 1]), ([1], [1]))
    none = result([[1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2]], reference)
    other = result([[1, 2, 4], [1, 2, 3], [1, 5, 3], [1]])
    same = equality({"none": none, "dflash": other}, "dflash")
    assert same is not None
    assert (same.prompts, same.equal) == (4, 1)
    assert same.divergences == (
        Divergence(0, 2, 4, 3, 0.125),
        Divergence(2, 1, 5, 2, None),  # the run that measured gaps had parted before
        Divergence(3, 1, None, 2, None),  # one text is a prefix of the other
    )


def test_without_a_reference_or_with_sampled_tokens_there_is_no_equality() -> None:
    assert equality({"dflash": result([[1]])}, "dflash") is None
    assert equality({"none": result([[1]]), "dflash": result([[1]])}, "dflash") is None
    assert equality({"none": result([[1]], looked(([1], [1.0])))}, "none") is None


def test_only_a_wide_gap_is_a_loss() -> None:
    none = result([[1, 2], [1, 2]], looked(([1, 2], [1, 0.2]), ([1, 2], [1, 0.9])))
    other = result([[1, 3], [1, 3]], drafts=5, accepted=1, per_position=[1])
    checks = {c.name: c for c in verdict({"none": none, "dflash": other}, Thresholds(gap=0.5, agreement=0.5))}
    assert not checks["dflash is lossless"].passed
    assert "0 of 2 prompts; 1 divergence where" in checks["dflash is lossless"].text
    assert not checks["dflash agrees"].passed
    assert verdict({"none": none, "dflash": other}, Thresholds(gap=0.95))[-1].passed


def test_nothing_accepted_and_nothing_drafted_fail() -> None:
    for run in ({"drafts": 5, "accepted": 0}, {"drafts": 0, "accepted": 0}):
        (ran, accepts) = verdict({"dflash": result([], **run)}, Thresholds())
        assert ran.passed
        assert not accepts.passed


def test_speed_is_relative_to_the_reference_of_the_same_batch_size() -> None:
    both = {"none": result([]), "dflash": result([], drafts=4, accepted=4, emitted=60)}
    checks = {c.name: c for c in verdict(both, Thresholds(speedup=1.6))}
    assert not checks["dflash is fast, batch 1"].passed
    assert "1.50 times" in checks["dflash is fast, batch 1"].text


def test_what_it_was_built_for_and_not_run_on_is_named() -> None:
    built = {"capability": "9.0", "built_for": ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]}
    assert not_run_on(built) == (
        "7.5 Turing",
        "8.0 Ampere (A100)",
        "8.6 Ampere",
        "10.0 Blackwell (B200)",
        "12.0 Blackwell (RTX)",
    )
    assert not_run_on({"capability": "", "built_for": []}) == ()


def test_counters_of_several_engines_are_added() -> None:
    class Metric:
        def __init__(self, name: str, value: int = 0, values: tuple[int, ...] = ()) -> None:
            self.name, self.value, self.values = f"vllm:{name}", value, values

    name = "spec_decode_num_accepted_tokens_per_pos"
    counters = [Metric("spec_decode_num_drafts", 3), Metric("spec_decode_num_drafts", 4), Metric("other", 9)]
    found = counted([*counters, Metric(name, values=(1, 2)), Metric(name, values=(1, 1, 1))])
    assert (found["drafts"], found["per_position"]) == (7, [2, 3, 1])


@pytest.mark.parametrize(
    ("limit", "needed", "drafts", "asked"),
    [(None, 256, 15, 384), (32768, 4000, 15, 4128), (4096, 4000, 15, 4096), (512, 256, 64, 512), (128, 256, 15, 256)],
)
def test_the_engine_gets_room_for_drafts_behind_the_last_token(
    limit: int | None, needed: int, drafts: int, asked: int
) -> None:
    """Without it, V1 drafts nothing for the end of each prompt, and the acceptance length comes out too low."""
    assert positions(limit, needed, drafts) == asked


@pytest.mark.parametrize(
    ("arguments", "drafts"),
    [
        ({}, 0),
        ({"speculative_config": {"num_speculative_tokens": 15}}, 15),
        ({"speculative_config": {"num_speculative_tokens": 15}, "additional_config": {"ddtree": {"budget": 64}}}, 64),
        ({"speculative_config": {"num_speculative_tokens": 15}, "additional_config": {"ddtree": {"budget": 8}}}, 15),
    ],
)
def test_room_is_left_for_a_trees_nodes_not_only_for_the_chains_tokens(arguments: dict[str, Any], drafts: int) -> None:
    """V1 zeroes the drafts of every step that, all in flight accepted, comes within as many of the end."""
    assert scheduled_drafts(arguments) == drafts


def test_a_tree_can_be_asked_for_the_chains_very_outputs() -> None:
    made = arguments(["ddtree", "ddtree-exact"], "draft", 15, 64, None)
    assert made["ddtree"]["additional_config"] == {"ddtree": {"budget": 64}}
    assert made["ddtree-exact"]["additional_config"] == {"ddtree": {"budget": 64, "exact": True}}
    assert NEEDS["ddtree-exact"] == NEEDS["ddtree"]


@pytest.mark.parametrize(
    ("modes", "asked", "failed"),
    [
        (["dflash"], Thresholds(), []),
        (["dflash"], Thresholds(speedup=1.0), ["dflash is fast, batch 1"]),
        (["dflash"], Thresholds(agreement=0.5), ["dflash agrees"]),
        (["none", "dflash"], Thresholds(agreement=0.5), ["dflash agrees"]),  # there are no gaps: tokens were sampled
        (["none"], Thresholds(), []),
        (["none"], Thresholds(acceptance=1.5), ["a mode speculates"]),
    ],
)
def test_a_threshold_that_nothing_was_measured_for_does_not_pass(
    modes: list[str], asked: Thresholds, failed: list[str]
) -> None:
    measured = {"none": result([[1]]), "dflash": result([[1]], drafts=10, accepted=10, per_position=[10])}
    checks = verdict({mode: measured[mode] for mode in modes}, asked)
    assert [check.name for check in checks if not check.passed] == failed

"""Several measurements on shared engines, rehearsed with the stand-in: sharing, failures, what is judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.test_engine import ENGINE, bars, rehearse

FIGURES = ["acceptance", "speed", "steps:small", "steps:prefill", "launches"]
CASES = ["lossless:greedy", "lossless:sampled", "lossless:distribution", "correctness", "soak"]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark's package, imported here."""
    monkeypatch.syspath_prepend(str(ENGINE.parent))
    import engine.suite

    return engine


def started(content: dict[str, Any]) -> list[str]:
    return sorted(" = ".join(engine["arms"]) for engine in content["engines"])


@pytest.mark.parametrize(
    ("runner", "parts", "wanted"),
    [
        ("v2", FIGURES, ["chain", "chain 14", "chain-shaped", "tree 16 = policy 16 = tree", "tree 16, exact",
                          "tree 64", "tree 64, exact"]),
        (
            "v1",
            FIGURES,
            ["chain", "chain", "chain 14", "chain-shaped", "tree", "tree 16 = policy 16", "tree 16, exact",
             "tree 64", "tree 64, exact"],
        ),
        (
            "v2",
            CASES,
            ["N = 8, K = 15", "chain", "chain 14", "chain, fp32", "none", "none, TRITON_ATTN", "none, fp32", "tree",
             "tree 16", "tree 16, exact", "tree 16, fp32", "tree 64", "tree 64, exact", "tree, beside prompts",
             "tree, cut", "tree, prefix cache", "tree, small cache = soak"],
        ),
        (
            "v2",
            ["lossless", "correctness", "soak"],
            ["N = 8, K = 15", "chain", "chain 14", "chain, fp32", "none", "none, TRITON_ATTN", "none, fp32", "tree",
             "tree 16", "tree 16, exact", "tree 16, fp32", "tree 64", "tree 64, exact", "tree 64, fp32",
             "tree, beside prompts", "tree, cut", "tree, prefix cache", "tree, small cache = soak"],
        ),
    ],
)  # fmt: skip
def test_parts_share_the_engines_that_can_be_the_same(
    tmp_path: Path, runner: str, parts: list[str], wanted: list[str]
) -> None:
    status, content, printed = rehearse(tmp_path, "suite", "--runner", runner, "--parts", *parts)
    assert started(content) == wanted, printed
    assert printed.count(" is up after ") == len(wanted)
    assert len(list(tmp_path.glob("*.log"))) == len(wanted)
    assert status in (0, 1), printed
    for part in parts:
        own = [section for name, section in content.items() if name == part or name.startswith(f"{part}:")]
        assert own, part
        assert all(section["bars"] and section["command"] for section in own)
        assert not any("failed" in section for section in own), printed


def test_all_figures_of_a_part_stand_below_its_name_in_one_file(tmp_path: Path) -> None:
    _, content, _ = rehearse(tmp_path, "suite", "--parts", "steps:small", "speed:8")
    assert [*content] == ["bars", "engines", "steps:small", "speed:8"]
    assert "step time, batch 1, ms" in content["steps:small"]
    assert "tokens per second, batch 8" in content["speed:8"]


def test_untimed_parts_run_together_and_report_as_if_alone(tmp_path: Path) -> None:
    parts = ["lossless:greedy", "correctness", "soak"]
    status, content, printed = rehearse(tmp_path, "suite", "--together", "--parts", *parts, "--requests", "40")
    assert status in (0, 1), printed
    at = sorted((printed.index(f"\n## {part}\n"), part) for part in parts)
    for (start, part), (end, _) in zip(at, [*at[1:], (len(printed), "")], strict=True):
        own = printed[start:end]
        for bar in content[part]["bars"]:
            assert bar["what"] in own
    alone = rehearse(tmp_path / "alone", "suite", "--parts", *parts, "--requests", "40")[1]
    for part in parts:
        assert {bar["what"] for bar in content[part]["bars"]} == {bar["what"] for bar in alone[part]["bars"]}


def test_an_engine_that_dies_costs_its_own_figures_alone(tmp_path: Path) -> None:
    parts = ["acceptance", "launches", "speed:1", "speed:exact", "steps:small"]
    status, content, printed = rehearse(tmp_path, "suite", "--parts", *parts, FAKE_DIES="64")
    assert status == 3
    assert len(content["engines"]) == 7
    for part in parts[:4]:
        for failed in content[part]["failed"]:
            assert failed.startswith(("tree 64: tree 64 ended", "tree 64, exact: tree 64, exact ended"))
            assert "an illegal memory access was encountered" in failed
    assert "failed" not in content["steps:small"]
    assert bars(content["acceptance"], "tree 16: acceptance length")
    assert bars(content["launches"], "tree 16: waits per step")
    for part, tree in (("speed:1", "tree 16"), ("speed:exact", "tree 16, exact")):
        assert [row["arm"] for row in content[part]["tokens per second, batch 1"]] == ["chain", tree]
    assert bars(content["acceptance"], "tree 64 runs")[0]["met"] is False
    assert "Traceback" not in printed


def test_an_engine_that_does_not_start_is_said_in_each_part_that_needs_it(tmp_path: Path) -> None:
    status, content, printed = rehearse(
        tmp_path, "suite", "--parts", "acceptance", "speed:1", "speed:exact", "steps:small", FAKE_REFUSES="64"
    )
    assert status == 3
    assert "tree 64 did not start" in printed
    for part in ("acceptance", "speed:1", "speed:exact"):
        assert "no trees of that size" in content[part]["failed"][0]
    assert "failed" not in content["steps:small"]
    gone = [one["arms"] for one in content["engines"] if one["gone"]]
    assert gone == [["tree 64"], ["tree 64, exact"]]


def test_a_part_whose_time_is_over_reports_what_it_has_and_the_next_one_begins(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time ends in the second of three batch sizes."""
    from engine import command, figures

    calls = iter(range(10**6))

    def need(clock: Any, seconds: float) -> float:
        if next(calls) == 11:  # eight arms answer together and are scored at batch 1, one is scored at batch 8
            raise figures.OutOfTime
        return 60.0

    monkeypatch.setattr(figures.Clock, "need", need)
    written = tmp_path / "o.json"
    arguments = ["--target", "t", "--draft", "d", "--fake", "--count", "4", "--tokens", "16", "--pairs", "2"]
    arguments += ["--logs", str(tmp_path), "--cache", str(tmp_path), "--json", str(written)]
    assert command.main(["suite", "--parts", "lossless:greedy", "steps:small", *arguments]) == 1
    content = engine.figures.json.loads(written.read_text())
    greedy = content["lossless:greedy"]
    assert [row["batch"] for row in greedy["T = 0"]] == [1] * 8
    assert bars(greedy, "(b) tree 16, batch 1")
    assert bars(greedy, "measured to the end") == [
        {"what": "measured to the end", "seen": 0, "wanted": "1", "met": None}
    ]
    assert not bars(content["steps:small"], "measured to the end")
    assert content["steps:small"]["step time, batch 1, ms"]


def test_a_part_gets_its_share_and_an_answer_may_take_a_while_longer(engine: Any) -> None:
    """A hanging engine must not take the other parts' time; one that is late must not die of its part's end."""
    clock = engine.figures.Clock(400)
    part = clock.share(0.0625)
    assert 24 < part.left <= 25
    assert 114 < part.need(20) <= 115
    assert 99 < engine.figures.Clock(100).share(0.25).need(20) <= 100
    with pytest.raises(engine.figures.OutOfTime):
        part.need(30)


def test_suite_and_single_commands_say_what_they_take() -> None:
    for more, said in (
        (["suite"], "--parts says what a suite measures"),
        (["speed", "--parts", "steps"], "--parts says what a suite measures"),
        (["suite", "--parts", "steps", "--only", "small"], "write COMMAND:PART in --parts"),
        (["speed", "--together"], "--together belongs to a suite"),
        (["suite", "--together", "--parts", "soak", "steps:small"], "--together: steps:small is timed"),
        (["suite", "--parts", "step:small"], "step: there are acceptance, lossless"),
        (["suite", "--parts", "steps:smal"], "smal: there are small, large, large-prefill, prefill"),
    ):
        done = subprocess.run(
            [sys.executable, ENGINE, *more, "--target", "t", "--draft", "d"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (1, 2)
        assert said in done.stderr


# ---- what is compared with what ----


def test_words_that_an_engine_cannot_forbid_are_left_out(tmp_path: Path) -> None:
    """Two thirds of the stand-in's tokens are spaces or begin with one, and it refuses those as vLLM 0.20.1 does."""
    _, content, printed = rehearse(tmp_path, "correctness", "--only", "processors")
    (bar,) = bars(content, "bad words")
    assert bar["met"] is True, printed


@pytest.mark.parametrize(("wrong", "met"), [("bf16", True), ("always", False)])
def test_processors_are_compared_with_plain_decoding_in_fp32(tmp_path: Path, wrong: str, met: bool) -> None:
    parts = ["correctness:processors", "lossless:greedy"]
    _, content, _ = rehearse(tmp_path, "suite", "--parts", *parts, FAKE_WRONG=wrong)
    cases = content["correctness:processors"]
    assert [bar["met"] for bar in cases["bars"] if "penalties" in bar["what"] or "bad words" in bar["what"]] == [
        met
    ] * 2
    (row, *_) = cases["processors: tree 16, fp32"]
    assert row["equal to plain"] == (6 if met else 0)
    assert row["chain's to plain"] == 6
    assert bars(content["lossless:greedy"], "(a) tree 16, exact, batch 1")[0]["met"] is False  # in bf16, either way


def test_rule_a_says_on_how_many_prompts_two_stock_kernels_agree(tmp_path: Path) -> None:
    _, content, _ = rehearse(tmp_path, "lossless", "--only", "greedy")
    (bar,) = bars(content, "(a) tree 64, exact, batch 32")
    assert bar["what"].endswith("equal to the chain (two stock kernels: 6)")
    assert bar["wanted"] == ">= 6 - 4"


def scores(gaps: list[float]) -> list[list[list[float]]]:
    return [[[-gap, 0.0, float(gap == 0)] for gap in gaps]]


def test_one_token_in_a_thousand_may_lie_beyond_delta_or_as_many_as_stocks(engine: Any) -> None:
    from engine.scoring import Gaps, allowed_count

    own = Gaps.of(scores([0.0] * 5997 + [0.3] * 3), delta=0.2)
    assert (own.tokens, own.beyond, own.worst) == (6000, 3, 0.3)
    few, many = Gaps(6000, 2, 0.2), Gaps(6000, 9, 0.4)
    assert allowed_count(own, [few]) == 6
    assert allowed_count(own, [few, many]) == 9
    assert allowed_count(Gaps(900, 1, 0.3), [Gaps(900, 0, 0.1)]) == 1  # begun thousands count
    assert allowed_count(Gaps(900, 1, 0.3), [Gaps(900, 1, 0.1)], more=1) == 2
    assert allowed_count(Gaps(1000, 1, 0.3), []) == 1
    assert allowed_count(Gaps(1001, 1, 0.3), []) == 2


def test_the_largest_gap_may_be_twice_a_stock_arms(engine: Any) -> None:
    from engine.scoring import Gaps, allowed_gap

    assert allowed_gap([Gaps(10, 0, 0.1), Gaps(10, 1, 0.4)], delta=0.2) == pytest.approx(0.8)
    assert allowed_gap([Gaps(10, 0, 0.01)], delta=0.2) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("own", "chain", "problem"),
    [
        ([0.0] * 99 + [0.3], [0.0] * 100, ""),
        ([0.0] * 98 + [0.3] * 2, [0.0] * 100, "2 of 100 tokens beyond delta, 1 may be (the chain has 0)"),
        ([0.0] * 98 + [0.3] * 2, [0.0] * 99 + [0.3], ""),
        ([0.0] * 99 + [0.9], [0.0] * 99 + [0.3], "a token 0.9 below the best, stock arms' are at most 0.4"),
    ],
)
def test_a_case_is_judged_by_the_same_rule_and_one_token_more(
    engine: Any, own: list[float], chain: list[float], problem: str
) -> None:
    from engine import cases, correctness
    from engine.scoring import Gaps

    class Asked:
        """The chain emits what the tree does; each is scored as it is given here, the tree's first."""

        def __init__(self) -> None:
            self.scores = [scores(own), scores(chain)]

        def __getitem__(self, name: str) -> Asked:
            return self

        def ask(self, op: str, seconds: float, **_: Any) -> Any:
            return self.scores.pop(0) if op == "score" else {"outputs": [{"tokens": [7] * 100}]}

    given = type("Given", (), {"clock": engine.figures.Clock(60)})()
    case = cases.Case("one", [{"prompt": [1], "params": {"max_tokens": 100}}])
    reference = correctness.Reference(0.2, Gaps(1000, 1, 0.4))
    found = correctness.judged_by_score(given, Asked(), case, [[7] * 100], reference)
    assert found[0] == problem
    assert found[3] == 1


@pytest.mark.parametrize(
    ("tokens", "problem"),
    [
        ([1, 2, 3, 9], ""),
        ([1, 9, 3, 4], "a stop token at place 1, 3 are the least"),
        ([1, 2], "a stop token at place 2, 3 are the least"),
    ],
)
def test_min_tokens_forbids_a_stop_token_and_does_not_step_over_it(
    engine: Any, tokens: list[int], problem: str
) -> None:
    from engine import checks

    requests = [{"prompt": [1], "params": {"stop_token_ids": [9]}}]
    assert checks.goes_on_for(3)({"outputs": [{"tokens": tokens}]}, requests) == problem


# ---- one engine ----


@pytest.fixture
def alone(engine: Any, tmp_path: Path) -> Any:
    from engine import arms, pool

    places = pool.Places(sys.executable, logs=tmp_path, cache=tmp_path, fake=True)
    with pool.Engine(arms.tree(16), arms.Pair("t", "d"), places) as made:
        yield made


def test_an_engine_says_how_long_its_import_and_its_start_took(alone: Any) -> None:
    facts = alone.started(30)
    assert facts["import_s"] >= 0
    assert facts["engine_s"] >= 0


def test_nothing_runs_on_after_a_measurement_that_was_cut(engine: Any, alone: Any) -> None:
    alone.started(30)
    requests = engine.requests.greedy([[1, 2, 3]] * 4, 50)
    free = alone.ask("blocks")["free_blocks"]
    answer = alone.ask("trace", requests=requests, give_up=0)
    assert answer["gave_up"] is True
    assert answer["finish"] == [None] * 4
    with pytest.raises(engine.pool.EngineFailed, match="no tokens of those that decode"):
        alone.ask("mixed", decoding=requests, prompts=requests, at_once=2, give_up=0)
    assert alone.ask("blocks")["free_blocks"] == free
    assert alone.ask("trace", requests=requests)["finish"] == ["length"] * 4


def test_a_profiler_that_sees_no_kernel_is_no_measurement(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine import arms, pool

    places = pool.Places(sys.executable, logs=tmp_path, cache=tmp_path, fake=True)
    requests = engine.requests.greedy([[1, 2, 3]], 8)
    with pool.Engine(arms.tree(16), arms.Pair("t", "d"), places) as made:
        made.started(30)
        assert made.ask("profile", requests=requests)["kernels"] == {"kernel": 50}  # and no stretch that has a name
    monkeypatch.setenv("FAKE_SEES_NOTHING", "1")
    with pool.Engine(arms.tree(16), arms.Pair("t", "d"), places) as made:
        made.started(30)
        with pytest.raises(pool.EngineFailed, match="saw no kernel"):
            made.ask("profile", requests=requests)


def test_an_engine_that_nobody_hears_any_more_ends_quietly(alone: Any) -> None:
    alone.started(30)
    os.close(alone._answers)
    alone._answers = -1
    alone._send({"op": "blocks"})
    assert alone._process.wait(20) == 0
    assert "Error" not in alone.tail()


def test_a_closed_engine_says_so(engine: Any, alone: Any) -> None:
    alone.close()
    with pytest.raises(engine.pool.EngineFailed, match="tree 16 was closed"):
        alone.ask("blocks")


def test_all_engines_share_what_triton_compiled(engine: Any, tmp_path: Path) -> None:
    from engine import arms

    places = engine.pool.Places("python", path="p", stock_path="s", cache=tmp_path)
    seen = [places.environment(arm) for arm in (arms.chain(), arms.tree(16))]
    assert [e["TRITON_CACHE_DIR"] for e in seen] == [str(tmp_path / "triton")] * 2
    assert [e["VLLM_TRITON_JIT_WARMUP_NUM_THREADS"] for e in seen] == ["8", "8"]
    assert [e["VLLM_CACHE_ROOT"] for e in seen] == [str(tmp_path / "stock"), str(tmp_path / "patched")]


def test_a_step_that_takes_too_long_is_followed_by_where_the_host_spends_it(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engine import command, steps

    written = tmp_path / "o.json"
    arguments = ["suite", "--target", "t", "--draft", "d", "--fake", "--count", "4", "--tokens", "16", "--pairs", "2"]
    arguments += ["--logs", str(tmp_path), "--json", str(written), "--parts"]
    title = "{}: the host's own us per step under a profiler, where the arms differ most"
    monkeypatch.setattr(steps, "TOY_EXTRA_MS", 1e9)
    assert command.main([*arguments, "steps:small"]) == 0
    assert title.format("generate") not in json.loads(written.read_text())["steps:small"]
    monkeypatch.setattr(steps, "TOY_EXTRA_MS", -1e9)
    monkeypatch.setattr(steps, "PREFILL_RATIO", 1e9)
    assert command.main([*arguments, "steps:small", "steps:prefill"]) == 1
    content = json.loads(written.read_text())
    assert title.format("generate") in content["steps:small"]
    rows = content["steps:prefill"][title.format("mixed")]
    assert rows[0]["function"] == "all of them"
    assert any("advance" in row["function"] for row in rows)
    assert all(row["chain"] >= 0 for row in rows)


def test_a_ratio_of_a_few_pairs_is_judged_only_where_no_more_were_asked_for(engine: Any) -> None:
    from engine.figures import Report

    report = Report(None)
    for pairs, asked in ((3, 30), (9, 10), (10, 30), (3, 3)):
        report.timed_bar("speed", 1.2, ">= 1", True, pairs, asked)
    assert [bar["met"] for bar in report.content["bars"]] == [None, None, True, True]
    assert report.content["bars"][0]["what"] == "speed, of 3 pairs alone"
    assert report.missed == 2


def test_prefill_is_judged_before_the_other_load_takes_its_time(tmp_path: Path) -> None:
    _, content, printed = rehearse(tmp_path, "suite", "--parts", "steps:prefill")
    waiting, together = printed.index("prompts all waiting"), printed.index("prompts 2 at a time")
    assert waiting < printed.index("prefill in mixed batches") < together
    assert bars(content["steps:prefill"], "prefill in mixed batches")

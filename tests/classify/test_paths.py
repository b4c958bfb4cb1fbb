"""Paths from configuration to kernel against hops that were written down by hand, and what a trace refuses.

``paths.json``: per release and method the places that the path must pass, in this order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support.engines import index_of

from specaudit.classify.audit import trace
from specaudit.engines import ENGINES
from specaudit.errors import ConfigurationError
from specaudit.model import Audit
from specaudit.model import Path as Way

EXPECTED = json.loads((Path(__file__).parents[1] / "data" / "paths.json").read_text(encoding="utf-8"))
CASES = [(version, method) for version, methods in EXPECTED.items() for method in methods]
VLLM = ENGINES["vllm"]
FLAG = "VLLM_USE_V2_MODEL_RUNNER"
Audited = Callable[[str], Audit]
Traced = Callable[..., tuple[Way, ...]]


def missing(expected: list[list[object]], way: Way) -> list[list[object]]:
    """The places that do not come after those before them."""
    rest = iter([[hop.path, hop.line] for hop in way.hops])
    return [place for place in expected if place not in rest]


@pytest.mark.parametrize(("version", "method"), CASES)
def test_a_path_passes_what_was_written_down_in_that_order(
    version: str, method: str, audited: Audited, release: Callable[[str], Path]
) -> None:
    found = audited(version)
    ways = [way for way in found.paths if way.method == method]
    if method not in {runner.method for runner in found.runners}:
        assert ways == []  # written down: that the release lists no such method any more
        return
    assert missing(EXPECTED[version][method], ways[0]) == []
    assert ways[0].runner in {r.runner for r in found.runners if r.method == method and r.default}
    for hop in ways[0].hops:
        lines = (release(version) / hop.path).read_text(encoding="utf-8").split("\n")
        assert hop.text == lines[hop.line - 1].strip()
    assert {"config", "runner", "proposer", "sampler", "kernel"} <= {hop.what for hop in ways[0].hops}


@pytest.fixture(scope="module")
def traced(audited: Audited, release: Callable[[str], Path]) -> Traced:
    """``traced("0.33.0", "eagle3", {"parallel_drafting": "true"})``."""
    indexes = {
        version: index_of(release(version), wants=VLLM.wants) for version in ("0.20.1", "0.24.0", "0.33.0", "0.9.2")
    }

    def get(version: str, method: str, settings: Mapping[str, str | None]) -> tuple[Way, ...]:
        return trace(indexes[version], method, settings, audited(version).verifiers)

    return get


def test_a_flag_changes_runner_proposer_and_kernel(traced: Traced) -> None:
    (way,) = traced("0.33.0", "eagle3", {"VLLM_USE_V2_MODEL_RUNNER": "0"})
    assert way.runner == "v1"
    texts = [hop.text for hop in way.hops]
    assert any(text.startswith("class EagleProposer") for text in texts)
    assert any(text.startswith("def rejection_greedy_sample_kernel") for text in texts)
    assert not any("/worker/gpu/spec_decode/" in hop.path for hop in way.hops)


@pytest.mark.parametrize(
    ("value", "runner"), [("2", "v2"), ("-1", "v2"), (" 1", "v2"), ("00", "v1"), ("0 ", "v1"), ("-0", "v1")]
)
def test_a_flag_that_is_read_as_a_number_is_on_for_every_number_but_0(traced: Traced, value: str, runner: str) -> None:
    for version in ("0.20.1", "0.33.0"):  # it is off by default, and not set by default
        assert {way.runner for way in traced(version, "eagle3", {FLAG: value})} == {runner}
    if runner == "v2":
        with pytest.raises(ConfigurationError, match="v2 runner, which refuses it"):
            traced("0.33.0", "suffix", {FLAG: value})


@pytest.mark.parametrize("version", ["0.20.1", "0.24.0", "0.33.0"])
def test_a_trace_needs_what_the_scan_tells_except_what_was_set(version: str, traced: Traced, audited: Audited) -> None:
    """Every way to a runner that the flag alone or the option alone opens, walked with it set."""
    walked = []
    for runner in audited(version).runners:
        told = [c for c in runner.changes if c.kind != "model"]
        if [c.op for c in told] == ["=="] and told[0].option in (FLAG, "parallel_drafting"):
            (way,) = traced(version, runner.method, {told[0].option: told[0].value})
            assert (way.runner, set(way.when)) == (runner.runner, set(runner.when) - set(told)), runner.method
            walked.append(told[0].option)
    assert set(walked) == ({FLAG} if version == "0.20.1" else {FLAG, "parallel_drafting"})


def test_a_listed_architecture_is_enough_for_the_newer_runner(traced: Traced) -> None:
    (way,) = traced("0.24.0", "eagle3", {"model_config.architectures": "Qwen3ForCausalLM"})
    assert way.runner == "v2"
    assert {c.option for c in way.when if c.kind == "model"} == set()


def test_an_option_that_the_newer_runner_refuses_leads_to_the_older_one(traced: Traced) -> None:
    (way,) = traced("0.33.0", "eagle3", {"parallel_drafting": "true"})
    assert way.runner == "v1"


def test_the_draft_models_architecture_decides_between_proposers(traced: Traced) -> None:
    named = {"draft_model_config.architectures": "LiLiCorrDraftModel"}
    (way,) = traced("0.33.0", "dflash", named)
    assert any(hop.text.startswith("class LiLiCorrSpeculator") for hop in way.hops)
    (plain,) = traced("0.33.0", "dflash", {"draft_model_config.architectures": "DFlashDraftModel"})
    assert any(hop.text.startswith("class DFlashSpeculator") for hop in plain.hops)
    assert not any("LiLiCorrSpeculator(" in hop.text for hop in plain.hops)


def test_what_another_draft_model_would_get_is_told_as_such_and_the_way_there_once(traced: Traced) -> None:
    def others(settings: Mapping[str, str | None]) -> list[str]:
        (way,) = traced("0.33.0", "dflash", settings)
        making = [hop for hop in way.hops if hop.path.endswith("worker/gpu/spec_decode/__init__.py")]
        assert len({hop.line for hop in making}) == len(making)
        assert [hop.what for hop in making if "return " in hop.text][-1] == "proposer"
        return [hop.text.split("(")[0] for hop in making if hop.what == "otherwise"]

    kinds = ("XPress", "LiLiCorr", "DFlash2")
    assert others({}) == [f"return {kind}Speculator" for kind in kinds]
    assert others({"draft_model_config.architectures": "DFlash2DraftModel"}) == []
    assert others({"draft_model_config.architectures": "DFlashDraftModel"}) == []


def test_a_mode_of_the_kernel_is_part_of_the_path(traced: Traced) -> None:
    def lines(value: str) -> set[int]:
        ways = traced("0.33.0", "dflash", {"rejection_sample_method": value})
        return {hop.line for way in ways for hop in way.hops if hop.path.endswith("rejection_sampler_utils.py")}

    assert lines("block") != lines("standard")


def test_an_alias_is_traced_as_what_it_becomes(traced: Traced) -> None:
    (way,) = traced("0.33.0", "deepseek_mtp", {})
    assert way.method == "mtp"


def test_two_generations_of_the_engine(traced: Traced) -> None:
    (older,) = traced("0.9.2", "eagle", {"VLLM_USE_V1": "0"})
    assert older.runner == "v0"
    assert any(hop.text.startswith("class MultiStepWorker") for hop in older.hops)


def test_a_flag_that_is_no_number_to_the_engine_takes_words(traced: Traced) -> None:
    assert traced("0.33.0", "dflash", {"VLLM_USE_MODELSCOPE": "True"})


@pytest.mark.parametrize(
    ("version", "method", "settings", "said", "hint"),
    [
        ("0.33.0", "eagel3", {}, "no method 'eagel3'", "eagle3"),
        ("0.33.0", "eagle3", {"tree": "x"}, "no option 'tree'", "parallel_drafting"),
        ("0.33.0", "eagle3", {"rejection_sample_method": "tree"}, "cannot be 'tree'", "block"),
        ("0.33.0", "eagle3", {"method": "ngram"}, "method 'ngram'", "one of the two"),
        ("0.33.0", "eagle3", {"tensor_parallel_size": "2"}, "refuses tensor_parallel_size", "speculative.py:"),
        ("0.33.0", "dflash", {"num_speculative_tokens": "-1"}, "to be greater than zero.", "speculative.py:"),
        ("0.33.0", "ngram", {"draft_lm_head_quantization": "fp8"}, "not supported for method ….", "speculative.py:"),
        ("0.20.1", "dflash", {"VLLM_USE_V2_MODEL_RUNNER": "1"}, "v2 runner, which refuses it (vllm/config", "runners"),
        (
            "0.33.0",
            "dflash",
            {"VLLM_USE_V2_MODEL_RUNNER": "false"},
            "cannot be 'false': the engine reads a whole",
            "envs",
        ),
        ("0.20.1", "eagle", {"VLLM_USE_V2_MODEL_RUNNER": ""}, "cannot be ''", "Write 0 or 1; see vllm/envs.py:"),
    ],
)
def test_what_the_engine_would_refuse_is_refused_with_its_line(
    version: str, method: str, settings: dict[str, str | None], said: str, hint: str, traced: Traced
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        traced(version, method, settings)
    assert said in refused.value.message
    assert hint in refused.value.hint


def test_a_number_of_tokens_that_nobody_gave_is_no_reason_to_refuse(traced: Traced) -> None:
    named = {"draft_model_config.architectures": "ParseAuxMTPModel"}  # trained for one token, which is then the default
    for count in ({}, {"num_speculative_tokens": "1"}):
        (way,) = traced("0.33.0", "mtp", {**named, **count})
        assert (way.method, way.runner) == ("mtp", "v2")
    with pytest.raises(ConfigurationError, match="only one trained MTP step"):
        traced("0.33.0", "mtp", {**named, "num_speculative_tokens": "3"})


@pytest.mark.parametrize(
    ("method", "setting", "value", "line"),
    [
        ("dspark", "VLLM_USE_V2_MODEL_RUNNER", "0", 'if self.speculative_config.method == "dspark":'),
        ("dflash", "draft_model_config.architectures", "Qwen3XPressModel", "elif self.speculative_config.is_xpress():"),
        ("dflash", "draft_model_config.architectures", "LiLiCorrDraftModel", "if self._is_dflash_candidate_draft():"),
        ("dflash", "model_config.architecture", "Step5ForCausalLM", "if self.model_config is not None and self.model_"),
        ("eagle3", "enable_adaptive_verification", "true", "if self.speculative_config.enable_adaptive_verification:"),
    ],
)
def test_a_runners_refusal_shows_the_test_that_refuses_whatever_it_asks_about(
    method: str, setting: str, value: str, line: str, traced: Traced
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        traced("0.33.0", method, {"VLLM_USE_V2_MODEL_RUNNER": "0", setting: value})
    said = refused.value.message
    assert "they choose the v1 runner, which refuses it (vllm/config/vllm.py:" in said
    assert said.count("vllm/config/vllm.py:") == 2, said  # the validator's call, and the test
    assert line in said

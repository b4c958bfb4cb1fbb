"""Which runner a method takes, and what must be set for another one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.engines import index_of, replaced

from specaudit.classify.audit import Reading
from specaudit.engines import ENGINES
from specaudit.model import Condition, Runner

Read = Callable[[str], Reading]
FLAG = "VLLM_USE_V2_MODEL_RUNNER"


def changes(reading: Reading, method: str, label: str) -> list[set[tuple[str, str, str]]]:
    """What must be set for a runner that is not the default, without what is asked of the model."""
    found = [r for r in reading.runners if (r.method, r.runner, r.default) == (method, label, False)]
    return [{(c.option, c.op, c.value) for c in r.changes if c.kind != "model"} for r in found]


def whens(reading: Reading, method: str, label: str, default: bool) -> list[tuple[Condition, ...]]:
    return [r.when for r in reading.runners if (r.method, r.runner, r.default) == (method, label, default)]


def the_default(reading: Reading, method: str) -> Runner:
    (found,) = (r for r in reading.runners if r.method == method and r.default)
    return found


def test_a_flag_alone_leads_to_the_other_runner(read: Read) -> None:
    assert the_default(read("0.20.1"), "eagle3").runner == "v1"
    assert {(FLAG, "==", "1")} in changes(read("0.20.1"), "eagle3", "v2")
    assert the_default(read("0.33.0"), "eagle3").runner == "v2"
    assert {(FLAG, "==", "0")} in changes(read("0.33.0"), "eagle3", "v1")


def test_an_option_that_the_newer_runner_does_not_know_leads_to_the_older_one(read: Read) -> None:
    assert {("parallel_drafting", "==", "true")} in changes(read("0.33.0"), "eagle3", "v1")


def test_what_the_engine_refuses_for_a_method_leads_it_to_no_runner(read: Read) -> None:
    asked = ("use_heterogeneous_vocab", "==", "true")  # "only works with method='draft_model'"
    found = read("0.33.0")
    methods = {runner.method for runner in found.runners if runner.runner == "v1"}
    assert {"draft_model", "eagle", "dflash", "ngram"} <= methods
    assert {m for m in methods if any(asked in way for way in changes(found, m, "v1"))} == {"draft_model"}


def test_a_method_that_one_runner_refuses_takes_the_other_one(read: Read) -> None:
    assert the_default(read("0.33.0"), "suffix").runner == "v1"
    assert changes(read("0.33.0"), "suffix", "v2") == []
    assert changes(read("0.20.1"), "dflash", "v2") == []


def test_a_platform_without_the_compiler_takes_the_older_runner(read: Read) -> None:
    found = [r for r in read("0.33.0").runners if (r.method, r.runner) == ("mtp", "v1") and not r.default]
    assert ("HAS_TRITON", "platform") in {(c.option, c.kind) for r in found for c in r.when}


def test_the_model_decides_where_the_engine_asks_for_it(read: Read) -> None:
    reading = read("0.22.0")
    (newer,) = whens(reading, "eagle", "v2", True)
    assert ("model_config.architectures", "in", "Qwen3ForCausalLM") in {(c.option, c.op, c.value) for c in newer}
    told = {(c.option, c.op, c.value) for way in whens(reading, "eagle", "v1", True) for c in way}
    assert ("model_config.architectures", "not in", "Qwen3ForCausalLM") in told
    assert {r.runner for r in reading.runners if r.method == "ngram" and r.default} == {"v1"}


def test_a_way_tells_everything_that_the_validator_asks_for(read: Read) -> None:
    """0.20.1 refuses seven combinations on the newer runner besides methods: each is a condition of the way to it."""
    (newer,) = whens(read("0.20.1"), "eagle3", "v2", False)
    assert {(c.option, c.op, c.value) for c in newer} == {
        (FLAG, "==", "1"),
        ("model_config.has_inner_state", "!=", "true"),
        ("parallel_config.prefill_context_parallel_size", "<=", "1"),
        ("parallel_config.enable_dbo", "!=", "true"),
        ("model_config.enable_return_routed_experts", "!=", "true"),
        ("model_config.logits_processors", "is not set", ""),
        ("cache_config.kv_sharing_fast_prefill", "!=", "true"),
        ("ec_transfer_config", "is not set", ""),
    }
    (told,) = (r.changes for r in read("0.20.1").runners if (r.method, r.runner) == ("eagle3", "v2"))
    assert [c.option for c in told] == [FLAG, "model_config.has_inner_state"]


def test_a_way_that_an_option_opens_needs_the_flag_to_stay_as_it_is(read: Read) -> None:
    """Else the flag decides before the option is looked at."""
    (older,) = (w for w in whens(read("0.33.0"), "eagle3", "v1", False) if "parallel_drafting" in {c.option for c in w})
    assert {(FLAG, "!=", "1"), ("watermark_config", "is not set", "")} <= {(c.option, c.op, c.value) for c in older}


@pytest.mark.parametrize("version", ["0.20.1", "0.24.0", "0.33.0"])
def test_what_must_be_changed_is_part_of_the_way_and_a_default_needs_no_change(version: str, read: Read) -> None:
    for runner in read(version).runners:
        assert set(runner.changes) <= set(runner.when)
        assert bool(runner.changes) is not runner.default


def test_a_listed_architecture_is_enough_whatever_else_the_model_is(read: Read) -> None:
    """0.24.0 takes the newer runner for diffusion models and for a list of others; none has to be both."""
    ways = whens(read("0.24.0"), "eagle3", "v2", True)
    asked = [{c.option for c in way if c.kind == "model" and c.op in ("==", "in")} for way in ways]
    assert asked == [{"model_config.is_diffusion"}, {"model_config.architectures"}]


@pytest.mark.parametrize(
    ("version", "label", "changed", "asked"),
    [
        # a test that comes before the flag's default leads there, and the validator refuses all but some models
        ("0.27.1", "v2", "parallel_config.prefill_context_parallel_size", "model_config.use_mla"),
        ("0.31.0", "v1", "is_rocm", "model_config.architectures"),
    ],
)
def test_a_change_that_makes_the_model_decide_says_so(
    version: str, label: str, changed: str, asked: str, read: Read
) -> None:
    found = [r for r in read(version).runners if (r.method, r.runner, r.default) == ("eagle3", label, False)]
    told = [{c.option for c in r.changes} for r in found if changed in {c.option for c in r.changes}]
    assert [asked in options for options in told] == [True]


def test_two_generations_of_the_engine_side_by_side(read: Read) -> None:
    reading = read("0.9.2")
    assert {("VLLM_USE_V1", "!=", "1")} in changes(reading, "eagle", "v0")
    assert the_default(reading, "draft_model").runner == "v0"


def test_evidence_goes_from_the_flag_to_the_line_that_makes_the_runner(read: Read) -> None:
    flag, *_, made = the_default(read("0.20.1"), "dflash").evidence
    assert FLAG in flag.text
    assert "GPUModelRunner" in made.text
    asked, *_, made = the_default(read("0.33.0"), "dflash").evidence
    assert asked.text == "def use_v2_model_runner(self) -> bool:"
    assert "GPUModelRunnerV2(" in made.text


def test_the_default_follows_the_code(release: Callable[[str], Path]) -> None:
    """The same worker with its test turned round."""
    path, root = "vllm/v1/worker/gpu_worker.py", release("0.20.1")
    edited = replaced(
        (root / path).read_text(encoding="utf-8"),
        ("if self.use_v2_model_runner:\n            from", "if not self.use_v2_model_runner:\n            from"),
    )
    engine = ENGINES["vllm"]
    reading = Reading(index_of(root, wants=engine.wants, changed={path: edited}), engine)
    assert the_default(reading, "eagle3").runner == "v2"

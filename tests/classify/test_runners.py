"""Which runner a method takes, and what must be set for another one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.engines import index_of, replaced

from specaudit.classify.audit import Reading
from specaudit.engines import ENGINES
from specaudit.model import Condition, Runner

Read = Callable[[str], Reading]
FLAG = "VLLM_USE_V2_MODEL_RUNNER"


def ways(reading: Reading, method: str, label: str, *, default: bool) -> list[set[tuple[str, str, str]]]:
    """The ways to a runner, without what they ask of the model."""
    return [
        {(c.option, c.op, c.value) for c in way if c.kind != "model"} for way in whens(reading, method, label, default)
    ]


def whens(reading: Reading, method: str, label: str, default: bool) -> list[tuple[Condition, ...]]:
    return [r.when for r in reading.runners if (r.method, r.runner, r.default) == (method, label, default)]


def the_default(reading: Reading, method: str) -> Runner:
    (found,) = (r for r in reading.runners if r.method == method and r.default)
    return found


def test_a_flag_alone_leads_to_the_other_runner(read: Read) -> None:
    assert the_default(read("0.20.1"), "eagle3").runner == "v1"
    assert {(FLAG, "==", "1")} in ways(read("0.20.1"), "eagle3", "v2", default=False)
    assert the_default(read("0.33.0"), "eagle3").runner == "v2"
    assert {(FLAG, "==", "0")} in ways(read("0.33.0"), "eagle3", "v1", default=False)


def test_an_option_that_the_newer_runner_does_not_know_leads_to_the_older_one(read: Read) -> None:
    assert {("parallel_drafting", "==", "true")} in ways(read("0.33.0"), "eagle3", "v1", default=False)


def test_a_method_that_one_runner_refuses_takes_the_other_one(read: Read) -> None:
    assert the_default(read("0.33.0"), "suffix").runner == "v1"
    assert ways(read("0.33.0"), "suffix", "v2", default=False) == []
    assert ways(read("0.20.1"), "dflash", "v2", default=False) == []


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


def test_two_generations_of_the_engine_side_by_side(read: Read) -> None:
    reading = read("0.9.2")
    assert {("VLLM_USE_V1", "!=", "1")} in ways(reading, "eagle", "v0", default=False)
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

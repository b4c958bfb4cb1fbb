"""``specaudit trace`` on real releases: hops, configurations, bad input."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specaudit.cli import run


@dataclass
class Said:
    code: int
    out: str
    err: str

    @property
    def paths(self) -> list[dict[str, Any]]:
        paths = json.loads(self.out)["paths"]
        assert isinstance(paths, list)
        return paths


@pytest.fixture
def trace(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], release: Callable[[str], Path]
) -> Callable[..., Said]:
    """Traces a release (default: the newest)."""

    def call(*arguments: str, version: str = "0.33.0") -> Said:
        code = run(["trace", f"dir:{release(version)}", *arguments])
        sys.stdout.flush()
        out, err = capfd.readouterr()
        return Said(code, out, err)

    return call


def test_each_hop_is_a_line_of_the_engine_from_configuration_to_kernel(
    trace: Callable[..., Said], release: Callable[[str], Path]
) -> None:
    said = trace("--method", "dflash", "--json")
    (path,) = said.paths
    assert (said.code, path["method"], path["runner"]) == (0, "dflash", "v2")
    for hop in path["hops"]:
        lines = (release("0.33.0") / hop["path"]).read_text().split("\n")
        assert lines[hop["line"] - 1].strip() == hop["text"]
    assert [path["hops"][0]["what"], path["hops"][-1]["what"]] == ["config", "kernel"]
    assert {hop["what"] for hop in path["hops"]} >= {"config", "runner", "proposer", "sampler", "kernel"}


def test_the_text_shows_the_hops_and_the_conditions(trace: Callable[..., Said]) -> None:
    said = trace("--method", "dflash")
    assert "dflash on v2" in said.out
    assert "  if VLLM_USE_V2_MODEL_RUNNER is not set" in said.out
    assert "_rejection_kernel" in said.out
    assert said.err == ""


def test_a_variable_changes_the_way(trace: Callable[..., Said]) -> None:
    said = trace("--method", "dflash", "--env", "VLLM_USE_V2_MODEL_RUNNER=0", "--json")
    assert [path["runner"] for path in said.paths] == ["v1"]


@pytest.mark.parametrize("in_file", [False, True])
def test_a_configuration_names_the_method(trace: Callable[..., Said], tmp_path: Path, in_file: bool) -> None:
    configuration = '{"method": "eagle3", "num_speculative_tokens": 3, "model": "a/draft"}'
    if in_file:
        (tmp_path / "config.json").write_text(configuration)
        configuration = str(tmp_path / "config.json")
    assert {path["method"] for path in trace("--speculative-config", configuration, "--json").paths} == {"eagle3"}


def test_the_draft_architecture_chooses_the_proposer(trace: Callable[..., Said]) -> None:
    def proposers(*arguments: str) -> str:
        (path,) = trace("--method", "dflash", "--json", *arguments).paths
        return " ".join(hop["text"] for hop in path["hops"] if hop["what"] == "proposer")

    assert "return DFlash2Speculator(" in proposers("--draft-arch", "DFlash2DraftModel")
    assert "return XPressSpeculator(" in proposers("--draft-arch", "DFlashQwen3XPressModel")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--method", "telepathy"], "telepathy"),
        (["--method", "eagle", "--speculative-config", '{"method": "mtp"}'], "the configuration says mtp"),
        (["--speculative-config", "{"], "no JSON"),
        (["--speculative-config", "[]"], "neither a JSON object nor a file"),
        (["--speculative-config", "/no/such/file"], "No such file"),
        (["--env", "NOVALUE"], "has no value"),
        (["--env", "=1"], "'=1' has no name"),
        (["--env", "A=1", "--env", "A=2"], "says A twice"),
        (["--method", ""], "--method is empty"),
        (["--speculative-config", '{"method": "mtp", "method": "eagle"}'], "says 'method' twice"),
        (["--speculative-config", '{"method": "mtp", "num_speculative_tokens": NaN}'], "NaN"),
        (["--speculative-config", '{"method": "mtp", "num_speculative_tokens": 1e999}'], "whole number"),
        (["--speculative-config", '{"method": "mtp", "num_speculative_tokens": "x"}'], "whole number"),
        (["--speculative-config", '{"method": "mtp", "n": %s}' % ("9" * 5000)], "thousands of digits"),
        (["--speculative-config", "/dev/zero"], "larger than a speculative configuration"),
        (["--speculative-config", "/"], "Is a directory"),
        (["--speculative-config", "a\0b"], "neither a JSON object nor a file"),
        (["--method", "mtp", "--model-arch", "a b"], "cannot be the architecture"),
        (["--method", "mtp", "--draft-arch", "a b\x1b[31m"], "cannot be the architecture"),
    ],
)
def test_bad_input(trace: Callable[..., Said], arguments: list[str], told: str) -> None:
    said = trace(*arguments)
    assert (said.code, said.out) == (2, "")
    assert told in said.err
    assert "  try: " in said.err


def test_a_configuration_may_begin_with_a_byte_order_mark(trace: Callable[..., Said], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"method": "eagle3"}', encoding="utf-8-sig")
    for given in (str(tmp_path / "config.json"), '\ufeff{"method": "eagle3"}'):
        assert {path["method"] for path in trace("--speculative-config", given, "--json").paths} == {"eagle3"}


def test_an_alias_that_the_engine_rewrites_is_the_method_that_it_becomes(
    trace: Callable[..., Said], release: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    assert trace("--method", "deepseek_mtp", "--json").paths == trace("--method", "mtp", "--json").paths
    code = run(["scan", f"dir:{release('0.33.0')}", "--no-rules", "--method", "deepseek_mtp", "--json"])
    document = json.loads(capfd.readouterr().out)
    assert (code, {runner["method"] for runner in document["runners"]}) == (0, {"mtp"})


def test_without_settings_the_paths_are_those_of_the_scan(
    trace: Callable[..., Said], release: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    run(["scan", f"dir:{release('0.33.0')}", "--no-rules", "--json"])
    scanned = json.loads(capfd.readouterr().out)["paths"]
    traced = trace("--json").paths
    assert len(traced) == len(scanned) > 8
    assert all(path in scanned for path in traced)
    (one,) = trace("--method", "dflash", "--speculative-config", '{"num_speculative_tokens": 8}', "--json").paths
    assert one["hops"] == next(path["hops"] for path in traced if path["method"] == "dflash")


def test_a_method_that_the_settings_exclude_does_not_hide_the_others(trace: Callable[..., Said]) -> None:
    said = trace("--env", "VLLM_USE_V2_MODEL_RUNNER=1", "--env", "VLLM_NOT_THERE=1", "--json")
    items = {item["what"]: item["why"] for item in json.loads(said.out)["not_looked"]}
    assert {path["runner"] for path in said.paths} == {"v2"}
    assert "refuses it" in items["the path of suffix"]
    assert "mentions this variable" in items["VLLM_NOT_THERE"]
    assert "VLLM_USE_V2_MODEL_RUNNER" not in items
    text = trace("--method", "dflash", "--env", "VLLM_NOT_THERE=1").out
    assert "VLLM_NOT_THERE (no file" in " ".join(text.split())

"""The engine benchmarks, rehearsed: every command from its arguments to its figures, with a stand-in for the engine.

The stand-in (benchmarks/engine/fake) has no model, so no figure of it means anything; that the commands ask, judge and
report is what is tested. They run for real on a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ENGINE = Path(__file__).parents[2] / "benchmarks" / "engine"
EXPECTED = {
    "acceptance": ["acceptance, batch 1, T = 0", "outputs equal to the chain's, of 6"],
    "lossless": ["T = 0", "T = 0.7, a seed each", "delta"],
    "speed": ["tokens per second, batch 1", "tokens per second, batch 8"],
    "steps": ["step time, batch 1, ms", "step time at Qwen3-8B's shape, ms", "memory at V = 151,936, batch 32, MB"],
    "launches": ["per decode step, batch 1"],
    "correctness": ["usual: tree", "small: tree, small cache", "narrow: N = 8, K = 15", "processors: tree 16, fp32"],
    "soak": ["soak"],
    "off-switch": ["kernels in other numbers"],
    "refusals": ["refused at the start"],
}


def rehearse(
    tmp_path: Path, command: str, *more: str, minutes: float = 2, **environment: str
) -> tuple[int, dict[str, Any], str]:
    arguments = ["--target", "t", "--draft", "d", "--fake", "--count", "6", "--tokens", "24", "--pairs", "2"]
    arguments += ["--requests", "40", "--batches", "1", "8", "--minutes", str(minutes)]
    arguments += ["--json", str(tmp_path / "o.json"), "--logs", str(tmp_path), "--cache", str(tmp_path), *more]
    done = subprocess.run(
        [sys.executable, ENGINE, command, *arguments],
        capture_output=True, text=True, check=False, env=os.environ | environment,
    )  # fmt: skip
    return done.returncode, json.loads((tmp_path / "o.json").read_text()), done.stdout + done.stderr


def bars(section: dict[str, Any], words: str) -> list[dict[str, Any]]:
    """The bars of a report that say so."""
    return [bar for bar in section["bars"] if words in bar["what"]]


@pytest.mark.parametrize("command", EXPECTED)
def test_a_command_measures_judges_and_reports(tmp_path: Path, command: str) -> None:
    status, content, printed = rehearse(tmp_path, command)
    assert status in (0, 1), printed
    assert "failed" not in content, printed
    for title in EXPECTED[command]:
        assert title in content, printed
    assert content["bars"], printed
    assert (status == 0) == all(bar["met"] for bar in content["bars"])
    assert not [bar for bar in content["bars"] if bar["met"] is None]


def test_a_run_ends_when_its_time_is_over_and_keeps_what_it_has(tmp_path: Path) -> None:
    status, content, printed = rehearse(tmp_path, "speed", minutes=0.001)
    assert status == 1
    assert "out of time" in printed
    assert content["bars"][-1] == {"what": "measured to the end", "seen": 0, "wanted": "1", "met": None}


def test_an_interpreter_without_an_engine_is_said_with_its_last_words(tmp_path: Path) -> None:
    here = str(tmp_path)
    arguments = ["--target", here, "--draft", here, "--python", sys.executable, "--logs", here, "--minutes", "1"]
    done = subprocess.run(
        [sys.executable, "-I", ENGINE, "off-switch", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert "No module named 'vllm'" in done.stdout + done.stderr


def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, ENGINE, "steps", "--target", "t", "--draft", "d", "--only", "smal"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "--only smal: there are small, large, large-prefill, prefill, memory" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--python", "/nope"], "--python /nope: there is no such program"),
        (["--target", "/nope"], "--target /nope: there is no such folder"),
        (["--draft", "/nope"], "--draft /nope: there is no such folder"),
    ],
)
def test_what_is_not_there_is_named_before_anything_starts(tmp_path: Path, arguments: list[str], said: str) -> None:
    models = ["--target", str(tmp_path), "--draft", str(tmp_path)]
    ran = subprocess.run(
        [sys.executable, str(ENGINE), "acceptance", *models, *arguments], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr

"""A configuration that was named: header, findings and gate of one document say the same as ``trace``."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specaudit.cli import run

Release = Callable[[str], Path]
#: On 0.33.0 drafting in parallel is not among what the V2 runner supports for EAGLE.
PARALLEL = '{"method": "eagle3", "model": "x", "num_speculative_tokens": 3, "parallel_drafting": true}'
PLAIN = '{"method": "eagle3", "num_speculative_tokens": 3}'


class Program:
    """The command line, with what it printed last."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self.capfd = capfd
        self.out = self.err = ""

    def __call__(self, *arguments: str | Path) -> int:
        code = run([str(argument) for argument in arguments])
        self.out, self.err = self.capfd.readouterr()
        return code

    def answer(self, question: str) -> str:
        """What the header says to a question."""
        lines = iter(self.out.splitlines())
        said = [next(line for line in lines if line.startswith(f"  {question} ")).removeprefix(f"  {question}")]
        for line in lines:
            if not line.startswith("           "):
                break
            said.append(line)
        return " ".join(" ".join(said).split())


@pytest.fixture
def program(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return Program(capfd)


@pytest.mark.parametrize(
    ("arguments", "method", "runner", "proposer", "topology"),
    [
        (("--speculative-config", PARALLEL), "eagle3", "v1", "EagleProposer", "chain-parallel"),
        (("--speculative-config", PLAIN), "eagle3", "v2", "EagleSpeculator", "chain-autoregressive"),
        (
            ("--speculative-config", PLAIN, "--env", "VLLM_USE_V2_MODEL_RUNNER=0"),
            "eagle3", "v1", "EagleProposer", "chain-autoregressive",
        ),
        (("--method", "dflash", "--env", "VLLM_USE_V2_MODEL_RUNNER=0"), "dflash", "v1", "DFlashProposer",
         "chain-parallel"),
    ],
)  # fmt: skip
def test_the_gate_and_the_header_follow_the_configuration_as_a_trace_does(
    program: Program,
    release: Release,
    tmp_path: Path,
    arguments: tuple[str, ...],
    method: str,
    runner: str,
    proposer: str,
    topology: str,
) -> None:
    target, saved = f"dir:{release('0.33.0')}", tmp_path / "scan.json"
    other = {"v1": "v2", "v2": "v1"}[runner]
    met = [f"runner={runner}", f"runner.{method}={runner}", f"proposer.{method}={proposer}"]
    met += [f"topology.{method}={topology}", "tree-drafting=none"]
    expected = [word for one in met for word in ("--expect", one)]
    assert program("trace", target, *arguments, "-q") == 0
    assert f"{method} on {runner}" in program.out
    assert program("scan", target, *arguments, "-q", "--no-rules", "--brief", "--output", saved, *expected) == 0
    assert program.answer("runner").startswith(f"{runner} ")
    assert program.answer("proposer").startswith(f"{proposer} ({topology}")
    assert program.answer("verifier").startswith(f"{runner}: ")
    assert f"{other}: " not in program.answer("verifier")
    assert {one["method"] for one in json.loads(saved.read_text())["runners"]} == {method}
    assert program("report", saved, *expected) == 0
    assert program.answer("runner").startswith(f"{runner} ")
    for of in ("", f".{method}"):
        assert program("report", saved, "--expect", f"runner{of}={other}", "-f", "json") == 1
        assert f"expected runner{of}={other}, found {runner}" in program.err


def test_what_would_lead_elsewhere_is_told_only_while_it_is_open(program: Program, release: Release) -> None:
    scan = ("scan", f"dir:{release('0.33.0')}", "--no-rules", "--brief", "-q")
    assert program(*scan, "--speculative-config", PLAIN) == 0
    assert program.answer("runner") == "v2 by default; v1 if VLLM_USE_V2_MODEL_RUNNER is 0"
    assert program(*scan, "--speculative-config", PLAIN, "--env", "VLLM_USE_V2_MODEL_RUNNER=1") == 0
    assert program.answer("runner") == "v2 as configured"
    assert program(*scan[:-2], "-q", "--speculative-config", PARALLEL) == 0
    assert "As configured\n  method  on  draft     proposer\n  eagle3  v1  parallel  EagleProposer\n" in program.out


def test_a_configuration_that_says_its_method_alone_is_one(program: Program, release: Release, tmp_path: Path) -> None:
    scan = ("scan", f"dir:{release('0.33.0')}", "--no-rules", "-q")
    assert program(*scan, "--speculative-config", '{"method": "dflash"}', "--output", tmp_path / "scan.json") == 0
    assert program.answer("verifier").startswith("v2: ")
    assert "v1: " not in program.answer("verifier")
    assert program.answer("proposer") == "4 classes: 4 chain-parallel"  # DFlashProposer is V1's
    assert "As configured\n" in program.out
    assert [path["configured"] for path in json.loads((tmp_path / "scan.json").read_text())["paths"]] == [True]
    trace = ("trace", scan[1], "--json", "-q", "--speculative-config", '{"method": "dflash"}')
    assert program(*trace) == 0
    assert [path["configured"] for path in json.loads(program.out)["paths"]] == [True]
    assert program(*scan, "--method", "dflash") == 0  # what the method can take, on either runner
    assert "v1: " in program.answer("verifier")
    assert "By default\n" in program.out


def test_trees_are_those_of_the_runner_that_is_taken(program: Program, release: Release) -> None:
    scan = ("scan", f"dir:{release('0.20.1')}", "--no-rules", "--brief", "-q", "--method", "eagle")
    assert program(*scan, "--expect", "tree-drafting=static") == 0
    v2 = (*scan, "--env", "VLLM_USE_V2_MODEL_RUNNER=1")
    assert program(*v2, "--expect", "tree-drafting=none", "--expect", "runner=v2") == 0
    assert "no tree is drafted" in program.answer("tree")
    told = []
    for command in ("scan", "trace"):
        rules = ("--no-rules",) if command == "scan" else ()
        named = ("--method", "eagle", "--env", "VLLM_USE_V2_MODEL_RUNNER=1")
        assert program(command, f"dir:{release('0.20.1')}", *named, *rules, "--json", "-q") == 0
        told.append(json.loads(program.out)["tree"])
    assert told[0] == told[1]


def test_a_verifier_that_one_drafter_installs_is_none_of_other_methods(
    program: Program, release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    subprocess.run(["cp", "-a", str(release("0.33.0")), str(tmp_path / "site")], check=True)
    target, saved = f"dir:{tmp_path / 'site'}", tmp_path / "scan.json"
    assert program("patch", target, "--recipe", "ddtree", "--yes", "--no-diff") == 0
    scan = ("scan", target, "--no-rules", "--brief", "-q", "--output", saved)
    for method, walks in (("dflash", "tree-walk"), ("eagle", "none"), ("ngram", "none")):
        met = ("--expect", f"tree-verification={walks}")
        assert program(*scan, "--method", method, *met) == 0
        assert program.answer("tree").startswith("yes" if walks == "tree-walk" else "no: no verifier walks a tree")
        assert ("_walk (tree)" in program.answer("verifier")) == (walks == "tree-walk")
        assert program("report", saved, *met) == 0
    assert program(*scan, "--method", "eagle", "--expect", "walk=tree") == 1
    assert program(*scan, "--expect", "tree-verification=tree-walk", "--expect", "walk=tree") == 0


def test_every_answer_of_one_document_is_about_one_runner(program: Program, release: Release, tmp_path: Path) -> None:
    saved = tmp_path / "scan.json"
    target = f"dir:{release('0.33.0')}"
    assert program("scan", target, "--speculative-config", PARALLEL, "-q", "--brief", "--output", saved) == 0
    made: dict[str, Any] = json.loads(saved.read_text())
    assert [(path["runner"], path["configured"]) for path in made["paths"]] == [("v1", True)]
    assert {f["status"] for f in made["findings"] if f["runner"] == "v2"} <= {"unreachable", "not-found", "fixed"}
    assert program("report", saved, "-f", f"markdown={tmp_path / 'a.md'}", "-f", f"html={tmp_path / 'a.html'}") == 0
    assert "### As configured" in (tmp_path / "a.md").read_text()
    assert "| eagle3 | v1 | chain-parallel | EagleProposer |" in (tmp_path / "a.md").read_text()
    assert "What each method takes as configured" in (tmp_path / "a.html").read_text()


def test_a_diff_tells_of_another_runner_and_of_other_methods_of_a_verifier(
    program: Program, release: Release, tmp_path: Path
) -> None:
    plain, older, changed = (tmp_path / f"{name}.json" for name in ("plain", "older", "changed"))
    scan = ("scan", f"dir:{release('0.33.0')}", "--method", "eagle3", "--no-rules", "--brief", "-q", "--output")
    assert program(*scan, plain) == program(*scan, older, "--env", "VLLM_USE_V2_MODEL_RUNNER=0") == 0
    assert program("diff", plain, older) == 0
    assert program.out.splitlines()[1:] == ["changed   method eagle3: runner as configured v2 -> v1", "1 change"]
    assert program("diff", older, older) == 0
    assert "runner" not in program.out
    made: dict[str, Any] = json.loads(plain.read_text())
    next(one for one in made["verifiers"] if one["name"] == "_rejection_kernel")["methods"] = ["eagle3"]
    changed.write_text(json.dumps(made))
    assert program("diff", plain, changed) == 0
    assert program.out.splitlines()[1] == "changed   verifier _rejection_kernel (v2): methods all -> eagle3"


def test_a_configuration_that_some_targets_refuse_is_told_with_the_target(program: Program, release: Release) -> None:
    targets = [f"dir:{release(version)}" for version in ("0.33.0", "0.12.0")]
    assert program("scan", *targets, "--method", "dflash", "--no-rules", "--brief", "-q") == 3
    assert f"error: {targets[1]}: The engine has no method 'dflash'." in program.err
    assert program("scan", targets[1], "--method", "dflash", "--no-rules", "--brief", "-q") == 2
    assert "error: The engine has no method 'dflash'." in program.err


def test_without_a_configuration_no_path_is_one(program: Program, release: Release) -> None:
    assert program("scan", f"dir:{release('0.33.0')}", "--no-rules", "--json", "-q") == 0
    assert not any(path["configured"] for path in json.loads(program.out)["paths"])


def test_a_document_of_before_is_read_and_gated_as_it_was(program: Program, release: Release, tmp_path: Path) -> None:
    """It marks no path, and told only what by itself leads to one."""
    saved, target = tmp_path / "scan.json", f"dir:{release('0.20.1')}"
    named = ("--method", "eagle", "--env", "VLLM_USE_V2_MODEL_RUNNER=1")
    assert program("scan", target, *named, "--no-rules", "-q", "--brief", "--output", saved) == 0
    made: dict[str, Any] = json.loads(saved.read_text())
    for path in made["paths"]:
        del path["configured"]
        path["when"] = []
    saved.write_text(json.dumps(made))
    assert program("report", saved, "--expect", "runner=v2") == 0
    assert program.answer("runner") == "v1 by default; v2 if VLLM_USE_V2_MODEL_RUNNER is 1"

"""``specaudit scan`` as its users see it: streams, exit codes, bad input."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.index import Index, serving
from support.wheels import part_of_release, wheel_bytes

from specaudit import document
from specaudit.cli import run


@dataclass
class Said:
    """What one command line gave."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def specaudit(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Runs a command line with no pip configuration but the given index."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str, index: str = "") -> Said:
        if index:
            monkeypatch.setenv("PIP_INDEX_URL", index)
        code = run(arguments)
        sys.stdout.flush()
        out, err = capfd.readouterr()
        return Said(code, out, err)

    return call


@pytest.fixture
def tree(tmp_path: Path, release: Callable[[str], Path]) -> Path:
    """A copy of a part of a real release that a test may damage."""
    files = part_of_release(release("0.20.1"), "vllm/__init__.py", "vllm/config/*.py", "vllm/v1/sample/*.py")
    for path, data in files.items():
        (tmp_path / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / path).write_bytes(data)
    return tmp_path / "tree"


def test_the_first_lines_answer_the_questions(specaudit: Callable[..., Said], release: Callable[[str], Path]) -> None:
    said = specaudit("scan", f"dir:{release('0.33.0')}", "--no-rules")
    first = said.out.splitlines()[:12]
    assert said.code == 0
    assert first[0].startswith("vllm 0.33.0, 3,231 files")
    for question in ("runner", "proposer", "verifier", "tree", "why"):
        assert any(line.split()[:1] == [question] for line in first), first


def test_prose_and_tables_keep_to_eighty_columns(
    specaudit: Callable[..., Said], release: Callable[[str], Path]
) -> None:
    said = specaudit("scan", f"dir:{release('0.33.0')}")
    wide = [line for line in said.out.splitlines() if len(line) > 80]
    assert [line for line in wide if ".py:" not in line and "dir:" not in line] == []


def test_json_is_alone_on_stdout_and_the_file_holds_the_same(
    specaudit: Callable[..., Said], release: Callable[[str], Path], tmp_path: Path
) -> None:
    said = specaudit("scan", f"dir:{release('0.20.1')}", "--no-rules", "--json", "--output", str(tmp_path / "x.json"))
    assert said.document["schema"] == "specaudit/scan/1"
    assert said.document["engine"]["version"] == "0.20.1"
    assert (tmp_path / "x.json").read_text() == said.out
    assert said.err == ""


def test_several_targets_make_a_run_and_the_one_that_fails_does_not_end_the_others(
    specaudit: Callable[..., Said], release: Callable[[str], Path], tmp_path: Path
) -> None:
    said = specaudit("scan", f"dir:{tmp_path}/none", f"dir:{release('0.20.1')}", "--no-rules", "--json")
    failed, good = said.document["scans"]
    assert said.document["schema"] == "specaudit/run/1"
    assert (failed["engine"], good["engine"]["version"]) == (None, "0.20.1")
    assert "does not exist" in failed["errors"][0]["error"]
    assert (said.code, "does not exist" in said.err) == (3, True)


def test_of_several_targets_all_must_fail_for_what_the_user_wrote_to_be_wrong_usage(
    specaudit: Callable[..., Said], release: Callable[[str], Path], tmp_path: Path
) -> None:
    absent, there = f"dir:{tmp_path}/none", f"dir:{release('0.20.1')}"
    unreachable = ["gpu1", "--ssh-config", str(tmp_path / "config")]
    (tmp_path / "config").write_text("Host gpu1\n  HostName 127.0.0.1\n  Port 1\n")
    for targets, code in (
        ([absent], 2),
        ([absent, f"{absent}2"], 2),
        ([absent, there], 3),
        ([absent, *unreachable], 3),
        ([there, *unreachable], 3),
        ([absent, there, "--expect", "runner=v2"], 3),
        ([there, there + "/", "--expect", "runner=v2"], 1),
    ):
        assert specaudit("scan", *targets, "--no-rules", "--brief", "-q").code == code, targets


def test_the_report_of_a_run_ends_as_the_scan_did(
    specaudit: Callable[..., Said], release: Callable[[str], Path], tmp_path: Path
) -> None:
    output = str(tmp_path / "run.json")
    scanned = specaudit("scan", f"dir:{tmp_path}/none", f"dir:{release('0.20.1')}", "--no-rules", "--output", output)
    assert (scanned.code, specaudit("report", output).code) == (3, 3)


def test_rules_are_evaluated_unless_refused(specaudit: Callable[..., Said], release: Callable[[str], Path]) -> None:
    target = f"dir:{release('0.33.0')}"
    with_rules = specaudit("scan", target, "--json").document
    without = specaudit("scan", target, "--json", "--no-rules").document
    assert len(with_rules["findings"]) > 10
    assert without["findings"] == []
    assert "known defects" in {item["what"] for item in without["not_looked"]}
    assert with_rules["proposers"] == without["proposers"]


def test_one_method_can_be_shown_alone(specaudit: Callable[..., Said], release: Callable[[str], Path]) -> None:
    target = f"dir:{release('0.33.0')}"
    said = specaudit("scan", target, "--no-rules", "--json", "--method", "dflash")
    assert {runner["method"] for runner in said.document["runners"]} == {"dflash"}
    assert {method for proposer in said.document["proposers"] for method in proposer["methods"]} == {"dflash"}
    wrong = specaudit("scan", target, "--no-rules", "--method", "telepathy")
    assert (wrong.code, "telepathy" in wrong.err, "dflash" in wrong.err) == (2, True, True)


@pytest.mark.parametrize("methods", [("eagle",), ("suffix",), ("dspark",), ("mtp", "ngram")])
def test_methods_that_are_shown_alone_keep_their_own_options(
    specaudit: Callable[..., Said], release: Callable[[str], Path], methods: tuple[str, ...]
) -> None:
    scan = ("scan", f"dir:{release('0.33.0')}", "--no-rules")
    whole = specaudit(*scan, "--json").document
    alone = [part for method in methods for part in ("--method", method)]
    told = specaudit(*scan, *alone, "--json").document
    assert all(option["method"] for option in told["options"])
    expected = {one for one in _verdicts(whole) if one[0] in methods}
    assert len({one[:4] for one in expected}) == len(expected)
    assert _verdicts(told) == expected
    if methods == ("eagle",):
        said = specaudit(*scan, *alone).out
        assert "\n  dspark_draft_topk: ignored, it is checked" in said
        assert "\n  kv_cache_dtype: honoured\n" in said
        assert "\n      honoured by eagle (v1)\n" in said.partition("\n  enforce_eager\n")[2]
        assert "draft_model" not in said.partition("Speculative options")[2]


def _verdicts(made: Any) -> set[tuple[str, str, str, str, str]]:
    """What becomes of every option, method by method: (method, runner, option, value, status)."""
    takers: dict[str, list[str]] = {}
    for runner in made["runners"]:
        takers.setdefault(runner["runner"], []).append(runner["method"])
    return {
        (method, option["runner"], option["name"], option["value"], option["status"])
        for option in made["options"]
        for method in (option["method"].split(", ") if option["method"] else takers[option["runner"]])
    }


@pytest.mark.parametrize(
    ("method", "verdict", "sentence"),
    [
        ("dflash", "none", "no tree is drafted;"),
        ("ngram", "none", "no tree is drafted;"),
        ("mtp", "none", "no tree is drafted;"),  # its class drafts one, for others
        ("eagle", "static", "a static tree is drafted only if attention_config.backend is TREE_ATTN"),
    ],
)
def test_the_answers_about_trees_are_those_of_the_method(
    specaudit: Callable[..., Said], release: Callable[[str], Path], method: str, verdict: str, sentence: str
) -> None:
    scan = ("scan", f"dir:{release('0.20.1')}", "--no-rules", "--method", method)
    said = specaudit(*scan)
    assert sentence in " ".join(said.out.split())
    assert f"is a tree drafted? {verdict}\n" in said.out
    assert ("tree-static" in said.out) == (verdict == "static")
    made = specaudit(*scan, "--json").document
    drafting, proposers = made["tree"]["drafting"], made["proposers"]
    assert (drafting["verdict"], drafting["evidence"] == []) == (verdict, verdict == "none")
    if verdict == "none":
        assert drafting["searched"]["looked_at"] == len(proposers)
        assert drafting["searched"]["files"] >= len({proposer["path"] for proposer in proposers})
    else:
        assert any("speculative_token_tree" in line["text"] for line in drafting["evidence"])
    assert made["tree"]["attention"]["verdict"] == "static"
    assert made["tree"]["verification"]["searched"]["looked_at"] == len(made["verifiers"])
    expected = specaudit(*scan, "--brief", "--expect", f"tree-drafting={verdict}")
    assert expected.code == 0


def test_a_method_of_an_engine_whose_paths_are_not_drawn_is_shown_alone(
    specaudit: Callable[..., Said], release: Callable[[str], Path]
) -> None:
    target = f"dir:{release('sglang==0.5.9')}"
    said = specaudit("scan", target, "--no-rules", "--json", "--method", "EAGLE")
    assert (said.code, {runner["method"] for runner in said.document["runners"]}) == (0, {"EAGLE"})
    wrong = specaudit("scan", target, "--no-rules", "--method", "eagle")
    assert (wrong.code, "EAGLE3" in wrong.err) == (2, True)


@pytest.mark.parametrize("asked", [("scan", "--env", "A=1"), ("trace",)])
def test_where_no_paths_are_drawn_the_way_that_is_left_is_told(
    specaudit: Callable[..., Said], release: Callable[[str], Path], asked: tuple[str, ...]
) -> None:
    command, *given = asked
    said = specaudit(command, f"dir:{release('sglang==0.5.9')}", "--method", "EAGLE", *given)
    assert (said.code, said.out) == (2, "")
    assert "Paths are not drawn for sglang, so no configuration can be followed." in said.err
    assert "  try: Scan it, with --method alone: " in said.err


def test_the_name_of_an_engine_alone_is_taken_for_a_machine_and_what_else_to_write_is_said(
    specaudit: Callable[..., Said], tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("Host vllm\n  HostName 127.0.0.1\n  Port 1\n")
    said = specaudit("scan", "vllm", "--ssh-config", str(tmp_path / "config"), "-q")
    assert (said.code, "vllm==VERSION" in said.err) == (3, True)


def test_a_runner_is_shown_with_all_that_it_asks_for(
    specaudit: Callable[..., Said], release: Callable[[str], Path]
) -> None:
    """As the trace of the same configuration has it."""
    said = specaudit("scan", f"dir:{release('0.20.1')}", "--no-rules", "--method", "eagle3")
    shown = " ".join(said.out.split())
    traced = specaudit(
        *("trace", f"dir:{release('0.20.1')}", "--method", "eagle3", "--env", "VLLM_USE_V2_MODEL_RUNNER=1")
    )
    needed = [line.removeprefix("  if ") for line in traced.out.splitlines() if line.startswith("  if ")]
    assert len(needed) == 7
    assert [text for text in needed if text not in shown] == []
    assert "v2 eagle3 - VLLM_USE_V2_MODEL_RUNNER is 1 and model_config.has_inner_state is not true" in shown
    assert "and as by default: parallel_config.prefill_context_parallel_size <= 1; " in shown


def test_brief_leaves_the_tables_out(specaudit: Callable[..., Said], release: Callable[[str], Path]) -> None:
    said = specaudit("scan", f"dir:{release('0.33.0')}", "--no-rules", "--brief")
    assert "verifier" in said.out
    assert "Proposers" not in said.out


def test_without_a_target_the_own_environment_is_meant_and_a_missing_engine_is_explained(
    specaudit: Callable[..., Said],
) -> None:
    said = specaudit("scan")
    assert said.code == 2
    assert sys.executable in said.err
    assert "--python" in said.err


def test_no_colour_reaches_a_pipe(specaudit: Callable[..., Said], release: Callable[[str], Path]) -> None:
    said = specaudit("scan", f"dir:{release('0.20.1')}", "--no-rules")
    assert "\x1b" not in said.out + said.err


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["scan", "dir:/no/such/path"], 2, "does not exist"),
        (["scan", "dir:/dev"], 2, "holds no engine"),
        (["scan", "wheel:/no/such.whl"], 2, "No such file"),
        (["scan", "wheel:/dev/null"], 2, "is no file"),
        (["scan", "wheel:/dev/zero"], 2, "is no file"),
        (["scan", "wheel:/etc/passwd"], 2, "no complete wheel"),
        (["scan", "vllm==latest"], 2, "no single release"),
        (["scan", "vllm>=1"], 2, "no single release"),
        (["scan", "requests==2.0"], 2, "no engine that can be examined"),
        (["scan", "./here"], 2, "no target"),
        (["scan", "dir:/dev", "--python", "python3"], 2, "--python does not go with"),
        (["scan", "dir:/dev", "--venv", "/opt/venv"], 2, "--venv does not go with dir:/dev"),
        (["scan", "dir:/dev", "--engine", "llama"], 2, "llama is no engine"),
        (["scan", "--frobnicate"], 2, "--frobnicate"),
        (["scann"], 2, "Did you mean 'scan'"),
        (["scan", "--python", "/bin/false"], 2, "no Python interpreter"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_what_to_do(
    specaudit: Callable[..., Said], arguments: list[str], code: int, told: str
) -> None:
    said = specaudit(*arguments)
    assert (said.code, said.out) == (code, "")
    first, second, *_ = said.err.splitlines()
    assert first.startswith("error: ")
    assert told in first
    assert second.startswith("  try: ")
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (b"", b"def broken(:\n    pass\n", "invalid syntax"),
        (b"", b"x = 1\0\n", "null bytes"),
        (b"", b"name = '\xff\xfe'\n", "utf-8"),
        (b"", b"x = " + b"(" * 3000 + b")" * 3000, "cannot be parsed"),
        (b"# -*- coding: klingon -*-\n", b"", "klingon"),
    ],
)
def test_a_file_that_is_no_python_text_is_reported_and_the_rest_is_examined(
    specaudit: Callable[..., Said], tree: Path, before: bytes, after: bytes, told: str
) -> None:
    broken = tree / "vllm/config/speculative.py"
    broken.write_bytes(before + broken.read_bytes() + after)
    said = specaudit("scan", f"dir:{tree}", "--no-rules", "--json")
    assert said.code == 3
    failed = {failure["path"]: failure["error"] for failure in said.document["errors"]}
    assert told in failed["vllm/config/speculative.py"]
    assert said.document["engine"]["files"] > 10


@pytest.mark.parametrize("kind", ["large", "dangling", "loop", "pipe"])
def test_a_file_that_cannot_be_read_is_reported_and_the_rest_is_examined(
    specaudit: Callable[..., Said], tree: Path, kind: str
) -> None:
    bad = tree / "vllm/config/bad.py"
    if kind == "large":
        with bad.open("wb") as file:
            file.truncate(50 << 20)
    elif kind == "dangling":
        bad.symlink_to("nowhere.py")
    elif kind == "loop":
        bad = tree / "vllm/config/bad"
        bad.symlink_to(tree / "vllm")
    else:
        os.mkfifo(bad)
    said = specaudit("scan", f"dir:{tree}", "--no-rules", "--json")
    assert said.code == 3
    assert [failure["path"] for failure in said.document["errors"]] == [bad.relative_to(tree).as_posix()]


def test_two_installations_on_the_path_are_said(
    specaudit: Callable[..., Said], tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tree, tmp_path / "second")
    monkeypatch.setenv("PYTHONPATH", f"{tree}:{tmp_path / 'second'}")
    said = specaudit("scan", "@local", "--python", sys.executable, "--no-rules", "--json")
    assert said.code == 0
    assert any("second installation" in item["why"] for item in said.document["not_looked"])


def test_a_truncated_wheel_is_named(specaudit: Callable[..., Said], tmp_path: Path) -> None:
    wheel = tmp_path / "vllm-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel_bytes({"vllm/__init__.py": b""})[:-30])
    said = specaudit("scan", f"wheel:{wheel}")
    assert (said.code, "no complete wheel" in said.err) == (2, True)


@pytest.fixture
def index() -> Iterator[Index]:
    with serving(Index({"vllm-1.0-py3-none-any.whl": wheel_bytes({"vllm/__init__.py": b""})})) as served:
        yield served


def test_a_version_that_does_not_exist(specaudit: Callable[..., Said], index: Index) -> None:
    said = specaudit("scan", "vllm==9.9", index=index.url)
    assert (said.code, "no release vllm==9.9" in said.err, "1.0" in said.err) == (2, True, True)


def test_an_index_that_is_not_there(specaudit: Callable[..., Said], index: Index) -> None:
    said = specaudit("scan", "vllm==1.0", index="http://127.0.0.1:1/simple")
    assert (said.code, "No package index answered" in said.err) == (3, True)


def test_an_index_without_ranges_and_nothing_else_to_take(specaudit: Callable[..., Said], index: Index) -> None:
    index.ranges = "none"
    refused = specaudit("scan", "vllm==1.0", "--no-rules", index=index.url)
    assert (refused.code, "--download" in refused.err) == (2, True)
    agreed = specaudit("scan", "vllm==1.0", "--no-rules", "--download", "--json", index=index.url)
    assert agreed.document["engine"]["version"] == "1.0"


def test_a_wrong_hash_of_the_index(specaudit: Callable[..., Said], index: Index) -> None:
    index.ranges = "none"
    index.hashes = {"vllm-1.0-py3-none-any.whl": "0" * 64}
    said = specaudit("scan", "vllm==1.0", "--download", index=index.url)
    assert (said.code, "does not have the hash" in said.err) == (2, True)


def test_a_cache_that_cannot_be_used_is_said_once_and_the_scan_is_made(
    specaudit: Callable[..., Said], tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    said = specaudit("scan", f"dir:{tree}", f"dir:{tree}/vllm", "--no-rules", "--json")
    assert said.code == 0
    assert len(said.document["scans"]) == 2
    assert said.err.count("cannot be used") == 1


def test_an_output_that_cannot_be_written(specaudit: Callable[..., Said], tree: Path) -> None:
    said = specaudit("scan", f"dir:{tree}", "--no-rules", "--output", "/dev/null/x.json")
    assert (said.code, said.out) == (2, ""), "it is told before the work"
    assert "cannot be written" in said.err


def test_an_output_that_cannot_be_written_any_more_hides_no_result(
    specaudit: Callable[..., Said], tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    encode = document.encode
    monkeypatch.setattr(document, "encode", lambda scans: (folder.rmdir(), encode(scans))[1])
    scan = ("scan", f"dir:{tree}", "--no-rules", "--brief", "--expect", "runner=v2", "--output", f"{folder}/x")
    said = specaudit(*scan)
    assert (said.code, "cannot be written" in said.err, "runner" in said.err) == (2, True, True)
    assert said.out.startswith("vllm")
    (tree / "vllm/config/bad.py").symlink_to("nowhere.py")
    folder.mkdir()
    assert specaudit(*scan).code == 3


@pytest.mark.parametrize("form", [[], ["--json"], ["--brief"]])
def test_a_reader_that_goes_away_is_told_as_sigpipe_is(tree: Path, form: list[str]) -> None:
    scan = shlex.join([sys.executable, "-m", "specaudit", "scan", f"dir:{tree}", "--no-rules", *form])
    done = subprocess.run(
        ["bash", "-c", f"{scan} | sleep 0; echo ${{PIPESTATUS[0]}}"], capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.stdout) == ("", "141\n")


def test_a_file_name_cannot_write_on_the_terminal(specaudit: Callable[..., Said], tree: Path) -> None:
    (tree / "vllm/config/\x1b[31mred.py").symlink_to("nowhere")
    said = specaudit("scan", f"dir:{tree}", "--no-rules")
    assert "\x1b" not in said.out + said.err

"""``specaudit report``, ``rules``, ``diff`` and ``history`` as their users see them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import trees

from specaudit import document
from specaudit.cli import run
from specaudit.engines import ENGINES
from specaudit.report.view import report_of
from specaudit.ruling.judge import RuleJudge
from specaudit.ruling.store import rulebook

Release = Callable[[str], Path]


@dataclass
class Said:
    """What one command line gave."""

    code: int
    out: str
    err: str


Program = Callable[..., Said]


@pytest.fixture
def program(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)

    def call(*arguments: str | Path) -> Said:
        code = run([str(argument) for argument in arguments])
        sys.stdout.flush()
        out, err = capfd.readouterr()
        return Said(code, out, err)

    return call


@pytest.fixture(scope="module")
def documents(release: Release, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Scan documents of two releases."""
    folder = tmp_path_factory.mktemp("documents")
    found = {}
    for version in ("0.20.1", "0.33.0"):
        found[version] = folder / f"{version}.json"
        assert run(["scan", f"dir:{release(version)}", "--json", "-q", "--output", str(found[version])]) == 0
    return found


# --- scan: gate and configuration -----------------------------------------------------------------------------------


def test_scan_gates(program: Program, release: Release, documents: dict[str, Path]) -> None:
    target = f"dir:{release('0.33.0')}"
    assert program("scan", target, "--brief", "-q").code == 0
    failed = program("scan", target, "--brief", "-q", "--fail-on", "high")
    assert failed.code == 1
    assert "findings at or above the gate" in failed.err
    assert program("scan", target, "--brief", "-q", "--fail-on", "high", "--baseline", documents["0.33.0"]).code == 0
    assert program("scan", target, "--brief", "-q", "--expect", "runner.eagle3=v2").code == 0
    unmet = program("scan", target, "--brief", "-q", "--expect", "tree-verification=tree-walk")
    assert unmet.code == 1
    assert "expected tree-verification=tree-walk, found none" in unmet.err


def test_a_gate_says_why_where_every_report_goes_to_a_file(
    program: Program, documents: dict[str, Path], tmp_path: Path
) -> None:
    told = program("report", documents["0.33.0"], "--format", f"sarif={tmp_path / 'a'}", "--fail-on", "high")
    assert (told.code, told.out, "findings at or above the gate" in told.err) == (1, "", True)
    assert program("report", documents["0.33.0"], "--format", f"sarif={tmp_path / 'a'}").err == ""
    shown = program("report", documents["0.33.0"], "--format", "text", "--fail-on", "high")
    assert (shown.code, "findings at or above the gate" in shown.out, shown.err) == (1, True, "")


def test_a_gate_says_why_it_could_not_judge(program: Program, documents: dict[str, Path], tmp_path: Path) -> None:
    plain = json.loads(documents["0.33.0"].read_text())
    spec = plain["target"]["spec"]
    error = {"path": "vllm/a.py", "error": "invalid syntax"}
    for made, why in (
        ({"findings": []}, "no findings to gate: the scan was made without rules"),
        ({"errors": [error]}, r"not fully examined \(1 failure\); \d+ findings at or above the gate"),
        ({"engine": None, "errors": [{**error, "path": ""}]}, "not examined: invalid syntax"),
    ):
        (tmp_path / "made.json").write_text(json.dumps({**plain, **made}))
        for place in (f"text={tmp_path / 'report'}", "github"):
            said = program("report", tmp_path / "made.json", "--fail-on", "high", "-f", place)
            assert said.code == 3
            assert re.fullmatch(f"note: {re.escape(spec)}: gate: {why}\n", said.err), said.err


def test_a_configuration_rules_findings_out(program: Program, release: Release) -> None:
    target = f"dir:{release('0.33.0')}"

    def statuses(*arguments: str) -> dict[str, Any]:
        said = program("scan", target, "--json", "-q", *arguments)
        assert said.code == 0, said.err
        return {f["rule"]: f for f in json.loads(said.out)["findings"]}

    v2 = statuses("--speculative-config", '{"method": "eagle3", "num_speculative_tokens": 3}')
    assert v2["skipped-draft-zero-filled"]["status"] == "unreachable"
    assert v2["skipped-draft-zero-filled"]["hop"]["what"] == "runner"
    assert v2["v2-no-drafter-length-gate"]["status"] == "present"
    v1 = statuses("--method", "eagle3", "--env", "VLLM_USE_V2_MODEL_RUNNER=0")
    assert v1["skipped-draft-zero-filled"]["status"] == "present"
    assert v1["v2-no-drafter-length-gate"]["status"] == "unreachable"
    assert v1["noncausal-drafter-picks-fa2-on-sm12x"]["status"] == "unreachable"
    assert v1["gdn-accepted-index-unbounded"]["status"] == "present"


def test_incomplete_wins_over_findings_in_a_fleet(program: Program, release: Release, tmp_path: Path) -> None:
    target, both = f"dir:{release('0.33.0')}", tmp_path / "both.json"
    said = program(
        "scan", "nowhere.invalid", target, "--brief", "-q", "--fail-on", "high", "--ignore", "v2-runner-default",
        "--expect", "runner=v1", "--output", both, "-o", "ConnectTimeout=2",
    )  # fmt: skip
    assert said.code == 3
    assert "gate: " in said.err
    again = program("report", both, "--fail-on", "high", "--format", "text")
    assert again.code == 3
    assert "not examined" in again.out
    assert "(fails)" in again.out
    known = program("report", both, "--fail-on", "high", "--baseline", both)
    assert (known.code, "(fails)" in known.out) == (3, False)


def test_a_gate_without_rules_is_refused(program: Program, release: Release, tmp_path: Path) -> None:
    target, bare = f"dir:{release('0.33.0')}", tmp_path / "bare.json"
    for option in (("--fail-on", "low"), ("--ignore", "v2-runner-default"), ("--baseline", bare)):
        said = program("scan", target, "--no-rules", *option, "-q")
        assert said.code == 2
        assert "--no-rules" in said.err
    written = program("scan", target, "--no-rules", "--expect", "runner.eagle3=v2", "-q", "--brief", "--output", bare)
    assert written.code == 0
    assert program("report", bare, "--fail-on", "low").code == 3
    assert "no findings" in program("report", bare, "--baseline", bare).err


def test_ignored_ids_are_known_before_anything_is_read(program: Program, tmp_path: Path) -> None:
    said = program("scan", "dir:/nowhere", "--fail-on", "low", "--ignore", "my-rul", "-q")
    assert (said.code, "no rule 'my-rul'" in said.err) == (2, True)
    (tmp_path / "my-rule.yaml").write_text(MY_RULE)
    said = program("scan", "dir:/nowhere", "--fail-on", "low", "--ignore", "my-rul", "-q", "--rules", tmp_path)
    assert "Did you mean my-rule?" in said.err
    said = program("scan", "dir:/nowhere", "--fail-on", "low", "--ignore", "my-rule", "-q", "--rules", tmp_path)
    assert "no rule" not in said.err


def test_a_baseline_of_another_engine(program: Program, documents: dict[str, Path], tmp_path: Path) -> None:
    other = json.loads(documents["0.20.1"].read_text())
    other["engine"]["name"] = "sglang"
    (tmp_path / "other.json").write_text(json.dumps(other))
    said = program("report", documents["0.33.0"], "--fail-on", "low", "--baseline", tmp_path / "other.json")
    assert (said.code, "The baseline is of sglang, and this is vllm" in said.err) == (2, True)
    newer = tmp_path / "newer.json"
    newer.write_text(json.dumps({**other, "schema": "specaudit/scan/2"}))
    said = program("report", documents["0.33.0"], "--fail-on", "low", "--baseline", newer)
    assert (said.code, "this program reads specaudit/scan/1" in said.err) == (2, True)
    whole = documents["0.33.0"].read_bytes()
    newer.write_bytes(whole[: len(whole) // 2])
    assert program("report", documents["0.33.0"], "--fail-on", "low", "--baseline", newer).code == 2


def test_rules_of_ones_own(program: Program, release: Release, tmp_path: Path) -> None:
    target = f"dir:{release('0.33.0')}"
    (tmp_path / "my-rule.yaml").write_text(MY_RULE)
    said = program("scan", target, "--json", "-q", "--rules", tmp_path)
    found = {f["rule"]: f["status"] for f in json.loads(said.out)["findings"]}
    assert found["my-rule"] == "present"
    assert len(found) == len(rulebook().rules) + 1
    (tmp_path / "broken.yaml").write_text("id: broken\n")
    said = program("scan", target, "--brief", "-q", "--rules", tmp_path)
    assert said.code == 2
    assert "broken.yaml:1: the key 'title' is missing" in said.err
    assert "Traceback" not in said.err


MY_RULE = """\
id: my-rule
title: Eagle's proposer is there
severity: low
methods: [eagle]
runners: [v1]
symptom: None.
cause: None.
remedy: {}
subject: {files: vllm/v1/spec_decode/**, class: EagleProposer}
present: {inherits: SpecDecodeBaseProposer}
examples:
  present:
    - "class EagleProposer(SpecDecodeBaseProposer): pass"
  fixed:
    - "class EagleProposer: pass"
"""


# --- report ---------------------------------------------------------------------------------------------------------


def test_several_reports_from_one_run(program: Program, documents: dict[str, Path], tmp_path: Path) -> None:
    files = {name: tmp_path / f"out.{name}" for name in ("sarif", "junit", "html", "markdown", "json")}
    formats = [word for name, path in files.items() for word in ("--format", f"{name}={path}")]
    said = program("report", *documents.values(), *formats, "--format", "text", "--fail-on", "critical")
    assert said.code == 1
    assert said.out.startswith("vllm 0.20.1")
    assert all(path.stat().st_size > 1000 for path in files.values())
    assert len(document.load(files["json"]).scans) == 2  # type: ignore[union-attr]


def test_report_reads_standard_input(documents: dict[str, Path]) -> None:
    command = [sys.executable, "-m", "specaudit", "report", "-", "--format", "json"]
    done = subprocess.run(command, input=documents["0.33.0"].read_bytes(), capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, documents["0.33.0"].read_bytes())


def test_baseline_and_ignored_rules(program: Program, documents: dict[str, Path]) -> None:
    new, old = documents["0.33.0"], documents["0.20.1"]
    worse = program("report", new, "--fail-on", "low", "--baseline", old)
    assert worse.code == 1
    rules = [line.split()[1].rstrip(":") for line in worse.out.splitlines() if "(fails)" in line]
    assert "removed-method-medusa" in rules
    ignored = [word for rule in rules for word in ("--ignore", rule)]
    assert program("report", new, "--fail-on", "low", "--baseline", old, *ignored).code == 0


def test_github_writes_annotations_and_the_step_summary(
    program: Program, documents: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = tmp_path / "summary.md"
    step.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    said = program("report", documents["0.33.0"], "--format", "github", "--fail-on", "critical")
    assert said.code == 1
    assert said.out.startswith("::error file=vllm/")
    assert step.read_text().startswith("before\n## vllm 0.33.0")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "no" / "such"))
    assert program("report", documents["0.33.0"], "--format", "github").code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "pdf"], "not known"),
        (["--format", "text", "--format", "json"], "standard output"),
        (["--fail-on", "awful"], "no severity"),
        (["--expect", "nonsense"], "cannot be understood"),
        (["--expect", "tree-verification=tree"], "can never be met"),
        (["--expect", "rule.v2-runner-defaults=fixed"], "Did you mean v2-runner-default"),
        (["--ignore", "v2-runner-defaults"], "Did you mean v2-runner-default"),
        (["--ignore", "zzz"], "rules list"),
        (["--baseline", "/dev/zero"], "more than 256 MiB"),
        (["--baseline", "/dev/null"], "no scan document"),
        (["--baseline", "."], "cannot be read"),
        (["--baseline", "/nowhere.json"], "cannot be read"),
        (["--format", "text", "--output", "/nowhere/x"], "cannot be written"),
    ],
)
def test_bad_arguments(program: Program, documents: dict[str, Path], arguments: list[str], said: str) -> None:
    answer = program("report", documents["0.33.0"], *arguments)
    assert answer.code == 2
    assert said in answer.err
    assert "Traceback" not in answer.err


def test_a_report_that_cannot_be_written_any_more_takes_no_other_with_it(
    program: Program, documents: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    monkeypatch.setattr("specaudit.report.view.report_of", lambda *given: (folder.rmdir(), report_of(*given))[1])
    formats = ("--format", f"html={folder}/x.html", "--format", f"junit={tmp_path}/x.xml")
    said = program("report", documents["0.33.0"], *formats, "--fail-on", "critical")
    assert (said.code, "x.html cannot be written" in said.err, "gate: " in said.err) == (2, True, True)
    assert (tmp_path / "x.xml").read_text().startswith("<?xml")
    folder.mkdir()
    unscanned = tmp_path / "none.json"
    unscanned.write_bytes(b"{}")
    assert (
        "reports/no/x.html cannot be written"
        in program("report", unscanned, "--format", f"html={folder}/no/x.html").err
    ), "it is told before the documents are read"


def test_a_run_of_no_scans_passes_no_gate(program: Program, documents: dict[str, Path], tmp_path: Path) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text('{"schema":"specaudit/run/1","scans":[]}')
    full = str(documents["0.33.0"])
    for arguments in ([], ["--fail-on", "low"], ["--expect", "runner=v2"], [full], ["--format", f"html={tmp_path}/x"]):
        said = program("report", str(empty), *arguments)
        assert (said.code, said.out) == (2, "")
        assert f"{empty} holds no scan" in said.err


def test_a_file_that_is_no_scan_document(program: Program, tmp_path: Path) -> None:
    for number, text in enumerate(("", "{", "[]", '{"schema": "other"}', '{"schema": "specaudit/scan/1"}')):
        file = tmp_path / f"{number}.json"
        file.write_text(text)
        said = program("report", file)
        assert said.code == 2
        assert str(file) in said.err


# --- rules ----------------------------------------------------------------------------------------------------------


def test_rules_list_and_show(program: Program) -> None:
    listed = program("rules", "list")
    assert listed.code == 0
    lines = listed.out.splitlines()
    assert [line.split()[-1] for line in lines[1:] if line[0] != " "] == [rule.id for rule in rulebook().rules]
    assert [line for line in lines if len(line) > 80] == []
    assert lines[1:3] == [
        "high      v1+v2   all-kv-groups-flagged-eagle",
        "    Every KV group is treated as an EAGLE group when none is marked as one",
    ]
    shown = program("rules", "show", "v2-runner-default")
    for text in ("What you see", "What to do", "References", "present:", "examples:"):
        assert text in shown.out
    unknown = program("rules", "show", "v2-runner")
    assert unknown.code == 2
    assert "v2-runner-default" in unknown.err


def test_rules_test_the_packaged_ones(program: Program, release: Release) -> None:
    with trees.kept():  # one rule after another is judged on the same files
        said = program("rules", "test", "--tree", f"dir:{release('0.20.1')}", "--tree", f"dir:{release('0.33.0')}")
    assert said.code == 0, said.out
    assert "0 failed" in said.out


def test_rules_test_tells_in_one_line_why_something_was_skipped(program: Program, tmp_path: Path) -> None:
    tree = tmp_path / "tree/vllm"
    tree.mkdir(parents=True)
    (tree / "__init__.py").write_text("")
    (tmp_path / "rules").mkdir()
    edits = ", ".join(
        f"{{from: {a}, to: {b}, edits: [{{find: {{pattern: x}}, replace: y}}]}}"
        for a, b in (("present", "fixed"), ("present", "partial"), ("fixed", "present"))
    )
    (tmp_path / "rules/my-rule.yaml").write_text(f"{MY_RULE}mutations: [{edits}]\n")
    one = program("rules", "test", tmp_path / "rules", "--tree", f"dir:{tree.parent}")
    counts, reasons = one.out.splitlines()
    assert (one.code, counts) == (0, "1 rule: 2 passed, 0 failed, 3 skipped")
    assert reasons == (
        "skipped mutations: 2 because no --tree given has the status present to start from, "
        "1 because no --tree given has the status fixed to start from"
    )
    none = program("rules", "test", tmp_path / "rules")
    assert none.out == "1 rule: 2 passed, 0 failed, 3 skipped\nskipped mutations: 3 because no --tree is given\n"


def test_rules_test_tells_a_method_that_no_tree_has(program: Program, release: Release, tmp_path: Path) -> None:
    document = re.sub("(?m)^methods: .*", "methods: [eagle3, eagel, ngram]", MY_RULE)
    (tmp_path / "my-rule.yaml").write_text(document)
    said = program("rules", "test", tmp_path, "--tree", f"dir:{release('0.20.1')}")
    assert (said.code, said.out.splitlines()) == (
        0,
        [
            "1 rule: 2 passed, 0 failed, 0 skipped",
            "no --tree given has the method eagel of my-rule. Did you mean eagle?",
        ],
    )
    elsewhere = program("rules", "test", tmp_path, "--tree", f"dir:{release('sglang==0.5.9')}")
    assert "has the method" not in elsewhere.out, "it is about another engine"


def test_rules_test_finds_what_can_never_match(program: Program, tmp_path: Path) -> None:
    (tmp_path / "my-rule.yaml").write_text(MY_RULE)
    assert program("rules", "test", tmp_path).code == 0
    blind = MY_RULE.replace("{inherits: SpecDecodeBaseProposer}", "{match: {pattern: 'SpecDecodeBaseProposer.x'}}")
    (tmp_path / "my-rule.yaml").write_text(blind)
    said = program("rules", "test", tmp_path)
    assert said.code == 1
    assert "my-rule.yaml:13 example present: the rule says fixed" in said.out
    (tmp_path / "other.yaml").write_text("id: other\n")
    said = program("rules", "test", tmp_path)
    assert said.code == 2
    assert "other.yaml:1" in said.err
    assert "my-rule" in said.out


# --- diff -----------------------------------------------------------------------------------------------------------


def unwrapped(text: str) -> str:
    """Paragraphs as one line."""
    return " ".join(text.split())


def test_diff_of_two_releases(program: Program, documents: dict[str, Path], release: Release) -> None:
    said = program("diff", f"dir:{release('0.20.1')}", documents["0.33.0"], "-q")
    assert said.code == 0
    for line in (
        "changed   method eagle3: default runner v1 -> v2",
        "appeared  proposer DSparkSpeculator (v2)",
        "vanished  proposer MedusaProposer (v1)",
        "changed   tree drafting: static -> none",
        "changed   tree attention: static -> dead",
        "changed   finding first-prefill-lookahead-zeroed: present -> fixed",
        "changed   finding removed-method-medusa: not-applicable -> present",
        "changed   proposer EagleProposer (v1): topology chain-autoregressive, chain-parallel, tree-static -> "
        "chain-autoregressive, chain-parallel",
        "changed   proposer EagleProposer (v1): reachable default -> conditional",
        "appeared  verifier _rejection_kernel (v2)",
    ):
        assert unwrapped(line) in unwrapped(said.out), line
    assert max(map(len, said.out.splitlines())) <= 80


def test_diff_tells_of_a_runner_that_the_model_decides(
    program: Program, documents: dict[str, Path], release: Release
) -> None:
    said = program("diff", f"dir:{release('0.24.0')}", documents["0.33.0"], "-q")
    assert "changed   method eagle: default runner v1 or v2 -> v2\n" in said.out
    assert "changed   method draft_model: default runner v1 -> v2\n" in said.out


def test_diff_of_walks_and_options(program: Program, documents: dict[str, Path], release: Release) -> None:
    said = program("diff", f"dir:{release('0.29.0')}", documents["0.33.0"], "-q")
    for line in (
        "changed   verifier _rejection_kernel (v2): walk block, linear, synthetic -> block, linear, lossy, synthetic",
        "changed   option moe_backend (eagle, eagle3, mtp on v2): ignored -> honoured",
    ):
        assert unwrapped(line) in unwrapped(said.out), line


def test_diff_as_json_and_as_a_gate(program: Program, documents: dict[str, Path]) -> None:
    old, new = documents["0.20.1"], documents["0.33.0"]
    same = program("diff", new, new, "--json", "--fail-on", "low", "-q")
    assert (same.code, json.loads(same.out)["changes"]) == (0, [])
    made = json.loads(program("diff", old, new, "--json", "-q").out)
    assert made["schema"] == "specaudit/diff/1"
    assert {change["kind"] for change in made["changes"]} >= {"appeared", "vanished", "changed"}
    worse = program("diff", old, new, "--fail-on", "low", "-q")
    assert worse.code == 1
    gate = r"note: \S+: gate: 12 findings at or above the gate that \S+ has not: (\S+, ){4}\S+ and 7 more"
    assert re.fullmatch(gate, worse.err.strip())
    fewer = program("diff", old, new, "--fail-on", "high", "--json", "-q")
    assert fewer.code == 1
    assert fewer.err == (
        f"note: {new}: gate: 3 findings at or above the gate that {old} has not: "
        "embed-sharing-decided-per-rank, mrope-drafter-slot-from-temporal-position, v2-runner-default\n"
    )
    least = program("diff", old, new, "--fail-on", "critical", "-q")
    assert (least.code, least.err) == (0, "")


def test_diff_as_json_of_a_folder_whose_name_is_no_text(
    program: Program, documents: dict[str, Path], release: Release, tmp_path: Path
) -> None:
    site = tmp_path / os.fsdecode(b"no \xff text")
    site.symlink_to(release("0.33.0"))
    said = program("diff", documents["0.33.0"], f"dir:{site}", "--json", "-q")
    assert (said.code, json.loads(said.out)["after"]["target"]) == (0, f"dir:{site}")


def test_diff_tells_of_new_places_of_a_defect(program: Program, documents: dict[str, Path], tmp_path: Path) -> None:
    changed = json.loads(documents["0.33.0"].read_text())
    finding = next(f for f in changed["findings"] if f["rule"] == "mean-acceptance-counts-past-eos")
    finding["sites"].append({"path": "vllm/other.py", "line": 3, "text": "count(too_much)"})
    finding["fingerprint"] = "0" * 32
    (tmp_path / "new.json").write_text(json.dumps(changed))
    said = program("diff", documents["0.33.0"], tmp_path / "new.json", "-q", "--fail-on", "low")
    assert said.code == 1
    told = "finding mean-acceptance-counts-past-eos: (present) vllm/v1/core/sched/scheduler.py:"
    assert told in unwrapped(said.out)
    assert said.out.endswith("\n1 change\n")
    back = program("diff", tmp_path / "new.json", documents["0.33.0"], "-q", "--fail-on", "low")
    assert (back.code, "\n1 change\n" in back.out) == (0, True)


def test_diff_of_odd_things(program: Program, documents: dict[str, Path], tmp_path: Path) -> None:
    whole = documents["0.33.0"]
    plain = json.loads(whole.read_text())

    def written(name: str, made: Any) -> Path:
        (tmp_path / name).write_text(made if isinstance(made, str) else json.dumps(made))
        return tmp_path / name

    other = written("other.json", {**plain, "engine": {**plain["engine"], "name": "sglang"}})
    bare = written("bare.json", {**plain, "findings": []})
    failed = written(
        "failed.json", {**plain, "engine": None, "findings": [], "errors": [{"path": "", "error": "gone"}]}
    )
    run_of_two = written("two.json", {"schema": "specaudit/run/1", "scans": [plain, plain]})
    run_of_one = written("one.json", {"schema": "specaudit/run/1", "scans": [plain]})
    for arguments, code, text in (
        ((whole, other), 0, "name vllm -> sglang"),
        ((whole, other, "--fail-on", "low"), 2, "cannot compare vllm with sglang"),
        ((whole, bare, "--fail-on", "low"), 3, "without rules"),
        ((bare, whole, "--fail-on", "low"), 3, "without rules"),
        ((whole, failed), 3, "not examined"),
        ((whole, run_of_two), 2, "holds 2 scans"),
        ((whole, run_of_one), 0, "0 changes"),
        ((whole, tmp_path / "nowhere.json"), 2, "There is no file"),
        ((whole, written("empty.json", "")), 2, "no scan document"),
        ((whole, "dir:/nowhere"), 2, "does not exist"),
    ):
        said = program("diff", *arguments, "-q")
        assert (said.code, text in unwrapped(said.out + said.err)) == (code, True), (arguments, said)
        assert "Traceback" not in said.err


def test_diff_sees_a_moved_proposer(program: Program, release: Release, tmp_path: Path) -> None:
    source = release("0.20.1")
    copy_of(source, tmp_path / "a")
    copy_of(source, tmp_path / "b")
    spec = tmp_path / "b/vllm/v1/spec_decode"
    (spec / "moved").mkdir()
    (spec / "moved/__init__.py").touch()
    (spec / "medusa.py").rename(spec / "moved/medusa.py")
    runner = tmp_path / "b/vllm/v1/worker/gpu_model_runner.py"
    runner.write_text(runner.read_text().replace("v1.spec_decode.medusa", "v1.spec_decode.moved.medusa"))
    said = program("diff", f"dir:{tmp_path / 'a'}", f"dir:{tmp_path / 'b'}", "-q")
    line = (
        "moved     proposer MedusaProposer (v1): vllm/v1/spec_decode/medusa.py -> vllm/v1/spec_decode/moved/medusa.py"
    )
    assert unwrapped(line) in unwrapped(said.out)
    assert "finding" not in said.out


def copy_of(source: Path, place: Path) -> None:
    """The part of a release that a scan reads."""
    judge = RuleJudge(rulebook())
    for file in (source / "vllm").rglob("*.py"):
        path = file.relative_to(source).as_posix()
        if judge.wants(path) or ENGINES["vllm"].wants(path) or path == "vllm/__init__.py":
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, place / path)


# --- history --------------------------------------------------------------------------------------------------------


def rows(out: str) -> list[list[str]]:
    """The table's own; what hangs below them is indented."""
    return [line.split() for line in out.splitlines() if not line.startswith(" ")]


def test_history_of_the_package_index(program: Program) -> None:
    said = program("history", "--from", "0.20.1", "--to", "0.20.2", "-q")
    assert said.code == 0, said.err
    assert [row[0] for row in rows(said.out)] == ["release", "0.20.1", "0.20.2"]
    assert "static/static/none" in said.out
    assert "\n    walks: " in said.out
    assert [line for line in said.out.splitlines() if len(line) > 80] == []


def test_history_of_a_checkout(program: Program, release: Release, tmp_path: Path) -> None:
    from git import Actor, Repo

    clone = tmp_path / "clone"
    repo = Repo.init(clone)
    author = Actor("a", "a@example.com")
    for version in ("0.20.1", "0.33.0"):
        shutil.rmtree(clone / "vllm", ignore_errors=True)
        copy_of(release(version), clone)
        repo.git.add(all=True)
        repo.index.commit(version, author=author, committer=author)
        repo.create_tag(f"v{version}")
    repo.create_tag("nightly")
    repo.close()
    said = program("history", "--git", clone, "-q")
    assert said.code == 0, said.err
    assert [row[:2] for row in rows(said.out)[1:]] == [["0.20.1", "v1"], ["0.33.0", "v2"]]
    assert "none/dead/none" in said.out
    changed = program("history", "--git", clone, "--from", "0.20", "--changes", "-q")
    assert "    changed   tree drafting: static -> none" in changed.out
    lines = changed.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split()[:3] == ["release", "default", "runner"]
    first, second = (next(line for line in lines if line.startswith(version)) for version in ("0.20.1", "0.33.0"))
    assert lines[0].index("default runner") == first.index("v1") == second.index("v2")  # one table, not two
    plain = program("history", "--git", clone, "--from", "0.20", "-q").out.splitlines()
    assert [line for line in plain if not line.startswith(" ")] == [lines[0], first, second]
    assert len(json.loads(program("history", "--git", clone, "--json", "-q").out)["scans"]) == 2
    direct = program("scan", f"git:{clone}@v0.33.0", "--json", "-q")
    assert json.loads(direct.out)["engine"]["source"].startswith("git:")
    none = program("history", "--git", clone, "--from", "9.0")
    assert (none.code, none.err) == (
        2,
        "error: No release lies within --from 9.0.\n  try: The newest releases are: v0.33.0, v0.20.1.\n",
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--git", "/nowhere"], "no git repository"),
        (["--git", ".", "--from", "new"], "no version"),
        (["--git", ".", "--from", "0.33.0", "--to", "0.9.2"], "0.33.0 is newer than 0.9.2"),
        (["--engine", "tgi"], "no engine that can be examined"),
    ],
)
def test_history_that_cannot_be_told(program: Program, tmp_path: Path, arguments: list[str], said: str) -> None:
    from git import Repo

    Repo.init(tmp_path).close()
    words = [str(tmp_path) if word == "." else word for word in arguments]
    answer = program("history", *words)
    assert answer.code == 2
    assert said in answer.err


def test_history_of_a_checkout_without_releases(program: Program, tmp_path: Path) -> None:
    from git import Actor, Repo

    author = Actor("a", "a@example.com")
    with Repo.init(tmp_path) as repo:
        repo.index.commit("nothing", author=author, committer=author)
        repo.create_tag("nightly")
    for bounds in ((), ("--from", "0.9.2")):
        said = program("history", "--git", tmp_path, *bounds)
        assert (said.code, said.out) == (2, "")
        assert said.err.splitlines() == [
            f"error: {tmp_path} has no tag that names a release, as v0.33.0.",
            f"  try: Fetch them: git -C {tmp_path} fetch --tags; or leave --git out to read the package index.",
        ]


def test_commits_that_do_not_exist(program: Program, tmp_path: Path) -> None:
    from git import Repo

    Repo.init(tmp_path).close()
    for ref in ("v1", "--upload-pack=x", "0" * 40):
        said = program("scan", f"git:{tmp_path}@{ref}", "-q")
        assert said.code == 2
        assert "no commit" in said.err
    assert "names no commit" in program("scan", "git:here", "-q").err


def test_nothing_that_is_printed_is_a_command_to_a_ci_service(capsys: pytest.CaptureFixture[str]) -> None:
    from specaudit.console import complain, note, show_lines

    text = "::error::x\n  ::stop-commands::y\n##[add-matcher]z \x1b[31m"
    show_lines([(text, None)])
    note(text)
    complain(text, text)
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert not [line for line in (out + err).splitlines() if line.lstrip().startswith("::")]
    assert "##[" not in out + err
    assert "\x1b" not in out + err


# --- the workflow in the README -------------------------------------------------------------------------------------


def workflow() -> Any:
    import yaml

    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    document = text[text.index("```yaml\nname: ") :].removeprefix("```yaml\n").partition("```")[0]
    return yaml.safe_load(document)


def test_the_workflow_in_the_readme_does_what_it_says(
    program: Program, release: Release, documents: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "site-packages").symlink_to(release("0.33.0"))
    (tmp_path / "speculative.json").write_text('{"method": "eagle3", "num_speculative_tokens": 3}')
    shutil.copy(documents["0.33.0"], tmp_path / "baseline.json")
    (job,) = workflow()["jobs"].values()
    commands = [shlex.split(step["run"]) for step in job["steps"] if step.get("run", "").startswith("specaudit ")]
    assert [words[1] for words in commands] == ["scan", "report"]
    scan, report = (program(*words[1:]) for words in commands)
    assert (scan.code, report.code) == (0, 0), scan.err + report.err
    uploads = [step["with"] for step in job["steps"] if "upload" in step.get("uses", "")]
    for name in (uploads[0]["sarif_file"], *uploads[1]["path"].split()):
        assert (tmp_path / name).stat().st_size > 1000, name
    assert (tmp_path / "summary.md").read_text().startswith("## vllm 0.33.0")
    shutil.copy(documents["0.20.1"], tmp_path / "baseline.json")
    assert program(*commands[1][1:]).code == 1
    monkeypatch.undo()

"""The packaged rules: their examples, their statuses on real releases, and defects put back into real code."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from packaging.version import Version
from ruling.statuses import STATUSES
from support import trees
from support.derived import derived

from specaudit.engines import ENGINES
from specaudit.errors import ConfigurationError
from specaudit.index import Index
from specaudit.model import FileEntry
from specaudit.ruling.evaluate import evaluate, judge
from specaudit.ruling.judge import RuleJudge, TrialJudge
from specaudit.ruling.places import Ground
from specaudit.ruling.schema import read_rule
from specaudit.ruling.store import rulebook
from specaudit.ruling.trials import examples, mutations, of_texts
from specaudit.snapshot import Snapshot, of_folder

BOOK = rulebook()
RULES = {rule.id: rule for rule in BOOK.rules}
DEFECTS = {name: rule for name, rule in RULES.items() if rule.severity != "info"}

#: Checked against public threads by hand.
CHECKED = ("0.9.2", "0.13.0", "0.20.1", "0.25.1", "0.29.0", "0.33.0")
#: Releases between them at which several statuses change.
BETWEEN = ("0.11.2", "0.18.1", "0.22.0", "0.24.0", "0.27.1", "0.31.0")
#: `make test-rules` walks all that were read: those at which a status changes, and those that the benchmarks scan.
LISTED = (Path(__file__).parents[2] / "benchmarks" / "releases.txt").read_text().split()
EVERY = sorted(
    {first for ways in STATUSES.values() for first, _ in ways}
    | {name.removeprefix("vllm==") for name in LISTED if name.startswith("vllm==")}
    | {*CHECKED, *BETWEEN},
    key=Version,
)
WALKED = tuple(EVERY) if os.environ.get("SPECAUDIT_EVERY_RELEASE") else (*CHECKED, *BETWEEN)

Tree = Callable[[str], Index]


@pytest.fixture(scope="module", autouse=True)
def _trees() -> Iterator[None]:
    """One rule after another is judged on the same files."""
    with trees.kept():
        yield


@pytest.fixture(scope="session")
def tree(release: Callable[[str], Path]) -> Tree:
    """``tree("0.33.0")``: the files of a release that a scan reads."""
    judge = TrialJudge(BOOK)

    @cache
    def get(version: str) -> Index:
        whole = of_folder(release(version), "vllm", version, derived())
        return Index(whole.narrowed(lambda path: judge.wants(path) or ENGINES["vllm"].wants(path)))

    return get


def expected(rule: str, version: str) -> str:
    return [status for first, status in STATUSES[rule] if Version(first) <= Version(version)][-1]


def test_every_rule_has_its_statuses() -> None:
    assert STATUSES.keys() == DEFECTS.keys()


@pytest.mark.parametrize("name", RULES)
def test_examples(name: str) -> None:
    trials = list(examples(RULES[name]))
    assert [trial for trial in trials if trial.outcome != "passed"] == []
    assert any("example present" in trial.what for trial in trials)


@pytest.mark.parametrize("name", DEFECTS)
def test_each_rule_has_an_example_without_the_defect_and_a_mutation(name: str) -> None:
    rule = RULES[name]
    assert {example.status for example in rule.examples} - {"present", "partial"}
    assert rule.mutations


@pytest.mark.parametrize("version", WALKED)
def test_statuses(tree: Tree, version: str) -> None:
    findings, failures = evaluate(DEFECTS.values(), tree(version))
    assert failures == ()
    said = {finding.rule: finding.status for finding in findings}
    assert said == {name: expected(name, version) for name in DEFECTS}


@pytest.mark.parametrize("version", CHECKED)
def test_evidence_is_the_line_that_it_names(tree: Tree, version: str) -> None:
    index = tree(version)
    for finding in evaluate(DEFECTS.values(), index)[0]:
        for site in finding.sites:
            assert site.text == index.line(site.path, site.line)
            assert site.text
        if finding.status in ("present", "partial"):
            assert finding.sites, finding.rule
            assert finding.symbol, finding.rule
        else:
            assert finding.sites or finding.searched is not None, finding.rule


def test_the_packaged_rules_read_no_more_than_they_judge() -> None:
    scanning, trying = RuleJudge(BOOK), TrialJudge(BOOK)
    runner, page = "vllm/v1/worker/gpu_model_runner.py", "vllm/entrypoints/openai/api_server.py"
    assert (scanning.wants(runner), scanning.wants(page)) == (True, False)
    assert trying.wants(page)  # an edit that names a function alone is looked for everywhere


def test_no_rule_looks_at_a_version() -> None:
    for name, data, _ in BOOK.documents:
        logic = data.decode().partition("\napplies:")[2] or data.decode().partition("\nsubject:")[2]
        logic = logic.partition("\nexamples:")[0]
        assert not re.search(r"\b0\.\d+\.\d+|__version__|_version\.py", logic), name


@pytest.mark.parametrize("name", DEFECTS)
def test_the_status_flips_when_the_defect_is_put_back(tree: Tree, name: str) -> None:
    rule = DEFECTS[name]
    trees = [(version, tree(version)) for version in CHECKED]
    trials = list(mutations(rule, trees))
    assert [trial for trial in trials if trial.outcome == "failed"] == []
    assert any(trial.outcome == "passed" for trial in trials)


# --- rules in fewer than thirty lines, each for a defect that no public list of this kind has ------------------------

OWN = (
    "attention-query-bias-is-dead",
    "medusa-drafts-one-token-per-head",
    "tree-bias-on-chain-positions",
    "v1-block-method-drops-draft-probs",
    "v2-all-nan-row-emits-vocab-size",
)


@pytest.mark.parametrize("name", OWN)
def test_a_rule_of_ones_own_is_short(name: str) -> None:
    text = next(data for path, data, _ in BOOK.documents if path.endswith(f"/{name}.yaml")).decode()
    assert len(text.splitlines()) < 30


# --- moved and damaged code -----------------------------------------------------------------------------------------


def moved(snapshot: Snapshot, before: str, after: str) -> Snapshot:
    """The snapshot with one file under another name."""
    files = {path: entry for path, entry in snapshot.files.items() if path != before}
    old = snapshot.files[before]
    files[after] = FileEntry(after, old.sha256, old.size)
    return Snapshot(
        snapshot.target,
        snapshot.engine,
        snapshot.environment,
        files,
        lambda path: snapshot.read(before if path == after else path),
    )


@pytest.mark.parametrize(
    ("name", "version", "before", "after"),
    [
        (
            "first-prefill-lookahead-zeroed",
            "0.20.1",
            "vllm/v1/core/sched/scheduler.py",
            "vllm/v1/core/planning/steps.py",
        ),
        (
            "dflash-target-layer-ids-off-by-one",
            "0.20.1",
            "vllm/v1/worker/gpu_model_runner.py",
            "vllm/v1/worker/r/one.py",
        ),
        (
            "dflash-drafter-sliding-window-ignored",
            "0.20.1",
            "vllm/model_executor/models/qwen3_dflash.py",
            "vllm/model_executor/models/drafters/qwen3.py",
        ),
        (
            "embed-sharing-decided-per-rank",
            "0.33.0",
            "vllm/v1/spec_decode/llm_base_proposer.py",
            "vllm/v1/spec_decode/x.py",
        ),
        ("draft-parallel-config-copies-pp", "0.25.1", "vllm/config/speculative.py", "vllm/config/spec/drafts.py"),
        (
            "gdn-accepted-index-unbounded",
            "0.33.0",
            "vllm/third_party/flash_linear_attention/ops/fused_recurrent.py",
            "vllm/third_party/flash_linear_attention/ops/moved/recurrent.py",
        ),
    ],
)
def test_a_moved_defect_is_the_same_finding(tree: Tree, name: str, version: str, before: str, after: str) -> None:
    index = tree(version)
    first = judge(RULES[name], Ground(index))
    second = judge(RULES[name], Ground(Index(moved(index.snapshot, before, after))))
    assert first.status == second.status == "present"
    assert any(site.path == before for site in first.sites)
    assert any(site.path == after for site in second.sites)
    assert first.fingerprint == second.fingerprint


def test_inserted_lines_are_no_new_findings(tree: Tree) -> None:
    index = tree("0.33.0")

    def pushed(path: str) -> bytes:
        return b"# one\n# two\n# three\n" + index.snapshot.read(path).removeprefix(b"\xef\xbb\xbf")

    snapshot = index.snapshot
    below = Index(Snapshot(snapshot.target, snapshot.engine, snapshot.environment, snapshot.files, pushed))
    for first, second in zip(*(evaluate(DEFECTS.values(), one)[0] for one in (index, below)), strict=True):
        assert (first.status, first.fingerprint) == (second.status, second.fingerprint), first.rule
        assert [s.line + 3 for s in first.sites] == [s.line for s in second.sites]


def broken(index: Index, damage: Callable[[bytes], bytes]) -> Index:
    snapshot = index.snapshot
    return Index(
        Snapshot(
            snapshot.target,
            snapshot.engine,
            snapshot.environment,
            snapshot.files,
            lambda path: damage(snapshot.read(path)),
        )
    )


@pytest.mark.parametrize(
    "damage",
    [lambda data: b"", lambda data: data[: len(data) // 2], lambda data: b"\xff\x00" + data, lambda data: b"(" * 5000],
    ids=["empty", "cut", "no text", "nested"],
)
def test_damaged_files_end_no_evaluation(tree: Tree, damage: Callable[[bytes], bytes]) -> None:
    findings, failures = evaluate(RULES.values(), broken(tree("0.20.1"), damage))
    assert [finding.rule for finding in findings] == list(RULES)
    assert all(failure.error for failure in failures)


def test_the_tree_verdicts_are_information() -> None:
    info = {name for name, rule in RULES.items() if rule.severity == "info"}
    assert info == {"tree-drafting", "tree-attention", "tree-verification"}


# --- the manual -----------------------------------------------------------------------------------------------------


README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def in_readme() -> str:
    return README[README.index("```yaml\nid: ") :].removeprefix("```yaml\n").partition("```")[0]


def test_the_rule_in_the_readme_is_right_and_can_be_tried(tmp_path: Path) -> None:
    document = in_readme()
    (tmp_path / "sampler-ignores-temperature.yaml").write_text(document)
    (rule,) = rulebook((tmp_path,), packaged=False).rules
    assert [trial.outcome for trial in examples(rule)] == ["passed", "passed"]
    code = next(example.files for example in rule.examples if example.status == "fixed")
    (trial,) = mutations(rule, [("the example", Index(of_texts("vllm", code)))])
    assert (trial.outcome, trial.reason) == ("passed", "")


def test_a_remedy_is_needed_and_may_be_empty_as_the_readme_says() -> None:
    assert (
        "- **`remedy`** may say any of `release`, `option` and `recipe`; the key itself is needed, with `{}`" in README
    )
    line = next(line for line in in_readme().splitlines() if line.startswith("remedy: "))
    name = "sampler-ignores-temperature.yaml"
    assert str(read_rule(in_readme().replace(line, "remedy: {}"), name).remedy) == ""
    with pytest.raises(ConfigurationError, match="the key 'remedy' is missing"):
        read_rule(in_readme().replace(f"{line}\n", ""), name)


def test_an_example_for_a_verdict_is_written_as_the_readme_says() -> None:
    found = re.search(r"`(- tree: \{.*?\})`", README)
    assert found is not None
    head = in_readme().partition("subject:")[0]
    walked = found[1].replace("verification: none", "verification: tree-walk")
    document = (
        f"{head}present: {{verdict: {{part: verification, is: tree-walk}}}}\n"
        f"examples:\n  present:\n    {walked}\n  fixed:\n    {found[1]}\n"
    )
    rule = read_rule(document, "sampler-ignores-temperature.yaml")
    assert [(trial.outcome, trial.reason) for trial in examples(rule)] == [("passed", "")] * 2


#: Written from the README and two rules' manual pages alone.
SIXTH = """\
id: dflash-takes-images-untested
title: DFlash accepts multimodal targets without having been tested with them
severity: low
methods: [dflash]
runners: [v1]
symptom: A target that takes images starts with DFlash without a word, and acceptance is whatever it is.
cause: The proposer overrides the check that refuses multimodal targets, and does nothing in it.
remedy: {release: 0.21.0, option: Compare acceptance with and without images before you rely on it.}
subject: {files: vllm/v1/spec_decode/**, class: DFlashProposer}
missing: not-applicable
present: {overrides: {method: _raise_if_multimodal, below: SpecDecodeBaseProposer}}
examples:
  present:
    - |
      class SpecDecodeBaseProposer:
          def _raise_if_multimodal(self): raise NotImplementedError
      class DFlashProposer(SpecDecodeBaseProposer):
          def _raise_if_multimodal(self): pass
  fixed:
    - |
      class SpecDecodeBaseProposer:
          def _raise_if_multimodal(self): raise NotImplementedError
      class DFlashProposer(SpecDecodeBaseProposer): pass
"""


@pytest.mark.parametrize(
    ("version", "status"), [("0.18.1", "not-applicable"), ("0.20.1", "present"), ("0.24.0", "fixed")]
)
def test_a_sixth_rule_by_a_user(tree: Tree, version: str, status: str) -> None:
    rule = read_rule(SIXTH, "dflash-takes-images-untested.yaml")
    assert {trial.outcome for trial in examples(rule)} == {"passed"}
    finding = judge(rule, Ground(tree(version)))
    assert finding.status == status
    assert [site.text for site in finding.sites] == {
        "not-applicable": [],
        "present": ["def _raise_if_multimodal(self):"],
        "fixed": ["class DFlashProposer(SpecDecodeBaseProposer):"],
    }[status]

"""Verifiers of real releases against what was read from their source by hand.

``verifiers.json`` lists, per release, every function, kernel, class and compiled operator that accepts or rejects
drafts: name, path, line of its definition, role, runner, and the set of its walks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from support.engines import index_of

from specaudit.classify.facts import analyse
from specaudit.classify.verifiers import verifiers, with_runners
from specaudit.engines import ENGINES
from specaudit.index import Index
from specaudit.model import Runner, Verifier

EXPECTED = json.loads((Path(__file__).parent / "verifiers.json").read_text(encoding="utf-8"))
WHOLE = ("0.20.1", "0.29.0", "0.33.0")
RELEASES = ("0.9.2", "0.10.1", "0.12.0", "0.15.0", "0.18.1", "0.19.0", "0.22.0", "0.25.1", "0.31.0")
VLLM = ENGINES["vllm"]
PACKAGE = Path(__file__).parents[2] / "specaudit"


def row(found: Verifier) -> list[object]:
    """A verifier as the table has it."""
    walks = sorted({found.walk, *(variant.walk for variant in found.variants)})
    return [found.name, found.path, found.line, found.role, found.runner, walks]


@pytest.fixture(scope="module")
def read(release: Callable[[str], Path]) -> Callable[[str], tuple[Index, tuple[Verifier, ...]]]:
    """The whole package of a release, and its verifiers."""

    @cache
    def get(version: str) -> tuple[Index, tuple[Verifier, ...]]:
        index = index_of(release(version))
        return index, verifiers(index, VLLM)

    return get


@pytest.mark.parametrize("version", WHOLE)
def test_the_whole_package_holds_these_verifiers_and_no_others(version: str, read: Callable[..., object]) -> None:
    _, found = read(version)
    assert [row(verifier) for verifier in found] == EXPECTED[version]


@pytest.mark.parametrize("version", RELEASES)
def test_a_release_holds_these_verifiers(version: str, release: Callable[[str], Path]) -> None:
    found = verifiers(index_of(release(version), wants=VLLM.wants), VLLM)
    assert [row(verifier) for verifier in found] == EXPECTED[version]


@pytest.mark.parametrize("version", WHOLE)
def test_evidence_is_the_line_that_it_names(version: str, read: Callable[..., object]) -> None:
    index, found = read(version)
    for verifier in found:
        assert verifier.evidence, verifier.name
        for evidence in (*verifier.evidence, *verifier.called_from):
            assert evidence.text == index.source(evidence.path).split("\n")[evidence.line - 1].strip()


def named(found: tuple[Verifier, ...], name: str, runner: str) -> Verifier:
    (verifier,) = (v for v in found if v.name == name and v.runner == runner)
    return verifier


def test_one_kernel_with_four_modes_says_which_setting_turns_each_on(read: Callable[..., object]) -> None:
    _, found = read("0.33.0")
    kernel = named(found, "_rejection_kernel", "v2")
    assert kernel.walk == "linear"
    told = {v.walk: {(c.option, c.op, c.value) for c in v.when} for v in kernel.variants}
    assert told["synthetic"] == {("rejection_sample_method", "==", "synthetic")}
    assert told["block"] == {("rejection_sample_method", "==", "block")}
    assert ("rejection_sample_method", "==", "fly") in told["lossy"]
    assert [v.line for v in kernel.variants] == [612, 627, 707]


def test_a_kernel_behind_a_decorator_is_called_where_its_function_is(read: Callable[..., object]) -> None:
    _, found = read("0.33.0")
    assert [e.line for e in named(found, "rejection_greedy_sample_kernel", "v1").called_from] == [525]
    assert [e.line for e in named(found, "rejection_random_sample_kernel", "v1").called_from] == [573]


def test_a_class_is_called_where_it_is_made_and_where_it_is_entered(read: Callable[..., object]) -> None:
    _, found = read("0.20.1")
    lines = {e.line for e in named(found, "RejectionSampler", "v2").called_from}
    assert lines == {220, 898}


def test_a_prepass_says_that_it_rewrites_what_is_compared(read: Callable[..., object]) -> None:
    _, found = read("0.33.0")
    prepass = named(found, "apply_fly_greedy_acceptance_kernel", "v1")
    assert (prepass.walk, prepass.reachable) == ("lossy", "conditional")
    assert "rewrites" in prepass.reason
    assert ("rejection_sample_method", "fly") in {(c.option, c.value) for c in prepass.selected_by}


def test_what_only_a_setting_selects_is_conditional(read: Callable[..., object]) -> None:
    _, found = read("0.20.1")
    kernel = named(found, "_synthetic_rejection_sample_kernel", "v2")
    assert [(c.option, c.op, c.value) for c in kernel.selected_by] == [("rejection_sample_method", "==", "synthetic")]
    assert kernel.reachable == "conditional"


def test_a_runner_that_no_method_takes_by_default_makes_its_verifiers_conditional(read: Callable[..., object]) -> None:
    _, found = read("0.20.1")
    runners = (Runner("eagle3", "v1", True), Runner("eagle3", "v2", False))
    settled = with_runners(found, runners)
    assert named(settled, "RejectionSampler", "v1").reachable == "default"
    assert named(settled, "RejectionSampler", "v2").reachable == "conditional"


def test_a_platform_replaces_kernels_by_compiled_operators(read: Callable[..., object]) -> None:
    _, found = read("0.33.0")
    compiled = [v for v in found if v.role == "compiled"]
    assert {v.walk for v in compiled} == {"unknown"}
    assert all("torch.ops." in v.evidence[0].text for v in compiled)
    assert all("compiled" in v.reason for v in compiled)


def test_the_tree_walk_that_this_project_installs_is_seen_as_one() -> None:
    found = {f.qualname: {w.walk for w in f.walks} for f in analyse((PACKAGE / "ddtree" / "walk.py").read_text())}
    assert found == {"_walk": {"tree"}, "_linear_walk": {"linear"}}


def test_the_classifier_names_no_engines_class_kernel_or_file() -> None:
    """Neither a verifier's name of any release nor an anchor, but for words that Python and torch use themselves."""
    names = {str(entry[0]).rpartition(".")[2] for rows in EXPECTED.values() for entry in rows}
    names |= {Path(str(entry[1])).stem for rows in EXPECTED.values() for entry in rows}
    names |= {anchor for runner in VLLM.runners for anchor in (runner.cls, Path(runner.path).stem)}
    pattern = re.compile(rf"\b({'|'.join(sorted(map(re.escape, names)))})\b")
    for file in sorted((PACKAGE / "classify").glob("*.py")):
        text = file.read_text(encoding="utf-8")
        assert pattern.findall(text) == [], file.name
        assert not re.search(r"\b(vllm|sglang|eagle|dflash|medusa)\b", text, re.IGNORECASE), file.name

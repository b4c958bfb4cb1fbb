"""The first lines: what they say of real engines, and of the cases that real engines do not have yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specaudit import summary
from specaudit.cache import Cache, folder
from specaudit.model import (
    Condition,
    EngineFacts,
    Environment,
    Evidence,
    Failure,
    Finding,
    NotLooked,
    Proposer,
    Runner,
    Scan,
    Search,
    Target,
    Tool,
    TopologyVariant,
    TreePart,
    TreeVerdict,
    Verifier,
    WalkVariant,
)
from specaudit.scan import Options, scan
from specaudit.targets import parse

SET = Condition("E_USE_NEW", "env", "==", "1", "E_USE_NEW is 1")
MODEL = Condition("model.arch", "model", "==", "Big", "model.arch is Big")
FLAG = Condition("BLOCK", "option", "==", "true", "BLOCK is true")
SEARCH = Search(3, 100, "0" * 64, "does any verifier descend", 7)
NO_TREE = TreeVerdict(
    TreePart("none", searched=SEARCH),
    TreePart("dead", (Evidence("e/a.py", 3, "mask=None"),)),
    TreePart("none", searched=SEARCH, not_looked=(NotLooked("op", "compiled"),)),
)


def made(**parts: object) -> Scan:
    base = Scan(
        Tool("0"),
        Target("dir:x"),
        EngineFacts("e", "1.0", "dir", "0" * 64, 1234),
        Environment(),
        runners=(Runner("m", "old", True), Runner("m", "new", False, (SET,))),
        proposers=(Proposer("P", "e/p.py", 9, ("m",), "old", "chain-parallel"),),
        verifiers=(
            Verifier("k", "e/k.py", 5, "kernel", "linear", (WalkVariant("block", (FLAG,), 8),), "old"),
            Verifier("h", "e/k.py", 50, "function", "helper", (), "old"),
            Verifier("op", "e/k.py", 70, "compiled", "unknown", (), "old"),
        ),
        tree=NO_TREE,
    )
    return replace(base, **parts)  # type: ignore[arg-type]


def said(scan: Scan) -> dict[str, str]:
    return dict(summary.answers(scan, below=True))


def test_each_question_has_its_answer() -> None:
    assert said(made()) == {
        "source": "dir:x (dir)",
        "runner": "old by default; new if E_USE_NEW is 1",
        "proposer": "P (chain-parallel) e/p.py:9",
        "verifier": "old: k (linear; by flag block); 1 compiled (unknown)",
        "tree": "no: no verifier walks a tree; no tree is drafted; "
        "target attention has a tree mask that nothing passes",
        "why": "does any verifier descend? None of 7 candidates in 3 files does; 1 could not be looked at (told below)",
    }


def test_a_verifier_that_walks_a_tree_is_a_yes_with_its_line() -> None:
    found = TreePart("tree-walk", (Evidence("e/k.py", 8, "child = load(first_child + node)"),))
    answers = said(made(tree=replace(NO_TREE, verification=found, drafting=TreePart("dynamic"))))
    assert answers["tree"].startswith("yes: a verifier walks a tree; a dynamic tree is drafted; ")
    assert answers["why"] == "e/k.py:8  child = load(first_child + node)"


def test_a_runner_that_the_model_decides_is_said_to_be() -> None:
    runners = (Runner("m", "old", True), Runner("n", "old", True, (MODEL,)), Runner("n", "new", True, (MODEL,)))
    assert said(made(runners=runners))["runner"] == "old by default; old or new (the model decides) for n"
    assert [row.runner for row in summary.rows(made(runners=runners))] == ["old", "old or new"]


def test_an_engine_without_speculative_decoding_is_answered_too() -> None:
    answers = said(made(runners=(), proposers=(), verifiers=()))
    assert answers["runner"] == "no runner of speculative decoding was found"
    assert answers["proposer"] == answers["verifier"] == "none was found"
    assert "whole engine?" in answers["but"]


def test_what_could_not_be_examined_is_said_among_the_answers() -> None:
    assert "but" not in said(made())
    assert said(made(errors=(Failure("e/a.py", "broken"),)))["but"].startswith("1 part could not be examined")
    assert said(made(errors=(Failure("e/a.py", "x"), Failure("e/b.py", "x"))))["but"].startswith("2 parts could not")


def test_defects_are_counted_by_what_is_there_and_by_the_worst() -> None:
    there = [
        Finding("a", "critical", "present"),
        Finding("b", "high", "partial"),
        Finding("c", "low", "present"),
        Finding("d", "critical", "unreachable"),
        Finding("e", "info", "present"),  # says what the engine is, not what is wrong with it
        Finding("f", "high", "fixed"),
    ]
    assert said(made(findings=tuple(there)))["defects"] == "3 known ones of 5, 1 critical and 1 high (told below)"
    assert said(made(findings=(there[-1],)))["defects"] == "0 known ones of 1 (told below)"
    assert dict(summary.answers(made(findings=(there[-1],))))["defects"] == "0 known ones of 1"


def test_rules_about_another_engine_look_for_nothing() -> None:
    foreign = (Finding("a", "critical", "not-applicable"), Finding("e", "info", "present"))
    assert said(made(findings=foreign))["defects"].startswith("not looked for: no rule applies to this e")


def test_a_tree_that_must_be_asked_for_is_drafted_only_then() -> None:
    variants = (TopologyVariant("tree-static", (SET, FLAG)), TopologyVariant("tree-static", (SET, FLAG)))
    drafted = replace(NO_TREE, drafting=TreePart("static"))
    proposer = Proposer("P", "e/p.py", 9, ("m",), "old", "chain-parallel", variants)
    told = said(made(tree=drafted, proposers=(proposer,)))["tree"]
    assert "; a static tree is drafted only if E_USE_NEW is 1 and BLOCK is true; " in told
    always = replace(proposer, topology="tree-static")
    assert "; a static tree is drafted; " in said(made(tree=drafted, proposers=(proposer, always)))["tree"]


def test_dead_proposers_are_counted_apart() -> None:
    live = [Proposer(f"P{n}", "e/p.py", n, ("m",), "old", "chain-parallel") for n in range(3)]
    dead = Proposer("D", "e/d.py", 1, (), "old", "tree-static", reachable="dead")
    assert said(made(proposers=(*live, dead)))["proposer"] == "3 classes: 3 chain-parallel; 1 more that nothing reaches"


def test_a_method_gets_the_topology_that_its_configuration_forces() -> None:
    variants = (TopologyVariant("chain-parallel", (), ("n",)),)
    proposer = Proposer("P", "e/p.py", 9, ("m", "n"), "old", "chain-autoregressive", variants)
    scan = made(proposers=(proposer,), runners=(Runner("m", "old", True), Runner("n", "old", True)))
    assert {row.method: row.topology for row in summary.rows(scan)} == {
        "m": "chain-autoregressive",
        "n": "chain-parallel",
    }


def test_ways_to_a_runner_that_differ_in_one_condition_are_brought_together() -> None:
    runners = [Runner(m, "new", False, (condition, MODEL)) for m in "mn" for condition in (SET, FLAG)]
    (choice,) = summary.choices(runners)
    assert (choice.methods, choice.always, choice.ways) == (
        ("m", "n"),
        ("model.arch is Big",),
        ("E_USE_NEW is 1", "BLOCK is true"),
    )


def test_what_only_has_to_stay_as_it_is_is_told_apart_and_once() -> None:
    off = Condition("E_USE_NEW", "env", "!=", "0", "E_USE_NEW is not 0")  # "E_USE_NEW is 1" says so already
    small = Condition("size", "option", "<=", "1", "size <= 1")
    plain = Condition("odd", "option", "!=", "true", "odd is not true")
    runners = [
        Runner("m", "new", False, (SET, small), (), (SET,)),
        Runner("m", "new", False, (off, FLAG, small, plain), (), (FLAG,)),
    ]
    (choice,) = summary.choices(runners)
    assert choice.ways == ("E_USE_NEW is 1", "BLOCK is true and odd is not true")
    assert (choice.always, choice.kept) == ((), ("size <= 1", "E_USE_NEW is not 0"))


def test_the_first_line_names_what_must_be_set_not_what_must_stay() -> None:
    unset = Condition("E_USE_NEW", "env", "!=", "0", "E_USE_NEW is not 0")
    runners = (Runner("m", "old", True), Runner("m", "new", False, (unset, FLAG), (), (FLAG,)))
    assert said(made(runners=runners))["runner"] == "old by default; new if BLOCK is true"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "e 1.0, 1,234 files"),
        ({"source": "dist"}, "e 1.0, 1,234 files, as installed"),
        ({"source": "dist", "modified": ("e/a.py", "e/b.py")}, "e 1.0, 1,234 files, 2 modified"),
        ({"missing": ("a",), "added": ("b",), "patched": ("c",)}, "1 missing, 1 added, 1 patched by specaudit"),
        ({"version": ""}, "e (version unknown)"),
        ({"files": 1}, "e 1.0, 1 file"),
    ],
)
def test_the_title_says_what_differs_from_the_release(changes: dict[str, object], told: str) -> None:
    engine = made().engine
    assert engine is not None
    title = summary.title(made(engine=replace(engine, **changes)))  # type: ignore[arg-type]
    assert told in title


@pytest.mark.parametrize(
    ("version", "runner", "tree"),
    [
        (
            "0.20.1",
            "v1 by default; v2 if ",
            "no: no verifier walks a tree; a static tree is drafted only if attention_config.backend is TREE_ATTN and "
            "speculative_token_tree is set; ",
        ),
        ("0.33.0", "v2 by default; ", "no: no verifier walks a tree; no tree is drafted; "),
    ],
)
def test_real_releases(version: str, runner: str, tree: str, release: Callable[[str], Path]) -> None:
    with Cache(folder()) as cache:
        answers = said(scan(parse(f"dir:{release(version)}"), Options(), cache))
    assert answers["runner"].startswith(runner)
    assert answers["tree"].startswith(tree)
    assert "(linear" in answers["verifier"]

"""A rule's own tests, tested: mutations that flip a status, that do not, and that find nothing."""

from __future__ import annotations

import pytest

from specaudit.index import Index
from specaudit.ruling.schema import read_rule
from specaudit.ruling.trials import Trial, mutations, of_texts

RULE = """\
id: example
title: An example
severity: low
methods: [eagle]
runners: [v1]
symptom: Something is wrong.
cause: Somebody forgot.
remedy: {}
subject: {files: vllm/**, function: draft}
missing: not-applicable
present: {match: {pattern: wrong($$$)}}
examples: {present: ["def draft(): wrong(1)"], fixed: ["def draft(): right(1)"]}
mutations:
  - {from: BEFORE, to: AFTER, edits: [{EDIT}]}
"""
FIXED = "def draft():\n    right(1, 2)\n    right(3)\n"
BROKEN = "def draft():\n    wrong(1)\n"


def trial(edit: str, *codes: str, before: str = "fixed", after: str = "present") -> list[Trial]:
    text = RULE.replace("BEFORE", before).replace("AFTER", after).replace("EDIT", edit)
    trees = [(f"tree {number}", Index(of_texts("vllm", {"vllm/a.py": code}))) for number, code in enumerate(codes, 1)]
    return list(mutations(read_rule(text, "example.yaml"), trees))


BREAK = "find: {pattern: right($$$A)}, replace: wrong()"


@pytest.mark.parametrize(
    ("edit", "outcome", "reason"),
    [
        (BREAK, "passed", ""),
        ("find: {pattern: right($$$A)}, replace: other()", "failed", "after the edit the rule says fixed"),
        ("find: {pattern: nowhere($$$A)}, replace: wrong()", "failed", "no edit finds anything to change"),
        ("at: {files: vllm/b.py}, " + BREAK, "failed", "no edit finds anything to change"),
    ],
)
def test_a_mutation_must_change_the_code_and_the_status(edit: str, outcome: str, reason: str) -> None:
    (one,) = trial(edit, FIXED)
    assert one.outcome == outcome
    assert reason in one.reason
    assert one.what.endswith("mutation fixed -> present on tree 1")


def test_the_first_and_the_last_tree_with_that_status_are_mutated() -> None:
    found = trial(BREAK, BROKEN, FIXED, FIXED, FIXED + "x = 1\n", BROKEN)
    assert [one.what.rpartition(" on ")[2] for one in found] == ["tree 2", "tree 4"]
    assert {one.outcome for one in found} == {"passed"}


def test_without_such_a_tree_the_mutation_is_skipped() -> None:
    (one,) = trial(BREAK, BROKEN)
    assert (one.outcome, one.reason) == (
        "skipped",
        "no --tree given has the status fixed to start from",
    )


def test_trees_to_which_the_rule_does_not_apply_count_where_there_is_something_to_change() -> None:
    edit = "at: {files: vllm/**}, find: {kind: identifier, regex: ^sketch$}, replace: draft"
    found = trial(edit, "x = 1\n", "def sketch(): wrong(1)\n", before="not-applicable")
    assert [(one.outcome, one.what.rpartition(" on ")[2]) for one in found] == [("passed", "tree 2")]
    assert [one.outcome for one in trial(edit, "x = 1\n", before="not-applicable")] == ["skipped"]


def test_only_the_first_node_where_that_is_asked() -> None:
    both = "def draft():\n    wrong(1)\n    wrong(2)\n"
    repaired = "find: {pattern: wrong($$$)}, replace: right()"
    assert [one.outcome for one in trial(repaired, both, before="present", after="fixed")] == ["passed"]
    first = trial(f"{repaired}, first: true", both, before="present", after="fixed")
    assert [(one.outcome, "vllm/a.py:3" in one.reason) for one in first] == [("failed", True)]


def test_what_was_captured_is_put_in_and_an_empty_text_takes_the_comma() -> None:
    swapped = "find: {pattern: 'right($A, $B)'}, replace: 'wrong($B, $A)'"
    assert [one.outcome for one in trial(swapped, FIXED)] == ["passed"]
    code = "def draft():\n    right(safe=1, other=2)\n"
    removed = "find: {kind: keyword_argument, regex: ^safe=}, replace: ''"
    (one,) = trial(removed, code)
    assert one.reason.startswith("after the edit the rule says fixed")  # and the code can still be read
    again = "find: {pattern: right(other=2)}, replace: wrong()"
    assert [one.outcome for one in trial(f"{removed}}}, {{{again}", code)] == ["passed"]

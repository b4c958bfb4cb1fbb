"""Paragraphs of 80 columns that hang behind their leads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specaudit.lines import WIDTH, hanging

WORDS = st.lists(st.text("ab/.-", min_size=1, max_size=100), min_size=1, max_size=30)


@given(st.sampled_from(["", "  ", "  note     ", "appeared  "]), WORDS)
def test_no_word_is_lost_or_broken_and_no_line_is_too_long(lead: str, words: list[str]) -> None:
    lines = [line for line, _ in hanging(lead, " ".join(words))]
    assert lines[0].startswith(lead.rstrip())
    assert " ".join(lines).removeprefix(lead.rstrip()).split() == words
    for line in lines:
        assert len(line) <= WIDTH or len(line.split()) == 1


def test_what_follows_hangs_behind_the_lead() -> None:
    first, second = hanging("  note     ", "word " * 20, "yellow")
    assert first == ("  note     " + " ".join(["word"] * 14), "yellow")
    assert second == (" " * 11 + " ".join(["word"] * 6), "yellow")


def test_nothing_still_is_a_line() -> None:
    assert list(hanging("  try  ", "")) == [("  try  ", None)]


def test_a_word_that_is_too_long_for_its_place_leaves_the_lead_with_those_before_it() -> None:
    long = "x" * 75
    assert [line for line, _ in hanging("moved     ", f"a file: {long} (b)")] == [
        "moved     a file:",
        f"     {long}",
        "     (b)",
    ]
    assert [line for line, _ in hanging("moved     ", f"{long} (b)")] == ["moved", f"     {long}", "     (b)"]

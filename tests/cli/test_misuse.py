"""Options and commands that are mistyped: one line says what was not understood, one what may have been meant."""

from __future__ import annotations

import pytest

from specaudit.cli import run
from specaudit.errors import Exit


@pytest.mark.parametrize(
    ("words", "written", "meant"),
    [
        ("patch dir:x --recipie y", "option --recipie", "--recipe"),
        ("patch --recipie y dir:x", "option --recipie", "--recipe"),
        ("patch x --recipe y --ye", "option --ye", "--yes"),
        ("patch x --recipe y --no-dif", "option --no-dif", "--no-diff"),
        ("scan --methd=dflash x", "option --methd", "--method"),
        ("scan --speculativ-config x", "option --speculativ-config", "--speculative-config"),
        ("scan --spec x", "option --spec", "--speculative-config"),
        ("scan -methd x", "option -methd", "--method"),
        ("scan -quiet x", "option -quiet", "--quiet"),
        ("--versoin", "option --versoin", "--version"),
        ("rules test --verbos", "option --verbos", "--verbose"),
        ("patch stauts dir:x", "command 'stauts' of specaudit patch", "status"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_nearest_one(
    words: str, written: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words.split()) == Exit.ERROR
    assert capsys.readouterr() == ("", f"error: There is no {written}.\n  try: Did you mean {meant}?\n")


@pytest.mark.parametrize(("words", "command"), [("scan --zzz", "scan"), ("scan -z", "scan"), ("--zzz", "")])
def test_what_is_like_nothing_leads_to_the_help(words: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words.split()) == Exit.ERROR
    said = f"error: There is no option {words.split()[-1]}.\n  try: specaudit {command} --help\n"
    assert capsys.readouterr().err == said.replace("  --help", " --help")


def test_a_machine_may_be_called_like_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["patch", "stats", "--recipe", "nothing-like-it"]) == Exit.ERROR
    assert "There is no recipe 'nothing-like-it'" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["--budget 513", "--budget 0", "--memory 7", "--memory 0"])
def test_what_no_engine_takes_is_refused_before_anything_starts(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["smoke", "@local", "--modes", "ddtree", *words.split()]) == Exit.ERROR
    option, value = words.split()
    said = capsys.readouterr()
    assert said.out == ""
    assert option in said.err
    assert value in said.err

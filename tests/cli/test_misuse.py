"""Options and commands that are mistyped: one line says what was not understood, one what may have been meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from specaudit.cli import run
from specaudit.errors import Exit, TargetError
from specaudit.history import between


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


@pytest.mark.parametrize(
    "words",
    [
        *(f"{option} {value}" for option in (
            "--temperature", "--memory", "--minutes", "--limit", "--min-acceptance", "--min-agreement",
            "--min-speedup", "--max-gap",
        ) for value in ("nan", "inf", "-inf", "-1")),
        *(f"{option} {value}" for option in ("--draft-tokens", "--tokens", "--count", "--repeats", "--budget")
          for value in ("-1", "0", "9999999999")),
        "--min-agreement 1.5", "--batch 0", "--batch ²", f"--batch {'1' * 5000}", "--limit 0", "--minutes 0",
    ],
)  # fmt: skip
def test_every_number_of_smoke_has_its_range(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["smoke", "dir:/nowhere", *words.split()]) == Exit.ERROR
    said = capsys.readouterr()
    assert said.out == ""
    assert words.split()[1].partition("inf")[0][:20] in said.err
    assert ("no batch sizes" if "--batch" in words else f"Invalid value for '{words.split()[0]}'") in said.err


LONG = "a" * 256


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["scan", f"dir:{LONG}"], "does not exist"),
        (["patch", "status", f"dir:{LONG}"], "does not exist"),
        (["scan", "dir:~nobody-of-this-name/x"], "does not exist"),
        (["scan", f"wheel:{LONG}"], "cannot be opened"),
        (["diff", LONG, LONG], "no name of a host"),
        (["scan", "a..b"], "no name of a host"),
        (["scan", f"root@{'b' * 64}.example"], "no name of a host"),
        (["scan", f"vllm=={'1' * 4400}"], "names no single release"),
        (["history", "--from", "1" * 4400], "is no version"),
        (["history", "--to", "1" * 4400], "is no version"),
    ],
)
def test_names_and_numbers_without_measure_are_no_fault_of_the_program(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    none = TargetError("none", "none")
    monkeypatch.setattr("specaudit.history.releases", lambda _, first, last: between([], first, last, none))
    (tmp_path / "config").touch()
    reached = ["--ssh-config", str(tmp_path / "config")] if "host" in told and words[0] == "scan" else []
    assert run([*words, *reached]) == Exit.ERROR
    said = capsys.readouterr()
    first, second = said.err.splitlines()
    assert (said.out, told in first, "fault" in first, second[:7]) == ("", True, False, "  try: ")


@pytest.mark.parametrize("option", ["--compare", "--prompts"])
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[" * 100_000, "it is nested too deeply"),
        (f"[{'1' * 5000}]", "it holds a number of thousands of digits"),
        (None, "cannot be read: it has more than 64 MiB"),
    ],
)
def test_a_file_of_smoke_that_is_without_measure_is_refused(
    option: str, text: str | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "given.json"
    if text is not None:
        file.write_text(text)
    else:
        file = Path("/dev/zero")
    models = ["--target", "a", "--draft", "b"]
    assert run(["smoke", f"dir:{tmp_path}", *models, option, str(file)]) == Exit.ERROR
    assert told in capsys.readouterr().err


def test_a_configuration_of_smoke_that_is_nested_too_deeply(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--modes", "given", "--speculative-config", "[" * 100_000]
    assert run(["smoke", f"dir:{tmp_path}", *given]) == Exit.ERROR
    assert "is no JSON: it is nested too deeply" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option", ["--sudo", "--ssh-config=x", "-oPort=1", "--ssh-option=Port=1", "--host-keys=no", "--deadline=9"]
)
@pytest.mark.parametrize(
    "words", ["scan dir:x", "scan vllm==0.33.0", "trace dir:x --method mtp", "patch dir:x --recipe ddtree"]
)
def test_an_option_about_machines_is_not_ignored_where_there_is_none(
    words: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words.split(), option]) == Exit.ERROR
    name = {"-oPort": "--ssh-option"}.get(option.partition("=")[0], option.partition("=")[0])
    said = (
        f"error: {name} does not go with {words.split()[1]}.\n  try: Use it with a machine that is reached over SSH.\n"
    )
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize("words", ["scan dir:x --output -", "report x.json --output -", "report x.json -f json=-"])
def test_a_dash_is_not_made_a_file_of_that_name(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(words.split()) == Exit.ERROR
    assert (
        "error: - is no name for a file.\n  try: Name a file; standard output needs no name." in capsys.readouterr().err
    )
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("command", "option"),
    [
        *(("scan vllm==0.33.0", one) for one in (
            "--fail-on SEVERITY", "--baseline FILE", "--ignore ID", "--expect KEY=VALUE", "--rules DIR",
            "--engine NAME", "--method NAME", "--speculative-config JSON|FILE", "--env NAME=VALUE", "--output FILE",
            "--inventory FILE", "--limit NAMES", "--python PATH", "--venv DIR", "--via COMMAND", "--ssh-config FILE",
            "--ssh-option KEY=VALUE",
        )),
        ("trace vllm==0.33.0", "--speculative-config JSON|FILE"),
        ("history", "--git PATH"),
        ("report scan.json", "--format FORMAT[=FILE]"),
        ("rules test", "--tree TARGET"),
        ("patch dir:x --recipe ddtree", "--emit FILE"),
        ("patch status dir:x", "--python PATH"),
        ("smoke dir:x", "--target MODEL"),
    ],
)  # fmt: skip
def test_an_option_with_nothing_behind_it_is_no_option_that_is_left_out(
    command: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--fail-on "$SEVERITY"`` without such a variable must not be a gate that lets everything pass."""
    name = option.split()[0]
    assert run([*command.split(), name, ""]) == Exit.ERROR
    assert capsys.readouterr() == ("", f"error: {name} is empty.\n  try: Leave it out, or write {option}.\n")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["rules", "test"], "DIR is empty.\n  try: Leave it out, or write DIR."),
        (["report"], "SCAN.json is empty.\n  try: Write SCAN.json."),
        (["patch", "dir:x", "--recipe"], "--recipe is empty.\n  try: Write --recipe NAME."),
        (["patch", "show", "dir:x"], "ENTRY is empty.\n  try: Leave it out, or write ENTRY."),
    ],
)
def test_an_empty_path_is_not_the_folder_that_one_stands_in_nor_an_empty_word_the_default(
    command: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*command, ""]) == Exit.ERROR
    assert capsys.readouterr() == ("", f"error: {told}\n")


@pytest.mark.parametrize("name", ["", "absent"])
def test_a_folder_without_rules_is_told_where_it_is_an_argument(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["rules", "test", str(tmp_path / name)]) == Exit.ERROR
    assert "  try: Name a folder of rules: YAML documents, one for each.\n" in capsys.readouterr().err

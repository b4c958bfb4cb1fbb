"""The README shows what the program does."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from specaudit.cli.root import COMMANDS
from specaudit.errors import Exit

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("readme", ROOT / ".ci/readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commands() -> list[str]:
    return re.findall(
        r"^\$ (specaudit .*)$", "\n".join(re.findall(r"^```console\n(.*?)^```$", TEXT, re.M | re.S)), re.M
    )


def test_every_console_block_is_what_the_program_prints(checker: ModuleType) -> None:
    assert len(commands()) > 3
    now = checker.refreshed(TEXT)
    assert now.splitlines() == TEXT.splitlines()


@pytest.mark.parametrize("command", ["", *(f"{name} " for name in COMMANDS)])
def test_every_command_is_explained(command: str) -> None:
    assert f"specaudit {command}--help" in commands() or f"specaudit {command}-h" in commands()


@pytest.mark.parametrize("code", Exit)
def test_every_exit_code_is_explained(code: Exit) -> None:
    assert re.search(rf"^\| {code.value} \|", TEXT, re.M)


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"`make ([a-z-]+)", TEXT))
    assert named - targets == set()
    assert {"demo", "test"} <= named


def shell_lines() -> list[list[str]]:
    """Commands of the program in ```sh blocks, as words."""
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```$", TEXT, re.M | re.S))
    return [shlex.split(line, comments=True) for line in re.findall(r"^specaudit .*$", blocks, re.M)]


def test_every_option_in_a_shell_block_exists(checker: ModuleType) -> None:
    below: dict[str, set[str]] = {}
    for group in {words[1] for words in shell_lines()}:
        _, _, nested = checker.output(f"specaudit {group} --help").partition("Commands:")
        below[group] = set(re.findall(r"^  ([a-z]+) ", nested, re.M))
    seen: dict[str, set[str]] = {}
    for _, group, *words in shell_lines():
        command = group
        if below[group]:  # `patch TARGET` is short for `patch apply TARGET`
            command += f" {words[0]}" if words[0] in below[group] else " apply"
        seen.setdefault(f"specaudit {command}", set()).update(w.partition("=")[0] for w in words if w[0] == "-")
    assert len(seen) > 3
    for command, options in seen.items():
        known = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", checker.output(f"{command} --help"), re.I))
        assert options - known == set(), command


def test_the_story_scans_repairs_adds_trees_and_reverts() -> None:
    """In that order, acceptance measured before and after each change."""
    section = TEXT[TEXT.index("### The whole story") : TEXT.index("### Measuring it")]
    lines = re.findall(r"^specaudit (\w+) (.*?)(?:  +#.*)?$", section, re.M)
    assert [name for name, _ in lines] == [
        "scan",
        "smoke",
        "patch",
        "smoke",
        "patch",
        "smoke",
        "scan",
        "patch",
        "smoke",
    ]
    changes = [rest for name, rest in lines if name == "patch"]
    for change, what in zip(changes, ("--recipe dflash-layer-ids", "--recipe ddtree-v1", "revert"), strict=True):
        assert what in change
    lengths = [float(x) for x in re.findall(r"\*\*(\d\.\d+)\*\*", section)]
    released, repaired, tree, _, reverted = lengths
    assert released == pytest.approx(1.76, abs=0.03) == reverted
    assert repaired >= 2.63
    assert tree >= 1.38 * repaired

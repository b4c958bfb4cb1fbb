"""The README shows what the program does."""

from __future__ import annotations

import importlib.util
import re
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

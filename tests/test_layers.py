"""The data flow can be read off the imports: each module imports only from those to its left."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import specaudit

PACKAGE = Path(specaudit.__file__).parent
#: Left to right; modules of one entry may import one another.
ORDER = (
    ("errors", "given", "model", "words", "lines", "logs", "writing"),
    ("targets", "cache", "faults", "threads", "nodes"),
    ("hosts", "snapshot", "inventory", "advice"),
    ("index", "syntax"),
    ("engines",),
    ("classify",),
    ("ruling",),
    ("serving",),
    ("narrowing", "scan"),
    ("tracing", "document", "taken", "summary", "configured", "fleet"),
    ("patching", "smoke", "report"),
    ("diff",),
    ("history",),
    ("console",),
    ("cli",),
)
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
#: Expensive libraries, and the parts that may import them.
OWNERS = {
    "rich": ("console",),
    "paramiko": ("hosts",),
    "libcst": ("index", "classify", "patching"),
    "git": ("hosts", "patching"),
    "jinja2": ("report",),
    "torch": (),
    "triton": (),
}


#: Installed into an engine by a patch; no part of the auditor.
INSTALLED = ("ddtree", "patching/payload")
#: Sent to a GPU host and run by the engine's own Python, or run there with what is installed.
SENT = ("smoke/runner.py", "smoke/train.py")


def modules() -> list[Path]:
    installed = {file for folder in INSTALLED for file in (PACKAGE / folder).rglob("*.py")}
    installed |= {PACKAGE / file for file in SENT}
    return [file for file in sorted(PACKAGE.rglob("*.py")) if file not in installed]


def part_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imports(file: Path) -> tuple[tuple[str, int], ...]:
    """Modules that a file imports, anywhere in it, with the line."""
    return tuple(_imports(file))


def _imports(file: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            yield name, node.lineno


def test_every_part_has_its_place_in_the_order() -> None:
    parts = {part_of(file) for file in modules()} - {"__init__", "__main__"}
    assert parts - RANK.keys() == set()


def test_imports_point_to_the_left() -> None:
    wrong = []
    for file in modules():
        rank = RANK.get(part_of(file))
        for name, line in imports(file):
            parts = name.split(".")
            if rank is not None and parts[0] == "specaudit" and len(parts) > 1 and RANK.get(parts[1], -1) > rank:
                wrong.append(f"{file.relative_to(PACKAGE)}:{line} imports {name}")
    assert wrong == []


@pytest.mark.parametrize("library", OWNERS)
def test_expensive_libraries_are_imported_by_those_who_own_them(library: str) -> None:
    wrong = []
    for file in modules():
        for name, line in imports(file):
            if name.split(".")[0] == library and part_of(file) not in OWNERS[library]:
                wrong.append(f"{file.relative_to(PACKAGE)}:{line} imports {name}")
    assert wrong == []


def test_the_installed_part_imports_nothing_of_the_auditor() -> None:
    for folder in INSTALLED:
        for file in sorted((PACKAGE / folder).rglob("*.py")):
            named = {name for name, _ in imports(file) if name.startswith("specaudit.")}
            assert {name for name in named if not name.startswith("specaudit.ddtree")} == set(), file


def test_a_scan_that_was_made_before_loads_nothing_that_classifies(release: Callable[[str], Path]) -> None:
    command = [f"dir:{release('0.20.1')}", "--no-rules"]
    expensive = {"libcst", "rich", "paramiko", "jinja2", "git", "httpx2", "specaudit.classify.audit"}
    probe = (
        "import sys; from specaudit.cli import run; code = run(['scan', *sys.argv[1:]]);"
        f"loaded = {expensive!r} & set(sys.modules);"
        "sys.exit(', '.join(loaded) or code)"
    )
    for last in (False, True):
        done = subprocess.run([sys.executable, "-c", probe, *command], capture_output=True, text=True, check=False)
        assert not last or (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [["--version"], ["scan", "--help"], ["trace", "--help"]])
def test_the_program_answers_about_itself_without_expensive_imports(arguments: list[str]) -> None:
    expensive = {*OWNERS, "pydantic", "httpx2", "specaudit.model"}
    probe = (
        "import sys; from specaudit.cli import run; run(sys.argv[1:]);"
        f"loaded = {expensive!r} & set(sys.modules);"
        "sys.exit(', '.join(loaded) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", probe, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

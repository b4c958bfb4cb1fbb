"""The package as others install it: wheel, source archive, editable."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Callable
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def tracked(folder: Path) -> Path:
    """A copy of what a checkout would hold, built files left out."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tracked(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Path:
    """A folder with the source archive, and the wheel that was built from it."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return out


def environment(folder: Path) -> Path:
    """A clean virtual environment that sees the libraries of this one, but not this checkout."""
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python3*/site-packages")
    libraries = next(path for path in map(Path, sys.path) if path.name == "site-packages" and (path / "typer").is_dir())
    # A plain path line: the .pth files of that folder, which hold this checkout's editable install, are not read.
    (site / "libraries.pth").write_text(f"{libraries}\n")
    return folder / "bin/python"


def install(python: Path, *what: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    done = subprocess.run([*command, *what], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def answers(python: Path, folder: Path, tree: Path) -> None:
    """The installed program, run from elsewhere, knows its version, its rules and its templates, and scans."""
    env = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONSAFEPATH": "1"}
    where = "import specaudit; print(specaudit.__file__)"
    home = subprocess.run([python, "-c", where], cwd=folder, env=env, capture_output=True, text=True, check=True).stdout
    assert str(ROOT) not in home
    program = python.with_name("specaudit")
    version = subprocess.run([program, "--version"], cwd=folder, env=env, capture_output=True, text=True, check=True)
    assert version.stdout == "specaudit 0.1.0\n"
    scan = subprocess.run([program, "scan", f"dir:{tree}"], cwd=folder, env=env, capture_output=True, text=True)
    assert (scan.returncode, scan.stderr) == (0, "")
    assert re.search(r"Known defects \(\d\d rules", scan.stdout)


def test_the_wheel_works_where_nothing_else_of_it_is(
    built: Path, tmp_path: Path, release: Callable[[str], Path]
) -> None:
    python = environment(tmp_path / "env")
    (wheel,) = built.glob("*.whl")
    install(python, str(wheel))
    answers(python, tmp_path, release("0.20.1"))


def test_the_wheel_holds_every_module_rule_and_template(built: Path, source: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    expected = {file.relative_to(source).as_posix() for file in (source / "specaudit").rglob("*.py")}
    for folder in ("rules", "reports"):
        expected |= {
            f"specaudit/{f.relative_to(source).as_posix()}" for f in (source / folder).rglob("*") if f.is_file()
        }
    assert expected - held == set()
    assert "specaudit/py.typed" in held
    assert any(name.endswith("licenses/LICENSE") for name in held)


def test_an_editable_install_works(tmp_path: Path, release: Callable[[str], Path]) -> None:
    source = tracked(tmp_path / "checkout")
    python = environment(tmp_path / "env")
    install(python, "--no-build-isolation", "--editable", str(source))
    answers(python, tmp_path, release("0.20.1"))


def test_every_package_is_listed() -> None:
    folders = {file.parent.relative_to(ROOT) for file in (ROOT / "specaudit").rglob("*.py")}
    packages = {".".join(folder.parts) for folder in folders} | {"specaudit.rules", "specaudit.reports"}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == packages


def test_every_library_that_is_imported_is_a_dependency() -> None:
    known = packages_distributions()
    imported = set()
    for file in (ROOT / "specaudit").rglob("*.py"):
        if {"ddtree", "payload", "runner.py", "train.py"} & {
            *file.parts
        }:  # run by an engine's Python, with its libraries
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            imported |= {name.split(".")[0] for name in names}
    libraries = imported - set(sys.stdlib_module_names) - {"specaudit"}
    needed = {known[name][0].lower().replace("_", "-") for name in libraries}
    stated = {re.split(r"[<>=\[; ]", line)[0].lower() for line in PROJECT["project"]["dependencies"]}
    assert needed - stated == set()


def test_the_lock_holds_every_dependency_at_one_version() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    locked = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    extras = PROJECT["project"]["optional-dependencies"]
    stated = [*PROJECT["project"]["dependencies"], *extras["dev"], *extras["ddtree"]]
    names = {re.split(r"[<>=\[; ]", line)[0].lower().replace("_", "-") for line in stated}
    assert names - locked.keys() == set()

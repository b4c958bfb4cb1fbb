"""Engines in git's objects: names that no module has, objects that are not there, and git itself missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specaudit.cli import run

Captured = pytest.CaptureFixture[str]


def git(place: Path, *words: str) -> str:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(place), *who, *words], check=True, capture_output=True, text=True, env=environment
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a small engine, and its tag v1.0."""
    place = tmp_path / "origin"
    (place / "vllm/config").mkdir(parents=True)
    (place / "vllm/__init__.py").touch()
    (place / "vllm/config/model.py").write_text("x = 1\n")
    git(place, "init", "-q")
    git(place, "config", "uploadpack.allowFilter", "true")
    git(place, "add", ".")
    git(place, "commit", "-qm", "engine")
    git(place, "tag", "v1.0")
    return place


def scanned(place: Path, capfd: Captured, ref: str = "v1.0") -> tuple[int, str]:
    code = run(["scan", f"git:{place}@{ref}", "--no-rules", "-q"])
    said = capfd.readouterr()
    assert "fault" not in said.err
    return code, " ".join((said.out + said.err).split())


def test_a_name_that_is_no_text_costs_that_file_alone(checkout: Path, capfd: Captured) -> None:
    (Path(os.fsdecode(bytes(checkout) + b"/vllm/config/\xff.py"))).write_text("x = 1\n")
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "odd")
    code, said = scanned(checkout, capfd, "HEAD")
    assert (code, "file name is not UTF-8" in said, "vllm HEAD, 2 files" in said) == (3, True, True)


def test_a_symbolic_link_is_named_as_not_looked_at(checkout: Path, capfd: Captured) -> None:
    (checkout / "vllm/config/other.py").symlink_to("model.py")
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "link")
    said = scanned(checkout, capfd, "HEAD")[1]
    assert "not looked at: vllm/config/other.py (a symbolic link, which is not followed in a commit)" in said
    assert "vllm HEAD, 2 files" in said


def test_objects_of_a_partial_clone_whose_remote_is_gone(checkout: Path, tmp_path: Path, capfd: Captured) -> None:
    git(tmp_path, "clone", "-q", "--no-checkout", "--filter=blob:none", f"file://{checkout}", "part")
    checkout.rename(tmp_path / "elsewhere")
    code, said = scanned(tmp_path / "part", capfd)
    assert (code, "missing or damaged" in said, "git fetch --refetch" in said) == (3, True, True)


@pytest.mark.parametrize("kind", ["v1.0", "v1.0^{tree}", "v1.0:vllm/config", "v1.0:vllm/config/model.py"])
def test_an_object_that_was_emptied(checkout: Path, capfd: Captured, kind: str) -> None:
    name = git(checkout, "rev-parse", kind)
    broken = checkout / ".git/objects" / name[:2] / name[2:]
    broken.unlink()
    broken.touch()
    code, said = scanned(checkout, capfd)
    assert (code, "missing or damaged" in said, "another user" in said) == (3, True, False)


@pytest.mark.parametrize("refresh", ["", "quiet"])
@pytest.mark.parametrize("words", [["scan", "git:{}@v1.0"], ["history", "--git", "{}"]])
def test_without_the_program_git_what_to_install_is_said(
    checkout: Path, tmp_path: Path, words: list[str], refresh: str
) -> None:
    (tmp_path / "empty").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "specaudit", *(word.format(checkout) for word in words), "-q"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": str(tmp_path / "empty"), "GIT_PYTHON_REFRESH": refresh},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "the program git could not be started" in done.stderr
    assert "Install git" in done.stderr


@pytest.mark.parametrize("ref", ["v9", "f" * 40, "a..b"])
def test_a_ref_that_is_not_there(checkout: Path, capfd: Captured, ref: str) -> None:
    code, said = scanned(checkout, capfd, ref)
    assert (code, "has no commit" in said) == (2, True)

"""Folders of an engine that the account may not open: what they may hold is not known, and nothing else is said."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specaudit.errors import Exit
from specaudit.snapshot import covers

#: Root opens every folder, unless it gives that right up.
PLAIN = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


@pytest.fixture
def engine(tmp_path: Path, release: Callable[[str], Path]) -> Iterator[Path]:
    """A release of which folders can be closed: only its files are the cache's."""
    tree = shutil.copytree(release("0.33.0"), tmp_path / "tree", copy_function=os.link)
    yield tree
    for folder in (tree / "vllm", tree / "vllm/v1"):
        folder.chmod(0o755)


def specaudit(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [*PLAIN, sys.executable, "-m", "specaudit", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


def scanned(engine: Path) -> dict[str, Any]:
    done = specaudit("scan", f"dir:{engine}", "--json")
    assert done.returncode == Exit.INCOMPLETE
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_what_a_closed_folder_may_hold_is_not_said_to_be_absent(engine: Path) -> None:
    whole = {f["rule"]: f for f in json.loads(specaudit("scan", f"dir:{engine}", "--json").stdout)["findings"]}
    (engine / "vllm/v1").chmod(0)
    found = scanned(engine)
    assert {"path": "vllm/v1", "error": "Permission denied"} in found["errors"]
    assert found["engine"]["missing"] == []
    parts = [found["tree"][part] for part in ("drafting", "attention", "verification")]
    assert [(part["verdict"], part["reason"]) for part in parts] == 3 * [("unknown", "vllm/v1 could not be read")]
    for finding in found["findings"]:
        if finding["status"] in ("fixed", "not-applicable"):  # it is where nothing of it lies in that folder
            assert finding["status"] == whole[finding["rule"]]["status"]
        elif finding["status"] == "not-found":
            assert "vllm/v1 could not be read" in finding["reason"]
    lost = {f["rule"] for f in found["findings"] if f["status"] == "not-found"}
    assert {rule for rule, f in whole.items() if f["status"] in ("present", "partial")} & lost
    kept = {f["rule"] for f in found["findings"] if f["status"] == "present"}
    assert "probabilistic-draft-sampling-is-opt-in" in kept  # it lies elsewhere
    assert whole.keys() == {f["rule"] for f in found["findings"]}


def test_a_recipe_is_refused_because_of_it_and_not_of_the_release(engine: Path) -> None:
    (engine / "vllm/v1").chmod(0)
    done = specaudit("patch", f"dir:{engine}", "--recipe", "ddtree")
    assert done.returncode == Exit.ERROR
    assert "try: Could not be read: vllm/v1. Allow it for this account, or repair it." in done.stderr


def test_a_status_says_what_it_could_not_read(engine: Path) -> None:
    (engine / "vllm/v1").chmod(0)
    done = specaudit("patch", "status", f"dir:{engine}")
    said = [f"dir:{engine}: clean", "  unread    vllm/v1  (Permission denied)"]
    assert (done.returncode, done.stdout.splitlines()) == (Exit.INCOMPLETE, said)
    found = json.loads(specaudit("patch", "status", f"dir:{engine}", "--json").stdout)
    assert found["unread"] == [{"path": "vllm/v1", "error": "Permission denied"}]


def test_an_engine_that_is_closed_altogether_is_there(engine: Path) -> None:
    (engine / "vllm").chmod(0)
    found = scanned(engine)
    assert (found["engine"]["version"], found["engine"]["missing"]) == ("0.33.0", [])
    assert {"path": "vllm", "error": "Permission denied"} in found["errors"]
    assert {found["tree"][part]["verdict"] for part in ("drafting", "attention", "verification")} == {"unknown"}


@pytest.mark.parametrize(
    ("pattern", "may"),
    [
        ("vllm/v1/sample/x.py", True),
        ("vllm/v1/**", True),
        ("vllm/*/attention/*.py", True),
        ("*.py", True),
        ("vllm/v1x/a.py", False),
        ("vllm/config/*.py", False),
    ],
)
def test_a_folder_may_hold_what_lies_below_it(pattern: str, may: bool) -> None:
    assert covers("vllm/v1", pattern) == may
    assert not covers("vllm/v1/sample/x.py", pattern)

"""Scans of real releases, and the tools that read what we write."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.places import USERS_CACHE

from specaudit.cache import Cache, folder
from specaudit.model import Scan
from specaudit.ruling.judge import RuleJudge
from specaudit.ruling.store import rulebook
from specaudit.scan import Options, scan
from specaudit.targets import parse

#: Ships the schema of SARIF 2.1.0 and the validator that its authors keep.
MULTITOOL = "@microsoft/sarif-multitool-linux@5.7.0"


@pytest.fixture(scope="session")
def scanned(release: Callable[[str], Path]) -> Callable[[str], Scan]:
    """``scanned("0.33.0")``: the scan of a release, with all rules."""
    known: dict[str, Scan] = {}

    def get(version: str) -> Scan:
        if version not in known:
            with Cache(folder()) as cache:
                options = Options(judge=RuleJudge(rulebook(), cache))
                known[version] = scan(parse(f"dir:{release(version)}"), options, cache)
        return known[version]

    return get


@dataclass(frozen=True)
class SarifTool:
    """The schema, and a program that reads SARIF files."""

    schema: Any
    program: Path

    def validate(self, file: Path) -> list[str]:
        """Errors and warnings that the validator has about a file."""
        done = subprocess.run(
            [self.program, "validate", file, "--output", file.with_suffix(".log"), "--log", "ForceOverwrite"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={"DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1", "HOME": str(file.parent)},
        )
        assert "completed successfully" in done.stdout, done.stdout + done.stderr
        return [line.strip() for line in done.stdout.splitlines() if ": error " in line or ": warning " in line]


@pytest.fixture(scope="session")
def sarif_tool() -> SarifTool:
    """Downloaded by npm the first time (44 MB), kept beside the releases."""
    place = USERS_CACHE / "tools" / MULTITOOL.rpartition("/")[2]
    if not (place / "package" / "Sarif.Multitool").exists():
        scratch = place.with_suffix(".part")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        npm = shutil.which("npm")
        assert npm, "npm is needed to fetch the SARIF validator"
        subprocess.run([npm, "pack", "--silent", MULTITOOL], cwd=scratch, check=True, timeout=600, capture_output=True)
        with tarfile.open(next(scratch.glob("*.tgz"))) as archive:
            archive.extractall(scratch, filter="data")
        (scratch / "package" / "Sarif.Multitool").chmod(0o755)
        scratch.replace(place)
    package = place / "package"
    return SarifTool(json.loads((package / "sarif-2.1.0.json").read_text()), package / "Sarif.Multitool")

"""Mistakes of the program itself, and streams that cannot be used: one error, the right code, nothing lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.wheels import part_of_release

from specaudit import configured, document
from specaudit.classify import audit
from specaudit.cli import run
from specaudit.errors import Exit
from specaudit.hosts.folder import FolderHost
from specaudit.index import Index
from specaudit.model import Audit, Scan
from specaudit.ruling.judge import RuleJudge


@dataclass
class Said:
    code: int
    out: str
    err: str


@pytest.fixture
def specaudit_(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Said]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(*arguments: str) -> Said:
        code = run(arguments)
        sys.stdout.flush()
        return Said(code, *capfd.readouterr())

    return call


@pytest.fixture
def trees(tmp_path: Path, release: Callable[[str], Path]) -> list[str]:
    """Two targets, parts of a real release that differ in one line."""
    files = part_of_release(release("0.20.1"), "vllm/__init__.py", "vllm/config/*.py", "vllm/v1/sample/*.py")
    targets = []
    for name in ("bad", "good"):
        for path, data in files.items():
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / path).write_bytes(data)
        (tmp_path / name / "vllm/version.py").write_text(f'__version__ = "{name}"\n')
        targets.append(f"dir:{tmp_path / name}")
    return targets


def a_mistake(*_: object, **__: object) -> Any:
    """Stands for any mistake in the code that is called."""
    raise KeyError("x\n\x1b[31my")


@pytest.fixture(params=[KeyError("x\n\x1b[31my"), RecursionError("too deep"), AssertionError(), MemoryError()])
def unclassifiable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Classification fails on the tree ``bad``, as a mistake in it would make it; the name of the exception."""
    real = audit.audit

    def mistaken(index: Index) -> Audit:
        if index.snapshot.engine.version == "bad":
            raise request.param
        return real(index)

    monkeypatch.setattr(audit, "audit", mistaken)
    return type(request.param).__name__


def test_what_cannot_be_classified_is_one_error_and_everything_else_is_there(
    specaudit_: Callable[..., Said], trees: list[str], unclassifiable: str
) -> None:
    said = specaudit_("scan", *trees, "--json")
    made = document.decode(said.out.encode(), "stdout")
    assert not isinstance(made, Scan)
    bad, good = made.scans
    assert said.code == Exit.INCOMPLETE
    (failure,) = bad.errors
    for part in ("could not be classified", unclassifiable, "fault of specaudit", "report", "SPECAUDIT_DEBUG=1"):
        assert part in failure.error
    assert (said.err.count("could not be classified"), "Traceback" in said.err, "\x1b" in said.err) == (1, False, False)
    assert bad.engine is not None
    assert (bad.engine.version, bad.engine.files) == ("bad", good.engine.files if good.engine else 0)
    assert {finding.rule for finding in bad.findings} == {finding.rule for finding in good.findings}
    assert (bad.tree, bad.verifiers, good.errors) == (None, (), ())
    assert good.verifiers != ()


def test_a_scan_that_could_not_be_classified_does_not_say_that_nothing_is_there(
    specaudit_: Callable[..., Said], trees: list[str], unclassifiable: str
) -> None:
    said = specaudit_("scan", trees[0], "--no-rules", "--method", "dflash")
    assert said.code == Exit.INCOMPLETE
    assert "none was found" not in said.out
    assert "could not be classified" in said.out.splitlines()[1]
    assert unclassifiable in said.out


def test_the_traceback_is_shown_to_those_who_ask(
    specaudit_: Callable[..., Said], trees: list[str], unclassifiable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECAUDIT_DEBUG", "1")
    said = specaudit_("scan", trees[0], "--no-rules", "--json")
    assert "Traceback" in said.err
    assert unclassifiable in said.err
    assert json.loads(said.out)["engine"]["version"] == "bad"


def test_a_trace_through_what_cannot_be_classified(
    specaudit_: Callable[..., Said], trees: list[str], unclassifiable: str
) -> None:
    said = specaudit_("trace", trees[0], "--method", "dflash")
    first, second = said.err.splitlines()
    assert (said.code, said.out) == (Exit.INCOMPLETE, "")
    assert first.startswith(f"error: {trees[0]} could not be classified: {unclassifiable}")
    assert second.startswith("  try: ")


@pytest.mark.parametrize(
    ("owner", "name", "arguments", "told", "kept"),
    [
        (RuleJudge, "findings", [], "known defects could not be looked for", "verifiers"),
        (configured, "traced", ["--method", "eagle"], "the configuration could not be followed", "findings"),
        (FolderHost, "manifest", ["--no-rules"], "could not be examined", "target"),
    ],
)
def test_a_mistake_elsewhere_costs_what_was_being_done(
    specaudit_: Callable[..., Said],
    trees: list[str],
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    arguments: list[str],
    told: str,
    kept: str,
) -> None:
    monkeypatch.setattr(owner, name, a_mistake)
    said = specaudit_("scan", trees[0], *arguments, "--json")
    made = json.loads(said.out)
    assert said.code == Exit.INCOMPLETE
    assert told in made["errors"][-1]["error"]
    assert made[kept]
    assert "Traceback" not in said.err


def test_a_mistake_in_a_command_is_one_error(specaudit_: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specaudit.ruling.store.rulebook", a_mistake)
    said = specaudit_("rules", "list")
    first, second = said.err.splitlines()
    assert (said.code, said.out) == (Exit.ERROR, "")
    assert "KeyError: 'x\\n\\x1b[31my'" in first
    assert second.startswith("  try: ")


# --- streams --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.parametrize(
    ("streams", "code", "told"),
    [
        (">&-", 2, "stdout cannot be written: Bad file descriptor"),
        (">/dev/full", 2, "stdout cannot be written: No space left on device"),
        ("2>&-", 0, ""),
        (">&- 2>&- <&-", 2, ""),
        ("2>/dev/full", 0, ""),
        ("| sleep 0; exit ${PIPESTATUS[0]}", 141, ""),
    ],
)
def test_a_stream_that_cannot_be_used_costs_what_would_go_there_and_no_more(
    trees: list[str], tmp_path: Path, form: list[str], streams: str, code: int, told: str
) -> None:
    file = tmp_path / "scan.json"
    command = f'"$0" -m specaudit scan "$@" --no-rules --output "$FILE" {streams}'
    environment = {**os.environ, "FILE": str(file)}
    done = subprocess.run(
        ["bash", "-c", command, sys.executable, *trees, *form],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == code
    assert done.stderr.startswith(f"error: {told}" if told else "")
    assert ("Traceback" in done.stderr, "fault" in done.stderr) == (False, False)
    assert [scan["engine"]["version"] for scan in json.loads(file.read_text())["scans"]] == ["bad", "good"]


def test_characters_that_stdout_cannot_show_are_shown_by_their_code(trees: list[str], tmp_path: Path) -> None:
    package = tmp_path / "bad/vllm"
    (package / "config/größe.py").symlink_to("nowhere")
    done = subprocess.run(
        [sys.executable, "-m", "specaudit", "scan", trees[0], "--no-rules", "--brief"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, "gr\\xf6\\xdfe.py: dangling" in done.stdout) == (3, True)


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_cache_that_fills_the_disk_is_said_once_and_costs_nothing_else(
    trees: list[str], tmp_path: Path, form: list[str]
) -> None:
    scan = '"$0" -m specaudit scan "$@" --no-rules'
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}

    def made(before: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", before + scan, sys.executable, *trees, *form],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )

    full = made("ulimit -f 48; ")  # no file may be larger than that many KiB
    assert (full.returncode, full.stderr.count("the cache "), full.stderr.count("\n")) == (0, 1, 1)
    free = made()
    assert (free.returncode, free.stderr, free.stdout) == (0, "", full.stdout)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_takes_a_part_of_a_document_only_is_told_as_sigpipe_is(
    release: Callable[[str], Path], unbuffered: str
) -> None:
    scan = '"$0" -m specaudit scan "$1" --no-rules --json | head -c 10; exit ${PIPESTATUS[0]}'
    done = subprocess.run(
        ["bash", "-c", scan, sys.executable, f"dir:{release('0.20.1')}"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert (done.returncode, done.stdout, done.stderr) == (141, '{\n  "schem', "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_file_that_takes_a_part_of_a_document_only_is_an_error(
    trees: list[str], tmp_path: Path, unbuffered: str
) -> None:
    limited = 'trap "" XFSZ; ulimit -f 4; "$0" -m specaudit scan "$@" --no-rules --json >"$FILE"'
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "FILE": str(tmp_path / "scan.json")}
    done = subprocess.run(
        ["bash", "-c", limited, sys.executable, trees[0]], capture_output=True, text=True, check=False, env=environment
    )
    assert (tmp_path / "scan.json").stat().st_size == 4096
    assert done.returncode == 2
    assert "stdout cannot be written: File too large" in done.stderr

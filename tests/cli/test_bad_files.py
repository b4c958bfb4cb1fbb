"""Files of an engine that are broken, or become so during a scan: each is told, whatever the cache knows already."""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.wheels import part_of_release, wheel_bytes

from specaudit.cache import Cache
from specaudit.cli import run
from specaudit.engines import ENGINES
from specaudit.model import Scan
from specaudit.ruling.judge import RuleJudge
from specaudit.ruling.store import rulebook
from specaudit.scan import Options, document_of, snapshot_of
from specaudit.targets import parse

PARTS = ("vllm/__init__.py", "vllm/config/*.py", "vllm/v1/sample/*.py", "vllm/v1/worker/gpu/spec_decode/*.py")


@pytest.fixture
def tree(tmp_path: Path, release: Callable[[str], Path]) -> Path:
    """A part of a real release, with its RECORD."""
    for path, data in part_of_release(release("0.20.1"), *PARTS, "vllm-0.20.1.dist-info/RECORD").items():
        (tmp_path / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / path).write_bytes(data)
    return tmp_path / "tree"


@pytest.fixture
def scanned(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[], tuple[int, dict[str, str]]]:
    """Exit code, and the errors by path, of a scan of the tree; the cache is the same for all."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call() -> tuple[int, dict[str, str]]:
        code = run(["scan", f"dir:{tree}", "--no-rules", "--json"])
        document: dict[str, Any] = json.loads(capfd.readouterr().out)
        assert len(document["errors"]) == len({error["path"] for error in document["errors"]})
        return code, {error["path"]: error["error"] for error in document["errors"]}

    return call


@pytest.mark.parametrize(
    "path",
    [
        "vllm/v1/sample/new.py",  # beside a verifier; nothing imports it
        "vllm/v1/core/new.py",  # far from all of them, and not in RECORD
    ],
)
def test_a_syntax_error_is_told_in_files_that_no_verdict_opened(
    tree: Path, scanned: Callable[[], tuple[int, dict[str, str]]], path: str
) -> None:
    (tree / path).parent.mkdir(exist_ok=True)
    (tree / path).write_text("x = 1\ndef (:\n")
    assert scanned() == (3, {path: "cannot be parsed: invalid syntax, line 2"})
    assert scanned() == (3, {path: "cannot be parsed: invalid syntax, line 2"})


@pytest.mark.parametrize(
    ("first", "told"),
    [
        ("x = (", "cannot be parsed: '(' was never closed, line 1"),
        ("# coding: klingon", "cannot be read as Python text: unknown encoding: klingon"),
        ("# coding: rot13", "cannot be read as Python text: rot13 is no encoding of text"),
        ("# coding: undefined", "cannot be read as Python text: undefined is no encoding of text"),
    ],
)
def test_a_broken_file_is_told_again_when_another_one_changes(
    tree: Path, scanned: Callable[[], tuple[int, dict[str, str]]], first: str, told: str
) -> None:
    broken = tree / "vllm/v1/sample/rejection_sampler.py"
    broken.write_text(f"{first}\n{broken.read_text()}")
    assert scanned() == (3, {"vllm/v1/sample/rejection_sampler.py": told})
    with (tree / "vllm/v1/sample/sampler.py").open("a") as other:
        other.write("# changed\n")
    assert scanned() == (3, {"vllm/v1/sample/rejection_sampler.py": told})


def test_what_pythons_parser_warns_of_is_no_error(
    tree: Path, scanned: Callable[[], tuple[int, dict[str, str]]]
) -> None:
    with (tree / "vllm/v1/sample/rejection_sampler.py").open("a") as file:
        file.write('PATTERN = "\\d"\nassert (PATTERN, "always")\nSAME = PATTERN is "x"\n')
    assert scanned() == (0, {})  # every warning is an error while tests run


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    with Cache(tmp_path / "cache") as made:
        yield made


@pytest.mark.parametrize("how", ["gone", "changed"])
def test_a_file_that_changes_during_the_scan_is_told_and_nothing_wrong_is_remembered(
    tree: Path, cache: Cache, how: str
) -> None:
    judge = RuleJudge(rulebook(), cache)
    file = tree / "vllm/v1/sample/rejection_sampler.py"
    target, options = parse(f"dir:{tree}"), Options(judge=judge)

    def examined(meanwhile: Callable[[], object] = lambda: None) -> Scan:
        with snapshot_of(target, options, cache) as (snapshot, servers):
            meanwhile()
            return document_of(target, snapshot, servers, judge)

    def change() -> None:
        os.rename(file, tree / "kept")
        if how == "changed":
            file.write_text("x = 1\n")

    disturbed = examined(change)
    assert [(error.path, error.error.partition(":")[0]) for error in disturbed.errors] == [
        ("vllm/v1/sample/rejection_sampler.py", "gone or changed while it was being examined")
    ]
    assert {verifier.path for verifier in disturbed.verifiers} >= {
        "vllm/v1/worker/gpu/spec_decode/rejection_sampler.py"
    }
    assert disturbed.findings
    os.rename(tree / "kept", file)
    again = examined()
    assert again.errors == ()
    assert "vllm/v1/sample/rejection_sampler.py" in {verifier.path for verifier in again.verifiers}


def test_a_path_that_is_no_text_can_be_scanned(tree: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.rename(tree, odd)
    assert run(["scan", f"dir:{odd}", "--no-rules", "--json", "--output", f"{odd}/scan.json"]) == 0
    said = capfd.readouterr()
    assert (json.loads(said.out)["engine"]["version"], said.err) == ("0.20.1", "")
    with open(f"{odd}/scan.json", "rb") as file:
        assert file.read() == said.out.encode()


def test_another_engine_that_lies_there_too_is_said(
    tree: Path, scanned: Callable[[], tuple[int, dict[str, str]]], capfd: pytest.CaptureFixture[str]
) -> None:
    (tree / "sglang").mkdir()
    (tree / "sglang/__init__.py").touch()
    (tree / "sglang/version.py").write_text('__version__ = "0.5.9"\n')
    assert run(["scan", f"dir:{tree}", "--no-rules", "--json"]) == 0
    items = {item["what"]: item["why"] for item in json.loads(capfd.readouterr().out)["not_looked"]}
    assert "--engine" in items["sglang 0.5.9"]


def test_a_folder_without_anything_to_audit_is_no_clean_engine(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "part/vllm/core").mkdir(parents=True)
    (tmp_path / "part/vllm/__init__.py").touch()
    assert run(["scan", f"dir:{tmp_path / 'part'}"]) == 3
    said = " ".join(capfd.readouterr().out.split())
    assert "no runner, proposer or verifier was found: name the folder that holds the whole engine" in said


# --- what is said of methods and trees without a file that it rests on ----------------------------------------------


@pytest.fixture
def engine(tmp_path: Path, release: Callable[[str], Path]) -> Path:
    """What classification reads of a real release."""
    root = release("0.20.1")
    paths = [path.relative_to(root).as_posix() for path in sorted((root / "vllm").rglob("*.py"))]
    for path in ("vllm/__init__.py", *filter(ENGINES["vllm"].wants, paths)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, tmp_path / path)
    return tmp_path


EAGLE = "vllm/v1/spec_decode/eagle.py"
BASE = "vllm/v1/spec_decode/llm_base_proposer.py"


def broken(file: Path, how: str) -> None:
    if how == "syntax":
        file.write_text(file.read_text() + "def (\n")
    else:
        file.unlink()
        file.symlink_to("nowhere")


@pytest.mark.parametrize(
    ("path", "how", "part", "others"),
    [
        (EAGLE, "syntax", "drafting", {"attention": "static", "verification": "none"}),
        (EAGLE, "dangling", "drafting", {"attention": "static", "verification": "none"}),
        (BASE, "syntax", "drafting", {"attention": "static", "verification": "none"}),
        ("vllm/v1/worker/gpu_model_runner.py", "syntax", "drafting", {"verification": "unknown"}),
        ("vllm/config/speculative.py", "syntax", "drafting", {"verification": "unknown"}),
        ("vllm/v1/sample/rejection_sampler.py", "syntax", "verification", {"drafting": "static"}),
        ("vllm/v1/sample/rejection_sampler.py", "dangling", "verification", {"drafting": "static"}),
        ("vllm/v1/attention/backends/tree_attn.py", "syntax", "attention", {"verification": "none"}),
        ("vllm/v1/attention/backends/tree_attn.py", "dangling", "attention", {"verification": "none"}),
        ("vllm/v1/metrics/stats.py", "syntax", "", {"drafting": "static", "attention": "static"}),
    ],
)
def test_nothing_is_called_absent_while_a_file_that_may_hold_it_cannot_be_read(
    engine: Path, capfd: pytest.CaptureFixture[str], path: str, how: str, part: str, others: dict[str, str]
) -> None:
    broken(engine / path, how)
    assert run(["scan", f"dir:{engine}", "--no-rules", "--json"]) == 3
    tree = json.loads(capfd.readouterr().out)["tree"]
    assert {name: tree[name]["verdict"] for name in others} == others
    if part:
        assert (tree[part]["verdict"], tree[part]["reason"]) == ("unknown", f"{path} could not be read")


@pytest.mark.parametrize("method", ["eagle", "ngram"])
def test_what_is_not_known_of_the_engine_is_not_known_of_a_method(
    engine: Path, capfd: pytest.CaptureFixture[str], method: str
) -> None:
    broken(engine / EAGLE, "syntax")
    assert run(["scan", f"dir:{engine}", "--no-rules", "--json", "--method", method]) == 3
    assert json.loads(capfd.readouterr().out)["tree"]["drafting"]["verdict"] == "unknown"


@pytest.mark.parametrize(("path", "how"), [(EAGLE, "syntax"), (EAGLE, "dangling"), (BASE, "syntax")])
def test_a_method_whose_proposer_cannot_be_read_keeps_its_runner_and_drafts_nobody_knows_what(
    engine: Path, capfd: pytest.CaptureFixture[str], path: str, how: str
) -> None:
    broken(engine / path, how)
    assert run(["scan", f"dir:{engine}", "--no-rules", "--json"]) == 3
    made = json.loads(capfd.readouterr().out)
    assert "v1" in {one["runner"] for one in made["runners"] if one["method"] == "eagle" and one["default"]}
    (eagle,) = [one for one in made["proposers"] if one["name"] == "EagleProposer"]
    assert (eagle["topology"], eagle["reason"]) == ("unknown", f"{path} could not be read")
    run(["scan", f"dir:{engine}", "--no-rules", "--brief"])
    said = " ".join(capfd.readouterr().out.split())
    assert "unknown whether a tree is drafted" in said
    assert ("none for" in said, "no tree is drafted" in said) == (False, False)
    assert run(["trace", f"dir:{engine}", "--method", "eagle", "-q"]) == 3
    assert f"not examined: {path}: " in capfd.readouterr().out


def test_a_runner_that_cannot_be_read_is_not_called_absent(engine: Path, capfd: pytest.CaptureFixture[str]) -> None:
    broken(engine / "vllm/v1/worker/gpu_model_runner.py", "syntax")
    assert run(["scan", f"dir:{engine}", "--no-rules", "--brief"]) == 3
    said = " ".join(capfd.readouterr().out.split())
    assert ("runner not known by default" in said, "none by default" in said) == (True, False)


@pytest.mark.parametrize("path", ["vllm/config/speculative.py", "vllm/v1/worker/gpu_model_runner.py"])
def test_a_path_that_cannot_be_told_for_a_file_is_not_called_refused(
    engine: Path, capfd: pytest.CaptureFixture[str], path: str
) -> None:
    broken(engine / path, "syntax")
    told = f"1 file could not be read ({path}: cannot be parsed"
    assert run(["trace", f"dir:{engine}", "--method", "ngram", "-q"]) == 3
    assert told in capfd.readouterr().err
    given = ["--speculative-config", '{"method": "ngram"}']
    assert run(["scan", f"dir:{engine}", "--no-rules", "--json", *given]) == 3
    made = json.loads(capfd.readouterr().out)
    assert any(told in error["error"] for error in made["errors"])
    assert made["verifiers"]


# --- RECORD ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", ["absent", "garbage", "binary", "a pipe", "no metadata"])
def test_without_a_record_nothing_is_called_unmodified(
    tree: Path, capfd: pytest.CaptureFixture[str], record: str
) -> None:
    info = tree / "vllm-0.20.1.dist-info"
    scan = ["scan", f"dir:{tree}", "--no-rules", "--brief", "--expect", "modified=no"]
    (info / "RECORD").unlink()
    if record == "garbage":
        (info / "RECORD").write_text("nothing,of,use\n" * 9)
    elif record == "binary":
        (info / "RECORD").write_bytes(bytes(range(256)) * 9)
    elif record == "a pipe":
        os.mkfifo(info / "RECORD")
    elif record == "no metadata":
        info.rmdir()
    assert run(scan) == 1
    said = capfd.readouterr()
    assert "expected modified=no, found nothing that could be compared" in " ".join(said.err.split())
    assert "not looked at: changes to the engine's files (no RECORD" in " ".join(said.out.split())


@pytest.mark.parametrize("record", [True, False])
def test_as_installed_is_said_of_what_was_compared_only(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], record: bool
) -> None:
    packages = tmp_path / "lib/python3.12/site-packages"
    packages.mkdir(parents=True)
    with zipfile.ZipFile(io.BytesIO(wheel_bytes({"vllm/__init__.py": b""}))) as wheel:
        wheel.extractall(packages)
    if not record:
        (packages / "vllm-1.0.dist-info/RECORD").unlink()
    python = tmp_path / "python"
    python.write_text(f"""#!/bin/sh\necho 'specaudit asks: [["{packages}"], "3.12.1", "{python}"]'\n""")
    python.chmod(0o755)
    code = run(["scan", "--python", str(python), "--no-rules", "--brief", "--expect", "modified=no"])
    said = capfd.readouterr()
    assert ("as installed" in said.out.splitlines()[0]) == record
    assert ("expected modified=no" in said.err) == (not record)
    assert code == 3  # it is no whole engine

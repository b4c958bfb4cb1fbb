"""Anchors are data about real releases: what they name is there, and what they let in is enough and small."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from support.engines import index_of

from specaudit.engines import ENGINES

Release = Callable[[str], Path]
VLLM, SGLANG = ENGINES["vllm"], ENGINES["sglang"]
PACKAGE = Path(__file__).parents[2] / "specaudit"
DATA = Path(__file__).parents[1] / "data"


def read(release: Release, spec: str) -> dict[str, bytes]:
    root = release(spec)
    package = spec.partition("==")[0] if "==" in spec else "vllm"
    return {f.relative_to(root).as_posix(): f.read_bytes() for f in sorted((root / package).rglob("*.py"))}


def test_every_anchor_of_the_newest_release_is_found(release: Release) -> None:
    root = release("0.33.0")
    index = index_of(root, wants=VLLM.wants)
    for runner in VLLM.runners[1:]:  # the first generation is gone since 0.11
        assert index.outline(runner.path).definition(runner.cls) is not None, runner
        assert any(call.func.endswith(f".{runner.entry}") for call in index.outline(runner.path).calls)
    for worker in VLLM.workers:
        assert index.outline(worker.path).definition(worker.cls) is not None
    for cls in {VLLM.config.cls, VLLM.config.engine_cls, *VLLM.config.objects.values()}:
        files = [p for p in index.paths if any(fnmatchcase(p, g) for g in VLLM.config.paths)]
        assert any(index.outline(path).definition(cls) for path in files), cls
    assert VLLM.environment_path in index.snapshot.files
    assert any(path in index.snapshot.files for path in VLLM.backend_registries)


def test_the_older_generation_and_its_gate_are_found(release: Release) -> None:
    index = index_of(release("0.9.2"), wants=VLLM.wants)
    oldest, gate = VLLM.runners[0], VLLM.gate
    assert gate is not None
    assert index.outline(oldest.path).definition(oldest.cls) is not None
    assert index.outline(gate.path).definition(f"{gate.cls}.{gate.function}") is not None


@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_the_anchors_of_the_other_engine_are_found(version: str, release: Release) -> None:
    index = index_of(release(f"sglang=={version}"), "sglang", SGLANG.wants)
    (runner,) = SGLANG.runners
    assert index.outline(runner.path).definition(runner.cls) is not None
    assert any(a.target == f"self.{runner.keeps}" for a in index.outline(runner.path).assigns)
    files = [p for p in index.paths if any(fnmatchcase(p, g) for g in SGLANG.config.paths)]
    for cls in {SGLANG.config.method_type, *SGLANG.config.objects.values()}:
        assert any(index.outline(path).definition(cls) for path in files), cls


def test_the_files_that_are_wanted_are_few_and_hold_every_place_that_decides(release: Release) -> None:
    files = read(release, "0.33.0")
    wanted = {path: data for path, data in files.items() if VLLM.wants(path)}
    assert len(wanted) < len(files) / 4
    assert sum(len(zlib.compress(data)) for data in wanted.values()) < 8_000_000
    table = json.loads((DATA / "drafting.json").read_text(encoding="utf-8"))["0.33.0"]["proposers"]
    assert all(VLLM.wants(path) for _, path, *_ in table)
    makes = re.compile(rb"\b(?:Proposer|Speculator)\w*\((?:self\.)?vllm_config")
    assert [path for path, data in files.items() if makes.search(data) and path not in wanted] == []


def test_no_class_or_file_of_an_engine_is_named_outside_the_anchors() -> None:
    """Proposers of all releases in the table, their files, and every word of the anchors that is a name of code."""
    releases = json.loads((DATA / "drafting.json").read_text(encoding="utf-8"))
    rows = [row for found in releases.values() for row in found["proposers"]]
    names = {name for name, *_ in rows if name.isidentifier()}
    names |= {Path(path).stem for _, path, *_ in rows} - {"speculator", "__init__"}
    for engine in ENGINES.values():
        names |= {engine.config.cls, engine.config.engine_cls, *engine.config.objects.values()}
        names |= {runner.cls for runner in engine.runners} - {"Worker"}
        names |= {name for name in engine.config.objects if "_config" in name or "_algorithm" in name}
    pattern = re.compile(rf"\b({'|'.join(sorted(map(re.escape, names)))})\b")
    for file in sorted((PACKAGE / "classify").glob("*.py")):
        assert pattern.findall(file.read_text(encoding="utf-8")) == [], file.name

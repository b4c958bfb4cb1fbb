"""Twelve real releases, from the oldest that is known to the newest: what must hold for every one of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path

import pytest

from specaudit.cache import Cache, folder
from specaudit.model import Evidence, Hop, Scan, TreeVerdict
from specaudit.scan import Options, scan
from specaudit.targets import parse

RELEASES = ("0.9.2", "0.10.1", "0.11.2", "0.12.0", "0.15.0", "0.18.1", "0.20.1", "0.22.0", "0.25.1", "0.29.0", "0.31.0")
NEWEST = "0.33.0"


@pytest.fixture(scope="module")
def scanned(release: Callable[[str], Path]) -> Callable[[str], Scan]:
    """A scan of one release, made once."""
    made: dict[str, Scan] = {}

    def get(version: str) -> Scan:
        if version not in made:
            with Cache(folder()) as cache:
                made[version] = scan(parse(f"dir:{release(version)}"), Options(), cache)
        return made[version]

    return get


def named_lines(part: object) -> Iterator[Evidence | Hop]:
    """Every line of the engine that a document names with its text."""
    if isinstance(part, (Evidence, Hop)):
        yield part
    elif isinstance(part, tuple):
        for item in part:
            yield from named_lines(item)
    elif is_dataclass(part):
        for field in fields(part):
            yield from named_lines(getattr(part, field.name))


@pytest.mark.parametrize("version", [*RELEASES, NEWEST])
def test_a_release_is_examined_completely_and_what_is_said_can_be_looked_up(
    version: str, scanned: Callable[[str], Scan], release: Callable[[str], Path]
) -> None:
    made, root = scanned(version), release(version)
    assert made.errors == ()
    assert made.engine is not None
    assert made.engine.version == version
    lines: dict[str, list[str]] = {}

    def line(path: str, number: int) -> str:
        if path not in lines:
            lines[path] = (root / path).read_text(encoding="utf-8").split("\n")
        return lines[path][number - 1].strip()

    named = list(named_lines(made))
    assert len(named) > 50
    assert [item for item in named if line(item.path, item.line) != item.text] == []
    for proposer in made.proposers:
        assert re.match(r"class |.*\(", line(proposer.path, proposer.line)), proposer
    for verifier in made.verifiers:
        assert verifier.role == "compiled" or re.match(r"(async )?def |class ", line(verifier.path, verifier.line)), (
            verifier
        )
    assert {proposer.reachable for proposer in made.proposers} - {"dead"}
    assert {verifier.walk for verifier in made.verifiers} >= {"linear"}


@pytest.mark.parametrize("version", [*RELEASES, NEWEST])
def test_every_method_has_a_runner_by_default_and_several_only_where_the_model_decides(
    version: str, scanned: Callable[[str], Scan]
) -> None:
    runners = scanned(version).runners
    for method in {runner.method for runner in runners}:
        defaults = [runner for runner in runners if runner.method == method and runner.default]
        assert defaults, method
        if len({runner.runner for runner in defaults}) > 1:
            undecided = [r for r in defaults if not any(condition.kind == "model" for condition in r.when)]
            assert len({runner.runner for runner in undecided}) <= 1, method


def test_a_release_read_by_ranges_gives_the_audit_of_the_unpacked_one(
    scanned: Callable[[str], Scan], tmp_path: Path
) -> None:
    with Cache(tmp_path) as cache:
        remote = scan(parse(f"vllm=={NEWEST}"), Options(), cache)
    unpacked = scanned(NEWEST)
    assert remote.engine is not None
    assert unpacked.engine is not None
    assert (remote.engine.digest, remote.engine.files) == (unpacked.engine.digest, unpacked.engine.files)
    for part in ("runners", "proposers", "verifiers", "options", "paths", "errors"):
        assert getattr(remote, part) == getattr(unpacked, part), part
    assert remote.tree is not None
    assert unpacked.tree is not None
    assert without_unread(remote.tree) == without_unread(unpacked.tree)


def without_unread(tree: TreeVerdict) -> TreeVerdict:
    """A verdict without what was not looked at: neither source holds libraries, but for different reasons."""
    return TreeVerdict(
        drafting=replace(tree.drafting, not_looked=()),
        attention=replace(tree.attention, not_looked=()),
        verification=replace(tree.verification, not_looked=()),
    )

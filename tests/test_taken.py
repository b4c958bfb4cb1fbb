"""What is taken: which paths count as the configuration's, and which as a running server's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path as FilePath

import pytest

from specaudit import taken
from specaudit.cache import Cache, folder
from specaudit.configured import Configured
from specaudit.model import Path, Scan, Server
from specaudit.scan import Configure, Options, scan
from specaudit.serving import with_paths
from specaudit.snapshot import Snapshot
from specaudit.summary import rows
from specaudit.targets import parse

OLD = {"VLLM_USE_V2_MODEL_RUNNER": "0"}


@pytest.fixture(scope="module")
def scanned(release: Callable[[str], FilePath]) -> Callable[..., Scan]:
    def get(version: str, configure: Configure | None = None) -> Scan:
        with Cache(folder()) as cache:
            return scan(parse(f"dir:{release(version)}"), Options(configure=configure), cache)

    return get


@pytest.mark.parametrize("version", ["0.9.2", "0.20.1", "0.28.0", "0.33.0"])
def test_the_paths_that_are_drawn_by_default_say_what_the_tables_say(
    scanned: Callable[..., Scan], version: str
) -> None:
    plain = scanned(version)
    named = replace(plain, paths=tuple(replace(path, configured=True) for path in plain.paths))
    assert rows(named) == rows(plain)
    for method in {runner.method for runner in plain.runners}:
        assert set(taken.runners(named, method)) == set(taken.runners(plain, method))
        assert not taken.decided(named, method)


def test_a_server_that_runs_there_is_no_configuration_that_was_named(scanned: Callable[..., Scan]) -> None:
    named = scanned("0.33.0", Configured(("eagle3",), OLD, {}))
    other = scanned("0.33.0", Configured(("dflash",), OLD, {})).paths[0]
    same = named.paths[0]

    def trace(method: str, _: Mapping[str, str | None]) -> Path:
        return replace({"eagle3": same, "dflash": other}[method], configured=False)

    servers = tuple(Server(n, ("--spec-method", method), OLD) for n, method in enumerate(("eagle3", "dflash")))
    made = with_paths(replace(named, servers=servers), trace)
    assert [server.path for server in made.servers] == [0, 1]
    assert [path.configured for path in made.paths] == [True, False]
    assert taken.runners(made) == ("v1",)
    assert taken.runners(made, "dflash") == ("v2",)  # nobody named it: what it takes by default
    assert {p.name for p in taken.part(made).proposers} == {"EagleProposer"}


def test_a_server_that_was_named_is(scanned: Callable[..., Scan]) -> None:
    words = ("--speculative-config", '{"method": "eagle3", "parallel_drafting": true}')

    def configure(made: Scan, snapshot: Snapshot) -> Scan:
        return Configured((), {}, {}, server=7)(replace(made, servers=(Server(7, words, {}),)), snapshot)

    made = scanned("0.33.0", configure)
    assert [(path.method, path.runner, path.configured) for path in made.paths] == [("eagle3", "v1", True)]
    assert [server.path for server in made.servers] == [0]
    assert taken.runners(made) == ("v1",)
    assert {(p.name, p.topology) for p in taken.part(made).proposers} == {("EagleProposer", "chain-parallel")}

"""Releases on an index: real HTTP on loopback with every way it may behave, and the real index for the real wheel."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.index import Index, serving
from support.wheels import part_of_release, sdist_bytes, wheel_bytes

from specaudit.cache import Cache
from specaudit.engines import ENGINES
from specaudit.errors import IntegrityError, TargetError, UnreachableError
from specaudit.hosts.pipconfig import PipConfig
from specaudit.hosts.release import ReleaseHost
from specaudit.scan import wanted
from specaudit.snapshot import Snapshot, take
from specaudit.targets import parse

WHEEL = "vllm-1.0-py3-none-any.whl"
SDIST = "vllm-1.0.tar.gz"


@dataclass
class Look:
    """One look at ``vllm==1.0`` (or another release) on an index, with a cache that later looks share."""

    folder: Path
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    transferred: int = 0

    def at(self, index: Index, release: str = "vllm==1.0", agree: bool = False) -> Snapshot:
        return self.through(PipConfig(index_urls=(index.url,)), release, agree)

    def through(self, config: PipConfig, release: str = "vllm==1.0", agree: bool = False) -> Snapshot:
        def consent(question: str) -> bool:
            self.asked.append(question)
            return agree

        with Cache(self.folder / "cache") as cache:
            host = ReleaseHost(release, wanted, cache, self.said.append, consent, config)
            found = host.installations(tuple(ENGINES))[0]
            snapshot = take(host, parse(release), found, wanted, cache, cache)
            self.transferred = host.transferred
        return snapshot


@pytest.fixture
def look(tmp_path: Path) -> Look:
    return Look(tmp_path)


@pytest.fixture(scope="module")
def sources(release: Callable[[str], Path]) -> dict[str, bytes]:
    """Some 40 real files, and a library that nobody needs."""
    files = part_of_release(release("0.33.0"), "vllm/__init__.py", "vllm/config/*.py", "vllm/entrypoints/*.py")
    return {"vllm/_C.abi3.so": bytes(range(256)) * 8192, **files}


def only_wanted(files: dict[str, bytes]) -> dict[str, bytes]:
    return {path: data for path, data in files.items() if wanted(path)}


def contents(snapshot: Snapshot) -> dict[str, bytes]:
    return {path: snapshot.read(path) for path in snapshot.files}


def test_only_the_directory_and_the_wanted_members_of_a_wheel_are_transferred(
    look: Look, sources: dict[str, bytes]
) -> None:
    padding = {f"vllm/data{n}.bin": random.Random(n).randbytes(1_000_000) for n in range(8)}
    with serving(Index({WHEEL: wheel_bytes({**padding, **sources})})) as index:
        snapshot = look.at(index)
        assert contents(snapshot) == only_wanted(sources)
        assert snapshot.engine.source == f"wheel:{WHEEL}"
        assert snapshot.engine.files == sum(path.endswith(".py") for path in sources)
        assert index.sent < len(index.files[WHEEL]) / 4
        assert any(WHEEL in message for message in look.said)


def test_libraries_that_were_not_transferred_are_reported_as_not_looked_at(
    look: Look, sources: dict[str, bytes]
) -> None:
    with serving(Index({WHEEL: wheel_bytes(sources)})) as index:
        assert [item.what for item in look.at(index).not_looked] == ["compiled ops"]


def test_a_server_that_knows_no_suffix_ranges_is_read_by_the_others(look: Look, sources: dict[str, bytes]) -> None:
    with serving(Index({WHEEL: wheel_bytes(sources)}, ranges="no-suffix")) as index:
        assert contents(look.at(index)) == only_wanted(sources)


def test_a_busy_server_is_asked_again(look: Look, sources: dict[str, bytes]) -> None:
    with serving(Index({WHEEL: wheel_bytes(sources)}, broken=2)) as index:
        assert contents(look.at(index)) == only_wanted(sources)


def test_without_ranges_the_source_archive_is_taken_and_the_wheel_is_not_read(
    look: Look, sources: dict[str, bytes]
) -> None:
    python = {path: data for path, data in sources.items() if path.endswith(".py")}
    wheel = wheel_bytes({"vllm/large.bin": random.Random(1).randbytes(40_000_000), **sources})
    with serving(Index({WHEEL: wheel, SDIST: sdist_bytes(python)}, ranges="none")) as index:
        snapshot = look.at(index)
        assert snapshot.engine.source == "sdist"
        assert contents(snapshot) == only_wanted(sources)
        assert index.sent < len(wheel) / 2


def test_a_source_archive_with_another_hash_is_refused(look: Look, sources: dict[str, bytes]) -> None:
    sdist = {SDIST: sdist_bytes({"vllm/__init__.py": b""})}
    with (
        serving(Index({WHEEL: wheel_bytes(sources), **sdist}, ranges="none", hashes={SDIST: "0" * 64})) as index,
        pytest.raises(IntegrityError, match=r"vllm-1\.0\.tar\.gz does not have the hash"),
    ):
        look.at(index)


def test_a_whole_wheel_is_downloaded_only_when_the_user_agrees(look: Look, sources: dict[str, bytes]) -> None:
    with serving(Index({WHEEL: wheel_bytes(sources)}, ranges="none")) as index:
        with pytest.raises(TargetError, match="downloaded as a whole") as refused:
            look.at(index)
        assert "wheel:FILE" in refused.value.hint
        assert WHEEL in look.asked[0]
        assert contents(look.at(index, agree=True)) == only_wanted(sources)


def test_a_whole_wheel_with_another_hash_is_refused(look: Look, sources: dict[str, bytes]) -> None:
    with (
        serving(Index({WHEEL: wheel_bytes(sources)}, ranges="none", hashes={WHEEL: "f" * 64})) as index,
        pytest.raises(IntegrityError, match="does not have the hash that the index promises"),
    ):
        look.at(index, agree=True)


def test_a_member_that_is_not_what_record_promises_is_refused(look: Look, sources: dict[str, bytes]) -> None:
    changed = wheel_bytes(sources, promised={"vllm/config/speculative.py": b"something else"})
    with (
        serving(Index({WHEEL: changed})) as index,
        pytest.raises(IntegrityError, match=r"vllm/config/speculative\.py in vllm-1\.0"),
    ):
        look.at(index)


def test_a_release_that_was_read_once_needs_no_index_any_more(look: Look, sources: dict[str, bytes]) -> None:
    with serving(Index({WHEEL: wheel_bytes(sources)})) as index:
        first = look.at(index)
        config = PipConfig(index_urls=(index.url,))
    again = look.through(config)
    assert again.engine == first.engine
    assert contents(again) == only_wanted(sources)
    assert look.transferred == 0


def test_a_damaged_blob_of_the_cache_is_noticed_and_read_again(look: Look, sources: dict[str, bytes]) -> None:
    with serving(Index({WHEEL: wheel_bytes(sources)})) as index:
        look.at(index)
        for blob in (look.folder / "cache/blobs").glob("*/*"):
            blob.write_bytes(b"# rotten\n")
        assert contents(look.at(index)) == only_wanted(sources)
        assert look.transferred > 0


def test_of_several_builds_the_one_with_the_higher_build_tag_is_taken(look: Look, sources: dict[str, bytes]) -> None:
    older, newer = "vllm-1.0-py3-none-any.whl", "vllm-1.0-1-py3-none-any.whl"
    files = {newer: wheel_bytes(sources), older: wheel_bytes({"vllm/__init__.py": b"", "vllm/envs.py": b""})}
    with serving(Index(files)) as index:
        assert look.at(index).engine.source == f"wheel:{newer}"
        assert any(newer in message for message in look.said)


def test_a_build_for_another_platform_is_read_and_said_to_be_one(look: Look, sources: dict[str, bytes]) -> None:
    foreign = "vllm-1.0-cp38-abi3-win_arm64.whl"
    with serving(Index({foreign: wheel_bytes(sources)})) as index:
        assert look.at(index).engine.source == f"wheel:{foreign}"
        assert any("does not fit" in message for message in look.said)


def test_a_version_that_does_not_exist_is_answered_with_those_that_do(look: Look, sources: dict[str, bytes]) -> None:
    with serving(Index({WHEEL: wheel_bytes(sources)})) as index:
        with pytest.raises(TargetError, match=r"no release vllm==9\.9") as missing:
            look.at(index, "vllm==9.9")
        assert "1.0" in missing.value.hint


def test_an_index_that_does_not_answer_is_unreachable(look: Look) -> None:
    with serving(Index({})) as index:
        gone = PipConfig(index_urls=(index.url,), timeout=2)
    with pytest.raises(UnreachableError, match="No package index answered"):
        look.through(gone)


def test_credentials_of_the_index_url_are_used_and_never_said(look: Look, sources: dict[str, bytes]) -> None:
    with serving(Index({WHEEL: wheel_bytes(sources)}, password="ann:s3cret")) as index:
        url = index.url.replace("http://", "http://ann:s3cret@")
        assert contents(look.through(PipConfig(index_urls=(url,)))) == only_wanted(sources)
        with pytest.raises(UnreachableError) as refused:
            look.through(PipConfig(index_urls=(url.replace("s3cret", "wr0ng"),)), "vllm==1.1")
    assert "s3cret" not in "".join(look.said)
    assert "wr0ng" not in str(refused.value)
    kept = b"".join(file.read_bytes() for file in (look.folder / "cache").rglob("*") if file.is_file())
    assert b"s3cret" not in kept


def test_an_index_that_is_a_folder_is_read_in_place(look: Look, tmp_path: Path, sources: dict[str, bytes]) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / WHEEL).write_bytes(wheel_bytes(sources))
    snapshot = look.through(PipConfig(index_urls=(), find_links=(str(tmp_path / "wheels"),)))
    assert contents(snapshot) == only_wanted(sources)


def test_another_project_is_no_engine(look: Look) -> None:
    with pytest.raises(TargetError, match="requests is no engine"):
        look.through(PipConfig(), "requests==2.0")


def test_the_newest_release_costs_less_than_eight_megabytes_and_takes_the_build_that_pip_takes(look: Look) -> None:
    from specaudit.hosts import pipconfig

    snapshot = look.through(pipconfig.read(), "vllm==0.33.0")
    assert 1_000_000 < look.transferred < 8_000_000
    assert len(snapshot.files) > 400
    assert snapshot.engine.files == 3231
    assert look.through(pipconfig.read(), "vllm==0.20.1").engine.source.startswith("wheel:vllm-0.20.1-1-cp38-abi3-")

"""Snapshots: what is known of an engine whose files come from anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.wheels import part_of_release

from specaudit.cache import Cache
from specaudit.hosts.base import Installation, Manifest
from specaudit.hosts.folder import FolderHost, open_folder
from specaudit.hosts.probe.files import sha256
from specaudit.model import Environment, FileEntry, Server, Target
from specaudit.snapshot import of_folder, take

TARGET = Target("dir:x")


@dataclass
class Sender:
    """A host whose files have to be fetched; ``lies`` are bytes that it sends in place of a file's own."""

    files: dict[str, bytes]
    record: dict[str, str] = field(default_factory=dict)
    lies: dict[str, bytes | None] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)
    label: str = "sender"

    def installations(self, engines: tuple[str, ...]) -> tuple[Installation, ...]:
        return (Installation("vllm", "1.0", "/", "dist", record=self.record),)

    def manifest(self, installation: Installation) -> Manifest:
        return Manifest(tuple(FileEntry(path, sha256(data), len(data)) for path, data in self.files.items()))

    def read(self, installation: Installation, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        for path in paths:
            data = self.lies.get(path, self.files[path])
            self.sent.append(path)
            if data is not None:
                yield path, data
        yield "vllm/unasked.py", b"evil = 1\n"

    def environment(self) -> Environment:
        return Environment()

    def servers(self) -> tuple[Server, ...]:
        return ()


FILES = {"vllm/__init__.py": b"", "vllm/a.py": b"a = 1\n", "vllm/b.py": b"b = 2\n"}


def everything(path: str) -> bool:
    return True


def test_fetched_files_are_those_that_were_announced(tmp_path: Path) -> None:
    host = Sender(FILES)
    with Cache(tmp_path) as cache:
        snapshot = take(host, TARGET, host.installations(())[0], everything, cache, cache)
        assert {path: snapshot.read(path) for path in snapshot.files} == FILES
        assert snapshot.errors == ()


def test_files_that_the_store_has_are_not_fetched_again(tmp_path: Path) -> None:
    host = Sender(FILES)
    with Cache(tmp_path) as cache:
        take(host, TARGET, host.installations(())[0], everything, cache, cache)
        host.sent.clear()
        host.files = {**FILES, "vllm/c.py": b"c = 3\n"}
        snapshot = take(host, TARGET, host.installations(())[0], everything, cache, cache)
        assert host.sent == ["vllm/c.py"]
        assert snapshot.read("vllm/a.py") == b"a = 1\n"


def test_only_wanted_files_are_fetched_and_all_are_counted(tmp_path: Path) -> None:
    host = Sender(FILES)
    snapshot = take(host, TARGET, host.installations(())[0], lambda path: path == "vllm/b.py")
    assert (host.sent, list(snapshot.files), snapshot.engine.files) == (["vllm/b.py"], ["vllm/b.py"], 3)
    with pytest.raises(OSError, match="unasked"):
        snapshot.read("vllm/unasked.py")


@pytest.mark.parametrize(("lie", "error"), [(b"a = 2\n", "does not have the hash"), (None, "did not send it")])
def test_a_file_that_came_otherwise_or_not_at_all_is_one_error(tmp_path: Path, lie: bytes | None, error: str) -> None:
    host = Sender(FILES, lies={"vllm/a.py": lie})
    with Cache(tmp_path) as cache:
        snapshot = take(host, TARGET, host.installations(())[0], everything, cache, cache)
        assert [failure.path for failure in snapshot.errors] == ["vllm/a.py"]
        assert error in snapshot.errors[0].error
        assert set(snapshot.files) == {"vllm/__init__.py", "vllm/b.py"}
        assert cache.blob(sha256(b"a = 2\n")) is None


def test_differences_from_record_are_told_apart() -> None:
    record = {path: sha256(data) for path, data in {**FILES, "vllm/gone.py": b"", "vllm/a.py": b"a = 0\n"}.items()}
    host = Sender({**FILES, "vllm/new.py": b"new\n"}, record)
    engine = take(host, TARGET, host.installations(())[0], everything).engine
    assert (engine.modified, engine.missing, engine.added) == (("vllm/a.py",), ("vllm/gone.py",), ("vllm/new.py",))


def test_without_a_record_nothing_is_called_different() -> None:
    host = Sender(FILES)
    engine = take(host, TARGET, host.installations(())[0], everything).engine
    assert (engine.modified, engine.missing, engine.added) == ((), (), ())


def test_a_file_that_changes_during_the_examination_is_not_read_for_what_it_was(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    for path, data in FILES.items():
        (tmp_path / path).write_bytes(data)
    host = FolderHost("here", [str(tmp_path)])
    snapshot = take(host, TARGET, host.installations(("vllm",))[0], everything)
    assert snapshot.read("vllm/a.py") == b"a = 1\n"
    (tmp_path / "vllm/a.py").write_bytes(b"a = 9\n")
    with pytest.raises(OSError, match="another one now"):
        snapshot.read("vllm/a.py")


def test_an_edited_release_differs_from_its_record_in_that_file(tmp_path: Path, release: Callable[[str], Path]) -> None:
    files = part_of_release(
        release("0.33.0"), "vllm/v1/sample/*.py", "vllm/__init__.py", "vllm-0.33.0.dist-info/RECORD"
    )
    files["vllm/v1/sample/sampler.py"] += b"# edited\n"
    for path, data in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    host = FolderHost("here", [str(tmp_path)])
    engine = take(host, TARGET, host.installations(("vllm",))[0], everything).engine
    assert engine.modified == ("vllm/v1/sample/sampler.py",)
    assert engine.added == ()
    assert len(engine.missing) > 3000


def test_the_digest_is_that_of_the_files_wherever_they_lie(tmp_path: Path, release: Callable[[str], Path]) -> None:
    host = open_folder(release("0.20.1"), "dir:x")
    snapshot = take(host, TARGET, host.installations(("vllm",))[0], lambda path: False)
    assert snapshot.engine.digest == of_folder(release("0.20.1"), "vllm", "0.20.1").engine.digest

"""Operator names out of binaries: a real library of a real wheel."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from specaudit.cache import Cache
from specaudit.hosts import pipconfig
from specaudit.hosts.find import find
from specaudit.hosts.folder import FolderHost, cached_ops
from specaudit.hosts.http import open_client
from specaudit.hosts.probe import ops
from specaudit.hosts.ranges import RangeFile
from specaudit.hosts.wheel import WheelReader

LIBRARY = "vllm/_flashmla_extension_C.abi3.so"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest library of vLLM 0.33.0 that registers operators (0.2 MB)."""
    config = pipconfig.read()
    root = tmp_path_factory.mktemp("so")
    (root / "vllm").mkdir()
    (root / "vllm/__init__.py").touch()
    with open_client(config) as client:
        build = find(client, config, "vllm==0.33.0").wheel
        assert build is not None
        wheel = WheelReader(RangeFile(client, build.url), build.filename)
        with wheel.opened(LIBRARY) as member:
            (root / LIBRARY).write_bytes(member.read())
    return root / LIBRARY


def test_names_and_namespace_are_read_from_the_strings(library: Path) -> None:
    names = ops.of_file(str(library))
    assert names
    assert all(name.startswith("_flashmla_extension_C::") for name in names)
    data = library.read_bytes()
    assert all(name.partition("::")[2].encode() + b"(" in data for name in names)


def test_a_stream_in_small_chunks_gives_the_same(library: Path) -> None:
    whole = ops.of_file(str(library))
    assert ops.of_stream(io.BytesIO(library.read_bytes()), chunk=5000) == whole


def test_random_bytes_register_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(os.urandom(1 << 20) + b"no schema) -> here\0f(\xff) -> Tensor\0" * 50)
    assert ops.of_file(str(tmp_path / "x.so")) == []


def test_an_empty_library_registers_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.so").touch()
    assert ops.of_file(str(tmp_path / "x.so")) == []


def test_a_folder_with_libraries_reports_their_operators(library: Path) -> None:
    host = FolderHost("here", [str(library.parents[1])])
    (found,) = host.installations(("vllm",))
    manifest = host.manifest(found)
    assert manifest.ops == tuple(ops.of_file(str(library)))
    assert manifest.not_looked == ()


def test_a_folder_without_libraries_says_so(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").touch()
    host = FolderHost("here", [str(tmp_path)])
    manifest = host.manifest(host.installations(("vllm",))[0])
    assert [item.what for item in manifest.not_looked] == ["compiled ops"]


def test_a_library_is_read_again_only_after_it_was_touched(tmp_path: Path, library: Path) -> None:
    copy = tmp_path / "x.so"
    copy.write_bytes(library.read_bytes())
    read: list[str] = []

    def reader() -> list[str]:
        read.append("once more")
        return ops.of_file(str(copy))

    with Cache(tmp_path / "cache") as cache:
        first = cached_ops(cache, str(copy), "", reader)
        assert cached_ops(cache, str(copy), "", reader) == first
        assert len(read) == 1
        copy.write_bytes(b"")
        assert cached_ops(cache, str(copy), "", reader) == []

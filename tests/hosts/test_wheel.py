"""Wheels on this machine: whole, cut, hostile."""

from __future__ import annotations

import io
import stat
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from support.wheels import part_of_release, wheel_bytes

from specaudit.errors import TargetError
from specaudit.hosts.probe.files import MAX_SOURCE
from specaudit.hosts.wheel import WheelHost

Opened = Callable[[Path], WheelHost]
SMALL = {"vllm/__init__.py": b"", "vllm/a.py": b"a = 1\n", "vllm/b.py": b"b = 2\n"}


def saved(folder: Path, data: bytes) -> Path:
    path = folder / "vllm-1.0-py3-none-any.whl"
    path.write_bytes(data)
    return path


@pytest.fixture
def opened() -> Iterator[Callable[[Path], WheelHost]]:
    with ExitStack() as stack:
        yield lambda path: stack.enter_context(closing(WheelHost(path)))


def with_members(data: bytes, *members: tuple[zipfile.ZipInfo | str, bytes]) -> bytes:
    out = io.BytesIO(data)
    with zipfile.ZipFile(out, "a", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # duplicate names
        for name, content in members:
            archive.writestr(name, content)
    return out.getvalue()


def test_files_of_a_wheel_have_the_hashes_that_its_record_promises(
    tmp_path: Path, opened: Opened, release: Callable[[str], Path]
) -> None:
    files = part_of_release(release("0.33.0"), "vllm/__init__.py", "vllm/v1/spec_decode/*.py")
    host = opened(saved(tmp_path, wheel_bytes(files, version="0.33.0")))
    (found,) = host.installations(("sglang", "vllm"))
    manifest = host.manifest(found)
    assert (found.engine, found.version, found.source) == ("vllm", "0.33.0", "wheel:vllm-1.0-py3-none-any.whl")
    assert {entry.path: entry.sha256 for entry in manifest.files} == found.record
    assert dict(host.read(found, files)) == files
    assert manifest.errors == ()


def test_a_wheel_of_something_else_holds_no_engine(tmp_path: Path, opened: Opened) -> None:
    other = wheel_bytes({"requests/__init__.py": b""}, name="requests")
    assert opened(saved(tmp_path, other)).installations(("vllm", "sglang")) == ()


@pytest.mark.parametrize("kept", [0, 10, 0.5, 0.99])
def test_a_truncated_wheel_is_named_as_such(tmp_path: Path, kept: float) -> None:
    data = wheel_bytes({**SMALL, "vllm/c.py": b"# c\n" * 9999})
    with pytest.raises(TargetError, match="no complete wheel") as refused:
        WheelHost(saved(tmp_path, data[: int(kept * len(data)) if kept < 1 else int(kept)]))
    assert "again" in refused.value.hint


def test_a_zip_file_that_is_no_wheel_is_named_as_such(tmp_path: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("vllm/__init__.py", "")
    with pytest.raises(TargetError, match="0 RECORD files"):
        WheelHost(saved(tmp_path, out.getvalue()))


def test_a_wheel_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="No such file"):
        WheelHost(tmp_path / "none.whl")


@pytest.mark.parametrize("name", ["/etc/evil.py", "vllm/../../evil.py", "vllm\\..\\evil.py", "vllm/\x1b[2Jevil.py"])
def test_members_that_lead_out_of_the_wheel_are_left_out_and_said(tmp_path: Path, opened: Opened, name: str) -> None:
    host = opened(saved(tmp_path, with_members(wheel_bytes(SMALL), (name, b"evil"))))
    (found,) = host.installations(("vllm",))
    manifest = host.manifest(found)
    assert [entry.path for entry in manifest.files] == sorted(SMALL)
    assert [failure.path for failure in manifest.errors] == [name.replace("\x1b", "\\x1b")]
    assert dict(host.read(found, [name])) == {}


def test_a_symbolic_link_in_a_wheel_is_left_out_and_said(tmp_path: Path, opened: Opened) -> None:
    link = zipfile.ZipInfo("vllm/link.py")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    host = opened(saved(tmp_path, with_members(wheel_bytes(SMALL), (link, b"/etc/passwd"))))
    (found,) = host.installations(("vllm",))
    assert [(failure.path, "symbolic link" in failure.error) for failure in host.manifest(found).errors] == [
        ("vllm/link.py", True)
    ]


def test_a_member_that_unpacks_to_far_more_than_a_source_file_is_left_out_and_said(
    tmp_path: Path, opened: Opened
) -> None:
    bomb = with_members(wheel_bytes(SMALL), ("vllm/bomb.py", b"\0" * (50 << 20)))
    assert len(bomb) < 1 << 20 < MAX_SOURCE
    host = opened(saved(tmp_path, bomb))
    (found,) = host.installations(("vllm",))
    manifest = host.manifest(found)
    assert [failure.path for failure in manifest.errors] == ["vllm/bomb.py"]
    assert len(manifest.files) == len(SMALL)


def test_a_member_that_lies_about_its_size_does_not_fill_the_memory(tmp_path: Path, opened: Opened) -> None:
    data = with_members(wheel_bytes(SMALL), ("vllm/bomb.py", b"\0" * (50 << 20)))
    lying = data.replace((50 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    host = opened(saved(tmp_path, lying))
    (found,) = host.installations(("vllm",))
    manifest = host.manifest(found)
    assert [failure.path for failure in manifest.errors] == ["vllm/bomb.py"]


def test_what_is_said_of_a_damaged_member_is_short(tmp_path: Path, opened: Opened) -> None:
    data = bytearray(wheel_bytes({**SMALL, "vllm/c.py": bytes(range(1, 128)) * 500}))
    at = data.find(b"PK\x03\x04") + 26
    data[at : at + 2] = b"\xff\xff"  # the first member's name is as long as the file
    host = opened(saved(tmp_path, bytes(data)))
    (found,) = host.installations(("vllm",))
    (failure,) = host.manifest(found).errors
    assert "differ" in failure.error or "directory" in failure.error
    assert len(failure.error) < 300


def test_a_library_that_unpacks_without_end_is_not_looked_at(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specaudit.hosts.wheel.MAX_LIBRARY", 1 << 20)
    host = opened(saved(tmp_path, with_members(wheel_bytes(SMALL), ("vllm/_C.so", b"\0" * (2 << 20)))))
    (found,) = host.installations(("vllm",))
    (item,) = host.manifest(found).not_looked
    assert (item.what, "2097152 bytes" in item.why) == ("compiled ops of vllm/_C.so", True)


def test_a_damaged_member_is_one_error_and_the_others_are_read(tmp_path: Path, opened: Opened) -> None:
    data = bytearray(wheel_bytes({**SMALL, "vllm/c.py": b"# the middle of this file is hit\n" * 200}))
    at = data.index(b"vllm/c.py") + len("vllm/c.py") + 10
    data[at : at + 8] = b"\xff" * 8
    host = opened(saved(tmp_path, bytes(data)))
    (found,) = host.installations(("vllm",))
    manifest = host.manifest(found)
    assert [failure.path for failure in manifest.errors] == ["vllm/c.py"]
    assert [entry.path for entry in manifest.files] == sorted(SMALL)

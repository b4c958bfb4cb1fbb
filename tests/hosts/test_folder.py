"""Folders: real trees, checkouts, and everything that file systems do to a walk."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from specaudit.errors import TargetError
from specaudit.hosts.base import Installation, Manifest
from specaudit.hosts.folder import FolderHost, open_folder
from specaudit.hosts.probe import files

ENGINES = ("vllm", "sglang")


def package(root: Path, name: str = "vllm", **modules: str | bytes) -> Path:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    for stem, text in {"__init__": "", **modules}.items():
        (folder / f"{stem}.py").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def dist_info(root: Path, version: str, name: str = "vllm", **files: str) -> Path:
    info = root / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    for file, text in {"METADATA": f"Name: {name}\nVersion: {version}\n", **files}.items():
        (info / file).write_text(text)
    return info


def looked_at(path: Path) -> tuple[Installation, Manifest]:
    host = open_folder(path, f"dir:{path}")
    found = host.installations(ENGINES)[0]
    return found, host.manifest(found)


def paths(manifest: Manifest) -> list[str]:
    return [entry.path for entry in manifest.files]


def errors(manifest: Manifest) -> dict[str, str]:
    return {failure.path: failure.error for failure in manifest.errors}


def test_an_unpacked_release_has_its_version_and_the_files_of_its_record(release: Callable[[str], Path]) -> None:
    found, manifest = looked_at(release("0.33.0"))
    assert (found.engine, found.version, found.source) == ("vllm", "0.33.0", "dir")
    assert len(manifest.files) == 3231
    assert manifest.errors == ()


@pytest.mark.parametrize("inside", ["", "vllm", "../vllm-0.33.0"])
def test_the_package_itself_may_be_named(release: Callable[[str], Path], inside: str) -> None:
    found, _ = looked_at(release("0.33.0") / inside)
    assert found.version == "0.33.0"


def test_no_such_path(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="does not exist"):
        open_folder(tmp_path / "none", "dir:none")


def test_a_folder_that_may_not_be_read_is_no_fault_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_: object) -> None:  # as for an account without the right; the tests' own may be root
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("specaudit.hosts.folder.os.listdir", denied)
    with pytest.raises(TargetError, match="cannot be read: Permission denied"):
        open_folder(tmp_path, "dir:x")


def test_a_wheel_behind_dir_is_pointed_out(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm-1-py3-none-any.whl"
    wheel.touch()
    with pytest.raises(TargetError, match="is a file") as refused:
        open_folder(wheel, "dir:x")
    assert f"wheel:{wheel}" in refused.value.hint


def test_a_folder_without_an_engine(tmp_path: Path) -> None:
    assert open_folder(tmp_path, "dir:x").installations(ENGINES) == ()


def test_a_checkout_states_its_version_itself(tmp_path: Path) -> None:
    package(tmp_path / "python", "sglang", version='__version__ = "0.5.9"\n')
    found, manifest = looked_at(tmp_path)
    assert (found.engine, found.version, found.source) == ("sglang", "0.5.9", "dir")
    assert paths(manifest) == ["sglang/__init__.py", "sglang/version.py"]


def test_a_loop_of_symbolic_links_ends(tmp_path: Path) -> None:
    folder = package(tmp_path)
    (folder / "again").symlink_to(folder, target_is_directory=True)
    _, manifest = looked_at(tmp_path)
    assert paths(manifest) == ["vllm/__init__.py"]
    assert "symbolic link" in errors(manifest)["vllm/again"]


def test_links_that_multiply_a_tree_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILES", 500)
    folder = package(tmp_path)
    inner = folder
    for level in range(40):  # 2 ** 40 ways to the bottom
        deeper = tmp_path / f"level{level}"
        deeper.mkdir()
        (deeper / "m.py").touch()
        for name in ("x", "y"):
            (inner / name).symlink_to(deeper, target_is_directory=True)
        inner = deeper
    _, manifest = looked_at(tmp_path)
    assert len(manifest.files) == 500
    assert any("more than" in error for error in errors(manifest).values())


def test_a_dangling_link_is_one_error(tmp_path: Path) -> None:
    (package(tmp_path) / "gone.py").symlink_to(tmp_path / "nowhere.py")
    _, manifest = looked_at(tmp_path)
    assert errors(manifest) == {"vllm/gone.py": "dangling symbolic link"}


def test_files_that_are_links_are_followed_as_an_import_would(tmp_path: Path) -> None:
    (tmp_path / "store.py").write_text("x = 1\n")
    (package(tmp_path) / "linked.py").symlink_to(tmp_path / "store.py")
    assert paths(looked_at(tmp_path)[1]) == ["vllm/__init__.py", "vllm/linked.py"]


def test_a_file_of_fifty_megabytes_is_one_error_and_is_not_read(tmp_path: Path) -> None:
    large = package(tmp_path) / "large.py"
    with large.open("wb") as file:
        file.truncate(50 << 20)
    _, manifest = looked_at(tmp_path)
    assert "52428800 bytes" in errors(manifest)["vllm/large.py"]


def test_a_pipe_is_one_error_and_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(package(tmp_path) / "pipe.py")
    assert errors(looked_at(tmp_path)[1]) == {"vllm/pipe.py": "not a regular file"}


def test_a_file_name_that_is_not_utf8_is_one_error(tmp_path: Path) -> None:
    folder = package(tmp_path)
    with open(os.fsencode(folder) + b"/\xff.py", "wb"):
        pass
    assert list(errors(looked_at(tmp_path)[1]).values()) == ["file name is not UTF-8"]


def test_a_file_name_that_could_write_on_a_terminal_is_one_error_and_is_shown_escaped(tmp_path: Path) -> None:
    folder = package(tmp_path)
    for name in ("\x1b[31mred.py", "a\n  tree     yes.py"):
        (folder / name).write_text("x = 1\n")
    _, manifest = looked_at(tmp_path)
    assert errors(manifest) == dict.fromkeys(
        ("vllm/\\x1b[31mred.py", "vllm/a\\n  tree     yes.py"), "file name holds control characters"
    )
    assert paths(manifest) == ["vllm/__init__.py"]


def test_folders_without_end_are_one_error(tmp_path: Path) -> None:
    folder = package(tmp_path)
    here = os.getcwd()
    depth = 1200  # deeper than Python's stack, and than the longest path
    try:
        os.chdir(folder)
        for _ in range(depth):
            os.mkdir("d")
            os.chdir("d")
        (error,) = errors(looked_at(tmp_path)[1]).values()
        for _ in range(depth):
            os.chdir("..")
            os.rmdir("d")
    finally:
        os.chdir(here)
    assert "folders inside one another" in error


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"x = 1\0\n", "null bytes"),
        ("x = 1\n".encode("utf-16"), "null bytes"),
        (b"x = '\xe9'\n", "'utf-8' codec can't decode byte 0xe9"),
        (b"# coding: latin-1\nx = '\xe9'\n", ""),
        (b"#!/usr/bin/python\n# vim: set fileencoding=latin-1 :\nx = '\xe9'\n", ""),
        ("x = 'é'\n".encode(), ""),
        ("\ufeffx = 'é'\n".encode(), ""),
    ],
)
def test_a_file_that_is_no_text_is_told_wherever_it_lies_and_counts_with_its_hash(
    tmp_path: Path, data: bytes, told: str
) -> None:
    (package(tmp_path) / "model_executor").mkdir()
    (tmp_path / "vllm/model_executor/odd.py").write_bytes(data)
    _, manifest = looked_at(tmp_path)
    assert paths(manifest) == ["vllm/__init__.py", "vllm/model_executor/odd.py"]
    found = errors(manifest)
    assert found.keys() == ({"vllm/model_executor/odd.py"} if told else set())
    assert told in found.get("vllm/model_executor/odd.py", "")


def test_files_outside_cannot_be_asked_for(tmp_path: Path) -> None:
    package(tmp_path / "site")
    (tmp_path / "secret.py").write_text("password = 1\n")
    host = open_folder(tmp_path / "site", "dir:x")
    found = host.installations(ENGINES)[0]
    assert dict(host.read(found, ["../secret.py", "/etc/passwd", "vllm/../../secret.py"])) == {}


def test_two_installations_on_the_path_the_first_counts_and_the_second_is_said(tmp_path: Path) -> None:
    for name, version in (("a", "0.20.1"), ("b", "0.33.0")):
        package(tmp_path / name)
        dist_info(tmp_path / name, version)
    host = FolderHost("here", [str(tmp_path / "a"), str(tmp_path / "b")])
    found = host.installations(ENGINES)
    assert [installation.version for installation in found] == ["0.20.1", "0.33.0"]
    said = {item.what: item.why for item in host.manifest(found[0]).not_looked}
    assert "second installation" in said[f"vllm 0.33.0 in {tmp_path / 'b'}"]


def test_metadata_of_another_version_that_is_shadowed_are_said(tmp_path: Path) -> None:
    package(tmp_path / "a", _version="__version__ = version = '0.33.0'\n")
    dist_info(tmp_path / "a", "0.33.0")
    stale = dist_info(tmp_path / "a", "0.20.1")
    host = FolderHost("here", [str(tmp_path / "a")])
    (found,) = host.installations(ENGINES)
    assert found.version == "0.33.0"
    assert str(stale) in {item.what for item in host.manifest(found).not_looked}


def test_an_editable_installation_is_read_where_it_lives(tmp_path: Path) -> None:
    checkout = tmp_path / "src of vllm"
    package(checkout, marker="x = 1\n")
    told = {"url": f"file://{tmp_path}/src%20of%20vllm", "dir_info": {"editable": True}}
    dist_info(tmp_path / "site", "0.33.1.dev5", **{"direct_url.json": json.dumps(told)})
    host = FolderHost("here", [str(tmp_path / "site")])
    (found,) = host.installations(ENGINES)
    assert (found.source, found.version, found.root) == ("editable", "0.33.1.dev5", str(checkout))
    assert paths(host.manifest(found)) == ["vllm/__init__.py", "vllm/marker.py"]


@pytest.mark.parametrize("told", ["", "{", "[]", '{"url": 3}', '{"dir_info": 1, "url": "file:///"}', "[" * 100_000])
def test_nonsense_in_direct_url_is_no_editable_installation(tmp_path: Path, told: str) -> None:
    package(tmp_path)
    dist_info(tmp_path, "1.0", **{"direct_url.json": told})
    assert FolderHost("here", [str(tmp_path)]).installations(ENGINES)[0].source == "dist"


def test_versions_beside_the_engine_are_read_from_metadata(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.12/site-packages"
    package(site)
    package(site, "torch", version="cuda: Optional[str] = '13.0'\n")
    dist_info(site, "2.13.0+cu130", "torch")
    dist_info(site, "3.6.0", "triton")
    facts = open_folder(site, "dir:x").environment()
    assert (facts.python, facts.torch, facts.cuda, facts.triton) == ("3.12", "2.13.0+cu130", "13.0", "3.6.0")


def test_what_cannot_be_opened_is_one_error_and_the_rest_is_read(
    tmp_path: Path, release: Callable[[str], Path]
) -> None:
    folder = package(tmp_path)
    shutil.copytree(release("0.33.0") / "vllm/v1/sample", folder / "sample")
    (folder / "sub").symlink_to("sub")  # opening it fails for every user, root included
    _, manifest = looked_at(tmp_path)
    assert "vllm/sample/rejection_sampler.py" in paths(manifest)
    assert list(errors(manifest)) == ["vllm/sub"]

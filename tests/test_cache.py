"""The cache: right, shared, and never in the way."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from specaudit.cache import Cache, folder, recall
from specaudit.index import Outline


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def database(root: Path) -> Path:
    (found,) = root.glob("*.sqlite")
    return found


def test_values_are_there_at_once_and_in_the_next_run(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.put("outline", "k", 1, b"value")
        assert cache.get("outline", "k", 1) == b"value"
    with Cache(tmp_path) as cache:
        assert cache.get("outline", "k", 1) == b"value"
        assert cache.problem == ""


def test_another_kind_key_or_version_is_another_value(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.put("outline", "k", 1, b"value")
        assert [cache.get("walk", "k", 1), cache.get("outline", "j", 1), cache.get("outline", "k", 2)] == [None] * 3


def test_blobs_come_back_by_their_hash(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.put_blob(sha(b"x = 1\n"), b"x = 1\n")
        assert cache.blob(sha(b"x = 1\n")) == b"x = 1\n"
        assert cache.blob(sha(b"other")) is None


def test_a_blob_that_changed_on_disk_is_absent(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.put_blob(sha(b"x = 1\n"), b"x = 1\n")
        (file,) = (tmp_path / "blobs").glob("*/*")
        file.write_bytes(b"x = 2\n")
        assert cache.blob(sha(b"x = 1\n")) is None


def test_a_value_that_changed_on_disk_is_absent(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.put("audit", "k", 1, b"right")
    with sqlite3.connect(database(tmp_path)) as connection:
        connection.execute("UPDATE derived SET value = ?", (b"wrong",))
    connection.close()
    with Cache(tmp_path) as cache:
        assert cache.get("audit", "k", 1) is None


@pytest.mark.parametrize("damage", [b"", b"not a database at all" * 500, None])
def test_a_damaged_database_is_made_anew(tmp_path: Path, damage: bytes | None) -> None:
    with Cache(tmp_path) as cache:
        for n in range(300):
            cache.put("outline", str(n), 1, b"v" * 1000)
    file = database(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096) if damage is None else damage)
    with Cache(tmp_path) as cache:
        assert cache.get("outline", "7", 1) is None
        cache.put("outline", "7", 1, b"again")
    with Cache(tmp_path) as cache:
        assert cache.get("outline", "7", 1) == b"again"


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with Cache(tmp_path / "file" / "specaudit") as cache:  # fails for every user, root included
        assert cache.problem
        cache.put("outline", "k", 1, b"value")
        assert cache.get("outline", "k", 1) == b"value"
        cache.put_blob(sha(b"x"), b"x")
        assert cache.blob(sha(b"x")) is None


def test_a_database_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    Cache(tmp_path).close()
    database(tmp_path).unlink()
    (tmp_path / "derived-1.sqlite").mkdir()
    with Cache(tmp_path) as cache:
        assert cache.problem
        cache.put("outline", "k", 1, b"value")


FILL = """
import hashlib, sys
from pathlib import Path
from specaudit.cache import Cache
root, name = sys.argv[1:]
with Cache(Path(root)) as cache:
    for n in range(200):
        cache.put("outline", f"{name}{n}", 1, f"{name}{n}".encode() * 50)
        cache.put_blob(hashlib.sha256(b"same").hexdigest(), b"same")
        if n % 20 == 0:
            cache.flush()
    sys.exit(1 if cache.problem else 0)
"""


def test_processes_share_a_cache(tmp_path: Path) -> None:
    workers = [subprocess.Popen([sys.executable, "-c", FILL, str(tmp_path), name]) for name in "abc"]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    with Cache(tmp_path) as cache:
        assert all(cache.get("outline", f"{name}{n}", 1) for name in "abc" for n in range(200))
        assert cache.blob(sha(b"same")) == b"same"


def test_a_forked_process_reads_and_writes_through_a_connection_of_its_own(tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        cache.put("outline", "before", 1, b"parent")
        cache.flush()
        child = os.fork()
        if child == 0:
            seen = cache.get("outline", "before", 1)
            cache.put("outline", "child", 1, b"child")
            cache.flush()
            os._exit(0 if seen == b"parent" else 1)
        assert os.waitpid(child, 0)[1] == 0
        cache.put("outline", "after", 1, b"parent")
        cache.flush()
        assert cache.get("outline", "child", 1) == b"child"
    with Cache(tmp_path) as cache:
        assert [cache.get("outline", key, 1) for key in ("before", "child", "after")] == [
            b"parent",
            b"child",
            b"parent",
        ]


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/ann")
    assert folder() == Path("/var/cache/ann/specaudit")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert folder() == Path("/home/ann/.cache/specaudit")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert folder() == Path("/home/ann/.cache/specaudit")


#: Root becomes an account that no list knows, as containers have, and still reads what lies here; others
#: lose their home.
ROOT = os.geteuid() == 0
NOBODY = ["setpriv", "--reuid", "54321", "--clear-groups", "--inh-caps=+dac_override", "--ambient-caps=+dac_override"]


@pytest.mark.parametrize("target", ["dir", "release"])
def test_an_account_without_a_home_is_served_and_gets_no_folder_named_by_a_tilde(
    target: str, release: Callable[[str], Path], tmp_path: Path
) -> None:
    spec = f"dir:{release('0.20.1')}" if target == "dir" else "vllm==0.0.1"
    environment = {k: v for k, v in os.environ.items() if k != "HOME" and not k.startswith(("XDG_", "PIP_"))}
    environment["PIP_INDEX_URL"] = "http://127.0.0.1:9/simple"  # nobody listens there
    environment |= {} if ROOT else {"HOME": "nowhere"}
    command = [*(NOBODY if ROOT else []), sys.executable, "-m", "specaudit", "scan", spec, "--brief"]
    tmp_path.chmod(0o777)
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False, timeout=600
    )
    assert "the cache /dev/null/specaudit cannot be used" in done.stderr
    assert "fault of specaudit" not in done.stderr
    assert done.returncode == (0 if target == "dir" else 3)
    assert list(tmp_path.iterdir()) == []


def test_a_derived_value_of_another_build_is_made_anew(tmp_path: Path) -> None:
    empty = Outline((), (), (), ())
    with Cache(tmp_path) as cache:
        cache.put("outline", "k", 1, msgspec.msgpack.encode({"other": "shape"}))
        cache.put("outline", "broken", 1, b"\xc1")
        cache.put("outline", "good", 1, msgspec.msgpack.encode(empty))
        assert recall(cache, "outline", "k", 1, Outline) is None
        assert recall(cache, "outline", "broken", 1, Outline) is None
        assert recall(cache, "outline", "absent", 1, Outline) is None
        assert recall(cache, "outline", "good", 1, Outline) == empty

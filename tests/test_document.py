"""Scan documents: stable, complete, as published."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from support.limits import file_limit

from specaudit import document
from specaudit.cache import Cache, folder
from specaudit.errors import ConfigurationError, UsageError
from specaudit.model import Environment, Failure, NotLooked, Run, Scan, Target, Tool
from specaudit.scan import Options, scan
from specaudit.targets import parse

EMPTY = Scan(Tool("0"), Target("@local"), None, Environment(), errors=(Failure("", "gone"),))


@pytest.fixture(scope="module")
def real(release: Callable[[str], Path]) -> Scan:
    with Cache(folder()) as cache:
        return scan(parse(f"dir:{release('0.33.0')}"), Options(), cache)


def schema(name: str) -> dict[str, object]:
    loaded = json.loads(files("specaudit.reports").joinpath(name).read_bytes())
    assert isinstance(loaded, dict)
    return loaded


def test_a_document_of_a_real_release_satisfies_the_published_schema(real: Scan) -> None:
    jsonschema.validate(json.loads(document.encode(real)), schema("scan-1.schema.json"))
    run = json.loads(document.encode(Run((real, EMPTY))))
    jsonschema.validate(run, schema("run-1.schema.json"))


def test_the_published_schemas_are_those_of_the_types() -> None:
    assert schema("scan-1.schema.json") == document.json_schema(Scan)
    assert schema("run-1.schema.json") == document.json_schema(Run)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda plain: plain.pop("engine"),
        lambda plain: plain["proposers"][0].update(topology="bush"),
        lambda plain: plain["runners"][0]["evidence"][0].update(line="1"),
        lambda plain: plain.update(schema="specaudit/scan/2"),
    ],
)
def test_the_schema_refuses_what_is_not_such_a_document(real: Scan, spoil: Callable[[dict[str, object]], None]) -> None:
    plain = json.loads(document.encode(real))
    spoil(plain)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(plain, schema("scan-1.schema.json"))


def test_reading_gives_back_what_was_written(real: Scan) -> None:
    assert document.decode(document.encode(real), "x") == real
    both = document.of_scans([real, EMPTY])
    assert document.decode(document.encode(both), "x") == both


def test_the_same_scan_gives_the_same_bytes(release: Callable[[str], Path], real: Scan, tmp_path: Path) -> None:
    with Cache(tmp_path) as cache:
        again = scan(parse(f"dir:{release('0.33.0')}"), Options(), cache)
        kept = scan(parse(f"dir:{release('0.33.0')}"), Options(), cache)
    assert document.encode(again) == document.encode(real) == document.encode(kept)


def test_the_schema_names_come_first() -> None:
    assert document.encode(EMPTY).startswith(b'{\n  "schema": "specaudit/scan/1",')
    assert document.encode(Run((EMPTY, EMPTY))).startswith(b'{\n  "schema": "specaudit/run/1",')


def test_fields_of_a_later_version_are_passed_over() -> None:
    plain = json.loads(document.encode(EMPTY))
    plain["weather"] = {"sun": True}
    assert document.decode(json.dumps(plain).encode(), "x") == EMPTY


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{", b"[]", b"\xff", b"[" * 9999, b'{"schema": "specaudit/scan/2"}'),
        *(b'{"schema": "specaudit/scan/1"}', b'{"schema": "specaudit/run/1", "scans": 3}'),
    ],
)
def test_what_is_no_scan_document_is_named(data: bytes) -> None:
    with pytest.raises(ConfigurationError, match="the-file"):
        document.decode(data, "the-file")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.json cannot be read"):
        document.load(tmp_path / "none.json")


def test_bytes_that_are_no_text_are_shown_by_their_code() -> None:
    odd = os.fsdecode(b"dir:/tmp/\xff\xc3\xa9")
    scan = replace(EMPTY, target=Target(odd), errors=(Failure(odd, odd),))
    plain = json.loads(document.encode(Run((scan, EMPTY))))
    assert plain["scans"][0]["target"]["spec"] == "dir:/tmp/\\udcffé"
    assert plain["scans"][0]["errors"][0]["path"] == "dir:/tmp/\\udcffé"
    jsonschema.validate(plain, schema("run-1.schema.json"))


def test_a_file_is_replaced_as_a_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "scan.json"
    document.write(target, b"one")
    os.chmod(target, 0o600)
    document.write(target, b"two")
    assert target.read_bytes() == b"two"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_that_cannot_be_written_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        document.write(tmp_path / "file" / "scan.json", b"x")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("no/scan.json", "No such file or directory"),
        ("file/scan.json", "Not a directory"),
        (".", "it is a folder"),
        ("x" * 300, "File name too long"),
        ("scan.json", ""),
        ("file", ""),
        ("pipe", ""),
    ],
)
def test_whether_a_file_can_be_written_is_known_before_and_nothing_is_left(tmp_path: Path, path: str, why: str) -> None:
    (tmp_path / "file").write_text("as it was")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    if why:
        with pytest.raises(UsageError, match=f"cannot be written: {why}"):
            document.check_writable(tmp_path / path)
    else:
        document.check_writable(tmp_path / path)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "file").read_text() == "as it was"


@pytest.mark.parametrize(
    ("path", "said", "advice"),
    [
        ("no/scan.json", "No such file or directory", "Look at {}/no: it must be there, and open to you."),
        ("", "it is a folder", "Name a file in it."),
        ("x" * 300, "File name too long", "Name it shorter."),
    ],
)
def test_what_is_advised_is_what_helps(tmp_path: Path, path: str, said: str, advice: str) -> None:
    for action in (document.check_writable, lambda where: document.write(where, b"x")):
        with pytest.raises(UsageError) as told:
            action(tmp_path / path)
        assert told.value.message == f"{tmp_path / path} cannot be written: {said}."
        assert told.value.hint == advice.format(tmp_path)


def test_a_full_disk_wants_space_or_another_place() -> None:
    file = Path("/dev/full")
    with pytest.raises(UsageError) as told:
        document.write(file, b"x" * 9000)
    assert told.value.message == f"{file} cannot be written: No space left on device."
    assert told.value.hint == "Free some space in /dev, or name a file on another disk."


def test_a_file_that_outgrows_its_limit_leaves_nothing(tmp_path: Path) -> None:
    with file_limit(4096), pytest.raises(UsageError) as told:
        document.write(tmp_path / "scan.json", b"x" * 9000)
    assert told.value.message == f"{tmp_path / 'scan.json'} cannot be written: File too large."
    assert told.value.hint == "Raise the limit (ulimit -f), or name a file on another disk."
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    document.write(tmp_path / "pipe", b"x")
    assert os.read(reader, 9) == b"x"
    os.close(reader)


def test_what_was_not_looked_at_is_part_of_the_document() -> None:
    made = replace(EMPTY, not_looked=(NotLooked("compiled ops", "no .so file"),))
    assert json.loads(document.encode(made))["not_looked"] == [{"what": "compiled ops", "why": "no .so file"}]

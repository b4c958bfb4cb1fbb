"""``wheel:FILE``: an engine inside a wheel, read member by member; also the reader that the index host uses."""

from __future__ import annotations

import base64
import binascii
import csv
import hashlib
import io
import stat
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, TypeAlias
from zlib import error as ZlibError

from specaudit.errors import TargetError
from specaudit.hosts.base import Installation, Manifest
from specaudit.model import Environment, Failure, FileEntry, NotLooked, Server

#: No source file of an engine comes near; a larger member is a bomb or a mistake.
MAX_FILE = 64 << 20
_NO_OPS = NotLooked("compiled ops", "the .so files of this source were not read")

WheelFile: TypeAlias = "io.RawIOBase | IO[bytes]"


class WheelReader:
    """The directory of one wheel and its members' bytes.

    Args:
        file: seekable; only what is asked for is read.
        name: the wheel's file name, for messages.

    Raises:
        TargetError: the file is no complete zip file, or no wheel.
    """

    def __init__(self, file: WheelFile, name: str) -> None:
        self.name = name
        try:
            self._zip = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as bad:
            raise TargetError(f"{name} is no complete wheel: {bad}.", "Download it again.") from bad
        self.errors: list[Failure] = []
        self.members = self._safe_members()
        records = [m for m in self.members if m.endswith(".dist-info/RECORD") and m.count("/") == 1]
        if len(records) != 1:
            raise TargetError(
                f"{name} is no wheel: it has {len(records)} RECORD files.", "Pass a wheel of vllm or sglang."
            )
        self._info = records[0].partition("/")[0]

    def _safe_members(self) -> dict[str, zipfile.ZipInfo]:
        found: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            if info.is_dir():
                continue
            problem = _problem(info)
            if problem:
                self.errors.append(Failure(info.filename[:200], problem))
            else:
                found[info.filename] = info
        return found

    def read(self, path: str) -> bytes:
        """One member's bytes, checked against the CRC of the zip directory.

        Raises:
            OSError: there is no such member, or its data are damaged.
        """
        info = self.members.get(path)
        if info is None:
            raise FileNotFoundError(f"{path} is not in {self.name}")
        try:
            with self._zip.open(info) as member:
                return member.read(MAX_FILE + 1)
        except (zipfile.BadZipFile, ZlibError, EOFError, NotImplementedError, RuntimeError) as bad:
            raise OSError(f"damaged in {self.name}: {bad}") from bad

    def open(self, path: str) -> IO[bytes]:
        """One member as a stream (for compiled libraries, which are large)."""
        return self._zip.open(self.members[path])

    def span(self, path: str) -> tuple[int, int]:
        """First byte and end of a member in the file, its local header included (whose length is an upper bound)."""
        info = self.members[path]
        header = 30 + len(info.filename.encode()) + len(info.extra) + 64
        return info.header_offset, info.header_offset + header + info.compress_size

    def metadata(self) -> tuple[str, str]:
        """Normalised project name and version.

        Raises:
            TargetError: METADATA is missing or does not say.
        """
        from email.parser import BytesHeaderParser

        try:
            fields = BytesHeaderParser().parsebytes(self.read(f"{self._info}/METADATA"))
        except OSError as bad:
            raise TargetError(f"{self.name} has no readable METADATA: {bad}.", "Download it again.") from bad
        name, version = str(fields.get("Name", "")).strip(), str(fields.get("Version", "")).strip()
        if not name or not version:
            raise TargetError(f"{self.name} does not say its name and version.", "Pass a wheel of vllm or sglang.")
        return name.lower().replace("_", "-"), version

    def record(self) -> dict[str, str]:
        """RECORD as path -> SHA-256 in hex.

        Raises:
            TargetError: RECORD is damaged.
        """
        try:
            return parse_record(self.read(f"{self._info}/RECORD"))
        except OSError as bad:
            raise TargetError(f"{self.name} has no readable RECORD: {bad}.", "Download it again.") from bad


def _problem(info: zipfile.ZipInfo) -> str:
    path = PurePosixPath(info.filename)
    if path.is_absolute() or ".." in path.parts or "\\" in info.filename:
        return "left out: the member's path leads out of the wheel"
    if stat.S_ISLNK(info.external_attr >> 16):
        return "left out: the member is a symbolic link"
    if info.filename.endswith(".py") and info.file_size > MAX_FILE:
        return f"left out: {info.file_size} bytes is no source file"
    return ""


def parse_record(data: bytes) -> dict[str, str]:
    """The lines of a RECORD that carry a SHA-256, as path -> hex digest. Lines that make no sense are left out."""
    found: dict[str, str] = {}
    for row in csv.reader(io.StringIO(data.decode("utf-8", "replace"))):
        if len(row) < 2 or not row[1].startswith("sha256="):
            continue
        text = row[1][len("sha256=") :]
        try:
            digest = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except (binascii.Error, ValueError):
            continue
        found[row[0]] = digest.hex()
    return found


def digest(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def sources(paths: Iterable[str], engine: str) -> list[str]:
    """The ``.py`` files of the engine's package, sorted."""
    return sorted(path for path in paths if path.startswith(f"{engine}/") and path.endswith(".py"))


class WheelHost:
    """A wheel on this machine.

    Args:
        path: the file.

    Raises:
        TargetError: no such file, or not a complete wheel.
    """

    def __init__(self, path: Path) -> None:
        self.label = f"wheel:{path}"
        self._path = path
        try:
            self._reader = WheelReader(path.open("rb"), path.name)
        except OSError as bad:
            raise TargetError(f"{path} cannot be opened: {bad.strerror}.", "Check the path after wheel:.") from bad

    def installations(self, engines: tuple[str, ...]) -> tuple[Installation, ...]:
        """The one engine of the wheel; none when it is a wheel of something else."""
        name, version = self._reader.metadata()
        if name not in engines:
            return ()
        record = self._reader.record()
        return (Installation(name, version, str(self._path), f"wheel:{self._path.name}", record=_of(record, name)),)

    def manifest(self, installation: Installation) -> Manifest:
        """Hashes of all ``.py`` members, from their bytes."""
        files, errors = [], list(self._reader.errors)
        for path in sources(self._reader.members, installation.engine):
            try:
                data = self._reader.read(path)
            except OSError as bad:
                errors.append(Failure(path, str(bad)))
                continue
            files.append(FileEntry(path, digest(data), len(data)))
        return Manifest(tuple(files), not_looked=(_NO_OPS,), errors=tuple(errors))

    def read(self, installation: Installation, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """The members' bytes; damaged ones are left out."""
        for path in paths:
            try:
                yield path, self._reader.read(path)
            except OSError:
                continue

    def environment(self) -> Environment:
        """Nothing is installed here."""
        return Environment()

    def servers(self) -> tuple[Server, ...]:
        """Nothing runs here."""
        return ()


def _of(record: Mapping[str, str], engine: str) -> dict[str, str]:
    return {path: record[path] for path in sources(record, engine)}

"""``wheel:FILE``: an engine inside a wheel, read member by member; also the reader that the index host uses."""

from __future__ import annotations

import io
import os
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, TypeAlias

from specaudit.cache import DerivedCache, NoCache
from specaudit.errors import TargetError
from specaudit.hosts.base import Installation, Manifest
from specaudit.hosts.folder import cached_ops
from specaudit.hosts.probe import ops
from specaudit.hosts.probe.files import MAX_SOURCE, flaw, misnamed, sha256, shown
from specaudit.hosts.probe.installed import parse_record, sources
from specaudit.model import Environment, Failure, FileEntry, NotLooked, Server
from specaudit.threads import in_order, threads
from specaudit.words import counted

#: The largest library of a release is 1.3 GB; something larger would keep a scan busy for minutes.
MAX_LIBRARY = 8 << 30
#: Characters of a library's message that are told; it may quote half of the file.
_LIMIT = 200

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
            raise TargetError(f"{name} is no complete wheel: {str(bad)[:_LIMIT]}.", "Download it again.") from bad
        self.errors: list[Failure] = []
        self.members = self._safe_members()
        records = [m for m in self.members if m.endswith(".dist-info/RECORD") and m.count("/") == 1]
        if len(records) != 1:
            raise TargetError(
                f"{name} is no wheel: it has {counted(len(records), 'RECORD file')}.", "Pass a wheel of vllm or sglang."
            )
        self._info = records[0].partition("/")[0]

    def _safe_members(self) -> dict[str, zipfile.ZipInfo]:
        found: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            if info.is_dir():
                continue
            problem = _problem(info)
            if problem:
                self.errors.append(Failure(shown(info.filename[:200]), problem))
            else:
                found[info.filename] = info
        return found

    def read(self, path: str) -> bytes:
        """One member's bytes, checked against the CRC of the zip directory.

        Raises:
            OSError: there is no such member, or its data are damaged.
        """
        with self.opened(path) as member:
            return member.read(MAX_SOURCE + 1)

    def ops(self, path: str) -> list[str]:
        """Operator names of one compiled library, which is unpacked chunk by chunk.

        Raises:
            OSError: the member's data are damaged, or would be too many.
        """
        if path in self.members and self.members[path].file_size > MAX_LIBRARY:
            raise OSError(f"{self.members[path].file_size} bytes are no library, at most {MAX_LIBRARY} are read")
        with self.opened(path) as member:
            return ops.of_stream(member)

    @contextmanager
    def opened(self, path: str) -> Iterator[IO[bytes]]:
        """One member as a stream.

        Raises:
            OSError: as :meth:`read`, also while the stream is read.
        """
        info = self.members.get(path)
        if info is None:
            raise FileNotFoundError(f"{path} is not in {self.name}")
        try:
            with self._zip.open(info) as member:
                yield member
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as bad:
            raise OSError(f"damaged in {self.name}: {str(bad)[:_LIMIT]}") from bad

    def span(self, path: str) -> tuple[int, int]:
        """First byte and end of a member in the file, its local header included (whose length is an upper bound)."""
        info = self.members[path]
        header = 30 + len(info.filename.encode()) + len(info.extra) + 64
        return info.header_offset, info.header_offset + header + info.compress_size

    def metadata(self) -> tuple[str, str]:
        """Normalised project name, and version.

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
    if misnamed(info.filename):
        return f"left out: {misnamed(info.filename)}"
    if path.is_absolute() or ".." in path.parts or "\\" in info.filename:
        return "left out: the member's path leads out of the wheel"
    if stat.S_ISLNK(info.external_attr >> 16):
        return "left out: the member is a symbolic link"
    if info.filename.endswith(".py") and info.file_size > MAX_SOURCE:
        return f"left out: {info.file_size} bytes is no source file"
    return ""


class WheelHost:
    """A wheel on this machine.

    Args:
        path: the file.
        cache: keeps operator names per library, so that an unchanged wheel's binaries are unpacked once.

    Raises:
        TargetError: no such file, or not a complete wheel.
    """

    def __init__(self, path: Path, cache: DerivedCache | None = None) -> None:
        self.label = f"wheel:{path}"
        self._path = path
        self._cache: DerivedCache = cache or NoCache()
        try:
            if not path.is_file() and path.exists():  # a pipe would wait for its writer, a device never ends
                raise TargetError(f"{path} is no file.", "Check the path after wheel:.")
            self._file = path.open("rb")
        except OSError as bad:
            raise TargetError(f"{path} cannot be opened: {bad.strerror}.", "Check the path after wheel:.") from bad
        try:
            self._reader = WheelReader(self._file, path.name)
        except TargetError:
            self.close()
            raise

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def installations(self, engines: tuple[str, ...]) -> tuple[Installation, ...]:
        """The engine whose package the wheel holds; none when it is a wheel of something else."""
        found = []
        for engine in engines:
            if f"{engine}/__init__.py" in self._reader.members:
                record = {path: sha for path, sha in self._reader.record().items() if path in self._reader.members}
                record = {path: record[path] for path in sources(record, engine)}
                version = self._reader.metadata()[1]
                found.append(Installation(engine, version, str(self._path), f"wheel:{self._path.name}", record=record))
        return tuple(found)

    def manifest(self, installation: Installation) -> Manifest:
        """Hashes of all ``.py`` members, from their bytes, and operator names of all libraries."""
        files, errors = [], list(self._reader.errors)
        for path in sources(self._reader.members, installation.engine):
            try:
                data = self._reader.read(path)
            except OSError as bad:
                errors.append(Failure(path, str(bad)))
                continue
            files.append(FileEntry(path, sha256(data), len(data)))
            errors += [Failure(path, why)] if (why := flaw(data)) else []
        names, unread = self._ops(ops.PACKAGES[installation.engine])
        return Manifest(tuple(files), names, unread, tuple(errors))

    def _ops(self, packages: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[NotLooked, ...]]:
        libraries = [m for m in self._reader.members if m.endswith(".so") and m.partition("/")[0] in packages]
        if not libraries:
            return (), (NotLooked("compiled ops", "the wheel holds no .so file"),)
        found: set[str] = set()
        unread = []
        libraries.sort(key=lambda path: -self._reader.members[path].file_size)
        # Unpacking runs outside the interpreter lock, and the largest library is half of the work.
        with threads(min(4, os.cpu_count() or 1)) as pool:
            for library, answer in zip(libraries, in_order(pool, self._library, libraries), strict=True):
                if isinstance(answer, OSError):
                    unread.append(NotLooked(f"compiled ops of {library}", str(answer)))
                else:
                    found.update(answer)
        return tuple(sorted(found)), tuple(unread)

    def _library(self, path: str) -> list[str] | OSError:
        try:
            return cached_ops(self._cache, str(self._path), path, partial(self._reader.ops, path))
        except OSError as bad:
            return bad

    def fetch(self, installation: Installation, path: str) -> bytes:
        """One member's bytes. Raises ``OSError``."""
        return self._reader.read(path)

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

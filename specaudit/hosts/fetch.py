"""Ways to get the Python part of one release out of a package index: by ranges, from the source archive, as a whole."""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING

import msgspec

from specaudit.errors import IntegrityError, TargetError
from specaudit.hosts.probe.files import MAX_SOURCE, flaw, sha256
from specaudit.hosts.probe.installed import checkout_roots, sources
from specaudit.hosts.ranges import RangeFile
from specaudit.hosts.release import Known
from specaudit.hosts.wheel import WheelReader
from specaudit.model import Failure, FileEntry

if TYPE_CHECKING:
    import httpx2

    from specaudit.hosts.find import Build

Wants = Callable[[str], bool]


class Fetched(msgspec.Struct, frozen=True):
    """A release, the bytes of the files that were wanted, and how much came over the network."""

    known: Known
    contents: dict[str, bytes]
    transferred: int
    requests: int


def by_ranges(client: httpx2.Client, engine: str, build: Build, wants: Wants) -> Fetched:
    """Reads a wheel's directory, its RECORD and the wanted members; nothing else of it is transferred.

    Raises:
        NoRangesError: the server answers with whole files only.
        IntegrityError: a member is not what RECORD promises.
        TargetError: not a wheel, or without the engine's package.
        UnreachableError: no answer.
    """
    if build.local is not None:
        with build.local.open("rb") as file:
            return _of_wheel(WheelReader(file, build.filename), engine, build, wants, 0, 0)
    remote = RangeFile(client, build.url)
    wheel = WheelReader(remote, build.filename)
    remote.prefetch(map(wheel.span, _needed(wheel, engine, wants, wheel.record())))
    fetched = _of_wheel(wheel, engine, build, wants, remote.fetched, remote.requests)
    return msgspec.structs.replace(fetched, transferred=remote.fetched, requests=remote.requests)


def whole_wheel(client: httpx2.Client, engine: str, build: Build, wants: Wants) -> Fetched:
    """Downloads a wheel, checks its hash, and keeps what is wanted of it.

    Raises:
        IntegrityError, TargetError, UnreachableError: as above.
    """
    with _downloaded(client, build) as (file, size):
        return _of_wheel(WheelReader(file, build.filename), engine, build, wants, size, 1)


def from_sdist(client: httpx2.Client, engine: str, build: Build, wants: Wants) -> Fetched:
    """Downloads a source archive, checks its hash, and keeps what is wanted of it.

    Raises:
        IntegrityError: the archive is damaged or not what the index promises.
        TargetError: it does not hold the engine's package. UnreachableError: no answer.
    """
    files: list[FileEntry] = []
    errors: list[Failure] = []
    contents: dict[str, bytes] = {}
    with _downloaded(client, build) as (file, size):
        try:
            with tarfile.open(fileobj=file, mode="r|*") as archive:
                for path, data in _members(archive, engine, errors):
                    files.append(FileEntry(path, sha256(data), len(data)))
                    errors += [Failure(path, why)] if (why := flaw(data)) else []
                    if wants(path):
                        contents[path] = data
        except (tarfile.TarError, EOFError, zlib.error, OSError) as bad:
            raise IntegrityError(f"{build.filename} is damaged: {bad}.", "Try again, or use wheel:FILE.") from bad
    if not files:
        raise TargetError(f"{build.filename} does not hold {engine}.", "Use wheel:FILE or dir:PATH.")
    files.sort(key=lambda entry: entry.path)
    known = Known(engine, build.version, "sdist", build.filename, {}, files, errors)
    return Fetched(known, contents, size, 1)


def _needed(wheel: WheelReader, engine: str, wants: Wants, record: dict[str, str]) -> list[str]:
    return [path for path in sources(wheel.members, engine) if wants(path) or path not in record]


def _of_wheel(wheel: WheelReader, engine: str, build: Build, wants: Wants, size: int, requests: int) -> Fetched:
    promised = wheel.record()
    record = {path: promised[path] for path in sources(promised, engine)}
    needed = set(_needed(wheel, engine, wants, promised))
    files: list[FileEntry] = []
    errors = list(wheel.errors)
    contents: dict[str, bytes] = {}
    for path in sources(wheel.members, engine):
        if path not in needed:
            files.append(FileEntry(path, record[path], wheel.members[path].file_size))
            continue
        try:
            data = wheel.read(path)
        except OSError as bad:
            raise IntegrityError(f"{path}: {bad}.", "Try again, or use wheel:FILE.") from bad
        if sha256(data) != record.get(path, sha256(data)):
            raise IntegrityError(
                f"{path} in {build.filename} does not have the hash that the wheel's RECORD promises.",
                "Try again; if it stays so, do not use this index.",
            )
        files.append(FileEntry(path, sha256(data), len(data)))
        errors += [Failure(path, why)] if (why := flaw(data)) else []
        contents[path] = data
    if not files:
        raise TargetError(f"{build.filename} does not hold {engine}.", "Name a release of vllm or sglang.")
    known = Known(engine, wheel.metadata()[1], f"wheel:{build.filename}", build.filename, record, files, errors)
    return Fetched(known, contents, size, requests)


def _members(archive: tarfile.TarFile, engine: str, errors: list[Failure]) -> Iterator[tuple[str, bytes]]:
    """The engine's sources in a source archive, with package-relative paths."""
    tops = {"/".join(PurePosixPath(root).parts[1:]) for root in checkout_roots("top")}
    for member in archive:
        parts = PurePosixPath(member.name).parts
        if not member.isreg() or not member.name.endswith(".py") or engine not in parts or ".." in parts:
            continue
        at = parts.index(engine)
        if at < 1 or "/".join(parts[1:at]) not in tops:
            continue
        path = "/".join(parts[at:])
        if member.size > MAX_SOURCE:
            errors.append(Failure(path, f"left out: {member.size} bytes is no source file"))
            continue
        file = archive.extractfile(member)
        if file is not None:
            yield path, file.read()


@contextmanager
def _downloaded(client: httpx2.Client, build: Build) -> Iterator[tuple[IO[bytes], int]]:
    """A whole file of an index in a temporary file, its hash checked, and its size in bytes."""
    from specaudit.hosts.http import stream

    if build.local is not None:
        with build.local.open("rb") as file:
            yield file, 0
        return
    hashed = hashlib.sha256()
    with tempfile.TemporaryFile() as file:
        for chunk in stream(client, build.url):
            hashed.update(chunk)
            file.write(chunk)
        if build.sha256 and hashed.hexdigest() != build.sha256:
            raise IntegrityError(
                f"{build.filename} does not have the hash that the index promises.",
                "Try again; if it stays so, do not use this index.",
            )
        size = file.tell()
        file.seek(0)
        yield file, size

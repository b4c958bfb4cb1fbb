"""The probe's answers with types: what a host says is decoded by schema, and no path that it names is trusted."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal, TypeVar

import msgspec

from specaudit.errors import AnswerError
from specaudit.hosts.base import Answer
from specaudit.hosts.metrics import read_metrics
from specaudit.hosts.probe.files import MAX_SOURCE, digest
from specaudit.hosts.probe.ops import PACKAGES
from specaudit.hosts.shell import printable
from specaudit.model import Failure, FileEntry, Gpu, Server
from specaudit.words import counted

#: Files of one installation that are believed; real engines have some 3,000.
MAX_FILES = 100_000
MAX_PATH = 1024

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SIZE = re.compile(r"[0-9]{1,9}")
T = TypeVar("T")
#: A SHA-256, or nothing.
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?\Z")]


class Found(msgspec.Struct):
    """One installation, as the probe's survey describes it."""

    engine: str
    version: str
    root: str
    source: Literal["dist", "editable", "dir"]
    python: str
    why: str
    info: str
    notes: list[tuple[str, str]]
    package: str
    digest: Sha256 = ""
    complete: bool = False
    record: Sha256 = ""
    patched: dict[str, str] = {}
    libraries: list[tuple[str, Sha256]] = []


class Process(msgspec.Struct):
    """One server."""

    pid: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
    engine: str
    argv: list[str]
    config: list[str]
    env: dict[str, str]
    python: str
    mount: str
    container: str
    package: str
    metrics: str
    metrics_why: str
    unseen: str = ""


class Survey(msgspec.Struct):
    """The answer to ``survey``."""

    python: str
    uid: int
    installations: list[Found]
    environment: dict[str, str]
    gpus: list[tuple[str, str, str, str]]
    gpus_why: str
    servers: list[Process]
    servers_why: str = ""


class _Listing(msgspec.Struct):
    """The answer to ``manifest``."""

    ops: dict[str, list[str]]
    unread: dict[str, str]
    errors: list[tuple[str, str]] = []
    record: dict[str, str] | None = None


class _Kept(msgspec.Struct):
    """A manifest in the cache."""

    files: list[tuple[str, str, int]]
    record: dict[str, str]


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of one installation. ``sound``: nothing in it was refused, so it may be kept."""

    files: tuple[FileEntry, ...]
    record: dict[str, str]
    errors: tuple[Failure, ...]
    sound: bool

    @property
    def digest(self) -> str:
        """Of the files."""
        return digest((entry.path, entry.sha256) for entry in self.files)


def gpu(row: Sequence[str]) -> Gpu:
    """A row of ``nvidia-smi``; memory that it cannot tell is 0."""
    name, capability, driver, memory = map(printable, row)
    return Gpu(name, capability, driver, int(memory) if _SIZE.fullmatch(memory) else 0)


def server(process: Process) -> Server:
    """A process as it goes into the document."""
    return Server(
        pid=process.pid,
        argv=tuple(map(printable, process.argv)),
        config=tuple(map(printable, process.config)),
        env={printable(key): printable(value) for key, value in process.env.items()},
        python=printable(process.python),
        metrics=read_metrics(process.metrics),
    )


def survey(label: str, answer: Answer, engines: Sequence[str]) -> Survey:
    """The answer to ``survey``, which was asked for some engines.

    Raises:
        AnswerError: it is malformed.
    """
    found = _typed(label, answer, Survey)
    installed, running = ({one.engine for one in part} for part in (found.installations, found.servers))
    if not (installed <= set(engines) and running <= set(PACKAGES)):
        raise _malformed(label, "it speaks of an engine that was not asked for")
    return found


def operators(label: str, answer: Answer) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Of an answer to ``manifest``: library -> operator names, and library -> why it was not read.

    Raises:
        AnswerError: it is malformed.
    """
    found = _typed(label, answer, _Listing)
    names = {path: [name for name in ops if re.fullmatch(r"[\w:.]{1,200}", name)] for path, ops in found.ops.items()}
    return names, found.unread


def listing(label: str, answer: Answer, engine: str) -> Listing:
    """Of an answer to ``manifest``: the files below the package ``engine``.

    Raises:
        AnswerError: it is malformed.
    """
    found = _typed(label, answer, _Listing)
    try:
        lines = answer.blobs["files"].decode("utf-8").split("\n") if answer.blobs["files"] else []
        hashes = answer.blobs["hashes"]
    except (KeyError, ValueError) as error:
        raise _malformed(label, f"its list of files: {error}") from error
    rows = [(line.partition(" ")[2], line.partition(" ")[0]) for line in lines]
    if len(hashes) != 32 * len(rows) or len(rows) > MAX_FILES:
        raise _malformed(label, f"{counted(len(rows), 'file')}, {counted(len(hashes), 'byte')} of hashes")
    files = []
    errors = [Failure(printable(path), printable(why)) for path, why in found.errors]
    refused = 0
    for number, (path, size) in enumerate(rows):
        if safe(path, engine) and _SIZE.fullmatch(size) and int(size) <= MAX_SOURCE:
            files.append(FileEntry(path, hashes[32 * number : 32 * number + 32].hex(), int(size)))
        else:
            refused += 1
            why = f"{label} sent a path or a size that is odd, or not inside {engine}; refused"
            errors.append(Failure(printable(path)[:200], why))
    have = {entry.path: entry.sha256 for entry in files}
    if len(have) != len(files):
        raise _malformed(label, "the same file twice")
    record = {} if found.record is None else {**have, **safe_hashes(found.record, engine)}
    return Listing(
        tuple(files),
        {path: sha for path, sha in record.items() if sha},
        tuple(errors),
        sound=not refused and not errors,
    )


def safe_hashes(record: dict[str, str], engine: str) -> dict[str, str]:
    """Of paths and SHA-256 that a host sent, those that can be such; an empty hash stays."""
    return {p: sha for p, sha in record.items() if safe(p, engine) and (not sha or _SHA256.fullmatch(sha))}


def safe(path: str, package: str) -> bool:
    """Whether a path that a host sent names a ``.py`` file inside ``package``, and nothing else."""
    parts = path.split("/")
    return (
        len(parts) > 1
        and parts[0] == package
        and path.endswith(".py")
        and len(path) <= MAX_PATH
        and "\\" not in path
        and path.isprintable()
        and not {"", ".", ".."}.intersection(parts)
    )


def keep(found: Listing) -> bytes:
    """A listing as bytes for the cache."""
    return msgspec.msgpack.encode(_Kept([(e.path, e.sha256, e.size) for e in found.files], found.record))


@lru_cache(maxsize=4)
def kept(data: bytes, wanted: str) -> Listing | None:
    """A listing out of the cache, ``None`` when it is not the one with the digest ``wanted``.

    The machines of a fleet mostly have the same few builds, so the last ones are remembered.
    """
    try:
        found = msgspec.msgpack.decode(data, type=_Kept)
    except msgspec.DecodeError:
        return None
    entries = Listing(tuple(FileEntry(*row) for row in found.files), found.record, (), sound=True)
    return entries if entries.digest == wanted else None


def key_of(found: Found) -> str:
    """Under what a listing is kept: it depends on the files and on RECORD."""
    return hashlib.sha256(f"{found.engine}\0{found.digest}\0{found.record}".encode()).hexdigest()


def _typed(label: str, answer: Answer, kind: type[T]) -> T:
    try:
        return msgspec.convert(answer.header, kind)
    except msgspec.ValidationError as error:
        raise _malformed(label, str(error)) from error


def _malformed(label: str, why: str) -> AnswerError:
    return AnswerError(f"The answer of {label} is malformed: {why}.", "Try again, and check what answers there.")

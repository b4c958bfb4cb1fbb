"""Host -> Snapshot: one engine's files with hashes, and a way to read them, wherever they came from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from specaudit.cache import BlobStore, DerivedCache, NoCache
from specaudit.hosts.base import Direct, Host, Installation, Manifest
from specaudit.hosts.probe.files import digest, listing, sha256
from specaudit.hosts.probe.files import read as read_file
from specaudit.hosts.probe.installed import INTERRUPTED
from specaudit.model import UNCOMPARED, EngineFacts, Environment, Failure, FileEntry, NotLooked, Target


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One engine as it was at one moment.

    ``files`` maps package-relative paths to entries; ``read`` returns a file's bytes (raises ``OSError``); ``ops`` are
    registered compiled operator names (``namespace::name``), empty with a ``not_looked`` entry when they were not read;
    ``hashes`` holds the SHA-256 of every file of the engine, ``files`` only those that may be read.
    """

    target: Target
    engine: EngineFacts
    environment: Environment
    files: Mapping[str, FileEntry]
    read: Callable[[str], bytes]
    ops: tuple[str, ...] = ()
    not_looked: tuple[NotLooked, ...] = ()
    errors: tuple[Failure, ...] = ()
    cache: DerivedCache = field(default_factory=NoCache)
    hashes: Mapping[str, str] = field(default_factory=dict)

    def narrowed(self, wants: Callable[[str], bool]) -> Snapshot:
        """The same snapshot with only some of its files."""
        return replace(self, files={path: entry for path, entry in self.files.items() if wants(path)})

    def settled(self) -> Snapshot:
        """The same snapshot, read into memory; files that can no longer be read as they were are errors of it."""
        contents: dict[str, bytes] = {}
        errors = {}
        for path in sorted(self.files):
            try:
                contents[path] = self.read(path)
            except OSError as bad:
                errors[path] = Failure(path, f"gone or changed while it was being examined: {bad.strerror or bad}")
        kept = {path: entry for path, entry in self.files.items() if path in contents}
        return replace(self, files=kept, read=contents.__getitem__, errors=(*self.errors, *errors.values()))


def take(
    host: Host,
    target: Target,
    installation: Installation,
    wants: Callable[[str], bool],
    cache: DerivedCache | None = None,
    blobs: BlobStore | None = None,
) -> Snapshot:
    """Examines one installation.

    Args:
        host: where it is.
        target: how the user named it.
        installation: one of ``host.installations(…)``.
        wants: which files may be read. All count for the engine's digest; only these are in the snapshot, so that an
            audit comes out the same whether the whole engine lies in a folder or a part was read over the network.
        cache: for what is derived from the files.
        blobs: for files that had to be fetched.

    Raises:
        SpecauditError: the host did not answer.
    """
    manifest = host.manifest(installation)
    files = {entry.path: entry for entry in manifest.files if wants(entry.path)}
    read: Callable[[str], bytes]
    errors: tuple[Failure, ...] = ()
    if isinstance(host, Direct):
        read = _checked(host, installation, files)
    else:
        read, errors = _fetched(host, installation, files, blobs)
        files = {path: entry for path, entry in files.items() if path not in {failure.path for failure in errors}}
    return Snapshot(
        target=target,
        engine=_facts(installation, manifest),
        environment=host.environment(),
        files=files,
        read=read,
        ops=manifest.ops,
        not_looked=(*_told(manifest), *_uncompared(installation)),
        errors=(*_torn(manifest), *manifest.errors, *errors),
        cache=cache or NoCache(),
        hashes={entry.path: entry.sha256 for entry in manifest.files},
    )


def _told(manifest: Manifest) -> Iterator[NotLooked]:
    return (item for item in manifest.not_looked if item.what != INTERRUPTED[0])


def _torn(manifest: Manifest) -> Iterator[Failure]:
    """An engine that is half of one and half of another was not examined as anything that ever runs as intended."""
    return (Failure("", f"{item.what}: {item.why}") for item in manifest.not_looked if item.what == INTERRUPTED[0])


def covers(folder: str, pattern: str) -> bool:
    """Whether a folder of an engine that cannot be opened may hold what a path, or a pattern with ``*``, names."""
    fixed = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    return not folder.endswith(".py") and (fixed.startswith(f"{folder}/") or f"{folder}/".startswith(fixed))


def _uncompared(installation: Installation) -> tuple[NotLooked, ...]:
    """What to say where no RECORD tells which files are as they were published."""
    if installation.record:
        return ()
    return (NotLooked(UNCOMPARED, "no RECORD with their hashes could be read, so nothing could be compared"),)


def _facts(installation: Installation, manifest: Manifest) -> EngineFacts:
    here = {entry.path: entry.sha256 for entry in manifest.files}
    promised = installation.record
    unreadable = {failure.path for failure in manifest.errors}

    def hidden(path: str) -> bool:
        return path in unreadable or any(path.startswith(f"{folder}/") for folder in unreadable)

    patched = {path for path, sha in installation.patched.items() if here.get(path) == sha}
    return EngineFacts(
        name=installation.engine,
        version=installation.version,
        source=installation.source,
        digest=digest(here.items()),
        files=len(here),
        modified=tuple(sorted(p for p, sha in here.items() if promised.get(p, sha) != sha and p not in patched)),
        missing=tuple(sorted(path for path in promised if path not in here and not hidden(path))),
        added=tuple(sorted(p for p in here if p not in promised and p not in patched)) if promised else (),
        patched=tuple(sorted(patched)),
    )


def _checked(host: Direct, installation: Installation, files: Mapping[str, FileEntry]) -> Callable[[str], bytes]:
    """Reads at the place itself; bytes are never taken for those that were hashed before without looking."""

    def read(path: str) -> bytes:
        data = host.fetch(installation, path)
        if sha256(data) != files[path].sha256:
            raise OSError("its content is another one now")
        return data

    return read


def _fetched(
    host: Host, installation: Installation, files: Mapping[str, FileEntry], blobs: BlobStore | None
) -> tuple[Callable[[str], bytes], tuple[Failure, ...]]:
    """Fetches, in one go, what the blob store lacks.

    ``kept`` holds blobs in memory: a scan reads most of them several times, and a store may fail to keep any.
    """
    kept: dict[str, bytes] = {}
    if blobs is not None:
        for entry in files.values():
            data = blobs.blob(entry.sha256)
            if data is not None:
                kept[entry.sha256] = data
    lacking = [path for path, entry in files.items() if entry.sha256 not in kept]
    errors = {path: Failure(path, "the host did not send it") for path in lacking}
    for path, data in host.read(installation, lacking) if lacking else ():
        if path not in errors:
            continue
        if sha256(data) != files[path].sha256:
            errors[path] = Failure(path, "what was sent does not have the hash that was announced")
            continue
        kept[files[path].sha256] = data
        del errors[path]
        if blobs is not None:
            blobs.put_blob(files[path].sha256, data)

    def read(path: str) -> bytes:
        if path not in files:
            raise FileNotFoundError(path)
        return kept[files[path].sha256]

    return read, tuple(errors[path] for path in sorted(errors))


def of_folder(root: Path, engine: str, version: str, cache: DerivedCache | None = None) -> Snapshot:
    """The snapshot of an unpacked tree, all its files: ``root`` holds the package folder ``engine``."""
    listed, errors = listing(str(root), engine)
    files = {path: FileEntry(path, sha, size) for path, sha, size in listed}
    facts = EngineFacts(engine, version, "dir", digest((p, sha) for p, sha, _ in listed), len(files))
    return Snapshot(
        Target(f"dir:{root}"),
        facts,
        Environment(),
        files,
        lambda path: read_file(str(root), path),
        errors=tuple(Failure(*error) for error in errors),
        cache=cache or NoCache(),
    )

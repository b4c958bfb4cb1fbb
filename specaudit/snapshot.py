"""Host -> Snapshot: one engine's files with hashes, and a way to read them, wherever they came from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specaudit.cache import DerivedCache, NoCache
from specaudit.model import EngineFacts, Environment, Failure, FileEntry, NotLooked, Target


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One engine as it was at one moment.

    ``files`` maps package-relative paths to entries; ``read`` returns a file's bytes (raises ``OSError``); ``ops`` are
    registered compiled operator names (``namespace::name``), empty with a ``not_looked`` entry when they were not read.
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


def of_folder(root: Path, engine: str, version: str, cache: DerivedCache | None = None) -> Snapshot:
    """The snapshot of an unpacked tree: ``root`` holds the package folder ``engine``."""
    files: dict[str, FileEntry] = {}
    for file in sorted((root / engine).rglob("*.py")):
        data = file.read_bytes()
        path = file.relative_to(root).as_posix()
        files[path] = FileEntry(path, hashlib.sha256(data).hexdigest(), len(data))
    pairs = "".join(f"{path}\0{entry.sha256}\n" for path, entry in sorted(files.items()))
    facts = EngineFacts(engine, version, "dir", hashlib.sha256(pairs.encode()).hexdigest(), len(files))
    return Snapshot(
        Target(f"dir:{root}"), facts, Environment(), files, lambda path: (root / path).read_bytes(), cache=cache or NoCache()
    )

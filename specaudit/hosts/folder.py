"""Engines in folders of this machine: ``dir:PATH``, and what it shares with ``@local``."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from specaudit.cache import DerivedCache, NoCache, recall
from specaudit.errors import TargetError
from specaudit.hosts.base import Installation, Manifest
from specaudit.hosts.probe import files, installed, ops
from specaudit.hosts.probe.applied import applied
from specaudit.model import Environment, Failure, FileEntry, NotLooked, Server

OPS_VERSION = 1


class FolderHost:
    """Engines found on a list of folders.

    Args:
        label: how the user named the place.
        search_path: folders that may hold packages, in the order of import.
        cache: keeps operator names per library, so that unchanged binaries are read once.
    """

    def __init__(self, label: str, search_path: Iterable[str], cache: DerivedCache | None = None) -> None:
        self.label = label
        self._path = list(search_path)
        self._cache: DerivedCache = cache or NoCache()
        self._notes: dict[tuple[str, str], list[NotLooked]] = {}

    def installations(self, engines: tuple[str, ...]) -> tuple[Installation, ...]:
        """Engines found here; of several installations of one engine, the one that would be imported comes first."""
        found = []
        for place in installed.find(self._path, engines):
            engine, root = place["engine"], place["root"]
            self._notes[engine, root] = [NotLooked(what, why) for what, why in place["notes"]]
            record = installed.record(place["info"], engine) if place["source"] == "dist" else {}
            patched = applied(root, engine)
            found.append(Installation(engine, place["version"], root, place["source"], record=record, patched=patched))
        return tuple(found)

    def manifest(self, installation: Installation) -> Manifest:
        """Hashes of all ``.py`` files, and operator names of all libraries."""
        listed, errors = files.listing(installation.root, installation.engine)
        names, unread = self._ops(installation)
        return Manifest(
            files=tuple(FileEntry(*entry) for entry in listed),
            ops=names,
            not_looked=(*self._notes.get((installation.engine, installation.root), ()), *unread),
            errors=tuple(Failure(*error) for error in errors),
        )

    def _ops(self, installation: Installation) -> tuple[tuple[str, ...], list[NotLooked]]:
        folders = dict.fromkeys([installation.root, *self._path])
        libraries = [
            library for folder in folders for library in ops.libraries(folder, ops.PACKAGES[installation.engine])
        ]
        if not libraries:
            return (), [NotLooked("compiled ops", "no .so file lies beside the sources")]
        found: set[str] = set()
        unread = []
        for library in dict.fromkeys(libraries):
            try:
                found.update(cached_ops(self._cache, library, "", partial(ops.of_file, library)))
            except OSError as bad:
                unread.append(NotLooked(f"compiled ops of {library}", bad.strerror or str(bad)))
        return tuple(sorted(found)), unread

    def fetch(self, installation: Installation, path: str) -> bytes:
        """One file's bytes. Raises ``OSError``."""
        return files.read(installation.root, path)

    def read(self, installation: Installation, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """The files' bytes; those that cannot be read are left out."""
        for path in paths:
            try:
                yield path, self.fetch(installation, path)
            except OSError:
                continue

    def environment(self) -> Environment:
        """Versions of what lies beside the engine."""
        python = next((found[1] for entry in self._path if (found := re.search(r"/python(3\.\d+)(?:/|$)", entry))), "")
        facts = installed.environment(self._path)
        return Environment(python, facts["torch"], facts["cuda"], facts["triton"])

    def servers(self) -> tuple[Server, ...]:
        """A folder runs nothing."""
        return ()


def open_folder(path: Path, label: str, cache: DerivedCache | None = None) -> FolderHost:
    """The host for ``dir:PATH``: a site-packages, a checkout (``python/``, ``src/``), or the package's own folder.

    Raises:
        TargetError: there is no such folder.
    """
    if not os.path.isdir(path):  # unlike pathlib's, it takes any path
        problem = "is a file" if os.path.exists(path) else "does not exist"
        hint = f"Write wheel:{path}." if path.suffix == ".whl" else "Check the path after dir:."
        raise TargetError(f"{path} {problem}.", hint)
    top = path.resolve()
    try:
        os.listdir(top)
    except OSError as bad:
        raise TargetError(f"{path} cannot be read: {bad.strerror}.", "Allow it for this account.") from bad
    if (top / "__init__.py").is_file():
        top = top.parent
    return _Unpacked(label, installed.checkout_roots(str(top)), cache)


class _Unpacked(FolderHost):
    """A folder that the user named: nothing says that it is what an interpreter would import."""

    def installations(self, engines: tuple[str, ...]) -> tuple[Installation, ...]:
        """See :meth:`FolderHost.installations`; metadata beside the package do not make it ``dist``."""
        return tuple(replace(i, source="dir") if i.source == "dist" else i for i in super().installations(engines))


def cached_ops(cache: DerivedCache, file: str, member: str, read: Callable[[], list[str]]) -> list[str]:
    """Operator names of one library, read again only when the file was touched (device, inode, size, both times).

    Raises:
        OSError: the file cannot be read.
    """
    facts = os.stat(file)
    touched = (member, facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    key = hashlib.sha256(repr(touched).encode()).hexdigest()
    stored = recall(cache, "ops", key, OPS_VERSION, list[str])
    if stored is not None:
        return stored
    names = read()
    cache.put("ops", key, OPS_VERSION, msgspec.msgpack.encode(names))
    return names

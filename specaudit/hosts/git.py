"""Engines in the history of a git checkout: ``git:PATH@REF``, read from its objects; nothing is checked out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from specaudit.errors import TargetError
from specaudit.hosts.base import Installation, Manifest
from specaudit.hosts.probe.files import flaw, sha256
from specaudit.model import Environment, Failure, FileEntry, NotLooked, Server

if TYPE_CHECKING:
    from git import Blob, Commit, Repo, Tree

#: Folders of a checkout that may hold the package.
_ROOTS = ("", "python/", "src/")
_REF = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./+-]*")
_SYMLINK = 0o120000


class GitHost:
    """One commit of a checkout.

    Args:
        path: the checkout, or a bare repository.
        ref: a tag, a branch or a commit.
        label: how the user named the place.

    Raises:
        TargetError: no repository there, or no such ref in it.
    """

    def __init__(self, path: Path, ref: str, label: str) -> None:
        self.label = label
        self._ref = ref
        self._repo = _open(path)
        self._commit = _commit(self._repo, ref)
        self._blobs: dict[str, Blob] = {}

    def close(self) -> None:
        """Ends git's helper processes."""
        self._repo.close()

    def installations(self, engines: tuple[str, ...]) -> tuple[Installation, ...]:
        """Engines in the commit's tree; the version is the ref's, without a leading v."""
        found = []
        version = self._ref.rpartition("/")[2]
        version = version.removeprefix("v") if re.match(r"v\d", version) else version
        for root in _ROOTS:
            for engine in engines:
                if _subtree(self._commit, f"{root}{engine}/__init__.py"):
                    found.append(Installation(engine, version, root, f"git:{self._commit.hexsha[:12]}"))
        return tuple(found)

    def manifest(self, installation: Installation) -> Manifest:
        """Hashes of all ``.py`` files of the package, symbolic links left out."""
        from git import Blob

        tree: Tree = self._commit.tree / f"{installation.root}{installation.engine}"
        self._blobs = {
            str(item.path).removeprefix(installation.root): item
            for item in tree.traverse()
            if isinstance(item, Blob) and str(item.path).endswith(".py") and item.mode & 0o170000 != _SYMLINK
        }
        files, errors = [], []
        for path in sorted(self._blobs):
            data = self.fetch(installation, path)
            files.append(FileEntry(path, sha256(data), len(data)))
            errors += [Failure(path, why)] if (why := flaw(data)) else []
        no_ops = "a commit holds no compiled libraries; scan an installation to include them"
        return Manifest(tuple(files), not_looked=(NotLooked("compiled ops", no_ops),), errors=tuple(errors))

    def fetch(self, installation: Installation, path: str) -> bytes:
        """One file's bytes. Raises ``OSError``."""
        blob = self._blobs.get(path)
        if blob is None:
            raise FileNotFoundError(f"{path} is not in {self.label}")
        data: bytes = blob.data_stream.read()
        return data

    def read(self, installation: Installation, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """The files' bytes."""
        for path in paths:
            if path in self._blobs:
                yield path, self.fetch(installation, path)

    def environment(self) -> Environment:
        """Nothing is installed here."""
        return Environment()

    def servers(self) -> tuple[Server, ...]:
        """Nothing runs here."""
        return ()


def tags(path: Path) -> list[str]:
    """Names of all tags of a repository.

    Raises:
        TargetError: no repository there.
    """
    repo = _open(path)
    try:
        return [tag.name for tag in repo.tags]
    finally:
        repo.close()


def _open(path: Path) -> Repo:
    from git import Repo
    from git.exc import InvalidGitRepositoryError, NoSuchPathError

    try:
        return Repo(path)
    except (InvalidGitRepositoryError, NoSuchPathError) as bad:
        raise TargetError(f"{path} is no git repository.", "Name a clone of the engine's repository.") from bad


def _commit(repo: Repo, ref: str) -> Commit:
    from git.exc import BadName, BadObject

    try:
        if not _REF.fullmatch(ref):
            raise ValueError(ref)
        found = repo.commit(ref)
        _ = found.tree  # a full hash is taken for a commit without looking
        return found
    except (BadName, BadObject, ValueError, IndexError) as bad:
        repo.close()
        if "dubious ownership" in str(bad):
            raise TargetError(
                f"git refuses {repo.git_dir}: it belongs to another user.",
                "Allow it with `git config --global --add safe.directory PATH`.",
            ) from bad
        raise TargetError(f"{repo.git_dir} has no commit {ref!r}.", "`git tag` lists its tags.") from bad


def _subtree(commit: Commit, path: str) -> bool:
    try:
        commit.tree / path
    except KeyError:
        return False
    return True

"""Engines in the history of a git checkout: ``git:PATH@REF``, read from its objects; nothing is checked out."""

from __future__ import annotations

import re
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from specaudit.errors import IncompleteError, TargetError
from specaudit.hosts.base import Installation, Manifest
from specaudit.hosts.probe.files import flaw, misnamed, sha256, shown
from specaudit.model import Environment, Failure, FileEntry, NotLooked, Server

if TYPE_CHECKING:
    from git import Blob, Commit, Repo, Tree

#: Folders of a checkout that may hold the package.
_ROOTS = ("", "python/", "src/")
#: A name of a commit; a range (``a..b``) is none.
_REF = re.compile(r"(?!.*[.][.])[A-Za-z0-9][A-Za-z0-9_./+-]*")
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
        with self._objects():
            return tuple(self._installations(engines))

    def _installations(self, engines: tuple[str, ...]) -> Iterator[Installation]:
        version = self._ref.rpartition("/")[2]
        version = version.removeprefix("v") if re.match(r"v\d", version) else version
        for root in _ROOTS:
            for engine in engines:
                if _subtree(self._commit, f"{root}{engine}/__init__.py"):
                    yield Installation(engine, version, root, f"git:{self._commit.hexsha[:12]}")

    def manifest(self, installation: Installation) -> Manifest:
        """Hashes of all ``.py`` files of the package; symbolic links are named as not looked at."""
        from git import Blob

        with self._objects():
            tree: Tree = self._commit.tree / f"{installation.root}{installation.engine}"
            found = {
                str(item.path).removeprefix(installation.root): item
                for item in tree.traverse()
                if isinstance(item, Blob) and str(item.path).endswith(".py")
            }
        links = [path for path, item in found.items() if item.mode & 0o170000 == _SYMLINK]
        found = {path: item for path, item in found.items() if path not in links}
        files = []
        wrong = {path: why for path in sorted(found) if (why := misnamed(path))}
        errors = [Failure(shown(path), why) for path, why in wrong.items()]
        self._blobs = {path: blob for path, blob in found.items() if path not in wrong}
        for path in sorted(self._blobs):
            data = self.fetch(installation, path)
            files.append(FileEntry(path, sha256(data), len(data)))
            errors += [Failure(path, why)] if (why := flaw(data)) else []
        no_ops = "a commit holds no compiled libraries; scan an installation to include them"
        unfollowed = [NotLooked(shown(path), "a symbolic link, which is not followed in a commit") for path in links]
        return Manifest(tuple(files), not_looked=(NotLooked("compiled ops", no_ops), *unfollowed), errors=tuple(errors))

    def fetch(self, installation: Installation, path: str) -> bytes:
        """One file's bytes.

        Raises:
            OSError: the commit has no such file.
            IncompleteError: the repository lacks it, or keeps it damaged.
        """
        blob = self._blobs.get(path)
        if blob is None:
            raise FileNotFoundError(f"{path} is not in {self.label}")
        with self._objects():
            data: bytes = blob.data_stream.read()
        return data

    @contextmanager
    def _objects(self) -> Iterator[None]:
        """Reading objects of the commit.

        Raises:
            IncompleteError: one is not there (a partial clone whose remote does not answer), or is damaged.
        """
        from git.exc import GitError, ODBError

        try:
            yield
        except (ValueError, GitError, ODBError, OSError, zlib.error) as bad:
            raise _lacking(self._repo, self._ref) from bad

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
    absent = TargetError(
        f"{path} cannot be read: the program git could not be started.", "Install git, or put it on PATH."
    )
    try:
        from git import Git, Repo
        from git.exc import InvalidGitRepositoryError, NoSuchPathError
    except ImportError as bad:  # it looks for the program as soon as it is imported, unless it is told not to mind
        raise absent from bad
    if shutil.which(Git.GIT_PYTHON_GIT_EXECUTABLE or "git") is None:
        raise absent

    try:
        return Repo(path)
    except (InvalidGitRepositoryError, NoSuchPathError) as bad:
        raise TargetError(f"{path} is no git repository.", "Name a clone of the engine's repository.") from bad


def _commit(repo: Repo, ref: str) -> Commit:
    from git.exc import GitError, ODBError

    try:
        if not _REF.fullmatch(ref):
            raise ValueError(ref)
        found = repo.commit(ref)
        _ = found.tree  # a full hash is taken for a commit without looking
        return found
    except (ValueError, IndexError, GitError, ODBError, OSError, zlib.error) as bad:
        if _refused(repo):
            repo.close()
            raise TargetError(
                f"git refuses {repo.git_dir}: it belongs to another user.",
                "Allow it with `git config --global --add safe.directory PATH`.",
            ) from bad
        there, lacking = _known(repo, ref), _lacking(repo, ref)
        repo.close()
        if there:  # its objects are not
            raise lacking from bad
        raise TargetError(f"{repo.git_dir} has no commit {ref!r}.", "`git tag` lists its tags.") from bad


def _refused(repo: Repo) -> bool:
    """Whether git does not touch the repository because it belongs to another user."""
    from git.exc import GitCommandError

    try:
        repo.git.rev_parse("--git-dir")
    except GitCommandError as bad:
        return "dubious ownership" in str(bad.stderr)
    return False


def _known(repo: Repo, ref: str) -> bool:
    """Whether a name leads to something; a full hash would, whether or not there is such an object."""
    from git.exc import GitCommandError

    if not _REF.fullmatch(ref) or re.fullmatch(r"[0-9a-fA-F]{40,64}", ref):
        return False
    try:
        repo.git.rev_parse("--verify", "--quiet", ref)
    except GitCommandError:
        return False
    return True


def _lacking(repo: Repo, ref: str) -> IncompleteError:
    return IncompleteError(
        f"Objects of {ref} in {repo.git_dir} are missing or damaged.",
        "`git fsck` tells which; a partial clone must reach its remote to get them: `git fetch --refetch`.",
    )


def _subtree(commit: Commit, path: str) -> bool:
    try:
        commit.tree / path
    except KeyError:
        return False
    return True

"""What was done to one engine, as a Git history in the user's state folder: originals, plans, and what was written.

``$XDG_STATE_HOME/specaudit/journal/NAME`` (default ``~/.local/state``), one repository per installed engine:

    install.json          which engine, where
    state.json            the machine's own journal after the operation
    plan.json             the plan of the operation
    originals/vllm/…      each file touched, as it was before everything
    files/vllm/…          the same files, as they are now

A change is recorded twice: before it is made, with the originals, so that nothing is lost whatever happens; and after.
The machine keeps its own copy; this one is for reading, and for the day when that one is gone.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specaudit.errors import PatchError, SpecauditError, UsageError
from specaudit.writing import is_full, why

if TYPE_CHECKING:
    from git import BaseIndexEntry, Repo


#: Whatever the user's own configuration says (signing, hooks, a pager) is not for this history; errors are in English.
_PLAIN = {
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_PAGER": "cat", "GIT_TEMPLATE_DIR": "",
    "LC_ALL": "C",
}  # fmt: skip
#: Seconds after which a lock of Git's is one that a killed run left: a commit here takes a fraction of one.
_STALE = 60.0
#: Bytes that an empty history takes, at least.
_LEAST = 32 << 10


@dataclass(frozen=True, slots=True)
class Entry:
    """One recorded operation: ``identity`` names it, ``date`` is ISO 8601 in UTC."""

    identity: str
    date: str
    subject: str
    body: str


def state_folder() -> Path:
    """``$XDG_STATE_HOME/specaudit``.

    Raises:
        PatchError: it is not set, and this account has no home.
    """
    base = os.path.expanduser(os.environ.get("XDG_STATE_HOME", ""))
    if not os.path.isabs(base):  # the specification of XDG_STATE_HOME: relative paths are to be ignored
        base = os.path.expanduser("~/.local/state")
    if not os.path.isabs(base):
        hint = "Set XDG_STATE_HOME to a folder. A change or a revert does without."
        raise PatchError("There is no place for a journal: this account has no home.", hint)
    return Path(base, "specaudit")


class Journal:
    """The history of one installed engine.

    Args:
        label: how the user named the place.
        package: where the engine's package really lies there.
        engine: its name.
        folder: where journals lie; default the user's state folder.
    """

    def __init__(self, label: str, package: str, engine: str, folder: Path | None = None) -> None:
        identity = hashlib.sha256(os.fsencode(f"{label}\0{package}\0{engine}")).hexdigest()[:12]
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-.") or "place"
        self.path = (folder or state_folder() / "journal") / f"{name[:40]}-{engine}-{identity}"
        self._install = {"place": label, "package": package, "engine": engine}

    def record(
        self,
        subject: str,
        body: str = "",
        *,
        plan: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        originals: Mapping[str, bytes] | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> str:
        """Adds one commit; what is ``None`` stays as it was. Returns what the user should know, ``""`` when nothing.

        A history that a power cut or a full disk left unreadable is put aside, and a new one begun.

        Raises:
            PatchError: there is no Git here, or the folder cannot be written.
        """
        try:
            self._record(subject, body, plan, state, originals, files)
        except PatchError:
            aside = self._put_aside()
            if aside is None:
                raise
            self._record(subject, body, plan, state, originals, files)
            return f"The history of {self.path} could not be read: it was put aside as {aside.name}, a new one begun."
        return ""

    def _put_aside(self) -> Path | None:
        """Where the history went; ``None`` when there is none, or it can be read."""
        git = self.path / ".git"
        if not os.path.isdir(git) or self._sound():
            return None
        aside = self.path.with_name(f"{self.path.name}-unreadable-{int(time.time())}")
        try:
            git.rename(aside)
        except OSError:
            return None
        return aside

    def _sound(self) -> bool:
        looks = (("fsck", "--strict", "--no-dangling"), ("ls-files",))
        return all(
            subprocess.run(["git", "-C", str(self.path), *look], env=_clean(), capture_output=True).returncode == 0
            for look in looks
        )

    def _record(
        self,
        subject: str,
        body: str,
        plan: Mapping[str, Any] | None,
        state: Mapping[str, Any] | None,
        originals: Mapping[str, bytes] | None,
        files: Mapping[str, bytes] | None,
    ) -> None:
        with self._opened(create=True) as repository:
            self._json("install.json", self._install)
            if plan is not None:
                self._json("plan.json", plan)
            if state is not None:
                self._json("state.json", state)
            if originals is not None:
                self._tree("originals", originals)
            if files is not None:
                self._tree("files", files)
            self._commit(repository, subject, body)

    def entries(self) -> tuple[Entry, ...]:
        """What was recorded, newest first; empty when nothing was."""
        with self._usable():
            if not self._is_there():
                return ()
        with self._opened() as repository:
            begun = repository.head.is_valid()
            return tuple(_entry(commit) for commit in repository.iter_commits()) if begun else ()

    def show(self, identity: str) -> str:
        """One entry with its changes of the engine's files, as a diff.

        Raises:
            UsageError: there is no such entry.
        """
        matching = [entry for entry in self.entries() if entry.identity.startswith(identity)]
        if len(matching) != 1:
            count = "no" if not matching else "more than one"
            raise UsageError(f"There is {count} entry {identity!r}.", "specaudit patch log TARGET lists them.")
        entry = matching[0]
        with self._opened() as repository:
            shown = repository.git.show("--no-ext-diff", "--format=", entry.identity, "--", "files", "plan.json")
        return f"{entry.identity[:12]}  {entry.date}  {entry.subject}\n\n{entry.body}\n{shown}\n"

    def contents(self, what: str) -> dict[str, bytes]:
        """The ``originals`` or ``files`` recorded last, by path."""
        root = self.path / what
        with self._usable():
            return {p.relative_to(root).as_posix(): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        """Whatever fails inside is one error that says what a user can do."""
        try:
            yield
        except SpecauditError:
            raise
        except Exception as bad:  # GitPython meets a damaged history with whatever comes
            hint = f"Look at {self.path}: it must be open to you, and git installed."
            if is_full(bad):
                hint = "Free some space there, or set XDG_STATE_HOME to a folder on another disk."
            said = f"The journal {self.path} cannot be used: {why(bad)}."
            raise PatchError(said, f"{hint} A change or a revert does without.") from bad

    @contextlib.contextmanager
    def _opened(self, create: bool = False) -> Iterator[Repo]:
        os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
        try:
            from git import Repo
        except ImportError as bad:
            raise PatchError("GitPython is not installed.", "Reinstall specaudit.") from bad
        with self._usable():
            if create and not self._is_there():
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._begin()
            self._unlock()
            with contextlib.closing(Repo(self.path)) as repository:
                repository.git.update_environment(**_PLAIN)
                yield repository

    def _is_there(self) -> bool:
        """Whether there is a history; unlike ``is_dir`` of some versions it fails where that cannot be seen."""
        try:
            return stat.S_ISDIR((self.path / ".git").stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _begin(self) -> None:
        try:
            begin = ["git", "init", "-q", "--initial-branch=journal", str(self.path)]
            subprocess.run(begin, env=_clean(), check=True, capture_output=True)
        except subprocess.CalledProcessError as bad:
            full = shutil.disk_usage(self.path).free < _LEAST
            if not any((self.path / ".git/objects").glob("??/*")):  # else it would pass for a damaged history
                shutil.rmtree(self.path / ".git", ignore_errors=True)
            if full:  # which Git does not always say
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from bad
            raise

    def _unlock(self) -> None:
        for lock in (self.path / ".git").glob("**/*.lock"):
            with contextlib.suppress(OSError):
                if time.time() - lock.stat().st_mtime > _STALE:
                    lock.unlink()

    def _json(self, name: str, value: Mapping[str, Any]) -> None:
        text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
        (self.path / name).write_text(text + "\n", encoding="utf-8", errors="backslashreplace")  # bytes of a path

    def _tree(self, name: str, contents: Mapping[str, bytes]) -> None:
        root = self.path / name
        for old in sorted(root.rglob("*"), reverse=True):
            if old.is_file() and old.relative_to(root).as_posix() not in contents:
                old.unlink()
            elif old.is_dir():
                with contextlib.suppress(OSError):
                    old.rmdir()
        for path, data in contents.items():
            target = root / path
            if not target.resolve().is_relative_to(root.resolve()):
                raise PatchError(f"A file outside the engine was named: {path!r}.", "Do not trust this machine.")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

    def _commit(self, repository: Repo, subject: str, body: str) -> None:
        from git import Actor

        present = {p.relative_to(self.path).as_posix() for p in self.path.rglob("*") if p.is_file()}
        present = {path for path in present if not path.startswith(".git/")}
        tracked = {str(path) for path, _ in repository.index.entries}
        if tracked - present:
            repository.index.remove(sorted(tracked - present))
        repository.index.add([_stored(repository, self.path / path, path) for path in sorted(present)])
        who = Actor("specaudit", "specaudit@localhost")
        message = subject + (f"\n\n{body}" if body else "")
        repository.index.commit(message, author=who, committer=who, skip_hooks=True)


def _clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | _PLAIN


def _stored(repository: Repo, file: Path, path: str) -> BaseIndexEntry:
    """A file as an entry of the index. Of a mere path GitPython makes one in another working directory, which is the
    whole process's: journals of other targets are written at the same time, and targets may be relative paths."""
    from git import BaseIndexEntry
    from gitdb import IStream

    with file.open("rb") as stream:
        stored = repository.odb.store(IStream("blob", file.stat().st_size, stream))
    return BaseIndexEntry((0o100644, stored.binsha, 0, path))


def _entry(commit: Any) -> Entry:
    from datetime import UTC, datetime

    subject, _, body = str(commit.message).partition("\n\n")
    date = datetime.fromtimestamp(commit.committed_date, UTC).isoformat(timespec="seconds")
    return Entry(commit.hexsha, date, subject.strip(), body.strip())

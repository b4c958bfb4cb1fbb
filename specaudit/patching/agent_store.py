"""What the patch agent keeps beside an engine, and the paths of that engine's files (stdlib only, Python >= 3.8).

Travels with :mod:`specaudit.patching.agent`, whose docstring says what lies in the folder and why.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
from typing import TYPE_CHECKING

FORMAT = 1
STATE_PREFIX = ".specaudit-"
STAGED_SUFFIX = ".specaudit-new"
KEY_LENGTH = 32

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Header = dict[str, Any]
    Blobs = dict[str, bytes]


class Refused(Exception):
    """The request cannot be carried out; ``kind`` is for programs, ``detail`` is JSON, ``blobs`` travel with it."""

    def __init__(self, kind: str, message: str, detail: Header | None = None, blobs: Blobs | None = None) -> None:
        super().__init__(message)
        self.kind, self.message, self.detail, self.blobs = kind, message, detail or {}, blobs or {}


class Store:
    """The agent's folder beside one engine, and the paths of that engine's files.

    ``unread``: a journal that cannot be read is taken for an empty one, since it is only to be dropped.
    """

    def __init__(self, root: str, engine: str, unread: bool = False) -> None:
        if not engine.isidentifier():
            raise Refused("path", f"{engine!r} is not the name of a package.")
        self.engine, self.unread = engine, unread
        self.package = os.path.realpath(os.path.join(root, engine))
        if not os.path.isdir(self.package):
            raise Refused("missing", f"There is no package {engine} in {root}.")
        self.folder = os.path.join(os.path.dirname(self.package), STATE_PREFIX + engine)
        self.journal = self._load()

    def _load(self) -> Header:
        empty = {"format": FORMAT, "engine": self.engine, "files": {}, "folders": [], "applied": [], "pending": None}
        try:
            with open(self.path("journal.json"), "rb") as file:
                found = json.loads(file.read().decode())
        except FileNotFoundError:
            return empty
        except ValueError:
            found, why = None, "cannot be read as JSON"
        else:
            why = "was written by another version"
        if isinstance(found, dict) and found.get("format") == FORMAT:
            return dict(empty, **found)
        if self.unread:
            return empty
        raise Refused("journal", f"{self.path('journal.json')} {why}.")

    def path(self, *parts: str) -> str:
        """A path in the agent's folder."""
        return os.path.join(self.folder, *parts)

    def target(self, path: str) -> str:
        """Where a package-relative path lies; refuses one that leaves the package, by dots or by a symlinked folder."""
        parts = path.split("/")
        if parts[0] != self.engine or len(parts) < 2 or any(p in ("", ".", "..") for p in parts) or "\0" in path:
            raise Refused("path", f"{path!r} is not a path of {self.engine}.")
        target = os.path.join(self.package, *parts[1:])
        parent = os.path.realpath(os.path.dirname(target))
        if parent != self.package and not parent.startswith(self.package + os.sep):
            raise Refused("path", f"{path} leads out of {self.package}.")
        return target

    def staged(self, path: str) -> str:
        """The hidden file beside a target that takes its new content; no import statement can name it."""
        folder, name = os.path.split(self.target(path))
        return os.path.join(folder, "." + name + STAGED_SUFFIX)

    def where(self, folder: str) -> str:
        """Where a package-relative folder lies."""
        return os.path.dirname(self.target(folder + "/x"))

    def original(self, path: str) -> str:
        """The kept inode of a path."""
        return self.path("originals", key_of(path))

    def compiled(self, path: str, name: str) -> str:
        """Where a compiled file of a path is kept."""
        return self.path("pyc", key_of(path) + "-" + name)

    def blob(self, sha: str) -> bytes:
        """A stored content, checked."""
        with open(self.path("blobs", sha), "rb") as file:
            data = file.read()
        if hashlib.sha256(data).hexdigest() != sha:
            raise Refused("journal", f"{self.path('blobs', sha)} is damaged.")
        return data

    def keep(self, data: bytes) -> None:
        """Stores a content under its SHA-256."""
        path = self.path("blobs", hashlib.sha256(data).hexdigest())
        if not os.path.exists(path):
            write(path, data)

    def _furnish(self) -> None:
        """Makes what lacks in the agent's folder; where that fails, a folder that says nothing goes again."""
        try:
            for name in ("blobs", "originals", "pyc"):
                make_folder(self.path(name), os.stat(self.package))
        except OSError:
            if not os.path.exists(self.path("journal.json")):
                self.remove()
            raise

    def save(self) -> None:
        """Replaces the journal by one rename."""
        write(self.path("journal.json"), json.dumps(self.journal, indent=1).encode())

    def collect(self) -> None:
        """Removes what no entry of the journal needs: what a killed run left, what a revert made useless."""
        journal, pending = self.journal, self.journal["pending"]
        keys = {key_of(path) for path in journal["files"]}
        applications = journal["applied"] + ([pending["application"]] if pending else [])
        used = {sha for a in applications for c in a["changes"] for sha in (c["before"], c["after"])}
        for folder in ("originals", "pyc"):
            for name in names_in(self.path(folder)):
                if name[:KEY_LENGTH] not in keys:
                    os.unlink(self.path(folder, name))
        for name in names_in(self.path("blobs")):
            if name not in used:
                os.unlink(self.path("blobs", name))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path("journal.json.new"))

    def remove(self) -> None:
        """Removes the agent's folder, the journal last, so that a crash on the way leaves something that says so."""
        for name in ("originals", "pyc", "blobs"):
            shutil.rmtree(self.path(name), ignore_errors=True)
        others = [name for name in names_in(self.folder) if name not in ("lock", "journal.json")]
        for name in [*others, "journal.json", "lock"]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(name))
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)
        sync_folder(os.path.dirname(self.folder))

    @contextlib.contextmanager
    def locked(self, create: bool) -> Iterator[None]:
        """Holds the lock, and reads the journal again under it; without a folder, and not to make one, does nothing."""
        if not create and not os.path.isdir(self.folder):
            yield
            return
        descriptor = self._lock()
        try:
            self.journal = self._load()
            if create:
                self._furnish()
            yield
        finally:
            os.close(descriptor)

    def _lock(self) -> int:
        """Makes the agent's folder, with the package folder's mode and, for root, its owner, and takes its lock.

        Another run may remove the folder meanwhile: its last act, under a lock that nobody else can find then.
        """
        while True:
            like = os.stat(self.package)
            try:
                make_folder(self.folder, like)
                descriptor = os.open(self.path("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:  # the holder before us removed the folder just now
                continue
            except OSError:
                with contextlib.suppress(OSError):  # not empty: it was in use before
                    os.rmdir(self.folder)
                raise
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_ino == os.stat(self.path("lock")).st_ino:
                    give(descriptor, self.folder)
                    return descriptor
            except BlockingIOError:
                os.close(descriptor)
                raise Refused("locked", f"Another specaudit is changing {self.package} right now.") from None
            except FileNotFoundError:  # so it locks a file that is gone
                pass
            os.close(descriptor)

    def busy(self) -> bool:
        """Whether a writer holds the lock now."""
        try:
            descriptor = os.open(self.path("lock"), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def expected(self) -> dict[str, str | None]:
        """The state (SHA-256, or ``None`` for absent) that each path was given by the applications that stand."""
        return {c["path"]: c["after"] for a in self.journal["applied"] for c in a["changes"]}

    def known(self) -> dict[str, set[str | None]]:
        """Every state that the journal gave or found each path in."""
        states: dict[str, set[str | None]] = {path: {e["sha256"]} for path, e in self.journal["files"].items()}
        pending = self.journal["pending"]
        for application in self.journal["applied"] + ([pending["application"]] if pending else []):
            for change in application["changes"]:
                states.setdefault(change["path"], set()).update((change["before"], change["after"]))
        return states


def explain(failed: OSError) -> str:
    """One sentence for what the kernel refused."""
    where = f" ({failed.filename})" if failed.filename else ""
    known = {
        errno.ENOSPC: "The disk is full",
        errno.EDQUOT: "The disk quota is used up",
        errno.EFBIG: "The file size limit was reached",
        errno.EROFS: "The file system is read-only",
        errno.EACCES: "Permission was denied",
        errno.EPERM: "The operation is not permitted",
    }
    what = known.get(failed.errno or 0)
    return f"{what}{where}." if what else f"A file operation failed{where}: {failed.strerror or failed}."


def key_of(path: str) -> str:
    """A file name for a path."""
    return hashlib.sha256(path.encode()).hexdigest()[:KEY_LENGTH]


def identity(package: str) -> str:
    """One word for a folder of a running machine, whatever names lead to it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            machine = file.read().strip()
    except OSError:
        machine = os.uname().nodename
    seen = os.stat(package)
    return f"{machine}:{seen.st_dev}:{seen.st_ino}"


def digest(path: str) -> str | None:
    """The SHA-256 of a file, ``None`` when there is none."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None


def names_in(folder: str) -> list[str]:
    """Sorted names in a folder, none when it is not there."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def make_folder(folder: str, like: os.stat_result) -> None:
    """Makes a folder, if it is not there, with the mode and, for root, the owner of ``like``."""
    if os.path.isdir(folder):
        return
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
        return  # another run was first, and gives it the rest
    os.chmod(folder, stat.S_IMODE(like.st_mode))
    if os.geteuid() == 0:
        os.chown(folder, like.st_uid, like.st_gid)
    sync_folder(os.path.dirname(folder))


def write(path: str, data: bytes) -> None:
    """Writes a file so that it is whole or absent, and on the disk."""
    try:
        with open(path + ".new", "wb") as file:
            give(file.fileno(), os.path.dirname(path))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".new", path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + ".new")
        raise
    sync_folder(os.path.dirname(path))


def give(descriptor: int, folder: str) -> None:
    """Lets those who may change a folder change a file of ours in it: what root wrote, its owner can take back."""
    like = os.stat(folder)
    if os.fstat(descriptor).st_uid == os.geteuid():
        os.fchmod(descriptor, stat.S_IMODE(like.st_mode) & 0o666)
    if os.geteuid() == 0:
        os.fchown(descriptor, like.st_uid, like.st_gid)


def sync_folder(folder: str) -> None:
    """Puts the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

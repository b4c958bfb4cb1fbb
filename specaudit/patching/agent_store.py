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
from typing import TYPE_CHECKING

from specaudit.patching.agent_files import (
    FOLDERS,
    JOURNAL,
    KEY_LENGTH,
    SCRATCH_SUFFIX,
    Refused,
    give,
    make_folder,
    names_in,
    opened,
    read,
    real_folder,
    sweep,
    sync_folder,
    write,
)
from specaudit.patching.agent_journal import is_path, sound

FORMAT = 1
STATE_PREFIX = ".specaudit-"
STAGED_SUFFIX = ".specaudit-new"

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specaudit.patching.agent_files import Header


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
        real_folder(self.folder)
        self.journal = self._load()

    def _kept(self) -> bool:
        """Whether any content is kept: a journal was written before it, and goes after it."""
        found: list[str] = []

        def look(folder: str, name: str) -> bool:
            if folder and name and not name.endswith(SCRATCH_SUFFIX):
                found.append(name)
            return False

        sweep(self.folder, look)
        return bool(found)

    def _load(self, again: bool = False) -> Header:
        empty = {"format": FORMAT, "engine": self.engine, "files": {}, "folders": [], "applied": [], "pending": None}
        path, found = self.path(JOURNAL), None
        try:
            found = json.loads(read(path).decode())
        except FileNotFoundError:
            if self.unread or not self._kept():
                return empty
            if not again:  # another run may have begun between these two looks: its journal comes before all else
                return self._load(again=True)
            why = "is lost, and what was kept of earlier changes is still beside it"
        except PermissionError as denied:
            raise Refused("unreadable", explain(denied)) from None
        except Refused:
            if self.unread:
                return empty
            raise
        except (ValueError, RecursionError):
            why = "cannot be read as JSON"
        else:
            why = "was written by another version"
        if isinstance(found, dict) and found.get("format") == FORMAT:
            whole = dict(empty, **found)
            if sound(whole, self.engine):
                return whole
            why = "cannot be read: it is not as specaudit writes it"
        if self.unread:
            return empty
        raise Refused("journal", f"{path} {why}.")

    def path(self, *parts: str) -> str:
        """A path in the agent's folder."""
        return os.path.join(self.folder, *parts)

    def target(self, path: str) -> str:
        """Where a package-relative path lies; refuses one that leaves the package, by dots or by a symlinked folder."""
        if not is_path(path, self.engine):
            raise Refused("path", f"{path!r} is not a path of {self.engine}.")
        target = os.path.join(self.package, *path.split("/")[1:])
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
        try:
            data = read(self.path("blobs", sha))
        except FileNotFoundError:
            raise Refused("journal", f"{self.path('blobs', sha)} is lost.") from None
        if hashlib.sha256(data).hexdigest() != sha:
            raise Refused("journal", f"{self.path('blobs', sha)} is damaged.")
        return data

    def stored(self) -> list[str]:
        """The SHA-256 of every stored content."""
        names = (name for name in names_in(self.path("blobs")) if FOLDERS["blobs"].fullmatch(name))
        return [name for name in names if not name.endswith(SCRATCH_SUFFIX)]

    def keep(self, data: bytes) -> None:
        """Stores a content under its SHA-256."""
        path = self.path("blobs", hashlib.sha256(data).hexdigest())
        if not os.path.lexists(path):
            write(path, data)

    def _furnish(self) -> None:
        """Makes what lacks in the agent's folder; where that fails, a folder that says nothing goes again."""
        try:
            for name in FOLDERS:
                make_folder(self.path(name), os.stat(self.package))
            if not os.path.lexists(self.path(JOURNAL)):
                self.save()  # before the first content: contents without it are those of a journal that was lost
        except OSError:
            if not os.path.exists(self.path(JOURNAL)):
                self.remove()
            raise

    def save(self) -> None:
        """Replaces the journal by one rename."""
        write(self.path(JOURNAL), json.dumps(self.journal, indent=1).encode())

    def collect(self) -> None:
        """Removes what no entry of the journal needs: what a killed run left, what a revert made useless."""
        journal, pending = self.journal, self.journal["pending"]
        keys = {key_of(path) for path in journal["files"]}
        applications = journal["applied"] + ([pending["application"]] if pending else [])
        used = {sha for a in applications for c in a["changes"] for sha in (c["before"], c["after"])}

        def useless(folder: str, name: str) -> bool:
            if not folder or not name:
                return name == JOURNAL + SCRATCH_SUFFIX
            return name not in used if folder == "blobs" else name[:KEY_LENGTH] not in keys

        sweep(self.folder, useless)

    def remove(self) -> list[str]:
        """Removes what is the agent's, and its folder; returns what is not and was left, relative to the root.

        The journal goes last, so that a crash on the way leaves something that says so.
        """
        _, strange = sweep(self.folder, lambda folder, name: True)
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)
        sync_folder(os.path.dirname(self.folder))
        return [f"{STATE_PREFIX}{self.engine}/{name}" for name in strange]

    def leftovers(self) -> bool:
        """Whether a run left its folder, or something of its own in it, though nothing stands and nothing pends."""
        if self.journal["applied"] or self.journal["pending"]:
            return False
        return sweep(self.folder, lambda folder, name: False)[0]

    @contextlib.contextmanager
    def locked(self, create: bool) -> Iterator[None]:
        """Holds the lock, and reads the journal again under it; without a folder, and not to make one, does nothing."""
        if not create and not real_folder(self.folder):
            yield
            return
        descriptor = self._lock()
        try:
            self.journal = self._load()
            if not self.unread:
                for name in FOLDERS:
                    real_folder(self.path(name))
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
                real_folder(self.folder)
                descriptor = opened(self.path("lock"), os.O_RDWR | os.O_CREAT)
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
            descriptor = opened(self.path("lock"), os.O_RDONLY)
        except (OSError, Refused):
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
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:KEY_LENGTH]


def identity(package: str) -> str:
    """One word for a folder of a running machine, whatever names lead to it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            machine = file.read().strip()
    except OSError:
        machine = os.uname().nodename
    seen = os.stat(package)
    return f"{machine}:{seen.st_dev}:{seen.st_ino}"

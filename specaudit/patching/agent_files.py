"""Files of the patch agent's own folder: what in it is the agent's, and how it is read, written and removed.

Stdlib only, Python >= 3.8. Somebody else's file may have a place where the agent looks for its own, or a link may lead
from there to somebody else's folder: no link is followed here, and only what the agent makes is removed, by its name
and kind.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
from typing import TYPE_CHECKING

KEY_LENGTH = 32
JOURNAL = "journal.json"
SCRATCH_SUFFIX = ".new"
#: In place of a SHA-256, where something else has the place of a file: no state that a journal can promise.
NO_FILE = ""

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Header = dict[str, Any]
    Blobs = dict[str, bytes]

#: Files of the folder, in the order in which they are removed: a crash on the way leaves the journal, or nothing.
_FILES = (JOURNAL + SCRATCH_SUFFIX, JOURNAL, "lock")
#: Folders in it, with the names of what they hold.
FOLDERS = {
    "blobs": re.compile(r"[0-9a-f]{64}(\.new)?"),
    "originals": re.compile(f"[0-9a-f]{{{KEY_LENGTH}}}"),
    "pyc": re.compile(f"[0-9a-f]{{{KEY_LENGTH}}}-.*[.]pyc", re.DOTALL),
}


class Refused(Exception):
    """The request cannot be carried out; ``kind`` is for programs, ``detail`` is JSON, ``blobs`` travel with it."""

    def __init__(self, kind: str, message: str, detail: Header | None = None, blobs: Blobs | None = None) -> None:
        super().__init__(message)
        self.kind, self.message, self.detail, self.blobs = kind, message, detail or {}, blobs or {}


# --- what is the agent's --------------------------------------------------------------------------------------------


def real_folder(path: str) -> bool:
    """Whether a folder is there, false for nothing at all.

    Raises:
        Refused: something else has its place: a file, or a link, wherever it leads.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        raise _strange(path, mode, "folder")
    return True


def opened(path: str, how: int) -> int:
    """A descriptor of a file of the agent.

    Raises:
        Refused: it is no file, or a link.
    """
    try:
        descriptor = os.open(path, how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    except OSError:
        mode = os.lstat(path).st_mode if os.path.lexists(path) else stat.S_IFREG
        if stat.S_ISREG(mode):
            raise
        raise _strange(path, mode, "file") from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _strange(path, mode, "file")
    return descriptor


def read(path: str) -> bytes:
    """The content of a file of the agent; raises as :func:`opened`."""
    with os.fdopen(opened(path, os.O_RDONLY), "rb") as file:
        return file.read()


def _strange(path: str, mode: int, wanted: str) -> Refused:
    words = ((stat.S_ISLNK, "a symbolic link"), (stat.S_ISDIR, "a folder"), (stat.S_ISREG, "a file"))
    what = next((word for is_such, word in words if is_such(mode)), "a special file")
    return Refused("folder", f"{path} is {what}, where a {wanted} of specaudit would lie; specaudit did not make it.")


def sweep(folder: str, drop: Callable[[str, str], bool]) -> tuple[bool, list[str]]:
    """Looks through the agent's folder and removes those of the agent's files and folders that ``drop`` says.

    ``drop`` gets a folder in it (empty: itself) and a name, or the folder and an empty name.

    Returns:
        Whether anything there was the agent's (an empty folder is), and the names that are not, which stay.
    """
    try:
        top = _open_folder(folder)
    except FileNotFoundError:
        return False, []
    try:
        names, ours = os.listdir(top), False
        strange: list[str] = []
        for name in sorted(set(names) - set(_FILES)):
            mine, others = _sweep_inner(top, name, drop) if name in FOLDERS else (False, [name])
            ours, strange = ours or mine, strange + others
        for name in _FILES:
            if name not in names:
                continue
            if not _is_kind(top, name, stat.S_ISREG):
                strange.append(name)
                continue
            ours = True
            if drop("", name):
                _unlink(top, name)
    finally:
        os.close(top)
    return ours or not names, strange


def _sweep_inner(top: int, folder: str, drop: Callable[[str, str], bool]) -> tuple[bool, list[str]]:
    try:
        inner = _open_folder(folder, top)
    except FileNotFoundError:
        return False, []
    except OSError:
        if _is_kind(top, folder, stat.S_ISDIR):
            raise
        return False, [folder]
    try:
        strange, names = [], os.listdir(inner)
        for name in sorted(names):
            if not _is_ours(inner, folder, name):
                strange.append(folder + "/" + name)
            elif drop(folder, name):
                _unlink(inner, name)
    finally:
        os.close(inner)
    if not strange and drop(folder, ""):
        with contextlib.suppress(OSError):  # not empty: someone has put something there just now
            os.rmdir(folder, dir_fd=top)
    return len(strange) < len(names) or not names, strange


def _is_ours(descriptor: int, folder: str, name: str) -> bool:
    if not FOLDERS[folder].fullmatch(name):
        return False
    # An original may have been a link, and is kept as one.
    kinds = (stat.S_ISREG, stat.S_ISLNK) if folder != "blobs" else (stat.S_ISREG,)
    return any(_is_kind(descriptor, name, is_such) for is_such in kinds)


def _is_kind(descriptor: int, name: str, is_such: Callable[[int], bool]) -> bool:
    try:
        return is_such(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return True  # gone meanwhile: nothing that would be anybody's


def _open_folder(path: str, within: int | None = None) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)


def _unlink(descriptor: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=descriptor)


# --- reading and writing --------------------------------------------------------------------------------------------


def digest(path: str) -> str | None:
    """The SHA-256 of a file, ``None`` when there is none, :data:`NO_FILE` for anything else, as a folder or a pipe."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for its other end
            return NO_FILE
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as bad:
        if bad.errno != errno.ELOOP:
            raise
        return NO_FILE


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
    """Writes a file of the agent so that it is whole or absent, and on the disk."""
    scratch = path + SCRATCH_SUFFIX
    with contextlib.suppress(FileNotFoundError):
        os.unlink(scratch)  # of a run that was killed
    try:
        with os.fdopen(opened(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            give(file.fileno(), os.path.dirname(path))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(scratch)
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

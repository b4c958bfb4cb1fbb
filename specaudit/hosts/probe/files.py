"""Walks and hashes the ``.py`` files of a package.

Runs here and on hosts (see installed.py). Symbolic links are followed, as an import would (uv and Nix install by them);
loops, dangling links, devices, oversized and unreadable files become errors of their own, and the walk goes on.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterable

#: The largest source file of an engine is 0.4 MB; something larger is data with the wrong name.
MAX_SOURCE = 8 << 20
#: Links to folders can multiply a tree without end; real engines have some 3,000 files.
MAX_FILES = 20_000
#: Folders inside one another; no import gets that far.
MAX_DEPTH = 64
#: Names the encoding of a source file, in one of its first two lines (PEP 263).
_COOKIE = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*[-\w.]+")


def listing(root: str, package: str) -> tuple[list[tuple[str, str, int]], list[tuple[str, str]]]:
    """All ``.py`` files under ``root/package``.

    Returns:
        ``files``: sorted (path, SHA-256 in hex, size in bytes), paths relative to ``root`` with ``/``;
        ``errors``: sorted (path, what is wrong); a file that is no text is among ``files``, too.
    """
    walk = _Walk(root)
    walk.folder(package, ())
    return sorted(walk.files), sorted(walk.errors)


def sha256(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def flaw(data: bytes) -> str:
    """Why bytes cannot be Python source, whatever they say; ``""``: nothing that can be told without a parser."""
    if b"\0" in data:
        return "cannot be read as Python text: it holds null bytes"
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as bad:
        if not any(_COOKIE.match(line) for line in data.split(b"\n", 2)[:2]):
            return f"cannot be read as Python text: {bad}"
    return ""


def misnamed(path: str) -> str:
    """Why a file cannot be a module, whatever it holds: its name could also write on a terminal; ``""``: it can."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return "file name is not UTF-8"
    return "" if path.isprintable() else "file name holds control characters"


def shown(path: str) -> str:
    """A path with escapes in place of what :func:`misnamed` refuses."""
    text = path.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def digest(pairs: Iterable[tuple[str, str]]) -> str:
    """SHA-256 over the sorted (path, SHA-256) pairs of some files: the ``digest`` of an engine."""
    return hashlib.sha256("".join(f"{path}\0{sha}\n" for path, sha in sorted(pairs)).encode()).hexdigest()


def read(root: str, path: str) -> bytes:
    """One file's bytes.

    Raises:
        OSError: not there, not a regular file, too large, or ``path`` leads out of ``root``.
    """
    if path.startswith("/") or ".." in path.split("/"):
        raise OSError(errno.EINVAL, "path leads out of the package", path)
    # Non-blocking: opening a pipe would wait for its writer.
    handle = os.open(os.path.join(root, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        if facts.st_size > MAX_SOURCE:
            raise OSError(errno.EFBIG, f"{facts.st_size} bytes is no source file, at most {MAX_SOURCE} are read", path)
        parts = [os.read(handle, facts.st_size + 1)]
        while parts[-1] and sum(map(len, parts)) < facts.st_size:
            parts.append(os.read(handle, facts.st_size))
    finally:
        os.close(handle)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def disguised(root: str, path: str) -> bool:
    """Whether a name leads to a file of another kind: whoever owns an environment may link ``x.py`` to a secret that
    only root can read, and the scan runs by sudo. A link that dangles leads to no file at all.
    """
    real = os.path.realpath(os.path.join(root, path))
    return not real.endswith(".py") and os.path.lexists(real)


class _Walk:
    def __init__(self, root: str) -> None:
        self.root = root
        self.files: list[tuple[str, str, int]] = []
        self.errors: list[tuple[str, str]] = []

    def folder(self, path: str, above: tuple[tuple[int, int], ...]) -> None:
        """Takes one folder; ``above`` identifies the folders that it is inside of."""
        full = os.path.join(self.root, path)
        if len(above) > MAX_DEPTH:
            self.error(path, f"more than {MAX_DEPTH} folders inside one another; not read")
            return
        try:
            facts = os.stat(full)
            me = facts.st_dev, facts.st_ino
            if me in above:
                self.error(path, "symbolic link to a folder that it is in")
                return
            with os.scandir(full) as entries:
                listed = list(entries)
        except OSError as bad:
            self.error(path, bad.strerror or str(bad))
            return
        for entry in listed:
            inner = path + "/" + entry.name
            if len(self.files) >= MAX_FILES:
                self.error(path, f"more than {MAX_FILES} files; the rest was not read")
                return
            try:
                is_folder = entry.is_dir()
            except OSError as bad:  # a link to itself
                self.error(inner, bad.strerror or str(bad))
                continue
            if is_folder:
                if entry.name != "__pycache__":
                    self.folder(inner, (*above, me))
            elif entry.name.endswith(".py"):
                if entry.is_symlink() and disguised(self.root, inner):
                    self.error(inner, "symbolic link to what is no .py file")
                else:
                    self.file(inner)

    def file(self, path: str) -> None:
        """Takes one file."""
        why = misnamed(path)
        if why:
            self.error(path, why)
            return
        try:
            data = read(self.root, path)
        except OSError as bad:
            dangling = bad.errno == errno.ENOENT and os.path.islink(os.path.join(self.root, path))
            self.error(path, "dangling symbolic link" if dangling else bad.strerror or str(bad))
        else:
            self.files.append((path, sha256(data), len(data)))
            why = flaw(data)
            if why:
                self.error(path, why)

    def error(self, path: str, why: str) -> None:
        """Keeps one error."""
        self.errors.append((shown(path), why))

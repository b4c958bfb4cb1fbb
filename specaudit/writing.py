"""Why something could not be written, in a few words, and what to do about it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from pathlib import Path

#: A disk, or one's share of it, that has no room left.
_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full(bad: Exception) -> bool:
    """Whether the disk is full, as the system or Git says it."""
    if isinstance(bad, OSError):
        return bad.errno in _FULL
    return any(os.strerror(number) in _words(bad) for number in _FULL)


def why(bad: Exception) -> str:
    """One line without a full stop; of what Git says, its last words."""
    if isinstance(bad, IsADirectoryError):
        return "it is a folder"
    if isinstance(bad, OSError) and bad.strerror:
        return bad.strerror
    if is_full(bad):
        return next(os.strerror(number) for number in _FULL if os.strerror(number) in _words(bad))
    lines = [line.strip() for line in _words(bad).splitlines() if line.strip()]
    said = (lines[-1] if _from_git(bad) else lines[0]) if lines else type(bad).__name__
    return said.removeprefix("fatal: ").removeprefix("error: ").rstrip(".")


def way_out(path: Path, bad: OSError) -> str:
    """What to do about a file that could not be written."""
    if is_full(bad):
        return f"Free some space in {path.parent}, or name a file on another disk."
    if isinstance(bad, IsADirectoryError):
        return "Name a file in it."
    if bad.errno == errno.EFBIG:
        return "Raise the limit (ulimit -f), or name a file on another disk."
    if bad.errno == errno.ENAMETOOLONG:
        return "Name it shorter."
    return f"Look at {path.parent}: it must be there, and open to you."


def _from_git(bad: Exception) -> bool:
    return bool(getattr(bad, "stderr", None))


def _words(bad: Exception) -> str:
    """What was said on stderr, by Git that was started here or by GitPython; else the exception's own text."""
    said = getattr(bad, "stderr", None)
    if isinstance(said, bytes):
        said = said.decode("utf-8", "replace")
    if not said:
        return _ended(bad.returncode) if isinstance(bad, subprocess.CalledProcessError) else str(bad)
    said = str(said).strip()
    return said.removeprefix("stderr: '").removesuffix("'") if said.startswith("stderr: '") else said


def _ended(code: int) -> str:
    return f"git ended with {code}" if code >= 0 else f"git was ended by a signal ({signal.strsignal(-code)})"

"""Small files of a host, read so that none holds the probe up: no pipe, no device, no endless file.

Python 3.8 and newer, stdlib only.
"""

from __future__ import annotations

import errno
import os
import stat


def small(path: str, limit: int) -> bytes:
    """The first ``limit`` bytes of a regular file.

    Raises:
        OSError: it cannot be read, or is a pipe, a device or a folder.
    """
    if "\0" in path:
        raise OSError(errno.EINVAL, "no path", path)
    # Non-blocking: opening a pipe would wait for its writer.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        parts = []
        while limit > 0:
            part = os.read(handle, min(limit, 1 << 20))
            if not part:
                break
            parts.append(part)
            limit -= len(part)
    finally:
        os.close(handle)
    return b"".join(parts)


def text(path: str, limit: int = 1 << 20) -> str:
    """The same as text, empty when it cannot be read."""
    try:
        return small(path, limit).decode("utf-8", "replace")
    except OSError:
        return ""

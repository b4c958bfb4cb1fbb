"""What the kernel refuses for a while: real failures of writing, on any machine and for any user."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def file_limit(size: int) -> Iterator[None]:
    """No file that this process or its children write gets more bytes; whom Python does not protect is ended by it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

"""What a user gives in a file, or as JSON: read with a limit, and refused in words that say what is wrong with it."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any


def contents(file: Path, limit: int) -> bytes:
    """The bytes of a file; it may be a pipe (``<(…)``), and a device that never ends is read no further.

    Raises:
        OSError: it cannot be read, or holds more than ``limit`` bytes.
    """
    with file.open("rb") as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"it has more than {limit >> 20} MiB", str(file))
    return data


def decoded(text: str | bytes, **hooks: Any) -> Any:
    """The value that a JSON text stands for; hooks are those of `json.loads`.

    Raises:
        ValueError: it is none, or one that Python does not hold.
    """
    try:
        return json.loads(text, **hooks)
    except RecursionError as bad:
        raise ValueError("it is nested too deeply") from bad
    except ValueError as bad:
        if "int_max_str_digits" in str(bad):
            raise ValueError("it holds a number of thousands of digits") from bad
        raise

"""Files that are no Python, among those that no verdict had to parse.

Classification parses what it follows. A file that it has no reason to open can still be broken, and then what it would
have defined is missing from the answers; parsing all files of an engine would take longer than the rest of a scan.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable

import msgspec

from specaudit.cache import recall
from specaudit.index import OUTLINE_VERSION, Index, decode, unparsed
from specaudit.model import Failure

SYNTAX_VERSION = 1


def broken(index: Index, paths: Iterable[str]) -> tuple[Failure, ...]:
    """Those of some files that cannot be parsed, each with the reason.

    Raises:
        ChangedError: a file cannot be read any more as it was.
    """
    snapshot = index.snapshot
    wanted = sorted(paths)
    names = "".join(f"{path}\0{snapshot.files[path].sha256}\n" for path in wanted)
    key = hashlib.sha256(names.encode()).hexdigest()
    stored = recall(snapshot.cache, "syntax", key, SYNTAX_VERSION, tuple[Failure, ...])
    if stored is not None:
        return stored
    found = tuple(failure for path in wanted if (failure := _broken(index, path)) is not None)
    snapshot.cache.put("syntax", key, SYNTAX_VERSION, msgspec.msgpack.encode(found))
    return found


def _broken(index: Index, path: str) -> Failure | None:
    snapshot = index.snapshot
    if snapshot.cache.get("outline", snapshot.files[path].sha256, OUTLINE_VERSION) is not None:
        return None  # it was parsed for a verdict
    try:
        ast.parse(decode(index.read(path)))
    except UnicodeDecodeError as bad:
        return Failure(path, f"cannot be read as Python text: {bad}")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as bad:  # ValueError: null bytes, before Python 3.12
        return unparsed(path, bad)
    return None

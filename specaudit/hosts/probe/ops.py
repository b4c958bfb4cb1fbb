"""Names of registered compiled operators, read from the strings of ``.so`` files.

PyTorch operators are registered with a schema text, ``name(Tensor a, …) -> Tensor``, that stands in the read-only
data of the binary; so their names can be read without loading anything. Runs here and on hosts (see installed.py).
The body of an operator cannot be read this way.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from typing import IO

#: Engine -> packages whose libraries register its operators.
PACKAGES = {"vllm": ("vllm",), "sglang": ("sglang", "sgl_kernel")}
#: The end of a schema's arguments: rare bytes, so the search runs at memory speed.
_ARROW = re.compile(rb"\) ?-> ?[(A-Z_a-z]")
_SCHEMA = re.compile(rb"(?:(?P<space>\w+)::)?(?P<name>[A-Za-z_]\w*)(?:\.\w+)?\([\x09\x0a\x20-\x7e]*\Z")
#: Symbols that the registration macros leave: one per namespace, in binaries that are not stripped.
_SPACE = re.compile(rb"TORCH_LIBRARY(_FRAGMENT)?_static_init_(\w{1,100})")
#: Folders inside one another; no import gets that far.
_DEPTH = 64
#: Characters of the longest schema that is looked for.
_REACH = 16 << 10


def libraries(root: str, packages: tuple[str, ...]) -> Iterator[str]:
    """Full paths of the ``.so`` files of some packages under ``root``, in order."""
    for package in packages:
        top = os.path.join(root, package)
        for folder, folders, names in os.walk(top):
            folders.sort()
            if folder.count(os.sep) - top.count(os.sep) >= _DEPTH:
                folders.clear()
            for name in sorted(names):
                if name.endswith(".so") and os.path.isfile(os.path.join(folder, name)):
                    yield os.path.join(folder, name)


def of_file(path: str) -> list[str]:
    """Operators that one library registers, sorted: ``namespace::name``, or ``name`` where the namespace is not clear.

    Raises:
        OSError: the file cannot be read.
    """
    # Not mapped into memory: a file that someone cuts short meanwhile would end the process.
    with open(path, "rb", buffering=0) as file:
        return of_stream(file)


def of_stream(file: IO[bytes] | io.RawIOBase, chunk: int = 1 << 20) -> list[str]:
    """The same for a library that comes as a stream (out of a wheel); at most two chunks are in memory."""
    names: set[tuple[str, str]] = set()
    spaces: set[str] = set()
    kept = b""
    while True:
        data = file.read(chunk)
        if not data:
            return _named(names, spaces)
        window = kept + data
        more, others = _scan(window)
        names |= more
        spaces |= others
        kept = window[-_REACH:]


def _scan(data: bytes) -> tuple[set[tuple[str, str]], set[str]]:
    names = set()
    for arrow in _ARROW.finditer(data):
        start = max(0, arrow.start() - _REACH)
        text = data[data.rfind(b"\0", start, arrow.start()) + 1 : arrow.start()]
        schema = _SCHEMA.match(text) if len(text) < _REACH else None
        if schema:
            names.add(((schema["space"] or b"").decode(), schema["name"].decode()))
    spaces = set()
    for found in _SPACE.finditer(data):
        name = found.group(2).decode("ascii", "replace")
        spaces.add(re.sub(r"_\d+\Z", "", name) if found.group(1) else name)
    return names, spaces


def _named(names: set[tuple[str, str]], spaces: set[str]) -> list[str]:
    only = next(iter(spaces)) if len(spaces) == 1 else ""
    return sorted({f"{space or only}::{name}" if space or only else name for space, name in names})

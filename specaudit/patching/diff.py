"""Plan -> patch file: what ``git apply`` and ``patch -p1`` turn a fresh tree into, byte for byte."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable

from specaudit.patching.model import Change, Plan

#: A name that means the same to COPY and to a shell, and those characters that do not to COPY.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_SPECIAL = re.compile(r"[\[*?$\\]")
_NO_NEWLINE = b"\n\\ No newline at end of file\n"


def patch(plan: Plan) -> bytes:
    """The plan as one patch, to be applied in the folder that holds the package; lines above the first file say so."""
    recipes = ", ".join(f"{step.recipe} {step.version}" for step in plan.steps)
    head = f"Made by specaudit for {plan.engine} {plan.version}: {recipes}\n"
    head += f"Apply with `git apply` or `patch -p1` in the folder that holds {plan.engine}/.\n\n"
    return head.encode() + b"".join(difference(change) for change in plan.total)


def difference(change: Change) -> bytes:
    """One file as a git-style unified diff."""
    path = change.path.encode()
    head = b"diff --git a/" + path + b" b/" + path + b"\n"
    old = b"a/" + path
    if change.before is None:
        head += b"new file mode 100644\n"
        old = b"/dev/null"
    lines = difflib.diff_bytes(
        difflib.unified_diff, _lines(change.before or b""), _lines(change.after), old, b"b/" + path, lineterm=b"\n"
    )
    return head + b"".join(line if line.endswith(b"\n") else line + _NO_NEWLINE for line in lines)


def _lines(data: bytes) -> list[bytes]:
    """Lines as the tools see them: a line feed ends one, a carriage return belongs to it."""
    lines = data.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def counts(change: Change) -> tuple[int, int]:
    """Lines added and removed."""
    body = [line for line in difference(change).split(b"\n")[3:] if line[:1] in (b"+", b"-")]
    hunks = [line for line in body if not line.startswith((b"+++ ", b"--- "))]
    return sum(line[:1] == b"+" for line in hunks), sum(line[:1] == b"-" for line in hunks)


def dockerfile(engine: str, name: str, paths: Iterable[str]) -> str:
    """The lines that apply a patch file while an image is built; the package is located without importing it."""
    where = f"import importlib.util as u; print(u.find_spec('{engine}').submodule_search_locations[0])"
    stale = " ".join(sorted({f"{engine}{p[len(engine) : p.rfind('/')]}/__pycache__" for p in paths}))
    copy, there = f"{name} /tmp/{name}", f"/tmp/{name}"
    if not _PLAIN_NAME.fullmatch(name):  # COPY takes a list for white space, and reads globs and variables in names
        there = "/tmp/specaudit.patch"
        copy = json.dumps([_SPECIAL.sub(lambda m: f"\\{m[0]}" if m[0] in "$\\" else f"[{m[0]}]", name), there])
    return f'COPY {copy}\nRUN cd "$(python3 -c "{where}")/.." && patch -p1 --fuzz=0 < {there} && rm -rf {stale}\n'

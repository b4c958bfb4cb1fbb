"""Runs on a machine, with the engine's own interpreter: do the changed files compile there, can they be imported.

Stdlib only, Python 3.8 and newer. Request: ``root``, ``engine``, ``paths``, ``modules`` (imported, each in a process of
its own; empty: none), ``seconds``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    Header = dict[str, Any]

_IMPORT = "import sys; sys.path.insert(0, sys.argv[1]); __import__(sys.argv[2])"
_TAIL = 2000


def main(request: Header, blobs: dict[str, bytes]) -> tuple[Header, dict[str, bytes]]:
    """Answers one request."""
    package = os.path.realpath(os.path.join(request["root"], request["engine"]))
    compiled = {path: _compiles(os.path.join(package, *path.split("/")[1:])) for path in request["paths"]}
    imported = {name: _imports(request["root"], name, request["seconds"]) for name in request["modules"]}
    version = ".".join(str(part) for part in sys.version_info[:3])
    return {"python": sys.executable, "version": version, "compiled": compiled, "imported": imported}, {}


def _compiles(target: str) -> str:
    """Nothing, or what is wrong. Nothing is written."""
    try:
        with open(target, "rb") as file:
            compile(file.read(), target, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError) as bad:
        return f"{type(bad).__name__}: {bad}"
    return ""


def _ended(status: int) -> str:
    if status < 0:
        return f"it was ended by signal {-status} ({signal.strsignal(-status)})"
    return f"it ended with exit status {status}"


def _imports(root: str, name: str, seconds: float) -> str:
    command = [sys.executable, "-B", "-c", _IMPORT, root, name]
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, check=False, cwd="/")
    except subprocess.TimeoutExpired:
        return f"no answer within {seconds:g} s"
    return (
        ""
        if done.returncode == 0
        else done.stderr.decode("utf-8", "replace").strip()[-_TAIL:] or _ended(done.returncode)
    )

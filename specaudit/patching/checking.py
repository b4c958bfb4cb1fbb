"""Runs on a machine, with the engine's own interpreter: do the changed files compile there, can they be imported.

Modules are imported as an engine imports them, in one process, so that one which only fails when it comes first is not
noticed. Stdlib only, Python 3.8 and newer. Request: ``root``, ``engine``, ``paths``, ``modules`` (imported; empty:
none), ``seconds`` for one module.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    Header = dict[str, Any]

#: A byte for each module that was imported; an engine's first one takes long, the others next to nothing.
_IMPORT = """
import os, signal, sys
root, seconds, told = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
sys.path.insert(0, root)
for name in sys.argv[4:]:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    __import__(name)
    os.write(told, b".")
"""
_TAIL = 2000


def main(request: Header, blobs: dict[str, bytes]) -> tuple[Header, dict[str, bytes]]:
    """Answers one request."""
    package = os.path.realpath(os.path.join(request["root"], request["engine"]))
    compiled = {path: _compiles(os.path.join(package, *path.split("/")[1:])) for path in request["paths"]}
    imported = _imported(request["root"], list(request["modules"]), request["seconds"])
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


def _imported(root: str, names: list[str], seconds: float) -> dict[str, str]:
    """What is wrong with each module, or nothing. After one that fails, the others go on in a new process."""
    found: dict[str, str] = {}
    rest = names
    while rest:
        count, problem = _import_in_turn(root, rest, seconds)
        found.update(dict.fromkeys(rest[:count], ""))
        if count < len(rest):
            found[rest[count]] = problem
        rest = rest[count + 1 :]
    return found


def _import_in_turn(root: str, names: list[str], seconds: float) -> tuple[int, str]:
    """How many were imported, one after the other in one process, and why the next one was not."""
    read, write = os.pipe()
    late = f"no answer within {seconds:g} s"
    try:
        command = [sys.executable, "-B", "-c", _IMPORT, root, str(seconds), str(write), *names]
        limit = seconds * len(names) + 10  # it ends itself, unless its clock was taken from it
        with tempfile.TemporaryFile() as said:  # no pipe, which something that it left behind could keep open
            done = subprocess.run(
                command, stdout=subprocess.DEVNULL, stderr=said, check=False, cwd="/", pass_fds=(write,), timeout=limit
            )
            said.seek(0)
            problem = late if done.returncode == -signal.SIGALRM else _why(done.returncode, said.read())
    except subprocess.TimeoutExpired:
        problem = late
    finally:
        os.close(write)
    os.set_blocking(read, False)
    try:
        return len(os.read(read, len(names))), problem
    except BlockingIOError:  # nothing was written, and something that it started still lives
        return 0, problem
    finally:
        os.close(read)


def _why(status: int, stderr: bytes) -> str:
    """The end of a traceback, or how it ended, with the last line that it wrote."""
    text = stderr.decode("utf-8", "replace").strip()
    if status > 0 and ("Traceback" in text or "Error" in text):
        return text[-_TAIL:]
    return ": ".join(filter(None, (_ended(status), text[-_TAIL:].rpartition("\n")[2])))


def _ended(status: int) -> str:
    if status < 0:
        return f"it was ended by signal {-status} ({signal.strsignal(-status)})"
    return f"it ended with exit status {status}"

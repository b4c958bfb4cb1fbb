"""Where the engines of this host may be: environments, found by files alone. Python 3.8 and newer, stdlib only.

An *environment* is the list of folders that an interpreter would search, and that interpreter's path. Only the running
interpreter's own is exact (``sys.path``); others are derived from their ``pyvenv.cfg``, ``site-packages`` and
``.pth`` files. Starting them instead would execute, perhaps as root, what any user of the host left in a folder.
"""

from __future__ import annotations

import glob
import os
import re
import site
import sys
import time
from collections.abc import Iterable
from typing import Any

from specaudit.hosts.probe import installed, reading

#: Where people put environments; ``{home}`` is the user's own.
COMMON = (
    "/usr",
    "/usr/local",
    "/opt/*",
    "/opt/conda/envs/*",
    "/opt/*/envs/*",
    "/venv",
    "/workspace/*",
    "/workspace/*/.venv",
    "/workspace/*/venv",
    "/app",
    "/app/*",
    "/app/*/.venv",
    "/srv/*",
    "/srv/*/.venv",
    "{home}/*",
    "{home}/.venv",
    "{home}/.*env*",
    "{home}/*/.venv",
    "{home}/*/venv",
    "{home}/.local",
    "{home}/*conda3/envs/*",
    "{home}/*forge3/envs/*",
    "{home}/.conda/envs/*",
    "{home}/.virtualenvs/*",
    "{home}/.local/share/uv/tools/*",
    "{home}/.local/share/pipx/venvs/*",
    "{home}/.pyenv/versions/*",
)
#: Bounds of the search through them.
MAX_PREFIXES = 2000
MAX_SECONDS = 5.0

_PYTHON_DIR = re.compile(r"/python(3\.[0-9]+)(?:/|$)")


class Environment:
    """One interpreter's search path.

    ``mount`` precedes its absolute paths (``/proc/PID/root`` of a container; empty: none); ``why`` says how it was
    found.
    """

    def __init__(self, python: str, paths: Iterable[str], why: str, mount: str = "", own: bool = False) -> None:
        self.python = python
        self.paths = installed.folders(paths)
        self.why = why
        self.mount = mount
        self.own = own

    def facts(self) -> dict[str, str]:
        """Versions that need no import: python, torch, cuda, triton, platform."""
        machine = os.uname().machine
        return {
            "python": self._version(),
            "platform": sys.platform + "-" + machine,
            **installed.environment(self.paths),
        }

    def _version(self) -> str:
        if self.own:
            return ".".join(str(part) for part in sys.version_info[:3])
        config = reading.text(os.path.join(self.mount + os.path.dirname(os.path.dirname(self.python)), "pyvenv.cfg"))
        named = re.search(r"^version(?:_info)?\s*=\s*([0-9]+\.[0-9.]*[0-9])", config, re.MULTILINE)
        if named:
            return ".".join(named.group(1).split(".")[:3])
        return next((found.group(1) for path in self.paths for found in [_PYTHON_DIR.search(path)] if found), "")

    def engines(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """Per engine, the installation that would be imported, as :func:`installed.find` gives it."""
        found: dict[str, dict[str, Any]] = {}
        for entry in installed.find(self.paths, names):
            # An editable install inside a container names a folder of the container.
            if entry["root"].startswith(self.mount):
                found.setdefault(entry["engine"], entry)
        return [dict(entry, python=self.python, why=self.why) for entry in found.values()]


def own() -> Environment:
    """The environment of the running interpreter; ``-I`` left out the user's folder, which an engine would see."""
    paths = [path for path in sys.path if path]
    if sys.prefix == sys.base_prefix and site.check_enableusersite() is not None:
        at = next((i for i, path in enumerate(paths) if path.endswith("-packages")), len(paths))
        paths.insert(at, site.getusersitepackages())
    return Environment(sys.executable, paths, "the interpreter that was asked", own=True)


def prefix_of(python: str, mount: str = "") -> str:
    """The prefix of an interpreter's path: its environment when it is in one, else where the real one lives."""
    prefix = os.path.dirname(os.path.dirname(python))
    if mount or os.path.exists(os.path.join(prefix, "pyvenv.cfg")):
        return prefix
    return os.path.dirname(os.path.dirname(os.path.realpath(python)))


def of_prefix(prefix: str, why: str, mount: str = "", python: str = "") -> Environment:
    """The environment below ``prefix`` (``/opt/venv``, ``/usr``)."""
    top = mount + prefix
    sites = _sites(top)
    config = reading.text(os.path.join(top, "pyvenv.cfg"))
    home = re.search(r"^home\s*=\s*(.+)$", config, re.MULTILINE)
    if home and re.search(r"^include-system-site-packages\s*=\s*true", config, re.MULTILINE | re.IGNORECASE):
        sites += _sites(mount + os.path.dirname(home.group(1).strip()))
    paths = []
    for folder in sites:
        paths.append(folder)
        for pth in sorted(glob.glob(os.path.join(glob.escape(folder), "*.pth"))):
            lines = [line.strip() for line in reading.text(pth).splitlines()]
            added = [line for line in lines if line and not line.startswith(("#", "import ", "import\t"))]
            paths += [mount + line if os.path.isabs(line) else os.path.join(folder, line) for line in added]
    return Environment(python or _interpreter(top)[len(mount) :], paths, why, mount)


def _sites(prefix: str) -> list[str]:
    patterns = ["lib*/python3*/site-packages", "lib/python3*/dist-packages", "lib/python3/dist-packages"]
    if os.path.basename(prefix) == "usr":
        patterns.insert(0, "local/lib/python3*/dist-packages")
    return [found for pattern in patterns for found in sorted(glob.glob(os.path.join(glob.escape(prefix), pattern)))]


def _interpreter(prefix: str) -> str:
    paths = [os.path.join(prefix, "bin", name) for name in ("python3", "python")]
    return next((path for path in paths if os.path.lexists(path)), paths[0])


def common(engines: list[str], patterns: Iterable[str] = COMMON) -> list[Environment]:
    """Environments in the usual places that hold one of ``engines``."""
    home = glob.escape(os.path.expanduser("~"))
    until = time.monotonic() + MAX_SECONDS
    prefixes: dict[str, None] = {}
    for pattern in patterns:
        if time.monotonic() < until and len(prefixes) < MAX_PREFIXES:
            prefixes.update(dict.fromkeys(sorted(glob.glob(pattern.format(home=home)))))
    found = []
    for prefix in list(prefixes)[:MAX_PREFIXES]:
        if time.monotonic() < until and os.path.isdir(os.path.join(prefix, "lib")):
            environment = of_prefix(prefix, "a usual place for environments")
            if environment.engines(engines):
                found.append(environment)
    return found

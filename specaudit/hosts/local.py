"""``@local``: a Python environment of this machine. It is a machine too, so it can be patched and smoke-tested."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import msgspec

from specaudit.cache import DerivedCache
from specaudit.errors import TargetError
from specaudit.hosts import answers
from specaudit.hosts.base import Installation
from specaudit.hosts.folder import FolderHost
from specaudit.hosts.machine import PythonCaller
from specaudit.hosts.probe import environments, hardware, survey
from specaudit.hosts.shell import LocalShell
from specaudit.model import Environment, Server

#: Stands before the answer: what ``.pth`` files and sitecustomize print as an interpreter starts is not the answer.
_MARK = "specaudit asks: "
_ASK = f"""
import json, platform, sys
print("\\n{_MARK}" + json.dumps([sys.path[1:], platform.python_version(), sys.executable]), flush=True)
"""
_ELSEWHERE = "Name another place: --python PATH, dir:PATH, wheel:FILE, a machine, or a release such as vllm==0.33.0."
#: Seconds that an interpreter may take to start (a cold one on a network file system).
_START = 60.0


class LocalHost(FolderHost):
    """The environment of one interpreter of this machine.

    Args:
        python: the interpreter; ``None``: the one that runs this program. It is started once, with one line that prints
            its search path; nothing of the environment is imported.
        cache: see :class:`specaudit.hosts.folder.FolderHost`.
        metrics: whether to read the counters of running servers.
        proc: where processes are listed; tests point it elsewhere.

    Raises:
        TargetError: the interpreter cannot be started.
    """

    def __init__(
        self,
        python: str | None = None,
        cache: DerivedCache | None = None,
        *,
        metrics: bool = False,
        proc: str = "/proc",
    ) -> None:
        if python is None:
            path, self.version, self.python = environments.own().paths, platform.python_version(), sys.executable
        else:
            path, self.version, self.python = _ask(python)
        super().__init__("@local", path, cache)
        self.call = PythonCaller(LocalShell(self.label), self.python).call
        self._metrics = metrics
        self._proc = proc
        self._found: tuple[Installation, ...] = ()

    def installations(self, engines: tuple[str, ...]) -> tuple[Installation, ...]:
        """Engines of the environment, the one that would be imported first.

        Raises:
            TargetError: there is none; other environments of this machine that have one are named.
        """
        found = self._found = super().installations(engines)
        if found:
            return found
        elsewhere = [
            f"--python {place.python} ({entry['engine']} {entry['version']})"
            for place in environments.common(list(engines))
            for entry in place.engines(engines)
        ]
        hint = f"Use {' or '.join(elsewhere[:3])}." if elsewhere else _ELSEWHERE
        raise TargetError(f"The environment of {self.python} has none of: {', '.join(engines)}.", hint)

    def environment(self) -> Environment:
        """Versions of the environment, and the GPUs of this machine."""
        facts = super().environment()
        gpus = tuple(map(answers.gpu, hardware.gpus()[0]))
        return Environment(self.version, facts.torch, facts.cuda, facts.triton, _platform(), gpus)

    def servers(self) -> tuple[Server, ...]:
        """Running processes of this environment's engines."""
        packages = {os.path.realpath(os.path.join(i.root, i.engine)) for i in self._found}
        running = msgspec.convert(survey.servers(self._proc, self._metrics)[0], list[answers.Process])
        return tuple(answers.server(process) for process in running if process.package in packages)


def _platform() -> str:
    return f"{sys.platform}-{platform.machine()}"


def _ask(python: str) -> tuple[list[str], str, str]:
    """Search path, version and full path of an interpreter."""
    try:
        done = subprocess.run(
            [python, "-c", _ASK], stdin=subprocess.DEVNULL, capture_output=True, timeout=_START, check=False
        )
        lines = done.stdout.decode("utf-8", "replace").splitlines()
        answer = next((line for line in lines if line.startswith(_MARK)), "")
        path, version, executable = json.loads(answer.removeprefix(_MARK))
    except (OSError, subprocess.TimeoutExpired, ValueError) as bad:
        hint = "Check the path after --python or --venv."
        if os.path.isdir(python):
            why, hint = "it is a folder", "Name the interpreter in it, or with --venv the environment that it holds."
        elif isinstance(bad, OSError):
            why = bad.strerror or str(bad)
        else:
            why = "it gives no answer"
        raise TargetError(f"{python} is no Python interpreter that can be started: {why}.", hint) from bad
    return path, version, executable

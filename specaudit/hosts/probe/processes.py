"""Engine processes of this host, from ``/proc``: which interpreter, which files, which arguments.

Runs on Python 3.8 and newer. Arguments and environment are redacted here, before they are part of any answer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from specaudit.hosts.probe import configfile, redact

#: Variables that choose a runner, a backend or a device. Nothing else of an environment leaves the host.
SHOWN = re.compile(r"(VLLM|SGLANG|SGL|TRITON|FLASHINFER|TORCHINDUCTOR)_\w+|CUDA_VISIBLE_DEVICES|PYTHONPATH")
#: Bytes read of one process's files: arguments, environment, memory map.
LIMIT = 1 << 18
MAPS_LIMIT = 1 << 24
MAX_SERVERS = 64
_UNSEEN = "it belongs to another user, so the variables that choose a runner are not known; use --sudo"

_PYTHON = re.compile(r"(python|pypy)[0-9.]*t?$")
_MODULES = {
    "vllm": re.compile(r"vllm\.entrypoints\.(openai\.api_server|api_server|grpc_server)$"),
    "sglang": re.compile(r"sglang\.launch_server$"),
}
#: Modules of the commands, of which ``serve`` is one.
_COMMANDS = {"vllm": "vllm", "vllm.entrypoints.cli.main": "vllm", "sglang": "sglang", "sglang.cli.main": "sglang"}
#: The interpreter's option for a module, alone or behind others: -m, -um, -mvllm….
_MODULE = re.compile(r"-[A-Za-ln-z]*m(.*)$")
#: Titles that the engines give to their processes (vllm/utils/system_utils.py, sglang/srt/managers/scheduler.py).
_TITLES = {"vllm": re.compile(r"VLLM::"), "sglang": re.compile(r"sglang::")}
_ENGINE_OF = {"vllm": "vllm", "sgl_kernel": "sglang"}
_PORT = re.compile(r"[0-9]{1,5}\Z")
_CONTAINER = re.compile(r"([0-9a-f]{64})")


def engine_of(argv: list[str]) -> str:
    """Which engine's server a command line starts; empty when none.

    Only the program itself counts: ``bash -c "vllm serve …"``, ``docker run … vllm serve`` and ``grep vllm`` do not.
    """
    if not argv:
        return ""
    for engine, title in _TITLES.items():
        if title.match(argv[0]):
            return engine
    words = argv
    if _PYTHON.match(os.path.basename(argv[0])):
        words = argv[1:]
        while words and words[0].startswith("-") and not _MODULE.match(words[0]):
            words = words[2:] if words[0] in ("-X", "-W") else words[1:]
        option = _MODULE.match(words[0]) if words else None
        if option:
            words = [option.group(1), *words[1:]] if option.group(1) else words[1:]
            if words[1:2] == ["serve"] and words[0] in _COMMANDS:
                return _COMMANDS[words[0]]
            return next((name for name, module in _MODULES.items() if words and module.match(words[0])), "")
    if len(words) > 1 and os.path.basename(words[0]) in _MODULES and words[1] == "serve":
        return os.path.basename(words[0])
    return ""


def read(path: str, limit: int = LIMIT) -> bytes:
    """The bytes of a file of ``/proc``, empty when they are not ours to read."""
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError:
        return b""


def _forbidden(path: str) -> bool:
    try:
        with open(path, "rb"):
            return False
    except PermissionError:
        return True
    except OSError:  # the process has ended
        return False


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _strings(data: bytes) -> list[str]:
    return [part.decode("utf-8", "replace") for part in data.rstrip(b"\0").split(b"\0")] if data else []


def hidden(proc: str, seen: int) -> str:
    """Why some or all servers cannot be seen, of which ``seen`` are; empty: nothing says that they cannot."""
    if not os.path.exists(os.path.join(proc, "self")):
        return proc + " is not mounted there"
    if not os.path.exists(os.path.join(proc, "1")):
        return "the machine hides processes of other users (hidepid); use --sudo"
    return "" if seen < MAX_SERVERS else f"{MAX_SERVERS} engine processes are listed; there may be more"


def servers(proc: str) -> list[dict[str, Any]]:
    """One entry per server; the workers that it started are part of it.

    Keys: pid, engine, argv, config (what a configuration file adds to argv), env (all redacted), python (as the
    process sees it), mount (what precedes its paths for us, empty when it shares our file system), container, roots
    (folders it has mapped engine libraries from), searched (PYTHONPATH), own_network (whether its loopback is
    ours), address (where it listens), unseen (why its variables are not known; empty: they are).
    """
    found = {pid: entry for pid, entry in _processes(proc)}
    top = [entry for pid, entry in sorted(found.items()) if not _has_ancestor(proc, pid, found)]
    return top[:MAX_SERVERS]


def _processes(proc: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for name in os.listdir(proc) if os.path.isdir(proc) else []:
        if not name.isdigit() or int(name) == os.getpid():
            continue
        folder = os.path.join(proc, name)
        argv = _strings(read(os.path.join(folder, "cmdline")))
        executable = _link(os.path.join(folder, "exe"))
        engine = engine_of(argv)
        roots = {}
        if engine or _PYTHON.match(os.path.basename(executable)):
            maps = read(os.path.join(folder, "maps"), MAPS_LIMIT).decode("utf-8", "replace")
            roots = mapped(maps)
        engine = engine or next(iter(roots.values()), "")
        if engine:
            own = [root for root, of in roots.items() if of == engine]
            yield int(name), _entry(proc, name, engine, argv, executable, own)


def mapped(maps: str) -> dict[str, str]:
    """Folder -> engine, by the compiled libraries of engines in the memory of a process: it imports from there."""
    found = {}
    for line in maps.splitlines():
        path = line[line.find(" /") + 1 :]
        if not (path.startswith("/") and path.endswith(".so")):
            continue
        parts = path.split("/")
        # The last such folder: a checkout is often called like the package in it (/src/vllm/vllm/_C.abi3.so).
        at = max((number for number, part in enumerate(parts[:-1]) if part in _ENGINE_OF), default=0)
        if at > 1:
            found["/".join(parts[:at])] = _ENGINE_OF[parts[at]]
    return found


def _entry(proc: str, name: str, engine: str, argv: list[str], executable: str, roots: list[str]) -> dict[str, Any]:
    folder = os.path.join(proc, name)
    unseen = _UNSEEN if _forbidden(os.path.join(folder, "environ")) else ""
    environ = dict(item.partition("=")[::2] for item in _strings(read(os.path.join(folder, "environ"))))
    theirs, ours = (_link(os.path.join(proc, who, "ns", "mnt")) for who in (name, "self"))
    network = [_link(os.path.join(proc, who, "ns", "net")) for who in (name, "self")]
    container = _container(proc, name)
    if container == _container(proc, "self"):  # we are in it as well
        container = ""
    # Namespaces of another user's process are not ours to read: then a container's are taken for its own.
    mount = os.path.join(folder, "root") if (theirs and ours and theirs != ours) or (container and not theirs) else ""
    return {
        "pid": int(name),
        "engine": engine,
        "argv": redact.arguments(argv),
        "config": configfile.arguments(argv, _link(os.path.join(folder, "cwd")), mount),
        "env": {key: redact.named(key, value) for key, value in sorted(environ.items()) if SHOWN.fullmatch(key)},
        "python": _interpreter(argv, environ, executable),
        "mount": mount,
        "container": container,
        "roots": roots,
        "searched": [path for path in environ.get("PYTHONPATH", "").split(":") if os.path.isabs(path)],
        "own_network": network[0] == network[1] or not (network[0] or container),
        "address": address(argv, engine),
        "unseen": unseen,
    }


def _container(proc: str, name: str) -> str:
    found = _CONTAINER.search(read(os.path.join(proc, name, "cgroup")).decode("ascii", "replace"))
    return found.group(1)[:12] if found else ""


def _interpreter(argv: list[str], environ: dict[str, str], executable: str) -> str:
    """The interpreter's path in its environment: ``exe`` has followed the links out of a venv, ``argv`` has not."""
    first = argv[0] if argv else ""
    if os.path.isabs(first) and _PYTHON.match(os.path.basename(first)):
        return first
    if environ.get("VIRTUAL_ENV"):
        return os.path.join(environ["VIRTUAL_ENV"], "bin", "python3")
    if first and "/" not in first and _PYTHON.match(first):
        for path in environ.get("PATH", "").split(":"):
            if os.path.isabs(path) and os.path.lexists(os.path.join(path, first)):
                return os.path.join(path, first)
    return executable


def _has_ancestor(proc: str, pid: int, among: dict[int, dict[str, Any]]) -> bool:
    for _ in range(32):
        stat = read(os.path.join(proc, str(pid), "stat"))
        # "pid (comm) state ppid …"; comm may hold spaces and parentheses.
        fields = stat.rpartition(b")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else 0
        if pid in among:
            return True
        if pid <= 1:
            return False
    return False


def address(argv: list[str], engine: str) -> dict[str, Any]:
    """Where a server listens, as its arguments say (vLLM's default port is 8000, SGLang's 30000)."""
    found: dict[str, Any] = {"host": "127.0.0.1", "port": 30000 if engine == "sglang" else 8000, "tls": False}
    words = [part for word in argv for part in (word.split("=", 1) if word.startswith("--") else [word])]
    for option, value in zip(words, words[1:]):  # noqa: B905, RUF007 (Python 3.8)
        if option == "--port" and _PORT.match(value) and int(value) < 1 << 16:
            found["port"] = int(value)
        elif option == "--host" and value not in ("0.0.0.0", "::", "localhost", ""):
            found["host"] = value
        elif option == "--ssl-certfile":
            found["tls"] = True
    return found

"""Target -> Place: an engine, the machine that it lies on (when it can be changed), and what stands there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from specaudit.advice import filled, named
from specaudit.cache import Cache
from specaudit.engines import ENGINES
from specaudit.errors import TargetError
from specaudit.hosts.base import Host, Installation
from specaudit.hosts.bundle import bundle
from specaudit.hosts.opening import Means, opened
from specaudit.model import Server, Target
from specaudit.patching.client import AgentClient, Caller
from specaudit.snapshot import Snapshot, take
from specaudit.targets import Kind, kind_of

if TYPE_CHECKING:
    from specaudit.hosts.machines import Machines

_NAME_IT = "Name the folder that holds it."
#: Kinds of targets that are no installed engine: they can be read only.
_SOURCES = (Kind.WHEEL, Kind.GIT, Kind.RELEASE)


@dataclass(frozen=True, slots=True)
class Shared:
    """A file that other names lead to. ``others`` were found; ``unknown`` more hard links exist somewhere."""

    path: str
    symlink: str
    others: tuple[str, ...]
    unknown: int


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a change of some files touches beside them.

    ``aliases`` are other paths that lead to the same package folder, so they see the change; ``shared`` files have
    other names that keep the old content; ``processes`` (pid, name or command line) run the old code until restarted.
    """

    shared: tuple[Shared, ...] = ()
    aliases: tuple[str, ...] = ()
    processes: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """One engine of one target. ``client`` is ``None`` for a source (a wheel, a release, a commit): planned on only.

    ``asked`` is the target as a command line names it (:mod:`specaudit.advice`).
    """

    target: Target
    host: Host
    installation: Installation
    client: AgentClient | None
    cache: Cache
    asked: str

    def snapshot(self, wants: Callable[[str], bool] = lambda path: True) -> Snapshot:
        """The engine's Python files, as they are now; of a machine, only those that are wanted are fetched."""
        installations = self.host.installations((self.installation.engine,))
        found = next(one for one in installations if one.root == self.installation.root)
        return take(self.host, self.target, found, wants, self.cache, self.cache)

    def agent(self) -> AgentClient:
        """The patch agent.

        Raises:
            TargetError: nothing can be changed here.
        """
        if self.client is None:
            raise TargetError(
                f"{self.target.spec} cannot be changed in place.",
                "Name an installed engine; a patch alone: `specaudit patch … --emit FILE.patch`.",
            )
        return self.client

    def call(self, module: str, request: dict[str, Any], python: str | None = None, deadline: float = 60.0) -> Any:
        """Runs one stdlib-only module of this program on the machine and returns its answer's header."""
        machine = self.agent().machine
        whole = {"root": self.installation.root, "engine": self.installation.engine, **request}
        return machine.call(bundle((module,)), whole, python=python, deadline=deadline).header

    def surroundings(self, paths: tuple[str, ...]) -> Surroundings:
        """Who shares these files, and which processes have loaded the engine."""
        if self.client is None:
            return Surroundings()
        seen = self.call("specaudit.patching.sharing", {"paths": list(paths)})
        shared = []
        for entry in seen["files"]:
            links = 0 if entry["symlink"] else max(0, int(entry["links"]) - 1 - len(entry["others"]))
            if links or entry["symlink"] or entry["others"]:
                shared.append(Shared(entry["path"], entry["symlink"], tuple(entry["others"]), links))
        return Surroundings(tuple(shared), tuple(seen["aliases"]), _processes(seen["processes"], self.host.servers()))


def _processes(loaded: list[dict[str, Any]], servers: tuple[Server, ...]) -> tuple[tuple[int, str], ...]:
    named = {int(entry["pid"]): str(entry["name"]) for entry in loaded}
    named.update({server.pid: " ".join(server.argv) for server in servers})
    return tuple(sorted(named.items()))


@contextmanager
def place(
    target: Target,
    cache: Cache,
    engine: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
    consent: Callable[[str], bool] = lambda _: False,
    machines: Machines | None = None,
) -> Iterator[Place]:
    """The engine of a target, closed afterwards; ``machines`` says how machines are reached.

    Commands that errors advise, of what is done there too, name the target with its options.

    Raises:
        SpecauditError: the target cannot be reached, or holds no engine.
    """
    names = (engine,) if engine else tuple(ENGINES)
    unknown = [name for name in names if name not in ENGINES]
    if unknown:
        raise TargetError(f"{unknown[0]} is no engine that is known.", f"Known engines: {', '.join(ENGINES)}.")
    asked = named(target, machines, engine)
    with filled(asked), opened(target, Means(cache, lambda path: True, progress, consent, machines)) as host:
        found = host.installations(names)
        if not found:
            raise TargetError(f"{host.label} holds none of: {', '.join(names)}.", _kept(target, names) or _NAME_IT)
        client = None
        if not is_source(target):
            client = AgentClient(_caller(host), found[0].root, found[0].engine, label=target.spec)
        yield Place(target, host, found[0], client, cache, asked)


def is_source(target: Target) -> bool:
    """Whether a target is no installed engine, so that nothing can be changed or run there."""
    return kind_of(target.spec) in _SOURCES


def _kept(target: Target, engines: tuple[str, ...]) -> str:
    """Says what the agent kept beside an engine that was uninstalled since: no command reaches it any more."""
    if kind_of(target.spec) is not Kind.FOLDER:
        return ""
    root = Path(target.spec[len("dir:") :]).expanduser()
    kept = [str(folder) for name in engines if (folder := root / f".specaudit-{name}").is_dir()]
    return f"An engine that was patched there is gone; remove what was kept of it: {', '.join(kept)}." if kept else ""


def _caller(host: Host) -> Caller:
    """Where the agent runs: on the host itself, or, for a folder of this machine, here."""
    if hasattr(host, "call"):
        return cast(Caller, host)
    from specaudit.hosts.local import LocalHost

    return LocalHost()

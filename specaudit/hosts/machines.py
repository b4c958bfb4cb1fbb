"""How the machines of one run are reached: what the user says about SSH, containers and sudo, and one connector."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specaudit.cache import DerivedCache
from specaudit.errors import UnreachableError
from specaudit.hosts.remote import Looking, RemoteHost
from specaudit.hosts.shell import Shell
from specaudit.hosts.ssh.config import SshOptions
from specaudit.hosts.via import PrefixedShell, words_of
from specaudit.model import Target

if TYPE_CHECKING:
    from specaudit.hosts.ssh.connection import Connector

#: Seconds for each answer of a machine, and the least and the most that may be given.
DEADLINE = 120.0
DEADLINES = (1.0, 86400.0)


@dataclass(frozen=True, slots=True)
class HostOptions:
    """What holds for one machine alone, from an inventory or for all from the command line.

    ``address`` is what ``ssh`` is given (default: the target's name); ``ssh`` are ``-o`` options.
    """

    address: str | None = None
    ssh: tuple[str, ...] = ()
    sudo: bool = False
    deadline: float | None = None


@dataclass(slots=True)
class Machines:
    """Opens machines, and ends what they share. Used by several threads at once.

    ``per_host`` is looked up by the target's name; ``everywhere`` holds for those without an entry. ``connect``
    makes the shell of a machine (its name, its options); default: over SSH. The fake host comes in here.
    """

    ssh: SshOptions = field(default_factory=SshOptions)
    everywhere: HostOptions = field(default_factory=HostOptions)
    per_host: Mapping[str, HostOptions] = field(default_factory=dict)
    metrics: bool = False
    looking: Looking = field(default_factory=Looking)
    connect: Callable[[str, HostOptions], Shell] | None = None
    note: Callable[[str], None] = lambda _: None
    _open: list[RemoteHost] = field(default_factory=list)
    _connector: Connector | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def opened(self, target: Target, cache: DerivedCache | None = None) -> Iterator[RemoteHost]:
        """The machine that a target names; its connection is made when it is first needed, and ended afterwards.

        Raises:
            ConfigurationError: ``via`` cannot work.
        """
        options = self.per_host.get(target.spec, self.everywhere)
        via = words_of(target.via) if target.via is not None else ()
        shell = self._shell(target, options)
        wrapped = PrefixedShell(shell, via, options.sudo) if via or options.sudo else shell
        host = RemoteHost(
            wrapped,
            python=target.python,
            cache=cache,
            metrics=self.metrics,
            deadline=options.deadline or DEADLINE,
            looking=self.looking,
        )
        with self._lock:
            if self._closed:  # a thread of a run that was interrupted
                raise UnreachableError(f"{target.spec} was not asked any more.", "Run it again.")
            self._open.append(host)
        try:
            yield host
        finally:
            with self._lock:
                self._open.remove(host)
            for text in shell.notes:
                self.note(text)
            host.close()

    def words(self, target: Target) -> list[str]:
        """A machine as a command line names it: its address, and the options with which it is reached."""
        options = self.per_host.get(target.spec, self.everywhere)
        words = [options.address or target.spec]
        words += ["--sudo"] if options.sudo else []
        words += ["-F", str(self.ssh.file)] if self.ssh.file else []
        words += [part for option in options.ssh for part in ("-o", option)]
        words += ["--host-keys", self.ssh.policy] if self.ssh.policy else []
        words += ["--deadline", f"{options.deadline:g}"] if options.deadline else []
        return words

    def close(self) -> None:
        """Ends the run: all connections, also those that other threads are waiting for or still make."""
        with self._lock:
            self._closed = True
            hosts, connector = list(self._open), self._connector
        if connector is not None:
            connector.close()
        for host in hosts:
            host.close()

    def _shell(self, target: Target, options: HostOptions) -> Shell:
        if self.connect is not None:
            return self.connect(target.spec, options)
        from specaudit.hosts.ssh.connection import Connector
        from specaudit.hosts.ssh.shell import SshShell

        with self._lock:
            if self._connector is None:
                self._connector = Connector(self.ssh)
        return SshShell(options.address or target.spec, self._connector, options.ssh, target.spec)

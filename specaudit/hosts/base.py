"""The Host seam: what a place must offer so that an engine on it can be examined and, if it is a machine, changed.

Two kinds of place: a *source* only holds files (a folder, a wheel, an index); a *machine* also runs a Python script
that is sent to it. Scan probe and patch agent are such scripts: stdlib only, a request in, a framed answer out. So one
method, :meth:`Machine.call`, carries every conversation, and a fake host in tests implements two methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from specaudit.model import Environment, Failure, FileEntry, NotLooked, Server


@dataclass(frozen=True, slots=True)
class Installation:
    """One engine found at a place.

    ``root`` is the folder that holds the package (a site-packages or a checkout); opaque to everyone but its host.
    ``source`` is the scan document's ``engine.source``: dist | editable | dir | wheel:FILENAME | sdist.
    ``record`` maps package-relative paths to the SHA-256 (hex) that the wheel's RECORD promises; empty: none.
    ``patched`` maps paths to the SHA-256 that ``specaudit patch`` gave them, as its journal there says.
    """

    engine: str
    version: str
    root: str
    source: str
    python: str = ""
    record: Mapping[str, str] = field(default_factory=dict)
    patched: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The ``.py`` files of one installation with hashes taken from the bytes themselves, and what came with them.

    ``ops`` holds the names of registered compiled operators read from the strings of ``.so`` files
    (``namespace::name``); when they could not be read, ``not_looked`` says so.
    """

    files: tuple[FileEntry, ...]
    ops: tuple[str, ...] = ()
    not_looked: tuple[NotLooked, ...] = ()
    errors: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a script sent to a machine answered: its header (plain JSON values) and named blobs."""

    header: Mapping[str, Any]
    blobs: Mapping[str, bytes] = field(default_factory=dict)


class Host(Protocol):
    """A place that holds engines. Methods raise :class:`specaudit.errors.SpecauditError` only."""

    @property
    def label(self) -> str:
        """How the user named this place (``gpu1``, ``@local``, ``wheel:FILE``)."""
        ...

    def installations(self, engines: tuple[str, ...]) -> tuple[Installation, ...]:
        """Engines found here, the one that would be imported first."""
        ...

    def manifest(self, installation: Installation) -> Manifest:
        """Paths, hashes and sizes of the installation's ``.py`` files."""
        ...

    def read(self, installation: Installation, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """The bytes of the given files, in any order; a file that cannot be read is left out."""
        ...

    def environment(self) -> Environment:
        """Facts about Python, torch and GPUs that need no import."""
        ...

    def servers(self) -> tuple[Server, ...]:
        """Running engine processes; empty where nothing runs (a wheel)."""
        ...


@runtime_checkable
class Direct(Protocol):
    """A host whose files can be read one by one, at the cost of a local read: nothing is fetched ahead or stored."""

    def fetch(self, installation: Installation, path: str) -> bytes:
        """One file's bytes. Raises ``OSError``."""
        ...


class Machine(Host, Protocol):
    """A host that runs Python."""

    def call(
        self,
        script: str,
        request: Mapping[str, Any],
        *,
        blobs: Mapping[str, bytes] = ...,
        python: str | None = None,
        deadline: float = 60.0,
    ) -> Answer:
        """Runs a stdlib-only script on the machine's Python (``-I -``) and returns its framed answer.

        Args:
            script: source text; it finds its request through the frame protocol of :mod:`specaudit.hosts.frame`.
            request: plain JSON values.
            blobs: named bytes that travel with the request (new file contents, say).
            python: interpreter to use; default the machine's own choice.
            deadline: seconds until :class:`specaudit.errors.DeadlineError`.
        """
        ...

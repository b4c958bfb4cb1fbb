"""What carries a call to a Python: a *shell* runs one command, feeds its stdin and hands on its stdout.

SSH, a local subprocess and the fake host are shells; ``--via`` and ``--sudo`` change the command on its way to one
(:mod:`specaudit.hosts.via`). Everything above (:mod:`specaudit.hosts.machine`) is the same for all of them.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from specaudit.errors import DeadlineError, UnreachableError

#: Takes stdout chunk by chunk; true: enough, stop reading.
Sink = Callable[[bytes], bool]

#: Bytes of stderr that are kept: its end says what went wrong.
STDERR_TAIL = 4096
#: Bytes of stderr after which a command is given up.
MAX_STDERR = 64 << 20
CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: exit status (``None``: not known, we stopped reading first) and the end of its stderr."""

    status: int | None
    stderr: str


class Shell(Protocol):
    """Runs commands somewhere."""

    @property
    def label(self) -> str:
        """How the user named the place."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the connection."""
        ...

    @property
    def unread(self) -> tuple[str, ...]:
        """What was not read of the user's configuration."""
        ...

    @property
    def prefix(self) -> tuple[str, ...]:
        """What is put before each command (``docker exec -i NAME``)."""
        ...

    def run(self, command: Sequence[str], stdin: bytes, sink: Sink, deadline: float) -> Ended:
        """Runs ``command``, writes ``stdin`` to it, closes it, and gives stdout to ``sink`` until that has enough.

        Raises:
            DeadlineError: ``deadline`` seconds passed.
            UnreachableError: the connection could not be made, or broke.
        """
        ...

    def close(self) -> None:
        """Ends the connection, if there is one."""
        ...


class Tail:
    """The end of a stream, and how much there was of it."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._kept = b""
        self.received = 0

    def feed(self, chunk: bytes) -> None:
        """Takes more bytes.

        Raises:
            UnreachableError: more than :data:`MAX_STDERR` bytes came.
        """
        self.received += len(chunk)
        self._kept = (self._kept + chunk)[-STDERR_TAIL:]
        if self.received > MAX_STDERR:
            raise UnreachableError(
                f"{self.label} wrote more than {MAX_STDERR >> 20} MiB to stderr.", "Look at its login scripts."
            )

    def text(self) -> str:
        """The kept end, printable."""
        return printable(self._kept.decode("utf-8", "replace").replace("\r", "").strip())


def printable(text: str) -> str:
    """``text`` without the control characters with which a host could write on the user's terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


def harmless(text: str) -> str:
    """Printable ``text`` of which no line is a command to a CI service that reads the log.

    GitHub obeys lines that begin with ``::name``, after white space too, and ``##[name]`` anywhere in a line.
    """
    return re.sub(r"(?m)^(\s*)::", r"\1: :", printable(text).replace("##[", "## ["))


def deadline_error(label: str, seconds: float) -> DeadlineError:
    """The error for a command that took too long."""
    return DeadlineError(
        f"{label} did not answer within {seconds:g} s; the command was stopped.",
        "Allow more with --deadline, or see what blocks there (a dead network file system, a hung nvidia-smi).",
    )


class LocalShell:
    """Runs commands on this machine, in a process group of their own."""

    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()

    def __init__(self, label: str = "@local") -> None:
        self._label = label

    @property
    def label(self) -> str:
        """``@local``."""
        return self._label

    def run(self, command: Sequence[str], stdin: bytes, sink: Sink, deadline: float) -> Ended:
        """See :meth:`Shell.run`."""
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise UnreachableError(
                f"{command[0]} cannot be started: {error.strerror}.", "Check that it exists."
            ) from error
        tail = Tail(self._label)
        try:
            _pump(process, stdin, sink, tail, deadline)
            # What is left of the command gets a moment to leave by itself.
            status: int | None = process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end(process, tail)
        return Ended(status, tail.text())

    def close(self) -> None:
        """Nothing to end."""


def _pump(process: subprocess.Popen[bytes], stdin: bytes, sink: Sink, tail: Tail, deadline: float) -> None:
    """Moves bytes between us and the process until ``sink`` has enough or stdout ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    until = time.monotonic() + deadline
    left = memoryview(stdin)
    for stream in (process.stdin, process.stdout, process.stderr):
        os.set_blocking(stream.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdin, selectors.EVENT_WRITE)
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.register(process.stderr, selectors.EVENT_READ)
        while True:
            remaining = until - time.monotonic()
            if remaining <= 0:
                raise deadline_error(tail.label, deadline)
            for key, _ in selector.select(remaining):
                if key.fileobj is process.stdin:
                    try:
                        left = left[os.write(key.fd, left[:CHUNK]) :]
                    except BrokenPipeError:
                        left = left[:0]
                    if not left:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                    continue
                chunk = os.read(key.fd, CHUNK)
                if key.fileobj is process.stdout and (not chunk or sink(chunk)):
                    return
                if key.fileobj is process.stderr:
                    tail.feed(chunk)
                    if not chunk:
                        selector.unregister(process.stderr)


def _end(process: subprocess.Popen[bytes], tail: Tail) -> None:
    """Leaves neither a process nor a pipe behind."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stderr is not None:
        tail.feed(process.stderr.read() or b"")
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()

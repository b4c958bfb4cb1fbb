"""The fake host: behaves like a remote machine and is none. Ships, so that whatever needs one can be tried without SSH.

:class:`FakeShell` runs the real command with the real frame protocol in a subprocess of this machine, and misbehaves on
request, the way hosts do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from specaudit.errors import UnreachableError
from specaudit.hosts.shell import CHUNK, Ended, LocalShell, Sink, deadline_error

#: unreachable: no connection. noise: 100 kB before the answer. stderr: 2 MB beside it. cut: the connection dies in the
#: middle of the answer. hang: the command never answers. no-python: none there. garbled: one byte of the answer is
#: wrong.
Fault = Literal["unreachable", "noise", "stderr", "cut", "hang", "no-python", "garbled"]


@dataclass(slots=True)
class Traffic:
    """What went over the connection so far: calls, and bytes in both directions."""

    calls: int = 0
    sent: int = 0
    received: int = 0


class FakeShell:
    """A shell on a host that does not exist.

    Args:
        label: the host's name.
        faults: what is wrong with it.
    """

    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()

    def __init__(self, label: str = "fake", faults: Iterable[Fault] = ()) -> None:
        self._label = label
        self.faults: set[Fault] = set(faults)
        self.traffic = Traffic()
        self.commands: list[tuple[str, ...]] = []

    @property
    def label(self) -> str:
        """The host's name."""
        return self._label

    def run(self, command: Sequence[str], stdin: bytes, sink: Sink, deadline: float) -> Ended:
        """See :meth:`specaudit.hosts.shell.Shell.run`."""
        if "unreachable" in self.faults:
            raise UnreachableError(f"{self._label} refused the connection.", "Check its name and port.")
        self.commands.append(tuple(command))
        self.traffic.calls += 1
        self.traffic.sent += len(stdin)
        if "hang" in self.faults:
            raise deadline_error(self._label, deadline)
        if "no-python" in self.faults:
            return Ended(127, "specaudit: no usable Python;")
        answer = bytearray()

        def keep(chunk: bytes) -> bool:
            answer.extend(chunk)
            return False

        ended = LocalShell(self._label).run(command, stdin, keep, deadline)
        if "garbled" in self.faults:
            answer[-40] ^= 0xFF
        if "noise" in self.faults:
            answer[:0] = b"Welcome to the machine!\n" * 4200
        stderr = "warning: locale\n" * 131072 if "stderr" in self.faults else ended.stderr
        for start in range(0, len(answer) // 2 if "cut" in self.faults else len(answer), CHUNK):
            chunk = bytes(answer[start : start + CHUNK])
            self.traffic.received += len(chunk)
            if sink(chunk):
                break
        return Ended(None if "cut" in self.faults else ended.status, stderr[-4096:])

    def close(self) -> None:
        """Nothing to end."""

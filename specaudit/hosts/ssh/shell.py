"""One SSH session as a shell: see :class:`specaudit.hosts.shell.Shell`."""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections.abc import Iterator, Sequence

import paramiko

from specaudit.errors import UnreachableError
from specaudit.hosts.shell import CHUNK, Ended, Sink, Tail, deadline_error, printable
from specaudit.hosts.ssh.connection import Connection, Connector

#: Seconds after the end of stdout within which a command should say how it ended.
STATUS_SECONDS = 5.0
#: Seconds for which a server may have no room for the next session: it counts one until its process has ended.
ROOM_SECONDS = 5.0
#: Seconds that saying goodbye may take.
CLOSE_SECONDS = 2.0


class SshShell:
    """Runs commands on one host; connects at the first, and again when the connection has died.

    Args:
        destination: as for ``ssh``.
        connector: the run's connector, which owns the jump hosts.
        extra: ``-o`` options for this host.
        label: its name in messages, default the destination.
    """

    def __init__(
        self, destination: str, connector: Connector, extra: tuple[str, ...] = (), label: str | None = None
    ) -> None:
        self._destination = destination
        self._connector = connector
        self._extra = extra
        self._label = label or destination
        self._connection: Connection | None = None
        self._sessions = 0

    @property
    def label(self) -> str:
        """The host as the user named it."""
        return self._label

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about the connection: a host key was added, or accepted though it changed."""
        return tuple(self._connection.notes) if self._connection else ()

    @property
    def unread(self) -> tuple[str, ...]:
        """What was not read of the user's configuration."""
        return self._connection.config.notes if self._connection else ()

    @property
    def prefix(self) -> tuple[str, ...]:
        """Nothing."""
        return ()

    def run(self, command: Sequence[str], stdin: bytes, sink: Sink, deadline: float) -> Ended:
        """See :meth:`specaudit.hosts.shell.Shell.run`; time to connect has limits of its own."""
        connection = self._connected()
        until = time.monotonic() + deadline
        try:
            channel = self._session(connection)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise self._broken(connection, f"opens no session: {error}") from error
        try:
            self._start(connection, channel, command, until, deadline)
            return self._converse(connection, channel, stdin, sink, until, deadline)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise self._broken(connection, f"broke the connection: {str(error) or type(error).__name__}") from error
        finally:
            _goodbye(connection, channel)

    def _session(self, connection: Connection) -> paramiko.Channel:
        patience = time.monotonic() + (ROOM_SECONDS if self._sessions else 0)
        while True:
            try:
                channel = connection.transport.open_session(timeout=connection.transport.channel_timeout)
            except paramiko.ChannelException:  # MaxSessions
                if time.monotonic() > patience:
                    raise
                time.sleep(0.1)
            else:
                self._sessions += 1
                return channel

    def _start(
        self,
        connection: Connection,
        channel: paramiko.Channel,
        command: Sequence[str],
        until: float,
        deadline: float,
    ) -> None:
        with _closed_at(until, channel):  # paramiko waits for the answer without a limit
            try:
                # The login shell must not stay in between: it may print, or wait, at its end.
                channel.exec_command("exec " + shlex.join(command))
            except paramiko.SSHException as error:
                if time.monotonic() > until:
                    raise deadline_error(self.label, deadline) from error
                if connection.alive:
                    raise UnreachableError(
                        f"{self.label} lets {connection.config.user} in, but refuses to run a command.",
                        "Look at that host's sshd log; some accounts and devices only forward ports or files.",
                    ) from error
                raise

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self) -> Connection:
        if self._connection is None or not self._connection.alive:
            self.close()
            self._connection = self._connector.connect(self._destination, self._extra)
            self._sessions = 0
        return self._connection

    def _converse(
        self,
        connection: Connection,
        channel: paramiko.Channel,
        stdin: bytes,
        sink: Sink,
        until: float,
        deadline: float,
    ) -> Ended:
        """Feeds stdin and drains stderr beside stdout: each stops the others once its window is full."""
        tail = Tail(self.label)
        errors: list[UnreachableError] = []
        feeder = threading.Thread(target=_feed, args=(channel, stdin), daemon=True)
        drain = threading.Thread(target=_drain, args=(channel, tail, errors), daemon=True)
        feeder.start()
        drain.start()
        channel.settimeout(1.0)
        enough = False
        while not enough:
            if time.monotonic() > until:
                raise deadline_error(self.label, deadline)
            try:
                chunk = channel.recv(CHUNK)
            except TimeoutError:
                continue
            if not chunk:
                break
            enough = sink(chunk)
        if errors:
            raise errors[0]
        status: int | None = None
        if not enough:
            channel.status_event.wait(min(STATUS_SECONDS, max(0.0, until - time.monotonic())))
            drain.join(1.0)
            status = channel.exit_status if channel.exit_status >= 0 else None
            if status is None:  # ended by a signal, or the connection did: paramiko's thread may be about to notice
                connection.transport.join(0.5)
                if not connection.alive:
                    raise self._broken(connection, "ended the connection before its command was done")
        return Ended(status, tail.text())

    def _broken(self, connection: Connection, what: str) -> UnreachableError:
        cause = connection.transport.get_exception()
        text = f"{what.rstrip('.')}{f' ({cause})' if cause else ''}"
        return UnreachableError(printable(f"{self.label} {text}."), "Try again; look at that host's sshd log.")


@contextlib.contextmanager
def _closed_at(until: float, channel: paramiko.Channel) -> Iterator[None]:
    """Closes the channel at a moment, which ends whoever waits for it."""
    timer = threading.Timer(max(0.0, until - time.monotonic()), _close, (channel,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _goodbye(connection: Connection, channel: paramiko.Channel) -> None:
    """Closes the channel; where that waits for a server that reads nothing any more, the connection."""
    closing = threading.Thread(target=_close, args=(channel,), daemon=True)
    closing.start()
    closing.join(CLOSE_SECONDS)
    if closing.is_alive():
        connection.transport.close()


def _close(channel: paramiko.Channel) -> None:
    # It says goodbye to a server that may be gone.
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        channel.close()


def _feed(channel: paramiko.Channel, data: bytes) -> None:
    sent = 0
    while sent < len(data) and not channel.closed:
        try:
            sent += channel.send(data[sent : sent + CHUNK])
        except TimeoutError:  # of the channel: it holds for every direction
            continue
        except (OSError, EOFError, paramiko.SSHException):
            return  # the command ended, or the connection did: the reader of stdout sees it too
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        channel.shutdown_write()


def _drain(channel: paramiko.Channel, tail: Tail, errors: list[UnreachableError]) -> None:
    while True:
        try:
            chunk = channel.recv_stderr(CHUNK)
            if not chunk:
                return
            tail.feed(chunk)
        except TimeoutError:
            continue
        except UnreachableError as error:
            errors.append(error)
            _close(channel)
            return
        except (OSError, EOFError):
            return

"""Servers that speak SSH badly, or not at all: one error, within the time-outs, and never a traceback."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import paramiko
import pytest

from specaudit.errors import DeadlineError, IncompleteError, UnreachableError
from specaudit.hosts.machine import PythonCaller
from specaudit.hosts.ssh import shell
from specaudit.hosts.ssh.config import Timeouts
from tests.hosts.conftest import WHOAMI, Client, Keys
from tests.hosts.sshd import Sshd, descendants

Server = Callable[..., Sshd]
Talk = Callable[[socket.socket], None]


@pytest.fixture
def listen(client: Client, keys: Keys) -> Iterator[Callable[[Talk], str]]:
    """``listen(talk)``: a server that talks to whoever connects; the name under which the client knows it."""
    closing: list[socket.socket] = []

    def start(talk: Talk) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        closing.append(listener)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    stream, _ = listener.accept()
                    closing.append(stream)
                    with contextlib.suppress(OSError):
                        talk(stream)

        threading.Thread(target=serve, daemon=True).start()
        return client.host("gpu1", Sshd(client.folder, [keys.host], port=listener.getsockname()[1]))

    yield start
    for stream in closing:
        with contextlib.suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)
        stream.close()


def packet(payload: bytes) -> bytes:
    """An SSH packet before any encryption."""
    pad = 8 - (len(payload) + 5) % 8
    pad += 8 if pad < 4 else 0
    return struct.pack(">IB", len(payload) + pad + 1, pad) + payload + bytes(pad)


HELLO = b"SSH-2.0-x\r\n"
KEXINIT = b"\x14" + bytes(16)
GARBAGE = {
    "random": b"\xff" * 40,
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "old": b"SSH-1.5-old\r\n",
    "escapes": b"SSH-9.9-\x1b[2J\r\n",
    "no packet": HELLO + b"\xff" * 40,
    "no text": HELLO + packet(KEXINIT + (struct.pack(">I", 3) + b"\xff\xfe\xfd") * 10 + bytes(5)),
    "cut": HELLO + packet(b"\x14\0"),
    "endless name": HELLO + packet(KEXINIT + b"\xff" * 4),
    "empty": HELLO + packet(b""),
    "goodbye": HELLO + packet(b"\x01" + struct.pack(">II", 2, 9) + b"\x1b[2Jgo!!!" + bytes(4)),
    "unknown": HELLO + packet(b"\xc8what"),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_one_error(client: Client, listen: Callable[[Talk], str], name: str) -> None:
    def talk(stream: socket.socket) -> None:
        stream.sendall(GARBAGE[name])
        stream.shutdown(socket.SHUT_WR)

    with pytest.raises(UnreachableError, match=r"gpu1 \(127\.0\.0\.1 port") as caught:
        client.whoami(listen(talk), timeouts=Timeouts(banner=5, handshake=5))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("drop", [b"x", b"x\r\n"])
def test_one_byte_after_the_other_is_not_waited_for(client: Client, listen: Callable[[Talk], str], drop: bytes) -> None:
    def talk(stream: socket.socket) -> None:
        while True:
            stream.sendall(drop)
            time.sleep(0.1)

    began = time.monotonic()
    with pytest.raises(UnreachableError, match="the key exchange did not finish"):
        client.whoami(listen(talk), timeouts=Timeouts(banner=0.5, handshake=0.5))
    assert time.monotonic() - began < 8


class Accepting(paramiko.ServerInterface):
    """Lets everyone in; ``started`` is what happens when a command is to be run, ``opened`` when a session is."""

    def __init__(self, started: Callable[[paramiko.Channel], bool], opened: Callable[[], object]) -> None:
        self._started = started
        self._opened = opened

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_request(self, kind: str, chanid: int) -> int:
        self._opened()
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        return self._started(channel)


@pytest.fixture
def accepting(keys: Keys, listen: Callable[[Talk], str]) -> Iterator[Callable[..., str]]:
    """``accepting(started)``: a server of our own making, see :class:`Accepting`."""
    transports: list[paramiko.Transport] = []

    def start(started: Callable[[paramiko.Channel], bool], opened: Callable[[], object] = lambda: None) -> str:
        def talk(stream: socket.socket) -> None:
            transport = paramiko.Transport(stream)
            transports.append(transport)
            transport.add_server_key(paramiko.Ed25519Key.from_private_key_file(str(keys.host)))
            transport.start_server(server=Accepting(started, opened))

        return listen(talk)

    yield start
    for transport in transports:
        transport.close()


def test_a_session_that_is_not_opened(client: Client, accepting: Callable[..., str]) -> None:
    over = threading.Event()
    name = accepting(lambda channel: False, lambda: over.wait(60))
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="gpu1 opens no session: Timeout opening channel"):
        client.whoami(name, timeouts=Timeouts(channel=0.5))
    assert time.monotonic() - began < 10
    over.set()


def test_a_command_that_is_neither_begun_nor_refused(client: Client, accepting: Callable[..., str]) -> None:
    over = threading.Event()
    caller = PythonCaller(client.shell(accepting(lambda channel: over.wait(60))))
    began = time.monotonic()
    with pytest.raises(DeadlineError, match=r"gpu1 did not answer within 0\.9 s"):
        caller.call(WHOAMI, {}, deadline=0.9)
    assert time.monotonic() - began < 8
    over.set()


def test_a_command_that_is_refused(client: Client, accepting: Callable[..., str]) -> None:
    with pytest.raises(UnreachableError, match="gpu1 lets root in, but refuses to run a command"):
        client.whoami(accepting(lambda channel: False))


def test_a_channel_that_is_closed_in_one_direction(
    client: Client, accepting: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "STATUS_SECONDS", 0.5)

    def started(channel: paramiko.Channel) -> bool:
        threading.Timer(0.1, channel.shutdown_write).start()
        return True

    with pytest.raises(IncompleteError, match="with no answer"):
        client.whoami(accepting(started))


def test_a_server_that_freezes_while_it_is_sent_something(
    client: Client, start_sshd: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be written any more, not even a goodbye."""
    monkeypatch.setattr(shell, "CLOSE_SECONDS", 0.5)
    server = start_sshd()
    shells = client.shell(client.host("gpu1", server))
    shells.run(["true"], b"", lambda chunk: False, 20)
    stopped: list[int] = []

    def freeze() -> None:
        assert server.process is not None
        for pid in descendants(server.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                stopped.append(pid)

    freezing = threading.Timer(0.7, freeze)
    freezing.start()
    began = time.monotonic()
    with pytest.raises(DeadlineError):
        shells.run(["dd", "of=/dev/null"], bytes(300_000_000), lambda chunk: False, 2)
    shells.close()
    assert time.monotonic() - began < 10
    freezing.join()
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def test_a_server_with_room_for_one_session(client: Client, start_sshd: Server) -> None:
    """It counts a session until its process has ended, which takes a moment after the answer."""
    caller = PythonCaller(client.shell(client.host("gpu1", start_sshd(MaxSessions="1"))))
    slow = "import atexit, time\natexit.register(time.sleep, 0.3)\ndef main(request, blobs):\n    return {}, {}\n"
    for _ in range(4):
        caller.call(slow, {})
    assert caller.call(WHOAMI, {}).header["uid"] == 0


def test_a_server_with_too_many_logins(client: Client, start_sshd: Server) -> None:
    server = start_sshd(MaxStartups="1")
    client.host("gpu1", server)
    held = [socket.create_connection(("127.0.0.1", server.port))]
    while held[-1].recv(4) != b"SSH-":  # whoever is greeted has the one place, until its time to log in is over
        assert len(held) < 100
        time.sleep(0.05)
        held.append(socket.create_connection(("127.0.0.1", server.port)))
    assert not client.openssh("gpu1")
    with pytest.raises(UnreachableError, match="gpu1") as caught:
        client.whoami("gpu1")
    assert "MaxStartups" in caught.value.hint
    for stream in held:
        stream.close()

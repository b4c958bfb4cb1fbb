"""Ctrl-C, a reader that goes away, and machines that fail: what a run leaves behind is its exit code."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specaudit.errors import UnreachableError
from specaudit.hosts.ssh.connection import Connector
from tests.hosts.conftest import Client
from tests.hosts.sshd import Sshd, keygen

Server = Callable[..., Sshd]


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a listener that accepts and says nothing, as a forwarder to a machine that is off does."""
    held = []
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    held.append(listener.accept()[0])

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
    for stream in held:
        stream.close()


@pytest.fixture
def full() -> Iterator[int]:
    """The port of a listener whose queue is full: connections are neither made nor refused."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fill = [socket.socket() for _ in range(4)]
        for stream in fill:
            stream.setblocking(False)
            stream.connect_ex(listener.getsockname())
        yield int(listener.getsockname()[1])
        for stream in fill:
            stream.close()


def scanning(client: Client, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """``specaudit scan`` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "specaudit", "scan", "-F", str(client.config), "--no-rules", *arguments],
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("hosts", "jobs"), [(1, 1), (7, 3)])
def test_an_interruption_ends_connections_under_way(
    client: Client, start_sshd: Server, silent: int, full: int, tmp_path: Path, hosts: int, jobs: int
) -> None:
    server = Sshd(tmp_path / "none", [client.keys.host])
    names = [client.host(f"gpu{number}", server, Port=str(full if number % 2 else silent)) for number in range(hosts)]
    process = scanning(client, tmp_path, "--jobs", str(jobs), *names)
    deadline = time.monotonic() + 30
    while not connected(process.pid, {silent, full}):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 8, "time-outs were waited for"
    assert (process.returncode, out, err) == (130, "", "error: Interrupted.\n")


def connected(pid: int, ports: set[int]) -> bool:
    """Whether a process has begun to connect to one of some ports of loopback."""
    sockets = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(handle))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if f"socket:[{fields[9]}]" in sockets and int(fields[2].partition(":")[2], 16) in ports:
            return True
    return False


@pytest.mark.parametrize("hosts", [1, 3])
def test_an_interruption_at_a_question(client: Client, start_sshd: Server, tmp_path: Path, hosts: int) -> None:
    """The terminal shows what is typed again, whichever thread was asking."""
    key = keygen(tmp_path / "id", passphrase="open sesame")
    server = start_sshd()
    names = [client.host(f"gpu{number}", server, IdentityFile=str(key)) for number in range(hosts)]
    terminal, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "specaudit", "scan", "-F", str(client.config), "--no-rules", *names],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    said = b""
    while b"Passphrase of" not in said or termios.tcgetattr(terminal)[3] & termios.ECHO:
        assert process.poll() is None
        if select.select([terminal], [], [], 0.05)[0]:
            said += os.read(terminal, 9999)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert termios.tcgetattr(terminal)[3] & termios.ECHO
    os.close(theirs)
    os.close(terminal)


def test_a_run_that_was_ended_makes_no_more_connections(client: Client, start_sshd: Server) -> None:
    server = start_sshd()
    client.host("jump", server)
    client.host("far", server, ProxyJump="jump")
    connector = Connector(client.options())
    before = threading.active_count()
    connection = connector.connect("far")
    connector.close()
    assert not connection.alive
    for name in ("far", "jump"):
        with pytest.raises(UnreachableError, match="given up"):
            connector.connect(name)
    connection.close()
    assert threading.active_count() == before


def test_a_reader_that_goes_away(client: Client, start_sshd: Server, tmp_path: Path) -> None:
    server = start_sshd()
    server.stop()
    names = [client.host(f"gpu{number}", server) for number in range(4)]
    process = scanning(client, tmp_path, *names)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 141
    assert "Traceback" not in err


@pytest.mark.parametrize("jobs", ["1", "64"])
def test_when_all_are_dead_each_is_told_once(client: Client, start_sshd: Server, tmp_path: Path, jobs: str) -> None:
    server = start_sshd()
    server.stop()
    names = [client.host(f"gpu{number}", server) for number in range(5)]
    process = scanning(client, tmp_path, "--jobs", jobs, *names, *names)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3
    for name in names:
        assert err.count(f"error: {name} (127.0.0.1 port {server.port}) refuses the connection.") == 1
    rows = [line.split()[:4] for line in out.splitlines() if line.split()[:1] == ["-"]]
    assert rows == [["-", name, "not", "examined"] for name in names]
    assert "Traceback" not in err

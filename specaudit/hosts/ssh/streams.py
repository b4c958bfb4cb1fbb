"""What an SSH session runs over: a TCP connection, a channel of a jump host, or a ProxyCommand."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import subprocess
import time
from threading import Event
from typing import Any

import paramiko

from specaudit.errors import ConfigurationError, UnreachableError
from specaudit.hosts.ssh.config import SshConfig, SshOptions

#: Seconds between two looks at whether the run was ended.
PAUSE = 0.2


def given_up(destination: str) -> UnreachableError:
    """The error of a connection that was not finished because the run was ended."""
    return UnreachableError(f"The connection to {destination} was given up.", "Run it again.")


def dial(destination: str, config: SshConfig, options: SshOptions, ended: Event) -> socket.socket:
    """A TCP connection, to each address of the host in turn; given up as soon as ``ended`` is set.

    Raises:
        OSError: no address answers.
        UnreachableError: ``ended`` was set.
    """
    family = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}.get(config.first("addressfamily"), socket.AF_UNSPEC)
    seconds = config.number("connecttimeout", options.timeouts.tcp)
    source = config.first("bindaddress")
    error: OSError = OSError("no address")
    for kind, _, _, _, address in _addresses(config, family):
        stream = socket.socket(kind, socket.SOCK_STREAM)
        try:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if source:
                stream.bind((source, 0))
            if _connected(stream, address, time.monotonic() + seconds, ended):
                stream.settimeout(seconds)
                return stream
            stream.close()
            raise given_up(destination)
        except OSError as failure:
            stream.close()
            error = failure
    raise error


def _addresses(config: SshConfig, family: int) -> list[tuple[Any, ...]]:
    """What the host's name stands for.

    Raises:
        OSError: nothing. ConfigurationError: it cannot be a name.
    """
    try:
        return list(socket.getaddrinfo(config.host, config.port, family, socket.SOCK_STREAM))
    except UnicodeError as bad:
        raise ConfigurationError(
            f"{config.host} is no name of a host: a part between dots is empty, or too long.",
            "Check how it is written, and HostName in ssh's configuration.",
        ) from bad


def _connected(stream: socket.socket, address: tuple[object, ...], until: float, ended: Event) -> bool:
    """Connects; false: ``ended`` was set before. A blocking ``connect`` could not be left."""
    stream.setblocking(False)
    code = stream.connect_ex(address)
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_WRITE)
        while code in (errno.EINPROGRESS, errno.EAGAIN):
            if ended.is_set():
                return False
            if time.monotonic() > until:
                raise TimeoutError("timed out")
            if selector.select(PAUSE):
                code = stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
    return True


def forward(transport: paramiko.Transport, jump: str, config: SshConfig, options: SshOptions) -> paramiko.Channel:
    """A channel of the jump host ``jump`` that ends at our destination.

    Raises:
        UnreachableError: the jump host refuses it.
    """
    try:
        return transport.open_channel(
            "direct-tcpip", (config.host, config.port), ("127.0.0.1", 0), timeout=options.timeouts.channel
        )
    except paramiko.ChannelException as error:
        raise UnreachableError(
            f"The jump host {jump} does not connect to {config.host} port {config.port}: {error.text}.",
            "Check the name and port as the jump host sees them, and its AllowTcpForwarding.",
        ) from error


def start_proxy(destination: str, config: SshConfig) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Starts a ProxyCommand by the user's shell, as ssh does, with one end of a socket pair for its stdin and stdout.

    paramiko's class of that name knows no shell, polls, and leaves a zombie.

    Raises:
        ConfigurationError: the command would pass a socket on, which is not supported.
        UnreachableError: the shell cannot be started.
    """
    if config.truth("proxyusefdpass"):
        raise ConfigurationError(
            f"ProxyUseFdpass of {destination} is not supported.", "Use a ProxyCommand that copies bytes, or ProxyJump."
        )
    command = config.expand(config.first("proxycommand"))
    ours, theirs = socket.socketpair()
    shell = os.environ.get("SHELL") or "/bin/sh"
    with theirs:
        try:
            process = subprocess.Popen([shell, "-c", "exec " + command], stdin=theirs.fileno(), stdout=theirs.fileno())
        except OSError as error:
            ours.close()
            raise UnreachableError(
                f"{shell} cannot be started for ProxyCommand: {error.strerror}.", "Check $SHELL."
            ) from error
    return ours, process


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a proxy program and waits for it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()

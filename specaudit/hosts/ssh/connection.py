"""From a destination to a logged-in session: direct, through jump hosts, or through a ProxyCommand."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from specaudit.errors import ConfigurationError, SpecauditError, UnreachableError
from specaudit.hosts.ssh.auth import authenticate
from specaudit.hosts.ssh.config import SshConfig, SshOptions, resolve
from specaudit.hosts.ssh.host_keys import HostKeyChecker, OfferedKey

KEEPALIVE = 15

# paramiko reports through logging what it also raises; without a handler Python would print it.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class _Client(paramiko.Transport):
    """A transport that asks for host keys in our order; paramiko's puts certificates last."""

    host_key_algorithms: tuple[str, ...] = ()

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        return self.host_key_algorithms


@dataclass(slots=True)
class Connection:
    """A logged-in transport, and what has to be closed after it."""

    destination: str
    config: SshConfig
    transport: paramiko.Transport
    proxy: subprocess.Popen[bytes] | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        """Whether new channels can be opened."""
        return self.transport.is_active()

    def close(self) -> None:
        """Ends the session and the proxy program, and waits for both."""
        self.transport.close()
        self.transport.join(5)
        if self.proxy is not None:
            _end(self.proxy)


class Connector:
    """Opens connections for one run. Hosts behind the same jump host share its connection.

    A jump host with twenty logins at once would otherwise meet sshd's MaxStartups, which drops some of them.
    """

    def __init__(self, options: SshOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._jumps: dict[tuple[str, ...], Connection] = {}
        self._for_jumps = replace(options, options=())
        self._configs: dict[tuple[str, tuple[str, ...]], SshConfig] = {}
        self._jump_locks: dict[tuple[str, ...], threading.Lock] = {}

    def connect(self, destination: str, extra: tuple[str, ...] = ()) -> Connection:
        """A new connection to ``destination``.

        Args:
            destination: as for ``ssh``.
            extra: further ``-o`` options for this host; like ssh's own they do not reach its jump hosts.

        Raises:
            UnreachableError: it, or a hop before it, does not answer or does not let us in.
            HostKeyError: a host key is not the expected one.
            ConfigurationError: ssh's configuration is wrong.
        """
        options = replace(self._options, options=(*self._options.options, *extra))
        config = self._config(destination, options)
        self._refuse_circles(destination, config)
        return self._connect(destination, config, config.jumps or None)

    def close(self) -> None:
        """Closes the jump hosts' connections. Those that :meth:`connect` gave out are their callers' to close."""
        with self._lock:
            jumps, self._jumps = list(self._jumps.values()), {}
        for jump in reversed(jumps):
            jump.close()

    def _config(self, destination: str, options: SshOptions) -> SshConfig:
        """Resolved once per run: ``Match exec`` may be slow."""
        key = (destination, options.options)
        known = self._configs.get(key)
        if known is None:
            known = self._configs[key] = resolve(destination, options)
        return known

    def _refuse_circles(self, destination: str, config: SshConfig) -> None:
        """Hosts that jump through each other would wait for each other; ssh starts processes without end."""
        seen = [destination]
        while config.jumps:
            hop = config.jumps[0]
            if hop in seen:
                raise ConfigurationError(
                    f"The way to {destination} is a circle: {' -> '.join([*seen, hop])}.", "Look at ProxyJump."
                )
            seen.append(hop)
            config = self._config(hop, self._for_jumps)

    def _connect(self, destination: str, config: SshConfig, hops: tuple[str, ...] | None) -> Connection:
        with _translated(destination, config):
            if hops:
                stream: socket.socket | paramiko.Channel = _forward(self._jump(hops), config, self._options)
                return self._open(destination, config, stream, None)
            if config.first("proxycommand"):
                return self._open(destination, config, *_start_proxy(config))
            return self._open(destination, config, _dial(config, self._options), None)

    def _jump(self, hops: tuple[str, ...]) -> Connection:
        """The connection to the last of ``hops``, made once for all that come through it."""
        with self._lock:
            lock = self._jump_locks.setdefault(hops, threading.Lock())
        with lock:
            known = self._jumps.get(hops)
            if known is None or not known.alive:
                # As `ssh -J a,b host` does: b through a, and a as its own configuration says.
                config = self._config(hops[-1], self._for_jumps)
                known = self._connect(hops[-1], config, hops[:-1] or config.jumps or None)
                with self._lock:
                    self._jumps[hops] = known
            return known

    def _open(
        self,
        destination: str,
        config: SshConfig,
        stream: socket.socket | paramiko.Channel,
        proxy: subprocess.Popen[bytes] | None,
    ) -> Connection:
        transport: _Client | None = None
        try:
            transport = _Client(stream)
            checker = HostKeyChecker(destination, config, self._options)
            _prepare(transport, config, self._options, checker)
            _negotiate(transport, self._options.timeouts.banner + self._options.timeouts.handshake)
            checker.check(_offered(transport))
            authenticate(transport, destination, config, self._options)
            transport.set_keepalive(int(config.number("serveraliveinterval", KEEPALIVE)))
            return Connection(destination, config, transport, proxy, checker.notes)
        except BaseException:
            if transport is not None:
                transport.close()
            stream.close()
            if proxy is not None:
                _end(proxy)
            raise


def _prepare(transport: _Client, config: SshConfig, options: SshOptions, checker: HostKeyChecker) -> None:
    transport.host_key_algorithms = checker.algorithms()
    security = transport.get_security_options()
    transport.banner_timeout = options.timeouts.banner
    transport.handshake_timeout = options.timeouts.handshake
    transport.auth_timeout = options.timeouts.auth
    transport.channel_timeout = options.timeouts.channel
    for key, name in (("ciphers", "ciphers"), ("macs", "digests"), ("kexalgorithms", "kex")):
        wanted = config.restricted.get(key)
        if wanted is not None:
            own = getattr(security, name)
            # paramiko knows this key exchange by its older name only; they are the same (RFC 8731).
            both = {"curve25519-sha256@libssh.org", "curve25519-sha256"}
            common = [a for a in own if a in wanted or (a in both and both.intersection(wanted))]
            if not common:
                raise ConfigurationError(
                    f"None of the {key} that your ssh configuration allows is known to paramiko: {', '.join(wanted)}.",
                    f"Allow one of these as well: {', '.join(own)}; or set ProxyCommand and a local ssh.",
                )
            setattr(security, name, common)
    if not transport.host_key_algorithms:
        raise ConfigurationError(
            "None of the HostKeyAlgorithms that your ssh configuration allows is known to paramiko.",
            "Allow ssh-ed25519, ecdsa-sha2-nistp256 or rsa-sha2-512 as well.",
        )


def _negotiate(transport: paramiko.Transport, seconds: float) -> None:
    done = threading.Event()
    transport.start_client(done)
    until = time.monotonic() + seconds
    while not done.wait(0.2):
        if not transport.is_active() or time.monotonic() > until:
            break
    error = transport.get_exception()
    if error is not None:
        raise error
    if not done.is_set() or not transport.is_active():
        raise paramiko.SSHException("the key exchange did not finish")


def _offered(transport: paramiko.Transport) -> OfferedKey:
    key = transport.get_remote_server_key()
    certificate = getattr(key, "public_blob", None)
    return OfferedKey(key.asbytes(), certificate.key_blob if certificate is not None else None)


def _dial(config: SshConfig, options: SshOptions) -> socket.socket:
    """A TCP connection, to each address of the host in turn."""
    family = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}.get(config.first("addressfamily"), socket.AF_UNSPEC)
    seconds = config.number("connecttimeout", options.timeouts.tcp)
    source = config.first("bindaddress")
    error: OSError = OSError("no address")
    for kind, _, _, _, address in socket.getaddrinfo(config.host, config.port, family, socket.SOCK_STREAM):
        stream = socket.socket(kind, socket.SOCK_STREAM)
        try:
            stream.settimeout(seconds)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if source:
                stream.bind((source, 0))
            stream.connect(address)
            return stream
        except OSError as failure:
            stream.close()
            error = failure
    raise error


def _forward(jump: Connection, config: SshConfig, options: SshOptions) -> paramiko.Channel:
    """A channel of the jump host that ends at our destination."""
    try:
        return jump.transport.open_channel(
            "direct-tcpip", (config.host, config.port), ("127.0.0.1", 0), timeout=options.timeouts.channel
        )
    except paramiko.ChannelException as error:
        raise UnreachableError(
            f"The jump host {jump.destination} does not connect to {config.host} port {config.port}: {error.text}.",
            "Check the name and port as the jump host sees them, and its AllowTcpForwarding.",
        ) from error


def _start_proxy(config: SshConfig) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Starts a ProxyCommand by the user's shell, as ssh does, with one end of a socket pair for its stdin and stdout.

    paramiko's class of that name knows no shell, polls, and leaves a zombie.
    """
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


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


@contextlib.contextmanager
def _translated(destination: str, config: SshConfig) -> Iterator[None]:
    """The one place where errors of sockets and of paramiko become ours."""
    where = f"{destination} ({config.host} port {config.port})"
    try:
        yield
    except SpecauditError:
        raise
    except socket.gaierror as error:
        raise UnreachableError(f"{where} has no address: {error.strerror}.", "Check its name.") from error
    except TimeoutError as error:
        raise UnreachableError(f"{where} does not answer.", "Check that it is up, and the way to it.") from error
    except ConnectionRefusedError as error:
        raise UnreachableError(f"{where} refuses the connection.", "Check its port, and that sshd runs.") from error
    except IncompatiblePeer as error:
        raise UnreachableError(
            f"{where} and paramiko have no algorithm in common: {error}.",
            "paramiko 5 has no SHA-1: update that sshd, or put a newer jump host before it.",
        ) from error
    except (OSError, EOFError, paramiko.SSHException) as error:
        raise UnreachableError(
            f"{where} ended the connection before the login: {str(error).strip() or type(error).__name__}.",
            f"Compare with: ssh -v {destination}",
        ) from error

"""From a destination to a logged-in session: direct, through jump hosts, or through a ProxyCommand."""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from weakref import WeakSet

import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from specaudit.errors import ConfigurationError, SpecauditError, UnreachableError
from specaudit.hosts.shell import printable
from specaudit.hosts.ssh import streams
from specaudit.hosts.ssh.auth import authenticate
from specaudit.hosts.ssh.config import SshConfig, SshOptions, resolve
from specaudit.hosts.ssh.host_keys import HostKeyChecker, OfferedKey

KEEPALIVE = 15

# paramiko reports through logging what it also raises; without a handler Python would print it.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class _Client(paramiko.Transport):
    """A transport that asks for host keys in our order; paramiko's puts certificates last."""

    host_key_algorithms: tuple[str, ...] = ()
    _saved: Exception | None = None

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        return self.host_key_algorithms

    @property
    def saved_exception(self) -> Exception | None:
        """What ended paramiko's thread, raised to whoever waits for it."""
        return self._saved

    @saved_exception.setter
    def saved_exception(self, error: Exception | None) -> None:
        # A message that makes no sense raises whatever its parser met: IndexError, UnicodeDecodeError, ….
        if error is not None and not isinstance(error, (OSError, EOFError, paramiko.SSHException)):
            error = paramiko.SSHException(f"a message of the server makes no sense ({type(error).__name__}: {error})")
        self._saved = error


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
            streams.end(self.proxy)


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
        self._ended = threading.Event()
        self._transports: WeakSet[paramiko.Transport] = WeakSet()

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
        """Ends the run: no connection is made any more, those under way are given up, and all others are closed.

        What hangs on a connection that :meth:`connect` gave out (a proxy program) is its caller's to close.
        """
        self._ended.set()
        with self._lock:
            jumps, self._jumps = list(self._jumps.values()), {}
            transports = list(self._transports)
        for transport in transports:
            transport.close()
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
                jump = self._jump(hops)
                channel = streams.forward(jump.transport, jump.destination, config, self._options)
                return self._open(destination, config, channel, None)
            if config.first("proxycommand"):
                return self._open(destination, config, *streams.start_proxy(destination, config))
            stream = streams.dial(destination, config, self._options, self._ended)
            return self._open(destination, config, stream, None)

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
        # BatchMode: nobody is asked.
        options = replace(self._options, ask=None, secret=None) if config.truth("batchmode") else self._options
        try:
            transport = _Client(stream)
            with self._lock:
                self._transports.add(transport)
            if self._ended.is_set():
                raise streams.given_up(destination)
            checker = HostKeyChecker(destination, config, options)
            _prepare(transport, config, options, checker)
            _negotiate(transport, options.timeouts.banner + options.timeouts.handshake)
            checker.check(_offered(transport))
            authenticate(transport, destination, config, options)
            transport.set_keepalive(int(config.number("serveraliveinterval", KEEPALIVE)))
            return Connection(destination, config, transport, proxy, checker.notes)
        except BaseException:
            if transport is not None:
                transport.close()
            stream.close()
            if proxy is not None:
                streams.end(proxy)
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
            printable(f"{where} and paramiko have nothing in common: {error}."),
            "paramiko 5 has no SHA-1: update that sshd, or put a newer jump host before it.",
        ) from error
    except (OSError, EOFError, paramiko.SSHException) as error:
        raise UnreachableError(
            printable(f"{where} ended the connection before the login: {str(error).strip() or type(error).__name__}."),
            f"Compare with: {config.by_hand('-v')}"
            + ("; a server with many logins at once drops some (MaxStartups)." if "banner" in str(error) else ""),
        ) from error

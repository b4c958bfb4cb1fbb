"""Who we are: the keys that ``ssh`` would offer, in the order in which it offers them.

OpenSSH tries certificates, then agent keys that the configuration names, then other agent keys (unless
IdentitiesOnly), then keys that are only in files. paramiko's own search ignores IdentitiesOnly and IdentityAgent,
so it is not used.
"""

from __future__ import annotations

import copy
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import paramiko
from paramiko.pkey import PublicBlob

from specaudit.errors import UnreachableError
from specaudit.hosts.shell import printable
from specaudit.hosts.ssh import certificates, key_files
from specaudit.hosts.ssh.config import SshConfig, SshOptions

CERT_SUFFIX = "-cert.pub"
#: A key may want a touch or a yes from the user.
AGENT_SECONDS = 60.0


@dataclass(slots=True)
class Identity:
    """One key on offer: ``origin`` says where it is from; ``key`` signs."""

    origin: str
    key: paramiko.PKey


@dataclass(slots=True)
class Tried:
    """What was offered and what stood in the way, for the message when nothing worked."""

    offered: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def text(self) -> str:
        """One sentence or two."""
        parts = [f"Offered: {', '.join(self.offered) or 'no key'}."]
        return " ".join([*parts, *(f"{problem}." for problem in self.problems)])


def authenticate(transport: paramiko.Transport, label: str, config: SshConfig, options: SshOptions) -> None:
    """Logs in.

    Raises:
        UnreachableError: the server accepted nothing that may be offered.
    """
    tried = Tried()
    allowed: list[str] = []
    with _agent(config, tried) as agent_keys:
        for identity in identities(config, options, agent_keys, tried):
            tried.offered.append(f"{identity.origin} ({identity.key.get_name()})")
            try:
                more = transport.auth_publickey(config.user, identity.key)
            except paramiko.BadAuthenticationType as error:
                allowed = error.allowed_types
                break
            except paramiko.SSHException as error:
                if not transport.is_active():
                    raise _refused(label, config, tried, f"the server ended the connection ({error})") from error
                continue
            if not more:
                return
            allowed = more  # accepted, and the server wants something else as well
            if "publickey" not in more:
                break
    if _without_key(transport, label, config, options, tried, allowed):
        return
    raise _refused(label, config, tried, f"it takes {', '.join(allowed)}" if allowed else "")


def _without_key(
    transport: paramiko.Transport, label: str, config: SshConfig, options: SshOptions, tried: Tried, allowed: list[str]
) -> bool:
    """``none`` (some servers ask for nothing more), then a password if there is someone to ask for it."""
    if not allowed:
        try:
            transport.auth_none(config.user)
            return True
        except paramiko.BadAuthenticationType as error:
            allowed.extend(error.allowed_types)
        except (paramiko.SSHException, EOFError) as error:
            raise _refused(label, config, tried, f"the server ended the connection ({error})") from error
    methods = {
        "password": config.truth("passwordauthentication", True),
        "keyboard-interactive": config.truth("kbdinteractiveauthentication", True),
    }
    if options.secret is None or not any(methods.get(name) for name in allowed):
        return False
    password = options.secret(f"Password of {config.user}@{config.host} ({label}): ")
    if not password:
        return False
    tried.offered.append("a password")
    try:
        return not transport.auth_password(config.user, password)
    except paramiko.SSHException:
        return False


def _refused(label: str, config: SshConfig, tried: Tried, why: str) -> UnreachableError:
    by_hand = config.by_hand("-o", "BatchMode=yes", command="true")
    return UnreachableError(
        printable(f"{label} does not let {config.user} in{': ' + why if why else ''}. {tried.text()}"),
        f"Make `{by_hand}` work: ssh-add a key, or name one with IdentityFile.",
    )


def identities(
    config: SshConfig, options: SshOptions, agent_keys: tuple[paramiko.PKey, ...], tried: Tried
) -> Iterator[Identity]:
    """Keys in OpenSSH's order. A file that is not there is skipped in silence, as ssh does with its defaults."""
    if config.first("pubkeyauthentication") in ("no", "false"):
        tried.problems.append("PubkeyAuthentication is off in your ssh configuration")
        return
    files = [path for path in config.paths("identityfile") if os.path.exists(path) or os.path.exists(path + ".pub")]
    plain_keys = [key for key in agent_keys if not key.get_name().endswith(certificates.SUFFIX)]
    in_agent = {key.asbytes(): key for key in reversed(plain_keys)}
    public = {path: key_files.public_half(path) for path in files}
    loaded: dict[str, paramiko.PKey | None] = {}

    def of_file(path: str) -> paramiko.PKey | None:
        if path not in loaded:
            loaded[path] = _private(path, options, tried)
        return loaded[path]

    def owner_of(plain: bytes) -> paramiko.PKey | None:
        if plain in in_agent:
            return in_agent[plain]
        own = (of_file(path) for path in files if public[path] in (plain, None))
        return next((key for key in own if key is not None and key.asbytes() == plain), None)

    shown = [*config.paths("certificatefile"), *(path + CERT_SUFFIX for path in files)]
    for file in dict.fromkeys(path for path in shown if os.path.exists(path)):
        try:
            blob = PublicBlob.from_file(file)
            signer = owner_of(certificates.subject(certificates.read(blob.key_blob)))
        except (OSError, ValueError, paramiko.SSHException) as error:
            tried.problems.append(f"{file} cannot be used: {error}")
            continue
        if signer is None:
            tried.problems.append(f"no private key was found for the certificate {file}")
            continue
        yield Identity(file, _certified(signer, blob))
    named = [in_agent[half] for path in files if (half := public[path]) is not None and half in in_agent]
    for key in named:
        yield Identity(f"agent key {_comment(key)}", key)
    if not config.truth("identitiesonly"):
        for key in agent_keys:
            if not any(key is other for other in named):
                yield Identity(f"agent key {_comment(key)}", _whole(key))
    for path in files:
        if public[path] not in in_agent and not path.endswith(".pub"):
            own = of_file(path)
            if own is not None:
                yield Identity(path, own)


def _whole(key: paramiko.PKey) -> paramiko.PKey:
    """An agent's certificate with its own bytes: paramiko would show the plain key under the certificate's name."""
    if isinstance(key, _AgentKey) and key.get_name().endswith(certificates.SUFFIX):
        return _certified(key, PublicBlob(key.get_name(), key.blob))
    return key


def _comment(key: paramiko.PKey) -> str:
    return str(getattr(key, "comment", "")) or key.get_name()


def _certified(signer: paramiko.PKey, blob: PublicBlob) -> paramiko.PKey:
    """A key that shows the certificate; the plain one stays as it is, because it may be offered too."""
    certified = (
        _AgentKey(signer.agent, signer.blob, signer.comment)  # it cannot be copied
        if isinstance(signer, _AgentKey)
        else copy.copy(signer)
    )
    certified.public_blob = blob
    return certified


def _private(path: str, options: SshOptions, tried: Tried) -> paramiko.PKey | None:
    try:
        try:
            return key_files.load(path)
        except key_files.LockedError:
            said = options.secret(f"Passphrase of {path}: ") if options.secret else None
            if said:
                return key_files.load(path, said.encode())
            tried.problems.append(f"{path} has a passphrase; load it with ssh-add")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        tried.problems.append(f"{path} cannot be used: {why}")
    return None


class _AgentKey(paramiko.AgentKey):
    """A key of the agent. When the agent refuses to sign (no touch, no confirmation), the next key is tried.

    paramiko signs in the thread of the connection, which an exception would end.
    """

    def sign_ssh_data(self, data: Any, algorithm: str | None = None) -> Any:  # an agent's key gives bytes
        try:
            return super().sign_ssh_data(data, algorithm)
        except (paramiko.SSHException, OSError):
            refusal = paramiko.Message()
            refusal.add_string(self.get_name())
            refusal.add_string(b"")
            return refusal.asbytes()


class _Agent(paramiko.agent.AgentSSH):
    """The agent behind one socket. paramiko's own class reads SSH_AUTH_SOCK, which belongs to the whole process."""

    def open(self, path: str) -> None:
        """Connects and asks for the keys.

        Raises:
            OSError, paramiko.SSHException: nobody answers there.
        """
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(AGENT_SECONDS)
        try:
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]  # the only door to another socket
            self._keys = tuple(_AgentKey(self, key.blob, key.comment) for key in self.get_keys())
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Ends the connection."""
        self._close()  # type: ignore[attr-defined]


@contextmanager
def _agent(config: SshConfig, tried: Tried) -> Iterator[tuple[paramiko.PKey, ...]]:
    """The keys of IdentityAgent, else of SSH_AUTH_SOCK."""
    path = next(iter(config.values.get("identityagent", ())), "SSH_AUTH_SOCK")
    if path == "SSH_AUTH_SOCK" or path.startswith("$"):
        path = os.environ.get(path.strip("${}"), "none")
    agent = _Agent()
    try:
        if path not in ("", "none"):
            try:
                agent.open(config.expand(path))
            except (OSError, paramiko.SSHException) as error:
                tried.problems.append(f"the agent at {path} cannot be used: {error}")
        yield agent.get_keys()
    finally:
        agent.close()

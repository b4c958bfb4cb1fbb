"""Is this the host it claims to be: known_hosts, host certificates, revocation, and the user's policy, as OpenSSH
has them.

Functions here see key blobs (the wire form of a public key), no library's key objects.
"""

from __future__ import annotations

import base64
import ipaddress
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specaudit.errors import HostKeyError
from specaudit.hosts.ssh import certificates, known_hosts, known_hosts_command
from specaudit.hosts.ssh.config import Policy, SshConfig, SshOptions
from specaudit.hosts.ssh.known_hosts import Entry, fingerprint

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization import SSHCertificate

#: Signature algorithms per key type, best first. No SHA-1.
ALGORITHMS = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}

KRL_MAGIC = b"SSHKRL\n\0"
MAX_REVOCATIONS = 64 << 20

# One question at a time, whatever the number of threads; and an answer for a host counts for the threads after it.
_ASKING = threading.Lock()


@dataclass(frozen=True, slots=True)
class OfferedKey:
    """The key that a server proved to own: its plain public key, and its certificate when it showed one."""

    blob: bytes
    certificate: bytes | None = None


class HostKeyChecker:
    """Decides about the host key of one connection.

    Args:
        label: the host as the user named it.
        config: its resolved configuration.
        options: the user's policy and, when there is a terminal, a way to ask.
    """

    def __init__(self, label: str, config: SshConfig, options: SshOptions) -> None:
        self._label = label
        self._config = config
        self._options = options
        self._name = config.host_key_name
        self._policy = effective_policy(config, options)
        self._user_files = config.words("userknownhostsfile")
        self.notes: list[str] = []

    def algorithms(self) -> tuple[str, ...]:
        """Host key algorithms in the order to ask for: those that known_hosts can confirm come first.

        Otherwise a host that is known by one type of key shows another one, which looks like an attack.
        """
        entries = self._load(None)
        known = {entry.key_type for entry in entries if not entry.marker and self._is_named(entry)}
        plain = [a for kind, names in ALGORITHMS.items() if kind in known for a in names]
        plain += [a for kind, names in ALGORITHMS.items() if kind not in known for a in names]
        certified = any(known_hosts.authorities(entries, name) for name in self._names())
        signed = [a + certificates.SUFFIX for names in ALGORITHMS.values() for a in names] if certified else []
        allowed = self._config.restricted.get("hostkeyalgorithms")
        return tuple(a for a in (*signed, *plain) if allowed is None or a in allowed)

    def check(self, key: OfferedKey) -> None:
        """Accepts the key, and notes what the user should know.

        Raises:
            HostKeyError: the key is revoked, changed, or unknown and not accepted by the policy.
        """
        entries = self._load(key.blob)
        self._refuse_revoked(entries, key)
        if self._is_trusted_loopback():
            return
        if key.certificate is not None and self._certified(entries, key.certificate):
            return
        verdict = known_hosts.check(entries, self._name, key.blob)
        if verdict.state == "new" and not self._config.first("hostkeyalias") and self._config.port != 22:
            # OpenSSH: a key that is listed without the port is the host's own just as well.
            bare = known_hosts.check(entries, self._config.host.lower(), key.blob)
            verdict = bare if bare.state in ("known", "revoked") else verdict
        if verdict.state == "changed" and verdict.entry is not None:
            self._changed(verdict.entry, key.blob)
        elif verdict.state == "new":
            self._unknown(verdict.others, key.blob)

    def _load(self, blob: bytes | None) -> list[Entry]:
        files = known_hosts.load([*self._user_files, *self._config.words("globalknownhostsfile")])
        return files + known_hosts_command.lines(self._label, self._config, blob)

    def _is_trusted_loopback(self) -> bool:
        """NoHostAuthenticationForLocalhost: the far end of a tunnel is another host each time."""
        config = self._config
        if not config.truth("nohostauthenticationforlocalhost") or config.first("hostkeyalias"):
            return False
        if config.jumps or config.first("proxycommand"):
            return False
        try:
            return config.host.lower() == "localhost" or ipaddress.ip_address(config.host).is_loopback
        except ValueError:
            return False

    def _names(self) -> tuple[str, ...]:
        bare = self._config.first("hostkeyalias") or self._config.host
        return (self._name, bare.lower())

    def _is_named(self, entry: Entry) -> bool:
        return any(entry.matches(name) for name in self._names())

    def _refuse_revoked(self, entries: Sequence[Entry], key: OfferedKey) -> None:
        blobs = [key.blob]
        if key.certificate is not None:
            blobs.append(certificates.authority(self._read(key.certificate)))
        for blob in blobs:
            line = next((e for name in self._names() if (e := known_hosts.revocation(entries, name, blob))), None)
            if line is not None:
                raise HostKeyError(
                    f"The host key of {self._label} is revoked: {known_hosts.key_type_of(blob)} {fingerprint(blob)} "
                    f"is marked so at {line.place}.",
                    "Do not connect; ask whoever runs the host for its new key.",
                )
        file = self._config.first("revokedhostkeys")
        problem = _listed_as_revoked(self._config.expand(file), key.certificate or key.blob, blobs) if file else ""
        if problem:
            raise HostKeyError(
                f"The host key of {self._label}, {fingerprint(key.blob)}, fails RevokedHostKeys {file}: {problem}.",
                "Do not connect; ask whoever runs the host for its new key.",
            )

    def _certified(self, entries: Sequence[Entry], blob: bytes) -> bool:
        """Whether a trusted authority vouches for the host; without such an authority the plain key decides.

        Raises:
            HostKeyError: the authority is trusted and the certificate is not good.
        """
        certificate = self._read(blob)
        signer = certificates.authority(certificate)
        trusted = [e for name in self._names() for e in known_hosts.authorities(entries, name) if e.blob == signer]
        if not trusted:
            return False
        bare = self._config.first("hostkeyalias") or self._config.host
        wrong = certificates.fault(certificate, bare.lower())
        if wrong:
            raise HostKeyError(
                f"The host certificate of {self._label}, by {fingerprint(signer)} ({trusted[0].place}), {wrong}.",
                "Ask whoever runs the host for a new certificate.",
            )
        return True

    def _read(self, blob: bytes) -> SSHCertificate:
        try:
            return certificates.read(blob)
        except ValueError as error:
            raise HostKeyError(
                f"The host certificate of {self._label} cannot be read: {error}.", "Check its sshd's HostCertificate."
            ) from error

    def _changed(self, entry: Entry, blob: bytes) -> None:
        text = (
            f"The host key of {self._label} ({self._name}) has changed: {known_hosts.key_type_of(blob)} "
            f"{fingerprint(blob)} in place of {fingerprint(entry.blob)}, which is at {entry.place}."
        )
        if self._policy == "no":
            self.notes.append(text + " Accepted, because StrictHostKeyChecking is no.")
            return
        raise HostKeyError(
            text,
            "Someone may be listening in. If the host was reinstalled, check the new fingerprint on its console "
            f"(ssh-keygen -lf /etc/ssh/ssh_host_*.pub), then: ssh-keygen -R '{self._name}' -f {entry.file}",
        )

    def _unknown(self, others: tuple[Entry, ...], blob: bytes) -> None:
        kind = known_hosts.key_type_of(blob)
        text = f"The host key of {self._label} ({self._name}) is not known: {kind} {fingerprint(blob)}."
        if others:
            seen = ", ".join(f"{e.key_type} {fingerprint(e.blob)} at {e.place}" for e in others)
            text += f" It is known by other types of key: {seen}."
        accepted = self._policy in ("accept-new", "no")
        if self._policy == "ask" and self._options.ask is not None:
            with _ASKING:
                again = known_hosts.check(self._load(blob), self._name, blob)
                accepted = again.state == "known" or self._options.ask(f"{text} Connect?")
                if again.state == "known":
                    return
        if not accepted:
            raise HostKeyError(
                text,
                "Check the fingerprint, then connect once with ssh, or use --host-keys accept-new.",
            )
        self._remember(blob)

    def _remember(self, blob: bytes) -> None:
        file = next(iter(self._user_files), "/dev/null")
        if file == "/dev/null":
            return
        try:
            known_hosts.add(file, self._name, blob, hash_name=self._config.truth("hashknownhosts"))
            self.notes.append(f"The host key of {self._label}, {fingerprint(blob)}, was added to {file}.")
        except OSError as error:
            self.notes.append(f"The host key of {self._label} was accepted, but not added to {file}: {error.strerror}.")


def effective_policy(config: SshConfig, options: SshOptions) -> Policy:
    """The user's policy, else the configuration's; with nobody to ask, ``ask`` is ``yes``."""
    policy = options.policy or config.policy
    return "yes" if policy == "ask" and options.ask is None else policy


def _listed_as_revoked(file: str, blob: bytes, plain: Sequence[bytes]) -> str:
    """What a RevokedHostKeys file has against a key, empty: nothing. It is a list of keys, or a binary KRL.

    Like ssh, a file that cannot be read lets nobody pass.
    """
    try:
        with open(file, "rb") as handle:
            data = handle.read(MAX_REVOCATIONS)
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    if not data.startswith(KRL_MAGIC):
        words = data.decode("utf-8", "replace").split()
        return "the key is in it" if any(base64.b64encode(one).decode() in words for one in plain) else ""
    with tempfile.NamedTemporaryFile("w", suffix=".pub") as public:
        public.write(f"{known_hosts.key_type_of(blob)} {base64.b64encode(blob).decode()}\n")
        public.flush()
        try:
            # A KRL may revoke by serial number, key id or hash: OpenSSH's own tool reads it.
            done = subprocess.run(
                ["ssh-keygen", "-Q", "-f", file, public.name],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=30,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"ssh-keygen cannot read it ({error})"
    said = " ".join((done.stdout + done.stderr).split()).replace(public.name, "the key")
    return said or "it is revoked" if done.returncode else ""

"""known_hosts files, read the way OpenSSH reads them.

paramiko's reader stops at ``@cert-authority`` and ``@revoked`` lines, and knows neither patterns nor the system's
files; a line that this reader cannot use is skipped, as OpenSSH does, and never the end of the file.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import fnmatch
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

MARKERS = ("@cert-authority", "@revoked")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: ``marker`` is empty, ``@cert-authority`` or ``@revoked``; ``hosts`` the patterns or the hashed name."""

    marker: str
    hosts: str
    key_type: str
    blob: bytes
    file: str
    line: int

    @property
    def place(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"

    def matches(self, name: str) -> bool:
        """Whether the line speaks of ``name`` (``host``, or ``[host]:port`` for another port than 22)."""
        if self.hosts.startswith("|1|"):
            return _hash_matches(self.hosts, name)
        found = False
        for pattern in self.hosts.lower().split(","):
            negated = pattern.startswith("!")
            if _glob(pattern.removeprefix("!"), name.lower()):
                if negated:
                    return False
                found = True
        return found


def _glob(pattern: str, name: str) -> bool:
    # OpenSSH knows * and ? only; [ is part of [host]:port.
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def _hash_matches(hosts: str, name: str) -> bool:
    try:
        _, _, salt, digest = hosts.split("|")
        expected = base64.b64decode(digest, validate=True)
        found = hmac.new(base64.b64decode(salt, validate=True), name.encode(), hashlib.sha1).digest()
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(found, expected)


def hashed(name: str) -> str:
    """``name`` in the form that HashKnownHosts writes."""
    salt = secrets.token_bytes(20)
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


def fingerprint(blob: bytes) -> str:
    """``SHA256:…`` as ``ssh-keygen -l`` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def key_type_of(blob: bytes) -> str:
    """The type that a public key's own first field names; empty when it is malformed."""
    size = int.from_bytes(blob[:4], "big")
    return blob[4 : 4 + size].decode("ascii", "replace") if len(blob) >= 4 + size else ""


def parse(lines: Iterable[str], file: str) -> list[Entry]:
    """The usable lines of one file."""
    entries = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#") or marker not in ("", *MARKERS):
            continue
        try:
            blob = base64.b64decode(words[2], validate=True)
        except (ValueError, binascii.Error):
            continue
        if key_type_of(blob) == words[1]:
            entries.append(Entry(marker, words[0], words[1], blob, file, number))
    return entries


def load(files: Iterable[str]) -> list[Entry]:
    """The usable lines of all the files that can be read, in order."""
    entries: list[Entry] = []
    for file in files:
        try:
            with open(file, encoding="utf-8", errors="replace") as handle:
                entries += parse(handle, file)
        except OSError:
            continue
    return entries


@dataclass(frozen=True, slots=True)
class Verdict:
    """What known_hosts say of a key: ``entry`` decided; ``others`` are lines of the host with other key types."""

    state: Literal["known", "changed", "revoked", "new"]
    entry: Entry | None = None
    others: tuple[Entry, ...] = ()


def check(entries: Sequence[Entry], name: str, blob: bytes) -> Verdict:
    """Looks a plain host key up, by type, as OpenSSH does."""
    own = [entry for entry in entries if entry.matches(name)]
    for entry in own:
        if entry.marker == "@revoked" and entry.blob == blob:
            return Verdict("revoked", entry)
    plain = [entry for entry in own if not entry.marker]
    same_type = [entry for entry in plain if entry.key_type == key_type_of(blob)]
    for entry in same_type:
        if entry.blob == blob:
            return Verdict("known", entry)
    if same_type:
        return Verdict("changed", same_type[0])
    return Verdict("new", None, tuple(plain))


def authorities(entries: Sequence[Entry], name: str) -> list[Entry]:
    """The ``@cert-authority`` lines for a host."""
    return [entry for entry in entries if entry.marker == "@cert-authority" and entry.matches(name)]


def revocation(entries: Sequence[Entry], name: str, blob: bytes) -> Entry | None:
    """The ``@revoked`` line for a host that lists this key."""
    return next((e for e in entries if e.marker == "@revoked" and e.blob == blob and e.matches(name)), None)


def add(file: str, name: str, blob: bytes, *, hash_name: bool) -> None:
    """Appends a key, as OpenSSH does after ``accept-new`` or a yes.

    Raises:
        OSError: the file cannot be written.
    """
    host = hashed(name) if hash_name else name
    line = f"{host} {key_type_of(blob)} {base64.b64encode(blob).decode()}\n".encode()
    Path(file).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "r+b") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        size = handle.seek(0, os.SEEK_END)
        if size:
            handle.seek(size - 1)
            line = line if handle.read(1) == b"\n" else b"\n" + line
        handle.write(line)

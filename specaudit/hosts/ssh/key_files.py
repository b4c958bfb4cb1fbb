"""Key files, read as OpenSSH reads them.

paramiko's own loader takes a certificate along and fails when that is bad, and knows neither PKCS #8 nor the public
half inside a private key; cryptography reads the bytes, and paramiko is given one form only.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import re
import stat

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from paramiko.pkey import PublicBlob

from specaudit.hosts.ssh.known_hosts import key_type_of

#: Bytes of the largest key file that is read; an RSA key of 16384 bits has some 12,000.
MAX_KEY = 1 << 20
_OPENSSH = re.compile(rb"-----BEGIN OPENSSH PRIVATE KEY-----(.*?)-----END OPENSSH PRIVATE KEY-----", re.DOTALL)
_MAGIC = b"openssh-key-v1\0"
_CLASSES: tuple[tuple[type, type[paramiko.PKey]], ...] = (
    (rsa.RSAPrivateKey, paramiko.RSAKey),
    (ed25519.Ed25519PrivateKey, paramiko.Ed25519Key),
    (ec.EllipticCurvePrivateKey, paramiko.ECDSAKey),
)


class LockedError(Exception):
    """The key has a passphrase, and none was given. Internal: the caller asks for one."""


def public_half(path: str) -> bytes | None:
    """The public half of an identity file in its wire form.

    It stands in the ``.pub`` beside it, in the file itself when that is a public key, or in front of the private half
    in OpenSSH's own form, even when that is encrypted.
    """
    for candidate in (path + ".pub", path):
        try:
            return bytes(PublicBlob.from_file(candidate).key_blob)
        except (OSError, ValueError, paramiko.SSHException):
            continue
    try:
        return _of_private(_read(path))
    except (OSError, ValueError):
        return None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(MAX_KEY)


def _of_private(data: bytes) -> bytes | None:
    """The public key in an ``openssh-key-v1`` file (OpenSSH's PROTOCOL.key)."""
    found = _OPENSSH.search(data)
    if found is None:
        return None
    try:
        body = base64.b64decode(b"".join(found.group(1).split()), validate=True)
    except binascii.Error:
        return None
    if not body.startswith(_MAGIC):
        return None
    at = len(_MAGIC)
    for _ in ("cipher", "key derivation", "its options"):
        at += 4 + int.from_bytes(body[at : at + 4], "big")
    at += 4  # the number of keys, which is one
    size = int.from_bytes(body[at : at + 4], "big")
    blob = body[at + 4 : at + 4 + size]
    return blob if len(blob) == size and key_type_of(blob) else None


def load(path: str, passphrase: bytes | None = None) -> paramiko.PKey:
    """The private key of a file, without a certificate.

    Raises:
        LockedError: it has a passphrase, and none was given.
        OSError: it cannot be read.
        ValueError: ssh would not use it, or it cannot be used here; the text says why.
    """
    facts = os.stat(path)
    if facts.st_uid == os.getuid() and facts.st_mode & 0o077:
        raise ValueError(f"others may read it (mode {stat.S_IMODE(facts.st_mode):04o}); chmod 600 it, as ssh demands")
    data = _read(path)
    kind = key_type_of(_of_private(data) or b"")
    if kind.startswith("sk-"):
        raise ValueError("it is on a security key, which only an agent can use; load it with ssh-add")
    if kind == "ssh-dss" or b"BEGIN DSA " in data:
        raise ValueError("it is a DSA key, which ssh no longer knows")
    loader = serialization.load_ssh_private_key if _OPENSSH.search(data) else serialization.load_pem_private_key
    try:
        loaded = loader(data, passphrase)
    except TypeError as error:  # cryptography: it is encrypted
        raise LockedError from error
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error
    except ValueError as error:
        raise ValueError("the passphrase is wrong" if passphrase else str(error)) from error
    cls = next((own for theirs, own in _CLASSES if isinstance(loaded, theirs)), None)
    if cls is None:
        raise ValueError("it is of a type that paramiko does not know")
    text = loaded.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    ).decode("ascii")
    try:
        return cls.from_private_key(io.StringIO(text))
    except paramiko.SSHException as error:
        raise ValueError(str(error)) from error

"""OpenSSH certificates: of hosts, to be checked here, and of users, to be shown with the right key.

paramiko carries certificates about and leaves their contents alone; cryptography reads them.
"""

from __future__ import annotations

import base64
import time

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificate,
    SSHCertificateType,
    load_ssh_public_identity,
)

from specaudit.hosts.ssh.known_hosts import key_type_of

#: What a certificate's algorithm names have behind the key's.
SUFFIX = "-cert-v01@openssh.com"


def read(blob: bytes) -> SSHCertificate:
    """The certificate in its wire form, parsed.

    Raises:
        ValueError: it is malformed, of a type that is not supported, or no certificate.
    """
    try:
        found = load_ssh_public_identity(key_type_of(blob).encode() + b" " + base64.b64encode(blob))
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from error
    if not isinstance(found, SSHCertificate):
        raise ValueError("it is a plain key")
    return found


def authority(certificate: SSHCertificate) -> bytes:
    """The wire form of the public key that signed it."""
    text = certificate.signature_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return base64.b64decode(text.split()[1])


def subject(certificate: SSHCertificate) -> bytes:
    """The wire form of the plain public key that it is about."""
    text = certificate.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return base64.b64decode(text.split()[1])


def fault(certificate: SSHCertificate, host: str) -> str:
    """What is wrong with a host certificate for ``host``; empty: nothing. The checks of ``sshkey_cert_check_host``."""
    if certificate.type != SSHCertificateType.HOST:
        return "is no host certificate"
    try:
        certificate.verify_cert_signature()
    except InvalidSignature:
        return "has a wrong signature"
    now = time.time()
    if now < certificate.valid_after:
        return "is not valid yet"
    if now >= certificate.valid_before:
        return "has expired"
    if certificate.critical_options:
        return "has critical options, which a host certificate may not have"
    names = [name.decode("utf-8", "replace").lower() for name in certificate.valid_principals]
    if names and host not in names:
        return f"is for {', '.join(names)}, not for {host}"
    return ""

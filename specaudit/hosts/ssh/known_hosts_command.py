"""KnownHostsCommand: a program that prints lines of a known_hosts file, as ssh runs it."""

from __future__ import annotations

import base64
import shlex
import subprocess

from specaudit.errors import HostKeyError
from specaudit.hosts.shell import printable
from specaudit.hosts.ssh.config import SshConfig
from specaudit.hosts.ssh.known_hosts import Entry, fingerprint, key_type_of, parse

SECONDS = 30.0


def lines(label: str, config: SshConfig, blob: bytes | None) -> list[Entry]:
    """What the command says of a host; nothing when there is none.

    Args:
        label: the host as the user named it.
        config: its configuration.
        blob: its key; ``None`` before it has shown one, when only the kinds of known keys are asked for.

    Raises:
        HostKeyError: the command cannot be run or fails, which ends the connection with ssh as well.
    """
    command = config.first("knownhostscommand")
    if not command:
        return []
    about = {"I": "ORDER", "H": config.host, "t": "NONE", "f": "NONE", "K": "NONE"}
    if blob is not None:
        about |= {
            "I": "HOSTNAME", "H": config.host_key_name, "t": key_type_of(blob), "f": fingerprint(blob),
            "K": base64.b64encode(blob).decode(),
        }  # fmt: skip
    try:
        # No shell, as with ssh.
        words = [config.expand(word, about) for word in shlex.split(command)]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise _failed(label, command, str(error)) from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise _failed(label, command, f"exit code {done.returncode}{': ' + said[-1] if said else ''}")
    return parse(done.stdout.decode("utf-8", "replace").splitlines(), "KnownHostsCommand")


def _failed(label: str, command: str, why: str) -> HostKeyError:
    return HostKeyError(
        printable(f"The KnownHostsCommand for {label} failed: {why}."), f"Try it by hand: {printable(command)}"
    )

"""What ``ssh DESTINATION`` would do, as data: OpenSSH itself resolves it with ``ssh -G``.

So Include, every Match, Canonicalize, aliases and defaults mean here what they mean to ``ssh``. What ``ssh -G`` leaves
unexpanded (tokens in some values) is expanded below. Without an ``ssh`` on PATH paramiko's parser stands in; it knows
neither Include nor all of Match, and :attr:`SshConfig.notes` says so.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from specaudit.errors import ConfigurationError, UnreachableError

#: OpenSSH's own names for StrictHostKeyChecking.
Policy = Literal["yes", "ask", "accept-new", "no"]
POLICIES: tuple[Policy, ...] = ("yes", "ask", "accept-new", "no")

_TOKEN = re.compile(r"%(.)")
_DESTINATION = re.compile(r"(?:(?P<user>.+)@)?(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^\[\]@:]*))(?::(?P<port>\d+))?")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds for the five waits of a connection; each call has its own deadline besides."""

    tcp: float = 15.0
    banner: float = 30.0
    handshake: float = 30.0
    auth: float = 30.0
    channel: float = 30.0


@dataclass(frozen=True, slots=True)
class SshOptions:
    """What the user says about SSH beyond the destination.

    ``file`` is ssh's ``-F``; ``options`` its ``-o``, as ``Key=value``; ``policy`` overrides StrictHostKeyChecking.
    ``ask`` shows a question and returns whether the answer was yes: without it (no terminal) ``ask`` means ``yes``.
    ``secret`` shows a prompt and returns a password or passphrase; without it neither is used.
    """

    file: Path | None = None
    options: tuple[str, ...] = ()
    policy: Policy | None = None
    ask: Callable[[str], bool] | None = None
    secret: Callable[[str], str | None] | None = None
    timeouts: Timeouts = Timeouts()

    def way(self, destination: str) -> tuple[str, ...]:
        """What the command line of ssh names to get there: options, and the destination at its end."""
        user, host, port = split(destination)
        words = ["-F", str(self.file)] if self.file else []
        words += [part for option in self.options for part in ("-o", option)]
        # Jump hosts are written user@host:port, which ssh itself takes apart before it starts the next ssh.
        words += ["-p", str(port)] if port is not None else []
        return (*words, f"{user}@{host}" if user else host)


@dataclass(frozen=True, slots=True)
class SshConfig:
    """The resolved configuration of one destination.

    ``alias`` is the host as the user named it (ssh's ``%n``), ``way`` what leads there on the command line of ssh.
    """

    alias: str
    host: str
    port: int
    user: str
    values: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()
    restricted: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    way: tuple[str, ...] = ()

    def by_hand(self, *options: str, command: str = "") -> str:
        """What to type to have ssh itself go there."""
        return shlex.join(["ssh", *options, *self.way]) + f" {command}".rstrip()

    def first(self, key: str, default: str = "") -> str:
        """The first value of a key (lower case), ``default`` when it is unset or ``none``."""
        value = next(iter(self.values.get(key, ())), "")
        return default if value in ("", "none") else value

    def truth(self, key: str, default: bool = False) -> bool:
        """A yes/no value; ``ssh -G`` writes both yes and true."""
        return {"yes": True, "true": True, "no": False, "false": False}.get(self.first(key).lower(), default)

    def number(self, key: str, default: float) -> float:
        """A number of seconds; ``default`` when unset or zero."""
        value = self.first(key)
        return float(value) if value.isdigit() and int(value) > 0 else default

    def words(self, key: str) -> list[str]:
        """The paths of a value such as UserKnownHostsFile, expanded.

        ``ssh -G`` does not quote them: behind an absolute path, a word that is none continues it (``/my keys/a /b``).
        """
        found: list[str] = []
        for word in self.first(key).split():
            if found and found[-1][0] in "/~$%" and word[0] not in "/~$%" and word != "none":
                found[-1] += " " + word
            elif word != "none":
                found.append(word)
        return [self.expand(word) for word in found]

    def paths(self, key: str) -> list[str]:
        """Every value of a repeatable key such as IdentityFile, expanded."""
        return [self.expand(value) for value in self.values.get(key, ()) if value != "none"]

    @property
    def jumps(self) -> tuple[str, ...]:
        """The hosts of ProxyJump, first hop first."""
        return tuple(part.strip() for part in self.first("proxyjump").split(",") if part.strip())

    @property
    def host_key_name(self) -> str:
        """The name under which known_hosts files list this host."""
        alias = self.first("hostkeyalias")
        if alias:
            return alias.lower()
        return self.host.lower() if self.port == 22 else f"[{self.host.lower()}]:{self.port}"

    @property
    def policy(self) -> Policy:
        """StrictHostKeyChecking by OpenSSH's names."""
        value = self.first("stricthostkeychecking", "ask").lower()
        value = {"true": "yes", "false": "no", "off": "no"}.get(value, value)
        return value if value in POLICIES else "yes"

    def expand(self, text: str, more: Mapping[str, str] | None = None) -> str:
        """Expands a leading ``~``, ``${VARIABLE}`` and ssh's percent tokens; an unknown token stays as it is.

        ``more`` holds tokens that mean something in one place only.
        """
        home = pwd.getpwuid(os.getuid()).pw_dir  # ssh does not ask $HOME either
        if text == "~" or text.startswith("~/"):
            text = home + text[1:]
        text = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match.group(1), match.group(0)), text)
        hostname = socket.gethostname()
        tokens = {
            "%": "%", "d": home, "h": self.host, "i": str(os.getuid()), "k": self.first("hostkeyalias") or self.alias,
            "L": hostname.partition(".")[0], "l": hostname, "n": self.alias, "p": str(self.port), "r": self.user,
            "u": pwd.getpwuid(os.getuid()).pw_name, **(more or {}),
        }  # fmt: skip
        return _TOKEN.sub(lambda match: tokens.get(match.group(1), match.group(0)), text)


def resolve(destination: str, options: SshOptions) -> SshConfig:
    """The configuration that ``ssh destination`` would use.

    Args:
        destination: ``host``, ``user@host`` or ``ssh://user@host:port``; jump hosts may also be ``user@host:port``.

    Raises:
        ConfigurationError: ssh refuses the destination or the configuration.
    """
    user, host, _ = split(destination)
    if not host or "-" in (user[:1], host[:1]) or any(char.isspace() for char in destination + user):
        raise ConfigurationError(f"{destination!r} is no SSH destination.", "Write it as for ssh: user@host.")
    program = shutil.which("ssh")
    if program is None:
        return _without_ssh(destination, options)
    values = _values(_ssh_g(program, destination, options))
    return SshConfig(
        alias=_first(values, "host") or split(destination)[1],
        host=_first(values, "hostname") or split(destination)[1],
        port=int(_first(values, "port") or 22),
        user=_first(values, "user"),
        values=values,
        restricted=_restrictions(program, values),
        way=options.way(destination),
    )


def split(destination: str) -> tuple[str, str, int | None]:
    """user (may be empty), host, port of ``user@host:port``, ``[v6]:port`` or an ``ssh://`` URI."""
    if destination.startswith("ssh://"):
        user, host, port = split(destination.removeprefix("ssh://").rstrip("/"))
        return unquote(user), unquote(host), port
    match = _DESTINATION.fullmatch(destination)
    if match is None:  # a bare IPv6 address
        user, _, host = destination.rpartition("@")
        return user, host, None
    return match["user"] or "", match["v6"] or match["host"] or "", int(match["port"]) if match["port"] else None


def _ssh_g(program: str, destination: str, options: SshOptions) -> str:
    *way, destination = options.way(destination)
    command = [program, "-G", "-T", *way, "--", destination]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        raise UnreachableError(
            f"ssh -G {destination} did not finish within 30 s.", "Look at `Match exec` in your ssh configuration."
        ) from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise ConfigurationError(
            f"ssh refuses its configuration for {destination}: {said}",
            f"Try: {shlex.join(['ssh', '-G', *way, destination])}",
        )
    return done.stdout


def _values(text: str) -> dict[str, tuple[str, ...]]:
    values: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        values[key.lower()] = (*values.get(key.lower(), ()), value.strip())
    return values


def _first(values: Mapping[str, tuple[str, ...]], key: str) -> str:
    return next(iter(values.get(key, ())), "")


#: Algorithm lists that a configuration may narrow.
ALGORITHMS = ("ciphers", "macs", "kexalgorithms", "hostkeyalgorithms", "pubkeyacceptedalgorithms")


@cache
def _defaults(program: str) -> dict[str, tuple[str, ...]]:
    done = subprocess.run(
        [program, "-G", "-F", "none", "--", "host"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )
    return _values(done.stdout)


def _restrictions(program: str, values: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Algorithm lists that the configuration sets; ssh's built-in ones are no wish of the user's."""
    built_in = _defaults(program)
    return {
        key: tuple(_first(values, key).split(","))
        for key in ALGORITHMS
        if _first(values, key) and _first(values, key) != _first(built_in, key)
    }


def _without_ssh(destination: str, options: SshOptions) -> SshConfig:
    import paramiko

    user, host, port = split(destination)
    file = options.file or Path(pwd.getpwuid(os.getuid()).pw_dir, ".ssh", "config")
    text = file.read_text(errors="replace") if file.is_file() else ""
    parser = paramiko.SSHConfig.from_text(_readable(text.splitlines()))
    found = {key: _strings(value) for key, value in parser.lookup(host).items()}
    for option in options.options:
        key, _, value = option.partition("=")
        found[key.strip().lower()] = (value.strip(),)
    home = pwd.getpwuid(os.getuid()).pw_dir
    found.setdefault("userknownhostsfile", (f"{home}/.ssh/known_hosts {home}/.ssh/known_hosts2",))
    found.setdefault("globalknownhostsfile", ("/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2",))
    found.setdefault("identityfile", tuple(f"~/.ssh/id_{kind}" for kind in ("rsa", "ecdsa", "ed25519")))
    return SshConfig(
        alias=host,
        host=_first(found, "hostname") or host,
        port=port or int(_first(found, "port") or 22),
        user=user or _first(found, "user") or pwd.getpwuid(os.getuid()).pw_name,
        values=found,
        way=options.way(destination),
        notes=(f"no ssh program was found: Include, and Match beyond host and user, were not read in {file}",),
    )


def _strings(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),)


def _readable(lines: Iterable[str]) -> str:
    """The lines that paramiko understands: it would apply a Match with a keyword unknown to it to every host."""
    kept = []
    skipping = False
    for line in lines:
        words = re.split(r"[\s=]+", line.strip().lower())
        if words[0] in ("host", "match"):
            skipping = words[0] == "match" and bool(
                {*words[1::2]} - {"all", "host", "originalhost", "user", "localuser"}
            )
        if not skipping and words[0] != "include":
            kept.append(line)
    return "\n".join(kept)

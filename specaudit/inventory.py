"""Inventory files: the machines of a fleet in TOML, in groups, with options for all, a group, or one.

    [defaults]
    python = "/opt/venv/bin/python"

    [groups.a100]
    hosts = ["gpu1", "gpu2"]
    sudo = true

    [hosts.gpu2]
    address = "root@10.0.0.2"
    ssh = ["Port=2222"]
    via = "docker exec -i vllm"

Options: address, ssh, python, venv, via, sudo, deadline. A host's own come before its groups', those before the
defaults.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from specaudit.errors import ConfigurationError, TargetError
from specaudit.hosts.machines import DEADLINES, HostOptions
from specaudit.hosts.via import words_of
from specaudit.targets import Kind, kind_of


class _Options(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Options as they are written."""

    address: str | None = None
    ssh: list[str] | None = None
    python: str | None = None
    venv: str | None = None
    via: str | None = None
    sudo: bool | None = None
    deadline: float | None = None


class _Group(_Options, forbid_unknown_fields=True):
    """A group: its hosts, and options for them."""

    hosts: list[str] = []


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """A whole inventory."""

    defaults: _Options = msgspec.field(default_factory=_Options)
    groups: dict[str, _Group] = {}
    hosts: dict[str, _Options] = {}


@dataclass(frozen=True, slots=True)
class Entry:
    """One machine: its name, what is meant there, and how it is reached."""

    name: str
    groups: tuple[str, ...]
    python: str | None
    via: str | None
    options: HostOptions


@dataclass(frozen=True, slots=True)
class Inventory:
    """The machines of a file, in its order."""

    file: str
    entries: Mapping[str, Entry]

    def select(self, names: Iterable[str], limit: Iterable[str] = ()) -> tuple[Entry, ...]:
        """Machines by name or group.

        Args:
            names: names of hosts or groups; none: all.
            limit: narrows further: names, groups, patterns with ``*``, separated by commas; ``!`` excludes.

        Raises:
            ConfigurationError: a name or a limit means no machine.
        """
        chosen = {entry.name for name in names for entry in self._named(name)} or set(self.entries)
        kept = set(chosen)
        wanted = [part.strip() for text in limit for part in text.split(",")]
        if not all(part.removeprefix("!") for part in wanted):  # an unset variable does not mean all machines
            raise ConfigurationError(f"--limit {','.join(wanted)!r} has an empty name.", "Leave it out, or name hosts.")
        if any(not part.startswith("!") for part in wanted):
            kept = {entry.name for part in wanted if not part.startswith("!") for entry in self._named(part)} & chosen
        for part in wanted:
            if part.startswith("!"):
                kept -= {entry.name for entry in self._named(part[1:])}
        if not kept:
            raise ConfigurationError(f"--limit {','.join(wanted)} leaves no machine of {self.file}.", "Widen it.")
        return tuple(entry for name, entry in self.entries.items() if name in kept)

    def _named(self, pattern: str) -> list[Entry]:
        found = [
            entry
            for entry in self.entries.values()
            if any(fnmatchcase(n, pattern) for n in (entry.name, *entry.groups))
        ]
        if not found:
            known = ", ".join(
                dict.fromkeys(name for entry in self.entries.values() for name in (*entry.groups, entry.name))
            )
            raise ConfigurationError(f"{self.file} has no host or group {pattern!r}.", f"It has: {known}.")
        return found


def load(file: Path) -> Inventory:
    """Reads an inventory.

    Raises:
        ConfigurationError: it cannot be read, is no TOML, or holds something that is no option.
    """
    try:
        read = msgspec.convert(tomllib.loads(file.read_text(encoding="utf-8-sig")), _File)
    except OSError as bad:
        raise ConfigurationError(f"The inventory {file} cannot be read: {bad.strerror}.", "Check its path.") from bad
    except UnicodeDecodeError as bad:
        raise ConfigurationError(f"The inventory {file} is not UTF-8.", "Save it as UTF-8.") from bad
    except tomllib.TOMLDecodeError as bad:
        raise ConfigurationError(f"The inventory {file} is no TOML: {bad}.", "Look at that line.") from bad
    except RecursionError as bad:
        raise ConfigurationError(f"The inventory {file} is nested too deeply.", "Look for brackets left open.") from bad
    except msgspec.ValidationError as bad:
        known = ", ".join(_Options.__struct_fields__)
        raise ConfigurationError(
            f"The inventory {file} is not understood: {bad}.",
            f"Tables are defaults, groups.NAME (hosts = [...]) and hosts.NAME; options are {known}.",
        ) from bad
    names = dict.fromkeys([*(host for group in read.groups.values() for host in group.hosts), *read.hosts])
    if not names:
        raise ConfigurationError(
            f"The inventory {file} names no machine.", 'Write [groups.NAME] with hosts = ["gpu1"].'
        )
    for label, group in read.groups.items():
        # A group that holds a machine of its own name leaves no doubt.
        inner = next(
            (host for host in group.hosts if host in read.groups and host not in read.groups[host].hosts), None
        )
        if inner is not None:
            raise ConfigurationError(
                f"{file}: groups.{label} holds {inner}, which is a group.",
                "Groups hold machines: list them again there.",
            )
    return Inventory(str(file), {name: _entry(file, read, name) for name in names})


def _entry(file: Path, read: _File, name: str) -> Entry:
    groups = tuple(label for label, group in read.groups.items() if name in group.hosts)
    own = _given(read.hosts.get(name, _Options()))
    shared: dict[str, object] = {}
    for label in groups:
        for key, value in _given(read.groups[label]).items():
            if key not in own and shared.setdefault(key, value) != value:
                raise ConfigurationError(
                    f"{file}: {name} has {key} from several groups, and they differ.", f"Set {key} in [hosts.{name}]."
                )
    whole = msgspec.convert(_over(_over(_given(read.defaults), shared), own), _Options)
    empty = next((key for key, value in _given(whole).items() if value == ""), None)
    if empty is not None:
        raise ConfigurationError(f"{file}: {empty} of {name} is empty.", "Leave it out.")
    if whole.deadline is not None and not DEADLINES[0] <= whole.deadline <= DEADLINES[1]:
        raise ConfigurationError(
            f"{file}: the deadline of {name} is {whole.deadline:g} s.",
            f"Take {DEADLINES[0]:g} to {DEADLINES[1]:g} seconds.",
        )
    if whole.python and whole.venv:
        raise ConfigurationError(f"{file}: {name} has both python and venv.", "Leave out one of the two.")
    for text in (name, whole.address or name):
        if not is_machine(text):
            raise ConfigurationError(f"{file}: {text!r} is no machine.", "Write it as for ssh: user@host.")
    if whole.via is not None:
        try:
            words_of(whole.via)
        except ConfigurationError as bad:
            raise ConfigurationError(f"{file}: {name}: {bad.message}", bad.hint) from bad
    options = HostOptions(whole.address, tuple(whole.ssh or ()), bool(whole.sudo), whole.deadline)
    return Entry(name, groups, python_of(whole.python, whole.venv), whole.via, options)


def _over(lower: dict[str, object], upper: dict[str, object]) -> dict[str, object]:
    """Options with more special ones; ``python`` and ``venv`` say the same thing."""
    if {"python", "venv"}.intersection(upper):
        lower = {key: value for key, value in lower.items() if key not in ("python", "venv")}
    return {**lower, **upper}


def is_machine(text: str) -> bool:
    """Whether a target's name is that of a machine."""
    try:
        return kind_of(text) is Kind.MACHINE
    except TargetError:
        return False


def _given(options: _Options) -> dict[str, object]:
    keys = _Options.__struct_fields__
    return {key: value for key in keys if (value := getattr(options, key)) is not None}


def python_of(python: str | None, venv: str | None) -> str | None:
    """The interpreter that ``--python`` names or ``--venv`` contains."""
    return f"{venv.rstrip('/')}/bin/python" if venv else python

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

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

import msgspec

from specaudit.errors import ConfigurationError, TargetError
from specaudit.given import contents
from specaudit.hosts.machines import DEADLINES, HostOptions
from specaudit.hosts.via import words_of
from specaudit.targets import Kind, kind_of
from specaudit.words import meant


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


_Some = TypeVar("_Some", bound=_Options)
#: Bytes; a machine takes some hundred.
_LIMIT = 16 << 20
_TABLES = "Tables are [defaults], [groups.NAME] with hosts = [...], and [hosts.NAME]."
_HEADER = re.compile(r"\s*\[[^\[\],]+\]\s*(#.*)?$")


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
        ConfigurationError: it cannot be read, is no TOML, or holds something that is no option; the message names the
            table.
    """
    read = _File(str(file), _parsed(file))
    names = dict.fromkeys([*(host for group in read.groups.values() for host in group.hosts), *read.hosts])
    if not names:
        raise ConfigurationError(
            f"The inventory {file} names no machine.", 'Write [groups.NAME] with hosts = ["gpu1"].'
        )
    return Inventory(str(file), {name: _entry(read, name) for name in names})


def _parsed(file: Path) -> dict[str, object]:
    text = ""
    try:
        text = contents(file, _LIMIT).decode("utf-8-sig")
        return tomllib.loads(text)
    except OSError as bad:
        raise ConfigurationError(f"The inventory {file} cannot be read: {bad.strerror}.", "Check its path.") from bad
    except UnicodeDecodeError as bad:
        raise ConfigurationError(f"The inventory {file} is not UTF-8.", "Save it as UTF-8.") from bad
    except tomllib.TOMLDecodeError as bad:
        why = f"{bad}{_below(text, str(bad))}"
        raise ConfigurationError(f"The inventory {file} is no TOML: {why}.", "Look at that line.") from bad
    except ValueError as bad:  # a number that Python does not read
        raise ConfigurationError(
            f"The inventory {file} holds a number of thousands of digits.", "Correct that number."
        ) from bad
    except RecursionError as bad:
        raise ConfigurationError(f"The inventory {file} is nested too deeply.", "Look for brackets left open.") from bad


def _below(text: str, problem: str) -> str:
    """The table in which the line lies that a problem of syntax names."""
    line = re.search(r"at line (\d+)", problem)
    headers = [one.strip() for one in text.splitlines()[: int(line[1])] if _HEADER.match(one)] if line else []
    return f", below {headers[-1]}" if headers else ""


class _File:
    """A whole inventory, every table checked by itself."""

    def __init__(self, name: str, tables: dict[str, object]) -> None:
        self.name = name
        for table in tables:
            if table not in ("defaults", "groups", "hosts"):
                raise self._wrong(f"[{table}]", "there is no such table", _TABLES)
        self.defaults = self._options("[defaults]", tables.get("defaults", {}), _Options)
        self.groups = {
            label: self._options(_header("groups", label), group, _Group)
            for label, group in self._tables("groups", tables).items()
        }
        self.hosts = {
            label: self._options(_header("hosts", label), host, _Options)
            for label, host in self._tables("hosts", tables).items()
        }
        for label, group in self.groups.items():
            self._members(_header("groups", label), group)
        for host in self.hosts:
            self._machine(_header("hosts", host), host)

    def _wrong(self, where: str, why: str, hint: str) -> ConfigurationError:
        return ConfigurationError(f"{self.name}: {where}: {why.rstrip('.')}.", hint)

    def _tables(self, kind: str, tables: dict[str, object]) -> dict[str, object]:
        try:
            return msgspec.convert(tables.get(kind, {}), dict[str, object])
        except msgspec.ValidationError as bad:
            raise self._wrong(kind, str(bad), _TABLES) from bad

    def _options(self, where: str, table: object, kind: type[_Some]) -> _Some:
        try:
            read = msgspec.convert(table, kind)
        except msgspec.ValidationError as bad:
            text, _, place = str(bad).partition(" - at `$")
            inner = f"{place.rstrip('`').lstrip('.')}: " if place else ""
            raise self._wrong(where, inner + text, _hint(kind, table)) from bad
        words = {key: value if isinstance(value, list) else [value] for key, value in _given(read).items()}
        empty = next((key for key, values in words.items() if "" in values), None)
        if empty is not None:
            raise self._wrong(where, f"{empty} is empty", "Leave it out.")
        if read.deadline is not None and not DEADLINES[0] <= read.deadline <= DEADLINES[1]:
            between = f"Take {DEADLINES[0]:g} to {DEADLINES[1]:g} seconds."
            raise self._wrong(where, f"the deadline is {read.deadline:g} s", between)
        if read.python and read.venv:
            raise self._wrong(where, "it has both python and venv", "Leave out one of the two.")
        if read.address is not None:
            self._machine(where, read.address)
        if read.via is not None:
            try:
                words_of(read.via)
            except ConfigurationError as bad:
                raise self._wrong(where, bad.message, bad.hint) from bad
        return read

    def _members(self, where: str, group: _Group) -> None:
        for host in group.hosts:
            # A group that holds a machine of its own name leaves no doubt.
            if host in self.groups and host not in self.groups[host].hosts:
                raise self._wrong(where, f"it holds {host}, which is a group", "Groups hold machines: list them again.")
            self._machine(where, host)

    def _machine(self, where: str, text: str) -> None:
        if not is_machine(text):
            raise self._wrong(where, f"{text!r} is no machine", "Write it as for ssh: user@host.")


def _header(kind: str, name: str) -> str:
    """A table's header as it is written."""
    return f"[{kind}.{name if re.fullmatch(r'[A-Za-z0-9_-]+', name) else json.dumps(name, ensure_ascii=False)}]"


def _hint(kind: type[_Options], table: object) -> str:
    """What to do about a table that is not understood."""
    known = kind.__struct_fields__
    unknown = [key for key in table if key not in known] if isinstance(table, dict) else []
    if isinstance(table, dict) and any(isinstance(table[key], dict) for key in unknown):
        return 'A name with dots stands in quotes: [hosts."gpu1.example.com"].'
    near = meant(unknown[0], known) if unknown else ""
    return near or f"Options are {', '.join(known)}."


def _entry(read: _File, name: str) -> Entry:
    groups = tuple(label for label, group in read.groups.items() if name in group.hosts)
    own = _given(read.hosts.get(name, _Options()))
    decided = {_meaning(key) for key in own}
    shared: dict[str, object] = {}
    origin: dict[str, str] = {}
    for label in groups:
        for key, value in _given(read.groups[label]).items():
            here = _header("groups", label)
            other = origin.setdefault(_meaning(key), here)
            if _meaning(key) not in decided and other != here and shared.get(key) != value:
                raise ConfigurationError(
                    f"{read.name}: {name} has {key} from {here}, and another one from {other}.",
                    f"Set {key} in {_header('hosts', name)}.",
                )
            shared[key] = value
    whole = msgspec.convert(_over(_over(_given(read.defaults), shared), own), _Options)
    options = HostOptions(whole.address, tuple(whole.ssh or ()), bool(whole.sudo), whole.deadline)
    return Entry(name, groups, python_of(whole.python, whole.venv), whole.via, options)


def _meaning(key: str) -> str:
    """``python`` and ``venv`` say the same thing."""
    return "python" if key == "venv" else key


def _over(lower: dict[str, object], upper: dict[str, object]) -> dict[str, object]:
    """Options with more special ones."""
    decided = {_meaning(key) for key in upper}
    return {**{key: value for key, value in lower.items() if _meaning(key) not in decided}, **upper}


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

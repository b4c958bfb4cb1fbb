"""Options that say which machines are meant and how they are reached, shared by the commands that reach any."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specaudit.errors import UsageError

if TYPE_CHECKING:
    from specaudit.hosts.machines import HostOptions, Machines
    from specaudit.hosts.ssh.config import SshOptions
    from specaudit.inventory import Entry, Inventory
    from specaudit.model import Target

Python = Annotated[
    str | None, typer.Option("--python", metavar="PATH", help="The interpreter whose environment is meant.")
]
Venv = Annotated[
    str | None, typer.Option("--venv", metavar="DIR", help="The environment that is meant; as --python DIR/bin/python.")
]
Via = Annotated[
    str | None,
    typer.Option("--via", metavar="COMMAND", help='Leads into a container on the machine: "docker exec -i NAME".'),
]
Sudo = Annotated[bool, typer.Option("--sudo", help="Run by sudo on the machine (it must not ask for a password).")]
InventoryFile = Annotated[
    Path | None,
    typer.Option("--inventory", metavar="FILE", help="Machines in groups, with their options (TOML)."),
]
Limit = Annotated[
    list[str] | None,
    typer.Option("--limit", metavar="NAMES", help="Of the inventory only these hosts or groups; !NAME excludes."),
]
Jobs = Annotated[int, typer.Option("--jobs", "-j", metavar="N", min=1, max=64, help="Targets at the same time.")]
SshConfig = Annotated[
    Path | None, typer.Option("--ssh-config", "-F", metavar="FILE", help="As ssh -F: the configuration to obey.")
]
SshOption = Annotated[
    list[str] | None, typer.Option("--ssh-option", "-o", metavar="KEY=VALUE", help="As ssh -o (repeatable).")
]
HostKeys = Annotated[
    str | None,
    typer.Option("--host-keys", metavar="POLICY", help="yes, ask, accept-new or no, as ssh's StrictHostKeyChecking."),
]
Deadline = Annotated[
    float | None, typer.Option("--deadline", metavar="SECONDS", min=1, help="For each answer of a machine (120).")
]


@dataclass(frozen=True, slots=True)
class Said:
    """Which environment is meant, and how its machine is reached."""

    python: str | None = None
    venv: str | None = None
    via: str | None = None
    sudo: bool = False
    ssh_config: Path | None = None
    ssh_option: Sequence[str] | None = None
    host_keys: str | None = None
    deadline: float | None = None


def _options(
    python: Python = None,
    venv: Venv = None,
    via: Via = None,
    sudo: Sudo = False,
    ssh_config: SshConfig = None,
    ssh_option: SshOption = None,
    host_keys: HostKeys = None,
    deadline: Deadline = None,
) -> None:
    """The options that make a :class:`Said`, as typer reads them."""


def reaching(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of :class:`Said` in place of its parameter ``said``."""
    options = inspect.signature(_options, eval_str=True).parameters
    own = inspect.signature(command, eval_str=True)
    parameters = [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in own.parameters.items()
        for one in (options.values() if name == "said" else [parameter])
    ]

    @wraps(command)
    def call(**given: Any) -> None:
        said = Said(**{name: given.pop(name) for name in options})
        command(**given, said=said)

    # What typer looks at, in place of the function that is wrapped.
    call.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def one_meant(spec: str, said: Said, clear: Callable[[], None] = lambda: None) -> tuple[Target, Machines]:
    """The one target of a command, and how it is reached; as :func:`meant`."""
    (target,), machines = meant([spec], said, clear=clear)
    return target, machines


def meant(
    specs: Sequence[str],
    said: Said,
    *,
    inventory: Path | None = None,
    limit: Sequence[str] | None = None,
    metrics: bool = False,
    clear: Callable[[], None] = lambda: None,
) -> tuple[list[Target], Machines]:
    """The targets of a command line, and how to reach those that are machines.

    Args:
        specs: positional targets; with an inventory also names of its hosts and groups.
        said: the options.
        inventory: a file of machines; without ``specs`` all of it is meant.
        limit: narrows the inventory.
        metrics: whether to read servers' counters.
        clear: makes room on the terminal before a question.

    Raises:
        UsageError: targets or options cannot be understood, or do not go together.
    """
    targets, entries = _targets(specs, said, inventory, limit)
    return targets, _machines(said, entries, metrics, clear)


def perhaps_meant(
    specs: Sequence[str],
    said: Said,
    *,
    inventory: Path | None = None,
    limit: Sequence[str] | None = None,
    metrics: bool = False,
    clear: Callable[[], None] = lambda: None,
) -> tuple[list[Target], Machines | None]:
    """As :func:`meant`; what reaches machines is not even imported when none is meant, which is most often so."""
    targets, entries = _targets(specs, said, inventory, limit)
    return targets, _machines(said, entries, metrics, clear) if any(target.host for target in targets) else None


def _targets(
    specs: Sequence[str], said: Said, inventory: Path | None, limit: Sequence[str] | None
) -> tuple[list[Target], tuple[Entry, ...]]:
    from specaudit.targets import LOCAL, parse

    if said.python and said.venv:
        raise UsageError("--python and --venv both say which environment is meant.", "Leave out one of the two.")
    if limit and inventory is None:
        raise UsageError("--limit goes with --inventory.", "Name the targets themselves, or an inventory.")
    if said.via is not None:
        from specaudit.hosts.via import words_of

        words_of(said.via)
    python = _python(said)
    entries: tuple[Entry, ...] = ()
    others = list(specs)
    if inventory is not None:
        from specaudit.inventory import load

        listed = load(inventory)
        known = _known(listed)
        named = [spec for spec in specs if spec in known]
        others = [spec for spec in specs if spec not in known]
        if named or not specs:
            entries = listed.select(named, limit or ())
        elif limit:
            raise UsageError(f"--limit narrows {inventory}, of which nothing is meant.", "Leave it out.")
    elif not specs:
        others = [LOCAL]
    targets = [parse(e.name, python=python or e.python, via=said.via or e.via) for e in entries]
    option = "--venv" if said.venv else "--python"
    targets += [parse(spec, python=python, option=option, via=said.via) for spec in others]
    if not any(target.host for target in targets):
        _machineless(said, targets)
    return list(dict.fromkeys(targets)), entries


def _machineless(said: Said, targets: Sequence[Target]) -> None:
    """Refuses options that nothing would heed."""
    given = {
        "--sudo": said.sudo,
        "--ssh-config": said.ssh_config is not None,
        "--ssh-option": bool(said.ssh_option),
        "--host-keys": said.host_keys is not None,
        "--deadline": said.deadline is not None,
    }
    for option in (option for option, is_given in given.items() if is_given):
        named = " and ".join(dict.fromkeys(target.spec for target in targets[:3])) or "the inventory"
        raise UsageError(f"{option} does not go with {named}.", "Use it with a machine that is reached over SSH.")


def _machines(said: Said, entries: tuple[Entry, ...], metrics: bool, clear: Callable[[], None]) -> Machines:
    from specaudit.console import note
    from specaudit.hosts.machines import DEADLINES, HostOptions, Machines

    least, most = DEADLINES
    if said.deadline is not None and not least <= said.deadline <= most:
        raise UsageError(f"--deadline {said.deadline:g} is no time to wait.", f"Take {least:g} to {most:g} seconds.")
    everywhere = HostOptions(ssh=tuple(said.ssh_option or ()), sudo=said.sudo, deadline=said.deadline)
    return Machines(
        ssh=_ssh(said, clear),
        everywhere=everywhere,
        per_host={entry.name: _joined(entry.options, everywhere) for entry in entries},
        metrics=metrics,
        note=note,
    )


def _python(said: Said) -> str | None:
    if said.python is None and said.venv is None:
        return None
    from specaudit.inventory import python_of

    return python_of(said.python, said.venv)


def _known(inventory: Inventory) -> set[str]:
    return {name for entry in inventory.entries.values() for name in (entry.name, *entry.groups)}


def _joined(own: HostOptions, everywhere: HostOptions) -> HostOptions:
    """A host's options with those of the command line, which come first."""
    from specaudit.hosts.machines import HostOptions

    return HostOptions(
        address=own.address,
        ssh=(*everywhere.ssh, *own.ssh),
        sudo=own.sudo or everywhere.sudo,
        deadline=everywhere.deadline or own.deadline,
    )


def _ssh(said: Said, clear: Callable[[], None]) -> SshOptions:
    from specaudit.hosts.ssh.config import POLICIES, SshOptions

    policy = next((name for name in POLICIES if name == said.host_keys), None)
    if said.host_keys is not None and policy is None:
        raise UsageError(f"--host-keys {said.host_keys} is no policy.", f"Choose one of {', '.join(POLICIES)}.")
    if said.ssh_config is not None and not said.ssh_config.is_file():
        raise UsageError(f"--ssh-config {said.ssh_config} is no file.", "Check its path.")
    terminal = sys.stdin.isatty() and sys.stderr.isatty()
    asking = Asking(clear)
    return SshOptions(
        file=said.ssh_config,
        policy=policy,
        ask=asking.confirm if terminal else None,
        secret=asking.secret if terminal else None,
    )


class Asking:
    """Questions on the terminal, one at a time though many threads ask; a secret is asked for once.

    Who closes the input says no to the question that is on the screen; Ctrl-C ends the program.
    """

    def __init__(self, clear: Callable[[], None]) -> None:
        self._clear = clear
        self._lock = threading.Lock()
        self._secrets: dict[str, str] = {}

    def confirm(self, question: str) -> bool:
        """A yes or no."""
        with self._lock, _declinable():
            self._clear()
            return typer.confirm(question, err=True)
        return False

    def secret(self, prompt: str) -> str | None:
        """A password or passphrase, not shown; kept for this run."""
        with self._lock:
            if prompt not in self._secrets:
                self._clear()
                self._secrets[prompt] = ""
                with _declinable():
                    self._secrets[prompt] = typer.prompt(
                        prompt.rstrip(": "), hide_input=True, err=True, default="", show_default=False
                    )
            return self._secrets[prompt] or None


@contextmanager
def _declinable() -> Iterator[None]:
    try:
        yield
    except typer.Abort as bad:  # typer makes the same of Ctrl-C and of a closed input
        if isinstance(bad.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from bad

"""``--via`` and ``--sudo``: a command on its way to a machine is put behind another command that passes stdin on."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from specaudit.errors import ConfigurationError, IncompleteError
from specaudit.hosts.shell import Ended, Shell, Sink

#: ``-n``: never ask. A password could only come by stdin, which carries the script.
SUDO = ("sudo", "-n", "--")
_LONG = {"--interactive": "i", "--stdin": "i", "--tty": "t", "--no-TTY": "T", "--no-tty": "T"}


def words_of(via: str) -> tuple[str, ...]:
    """The words of a ``--via`` command.

    Raises:
        ConfigurationError: it is empty, its quotes do not match, or it would not pass stdin on.
    """
    try:
        words = shlex.split(via)
    except ValueError as error:
        raise ConfigurationError(f"--via {via!r} cannot be read: {error}.", "Quote it as in a shell.") from error
    if not words:
        raise ConfigurationError("--via is empty.", 'Write for example --via "docker exec -i NAME".')
    problem = _problem(words)
    if problem:
        raise ConfigurationError(f"--via {via!r} {problem[0]}", problem[1])
    return tuple(words)


#: Commands that enter a container by their ``exec``, and the letters of those of its options that take no value.
_ENTERS = {"docker": "dit", "podman": "dilt", "nerdctl": "dit", "docker-compose": "dT", "kubectl": "iqt", "oc": "iqt"}


def _problem(words: Sequence[str]) -> tuple[str, str] | None:
    """What is wrong with a command that enters a container, and what helps."""
    program = words[0].rpartition("/")[2]
    if program in ("docker", "podman", "nerdctl") and "compose" in words:
        program = "docker-compose"
    if program not in _ENTERS or "exec" not in words:
        return None
    # kubectl takes options of exec before it as well.
    rest = words[1 if program in ("kubectl", "oc") else words.index("exec") + 1 :]
    own = rest[: rest.index("--")] if "--" in rest else rest
    # Letters together are options only if all of them may be: -eHOME=/t is a variable.
    flags = {letter for word in own if re.fullmatch(f"-[{_ENTERS[program]}]+", word) for letter in word[1:]}
    flags |= {_LONG[option] for word in own if (option := word.removesuffix("=true")) in _LONG}
    if program == "docker-compose":
        return None if "T" in flags else ("asks for a terminal.", "Add -T after exec: the answer is binary.")
    if "i" not in flags:
        return "does not pass stdin on.", "Add -i after exec."
    if "t" in flags:
        return "asks for a terminal.", "Leave -t out: the answer is binary."
    if program in ("kubectl", "oc") and "--" not in rest:
        return "does not say where the command begins.", "Put -- at its end."
    return None


class PrefixedShell:
    """A shell whose commands run behind others: ``sudo -n -- docker exec -i NAME sh -c …``.

    Args:
        shell: carries the command.
        via: the words of ``--via``, may be empty.
        sudo: whether everything, ``via`` included, runs by sudo.
    """

    def __init__(self, shell: Shell, via: Sequence[str] = (), sudo: bool = False) -> None:
        self._shell = shell
        self.prefix = (*(SUDO if sudo else ()), *via)
        self._sudo = sudo

    @property
    def label(self) -> str:
        """The name of the machine."""
        return self._shell.label

    @property
    def notes(self) -> tuple[str, ...]:
        """Of the shell."""
        return self._shell.notes

    @property
    def unread(self) -> tuple[str, ...]:
        """Of the shell."""
        return self._shell.unread

    def run(self, command: Sequence[str], stdin: bytes, sink: Sink, deadline: float) -> Ended:
        """See :meth:`specaudit.hosts.shell.Shell.run`.

        Raises:
            IncompleteError: sudo wants a password, a terminal, or does not allow the command.
        """
        ended = self._shell.run([*self.prefix, *command], stdin, sink, deadline)
        refusal = next((line for line in ended.stderr.splitlines() if line.startswith("sudo:")), "")
        if not refusal and "is not allowed to execute" in ended.stderr:
            refusal = ended.stderr.strip().splitlines()[-1]
        if self._sudo and ended.status == 127 and re.search(r"sudo: (.*not found|No such file)", ended.stderr):
            raise IncompleteError(f"{self.label} has no sudo.", "Log in as the user who may look, without --sudo.")
        if self._sudo and refusal and ended.status not in (0, None):
            raise IncompleteError(
                f"sudo on {self.label} refuses: {refusal.removeprefix('sudo: ')}.",
                "Give the user a NOPASSWD rule for the command (visudo), or log in as root.",
            )
        return ended

    def close(self) -> None:
        """Ends the connection."""
        self._shell.close()

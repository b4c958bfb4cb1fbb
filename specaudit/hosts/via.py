"""``--via`` and ``--sudo``: a command on its way to a machine is put behind another command that passes stdin on."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from specaudit.errors import ConfigurationError, IncompleteError
from specaudit.hosts.shell import Ended, Shell, Sink

#: ``-n``: never ask. A password could only come by stdin, which carries the script.
SUDO = ("sudo", "-n", "--")


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
    program = words[0].rpartition("/")[2]
    rest = words[1:]
    if program in ("docker", "podman", "nerdctl", "kubectl", "oc") and "exec" in rest:
        short = [word for word in rest if word[:1] == "-" and word[1:2] != "-"]
        if not any("i" in word for word in short) and not {"--interactive", "--stdin"}.intersection(rest):
            raise ConfigurationError(f"--via {via!r} does not pass stdin on.", "Add -i after exec.")
        if any("t" in word for word in short) or "--tty" in rest:
            raise ConfigurationError(f"--via {via!r} asks for a terminal.", "Leave -t out: the answer is binary.")
    return tuple(words)


class PrefixedShell:
    """A shell whose commands run behind others: ``sudo -n -- docker exec -i NAME sh -c …``.

    Args:
        shell: carries the command.
        via: the words of ``--via``, may be empty.
        sudo: whether everything, ``via`` included, runs by sudo.
    """

    def __init__(self, shell: Shell, via: Sequence[str] = (), sudo: bool = False) -> None:
        self._shell = shell
        self._prefix = (*(SUDO if sudo else ()), *via)
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
        ended = self._shell.run([*self._prefix, *command], stdin, sink, deadline)
        refusal = next((line for line in ended.stderr.splitlines() if line.startswith("sudo:")), "")
        if not refusal and "is not allowed to execute" in ended.stderr:
            refusal = ended.stderr.strip().splitlines()[-1]
        if self._sudo and refusal and ended.status not in (0, None):
            raise IncompleteError(
                f"sudo on {self.label} refuses: {refusal.removeprefix('sudo: ')}.",
                "Give the user a NOPASSWD rule for the command (visudo), or log in as root.",
            )
        return ended

    def close(self) -> None:
        """Ends the connection."""
        self._shell.close()

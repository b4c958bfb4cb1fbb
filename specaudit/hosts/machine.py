"""Calls to the Python of a machine, through any shell: frame protocol, choice of an interpreter, deadline."""

from __future__ import annotations

import math
import secrets
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from specaudit.errors import IncompleteError, SpecauditError, TargetError, UnreachableError
from specaudit.hosts.base import Answer
from specaudit.hosts.far_side import TOO_OLD
from specaudit.hosts.frame import AnswerReader, compose
from specaudit.hosts.shell import Ended, Shell

#: Seconds beyond our deadline after which the far side ends itself: closing an SSH channel ends nothing there.
GRACE = 2
#: Interpreters tried in turn when the user names none; the first that is 3.8 or newer runs the script.
INTERPRETERS = (
    "python3",
    *(f"python3.{minor}" for minor in range(14, 7, -1)),
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    "/opt/venv/bin/python3",
    "/opt/conda/bin/python3",
)

# "$0": seconds after which `timeout` ends the command, where there is a `timeout` that knows -k. No exclamation
# mark and no newline: the login shell that takes this apart may be a csh.
_START = (
    'for p in "$@"; do case $p in "~/"*) p=$HOME/${p#"~/"};; esac; c=$(command -v "$p" 2>/dev/null) || continue; '
    'if [ $# -gt 1 ]; then "$c" -I -c "import sys; sys.exit(sys.version_info < (3, 8))" >/dev/null 2>&1 </dev/null || '
    '{ o="$o $c"; continue; }; fi; '
    'if timeout -k 1 5 true >/dev/null 2>&1; then exec timeout -k 5 "$0" "$c" -I -; fi; exec "$c" -I -; done; '
    'echo "specaudit: no usable Python;$o" >&2; exit 127'
)
#: Exit status of the line above when no interpreter was usable; a shell uses it for "not found" as well.
_NOT_FOUND = 127
#: Exit statuses above it stand for a signal.
_SIGNAL = 128


def _said(text: str) -> str:
    """The end of what a command said; of a traceback its last line."""
    lines = text.strip().splitlines()
    if "Traceback (most recent call last):" in text:
        lines = lines[-1:]
    return f" It said: {chr(10).join(lines)[-600:]}" if lines else ""


def command_line(pythons: Sequence[str], seconds: int) -> list[str]:
    """The command that feeds its stdin to the first usable one of ``pythons``."""
    return ["sh", "-c", _START, str(seconds), *pythons]


class PythonCaller:
    """Implements :meth:`specaudit.hosts.base.Machine.call` over a shell."""

    def __init__(self, shell: Shell, python: str | None = None) -> None:
        self.shell = shell
        self.python = python

    @property
    def label(self) -> str:
        """How the user named this machine."""
        return self.shell.label

    def call(
        self,
        script: str,
        request: Mapping[str, Any],
        *,
        blobs: Mapping[str, bytes] | None = None,
        python: str | None = None,
        deadline: float = 60.0,
    ) -> Answer:
        """Runs a script's ``main(request, blobs)`` on the machine's Python; see :class:`specaudit.hosts.base.Machine`.

        Raises:
            DeadlineError: no answer within ``deadline`` seconds.
            UnreachableError: no connection, no usable Python there, or the answer is cut.
            TargetError: the interpreter that was named is not there.
            AnswerError: the answer is malformed.
            IncompleteError: the script raised.
        """
        nonce = secrets.token_hex(16)
        seconds = math.ceil(deadline) + GRACE
        chosen = python or self.python
        reader = AnswerReader(self.label, nonce)
        program = compose(script, request, blobs or {}, nonce, seconds)
        command = command_line((chosen,) if chosen else INTERPRETERS, seconds)
        ended = self.shell.run(command, program, reader.feed, deadline)
        if not reader.started:
            raise self._no_answer(ended, chosen, reader.noise)
        return reader.answer()

    def _no_answer(self, ended: Ended, python: str | None, noise: str) -> SpecauditError:
        said = _said(ended.stderr or noise)
        if ended.status == _NOT_FOUND and "no usable Python" in ended.stderr:
            tried = ended.stderr.rpartition(";")[2].strip()
            if tried:
                return UnreachableError(
                    f"{self.label} has no Python 3.8 or newer among {tried}.", "Name another with --python PATH."
                )
            kind = TargetError if python else UnreachableError  # one that was named is a mistake, here as for @local
            return kind(
                f"{self.label} has no {python or 'python3'}.",
                'Name the engine\'s interpreter with --python PATH, or its container with --via "docker exec -i NAME".',
            )
        if TOO_OLD in ended.stderr:
            said = ended.stderr[ended.stderr.index(TOO_OLD) :].splitlines()[0]
            return UnreachableError(f"{self.label}: {said}.", "Name another with --python PATH.")
        by_hand = f"Try by hand on {self.label}: {shlex.join([*self.shell.prefix, python or 'python3', '-V'])}"
        # ssh tells no exit code of a process that a signal ended; shells and containers add 128 to it.
        if ended.status is None or ended.status < 0 or ended.status > _SIGNAL:
            code = "" if ended.status is None else f" (exit code {ended.status})"
            return IncompleteError(
                f"{self.label} ended the command by a signal{code}, with no answer.{said}",
                f"{by_hand}; it may have run out of memory.",
            )
        return IncompleteError(
            f"{self.label} ended the command with exit code {ended.status} and no answer.{said}", f"{by_hand}."
        )

    def close(self) -> None:
        """Ends the connection."""
        self.shell.close()

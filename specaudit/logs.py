"""The line of a log that says why a program ended."""

from __future__ import annotations

import re

#: What loggers and launchers write before a line's own text: "(Worker pid=7) ERROR 11-30 03:00:00 [core.py:70] ".
_PREFIX = re.compile(r"^(?:\([^()]*\bpid=\d+[^()]*\)\s*)?(?:(?:ERROR|CRITICAL)\b[\d\s:.,-]*(?:\[[^\]]*\]\s*)?)?")
#: The line under a traceback that names what was raised.
_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)\b(?::.*)?$")
#: An error that only says that there was another one.
_REFERS = re.compile(r"see (?:the )?(?:root cause|stack trace|error) above|see (?:the )?above", re.IGNORECASE)
#: What programs still say when all is over, or while they work.
_NOISE = re.compile(r"Warning|warnings\.warn|^\[rank\d|\d+%\||^[\s^~|-]*$|^\s+File \"")
_LIMIT = 300


def cause(log: str) -> str:
    """The last meaningful line of a log: the last error that was raised, else the last line that is no warning.

    An error that only refers to another one is passed over; a message that goes on in indented lines takes the first
    of them along. At most 300 characters; ``""`` when the log says nothing.
    """
    lines = [_PREFIX.sub("", line).rstrip() for line in log.splitlines()]
    raised = [number for number, line in enumerate(lines) if _RAISED.match(line)]
    telling = [number for number in raised if not _REFERS.search(lines[number])] or raised
    if telling:
        more = lines[telling[-1] + 1 : telling[-1] + 2]
        said = lines[telling[-1]] + "".join(f" {line.strip()}" for line in more if line[:1] == " " and line.strip())
    else:
        said = next((line.strip() for line in reversed(lines) if not _NOISE.search(line)), "")
    return said if len(said) <= _LIMIT else f"{said[:_LIMIT]} …"


def missing_module(said: str) -> str:
    """The top-level module whose absence a line of :func:`cause` tells of; ``""`` when it is about something else."""
    found = re.search(r"No module named '?([A-Za-z_]\w*)", said)
    return found[1] if found else ""

"""What came of importing changed modules, in one line for each reason, and what to do about it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from specaudit.logs import cause, missing_module
from specaudit.model import Target
from specaudit.words import counted

#: Modules that are named for one reason.
SHOWN = 3


def problems(imported: Mapping[str, str], python: str) -> tuple[str, ...]:
    """One sentence for each reason for which modules could not be imported.

    Args:
        imported: for each module nothing, or what the attempt wrote on stderr.
        python: the interpreter, as users know it.
    """
    reasons: dict[str, list[str]] = {}
    for name, log in imported.items():
        if log:
            reasons.setdefault(cause(log) or "no reason was given", []).append(name)
    return tuple(f"{_names(names)} cannot be imported by {python}: {why}" for why, names in reasons.items())


def _names(names: list[str]) -> str:
    left = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {counted(left, 'more module')}" if left > 0 else "")


def advice(imported: Mapping[str, str], python: str, root: str, engine: str, target: Target) -> str:
    """What to do when a module could not be imported; nothing when all were."""
    name, log = next(((name, log) for name, log in imported.items() if log), ("", ""))
    if not log:
        return ""
    absent = missing_module(cause(log))
    if absent and absent != engine:
        return f"{python} does not have {absent}. {interpreter(target)}"
    code = f"import sys; sys.path.insert(0, {root!r}); import {name}"
    return f"See all of it there: cd / && {python} -B -c {shlex.quote(code)}"


def interpreter(target: Target) -> str:
    """How the interpreter that runs the engine is named."""
    if target.spec.startswith("dir:"):
        return "A folder has no interpreter: name the engine's environment, as @local --python PATH or --venv DIR."
    return "Name the interpreter that runs the engine (--python PATH or --venv DIR), or install there what is missing."

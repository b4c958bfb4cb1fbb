"""What commands that are advised need besides their own words: the target, with the options that lead to it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from specaudit.errors import SpecauditError

if TYPE_CHECKING:
    from specaudit.hosts.machines import Machines
    from specaudit.model import Target

#: Stands in a hint for the target, until :func:`filled` knows how it was named.
TARGET = "TARGET"


def named(target: Target, machines: Machines | None = None, engine: str | None = None) -> str:
    """The target as a command line names it, quoted for a shell.

    Args:
        target: with its interpreter and container.
        machines: how it is reached, if it is a machine; an inventory's options are written out.
        engine: the one that was chosen.
    """
    words = [target.spec]
    if target.host is not None and machines is not None:
        words = machines.words(target)
    for option, value in (("--python", target.python), ("--via", target.via), ("--engine", engine)):
        words += [option, value] if value else []
    return shlex.join(words)


@contextmanager
def filled(asked: str) -> Iterator[None]:
    """Errors of the block name the target (as :func:`named` gives it) in the commands that they advise."""
    try:
        yield
    except SpecauditError as bad:
        bad.hint = bad.hint.replace(TARGET, asked)
        raise

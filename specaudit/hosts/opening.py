"""Target -> Host: which kind of host serves which kind of place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specaudit.cache import Cache
from specaudit.hosts.base import Host
from specaudit.model import Target
from specaudit.targets import Kind, checkout, kind_of

if TYPE_CHECKING:
    from specaudit.hosts.machines import Machines


@dataclass(frozen=True, slots=True)
class Means:
    """What hosts need beside the target.

    ``wants`` tells which files will be read; ``progress`` is told what happens; ``consent`` is asked before a large
    download; ``machines`` says how machines are reached (``None``: as ``ssh`` would, with no options); ``metrics``:
    whether to read the counters of servers on this machine.
    """

    cache: Cache
    wants: Callable[[str], bool]
    progress: Callable[[str], None]
    consent: Callable[[str], bool]
    machines: Machines | None = None
    metrics: bool = False


@contextmanager
def opened(target: Target, means: Means) -> Iterator[Host]:
    """The host of a target, closed afterwards.

    Raises:
        SpecauditError: the place does not exist or cannot be reached.
    """
    kind = kind_of(target.spec)
    if kind is Kind.LOCAL:
        from specaudit.hosts.local import LocalHost

        yield LocalHost(target.python, means.cache, metrics=means.metrics)
    elif kind is Kind.FOLDER:
        from specaudit.hosts.folder import open_folder

        yield open_folder(_path(target.spec[len("dir:") :]), target.spec, means.cache)
    elif kind is Kind.WHEEL:
        from specaudit.hosts.wheel import WheelHost

        with closing(WheelHost(_path(target.spec[len("wheel:") :]), means.cache)) as wheel:
            yield wheel
    elif kind is Kind.GIT:
        from specaudit.hosts.git import GitHost

        path, ref = checkout(target.spec)
        with closing(GitHost(_path(path), ref, target.spec)) as commit:
            yield commit
    elif kind is Kind.RELEASE:
        from specaudit.hosts.release import ReleaseHost

        yield ReleaseHost(target.spec, means.wants, means.cache, means.progress, means.consent)
    else:
        from specaudit.hosts.machines import Machines

        machines = means.machines or Machines()
        try:
            with machines.opened(target, means.cache) as machine:
                yield machine
        finally:
            if means.machines is None:
                machines.close()


def _path(text: str) -> Path:
    """A path as the shell means it; a user who does not exist stays as written, as there."""
    return Path(os.path.expanduser(text))

"""The Python part of a release as a folder: what the tests, the benchmarks and a reader with an editor work on."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from specaudit.errors import IntegrityError, TargetError
from specaudit.hosts import pipconfig


def unpack(requirement: str, folder: Path) -> Path:
    """Downloads the ``.py`` files and the metadata of one release, by ranges, into ``folder/NAME-VERSION``.

    Args:
        requirement: ``vllm==0.33.0``.
        folder: made when missing; a release that is there already is returned as it is.

    Returns:
        The folder that holds the package, as a site-packages would.

    Raises:
        TargetError, UnreachableError: see :func:`specaudit.hosts.find.find`.
        IntegrityError: a file's bytes do not have the hash of the wheel's RECORD.
    """
    target = folder / requirement.replace("==", "-")
    if target.is_dir():
        return target
    from specaudit.hosts.find import find
    from specaudit.hosts.http import open_client
    from specaudit.hosts.probe.files import sha256
    from specaudit.hosts.ranges import RangeFile
    from specaudit.hosts.wheel import WheelReader

    config = pipconfig.read()
    with open_client(config) as client:
        build = find(client, config, requirement).wheel
        if build is None:
            raise TargetError(f"{requirement} has no wheel.", "Unpack its source archive and use dir:PATH.")
        file = build.local.open("rb") if build.local else RangeFile(client, build.url)
        wheel = WheelReader(file, build.filename)
        names = [
            path for path in wheel.members if path.endswith(".py") or path.partition("/")[0].endswith(".dist-info")
        ]
        if isinstance(file, RangeFile):
            file.prefetch(map(wheel.span, names))
        record = wheel.record()
        folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=folder))
        try:
            for name in names:
                data = wheel.read(name)
                if name in record and sha256(data) != record[name]:
                    raise IntegrityError(f"{name} in {build.filename} is not what RECORD promises.", "Try again.")
                (scratch / name).parent.mkdir(parents=True, exist_ok=True)
                (scratch / name).write_bytes(data)
            return _settle(scratch, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _settle(scratch: Path, target: Path) -> Path:
    """Gives the finished folder its name, unless another process was first."""
    try:
        os.rename(scratch, target)
    except OSError:
        if not target.is_dir():
            raise
    return target

"""What the user may name as a target, and what kind of place that is.

@local            the Python environment of --python (default: the one that runs this program)
dir:PATH          a site-packages, a folder that holds the package, or a source checkout
wheel:FILE        a wheel on this machine
git:PATH@REF      a tag, branch or commit of a checkout, without checking it out
vllm==0.33.0      a release on the package index that pip is configured for
gpu1, root@host   a machine, over SSH; anything that ``ssh`` understands
"""

from __future__ import annotations

import os
import re
from enum import Enum

from specaudit.errors import TargetError
from specaudit.model import Target

LOCAL = "@local"
#: Extras (``vllm[audio]``) ask for more projects; the release is the same.
_PINNED = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[[\w\s.,-]*\])?\s*==\s*(?P<version>[A-Za-z0-9.!+_-]+)"
)
#: Of several ``@`` the last one ends the user's name, as with ssh (``ann@corp@gpu1``, ``CORP\\ann@gpu1``).
_USER = r"([\w%][\w.+%@\\-]*@)?"
_HOST = re.compile(
    rf"(ssh://)?{_USER}(\[[0-9A-Fa-f:.%\w]+\]|\w[\w.%-]*)(:[0-9]{{1,5}})?/?|{_USER}[0-9A-Fa-f]*:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(%\w+)?"
)


class Kind(Enum):
    """Kinds of places."""

    LOCAL = "local"
    FOLDER = "folder"
    WHEEL = "wheel"
    GIT = "git"
    RELEASE = "release"
    MACHINE = "machine"


def parse(spec: str, *, python: str | None = None, option: str = "--python", via: str | None = None) -> Target:
    """Reads one target from the command line; nothing is looked up yet.

    Args:
        spec: see the module's list.
        python: the interpreter whose environment is meant (``@local`` and machines).
        option: which says so, for messages.
        via: a command that leads into a container (machines).

    Raises:
        TargetError: ``spec`` is none of these, or ``python``/``via`` do not go with it.
    """
    kind = kind_of(spec)
    if kind not in (Kind.LOCAL, Kind.MACHINE) and python:
        raise TargetError(f"{option} does not go with {spec}.", "Use it with @local or a machine.")
    if kind is not Kind.MACHINE and via:
        raise TargetError(f"--via does not go with {spec}.", "Use it with a machine that is reached over SSH.")
    if kind is Kind.RELEASE:
        name, version = pinned(spec)
        return Target(f"{name}=={version}")
    return Target(spec, host=spec if kind is Kind.MACHINE else None, python=python, via=via)


def kind_of(spec: str) -> Kind:
    """The kind of place that a target names.

    Raises:
        TargetError: none.
    """
    if spec == LOCAL:
        return Kind.LOCAL
    for prefix, kind in (("dir:", Kind.FOLDER), ("wheel:", Kind.WHEEL)):
        if spec.startswith(prefix):
            if spec == prefix:
                raise TargetError(f"{prefix} is followed by nothing.", f"Write {prefix}PATH.")
            return kind
    if spec.startswith("git:"):
        checkout(spec)
        return Kind.GIT
    if re.search(r"[=<>~!]", spec):
        pinned(spec)
        return Kind.RELEASE
    if _HOST.fullmatch(spec) and not spec.endswith(".whl"):
        return Kind.MACHINE
    raise TargetError(
        f"{spec!r} is no target.",
        meant(spec)
        or "Write @local, dir:PATH, wheel:FILE, git:PATH@REF, vllm==VERSION, or the name of a machine as ssh knows it.",
    )


def meant(spec: str) -> str:
    """What someone probably meant by something that is no target, or a machine that is not there; ``""``: no idea."""
    if os.path.isdir(spec):
        return f"Write dir:{spec} for the folder of that name."
    if os.path.isfile(spec):
        return f"Write wheel:{spec}, if the file is a wheel."
    if spec.lower() in ("vllm", "sglang"):
        return f"Write {spec.lower()}==VERSION for a release; leave it out for the {spec} of this environment."
    return ""


def checkout(spec: str) -> tuple[str, str]:
    """Path and ref of ``git:PATH@REF``.

    Raises:
        TargetError: one of them is missing.
    """
    path, _, ref = spec.removeprefix("git:").rpartition("@")
    if not path or not ref:
        raise TargetError(f"{spec!r} names no commit.", "Write git:PATH@REF, as git:./vllm@v0.33.0.")
    return path, ref


def pinned(spec: str) -> tuple[str, str]:
    """Normalised project name and version of ``name==version``.

    Raises:
        TargetError: it is written otherwise; a range of versions would not name one thing to examine.
    """
    parts = _PINNED.fullmatch(spec.strip())
    if parts is None or not _is_version(parts["version"]):
        raise TargetError(f"{spec!r} names no single release.", "Write vllm==VERSION or sglang==VERSION.")
    return re.sub(r"[-_.]+", "-", parts["name"]).lower(), parts["version"]


def _is_version(text: str) -> bool:
    from packaging.version import Version

    try:
        Version(text)
    except ValueError:  # InvalidVersion, or a number of thousands of digits
        return False
    return True

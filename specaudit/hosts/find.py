"""Which file of which index pip would take for a requirement."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specaudit.errors import TargetError, UnreachableError
from specaudit.hosts.pipconfig import redacted

if TYPE_CHECKING:
    from unearth.evaluator import Package

    from specaudit.hosts.http import Client
    from specaudit.hosts.pipconfig import PipConfig


@dataclass(frozen=True, slots=True)
class Build:
    """One file of a release. ``sha256`` is what the index promises, or ``""``; ``fits``: pip would take it here."""

    filename: str
    version: str
    url: str
    sha256: str
    fits: bool

    @property
    def local(self) -> Path | None:
        """The file when the index is a folder of this machine."""
        from unearth.link import Link

        return Link(self.url).file_path if self.url.startswith("file:") else None


@dataclass(frozen=True, slots=True)
class Release:
    """The builds of the version that pip would choose: the wheel first in line, and the source archive."""

    wheel: Build | None
    sdist: Build | None


def find(client: Client, config: PipConfig, requirement: str) -> Release:
    """Asks every configured index.

    Raises:
        UnreachableError: no index answered with the project, and at least one did not answer at all.
        TargetError: the project or the version does not exist.
    """
    with _listening(client):
        fitting = _matches(client, config, requirement, ignore_compatibility=False)
        # No build for this Python or platform (macOS, say): the audit does not run it, so another one will do.
        packages = fitting or _matches(client, config, requirement, ignore_compatibility=True)
        if not packages:
            raise _absent(client, config, requirement)
        wheels = [p for p in packages if p.link.is_wheel]
        if not wheels:
            wheels = [p for p in _matches(client, config, requirement, ignore_compatibility=True) if p.link.is_wheel]
        version = packages[0].version
        sdists = [p for p in packages if not p.link.is_wheel and p.version == version]
    wheels = [p for p in wheels if p.version == version]
    return Release(
        _build(wheels[0], wheels[0] in fitting) if wheels else None, _build(sdists[0], True) if sdists else None
    )


def versions(client: Client, config: PipConfig, project: str) -> list[str]:
    """All final releases of a project, oldest first.

    Raises:
        UnreachableError: no index answered.
        TargetError: the project does not exist.
    """
    from packaging.version import Version

    with _listening(client):
        found = {str(p.version) for p in _matches(client, config, project, ignore_compatibility=True)}
        if not found:
            raise _absent(client, config, project)
    return sorted((v for v in found if not Version(v).is_prerelease), key=Version)


def _build(package: Package, fits: bool) -> Build:
    link = package.link
    fragment = dict(part.partition("=")[::2] for part in link.parsed.fragment.split("&"))
    promised = (link.hashes or {}).get("sha256") or fragment.get("sha256", "")
    return Build(link.filename, str(package.version), link.url_without_fragment, promised.lower(), fits)


def _matches(client: Client, config: PipConfig, requirement: str, *, ignore_compatibility: bool) -> Sequence[Package]:
    from unearth import PackageFinder
    from unearth.evaluator import TargetPython

    links = [place for place in config.find_links if "://" in place or Path(place).exists()]
    if not config.index_urls and not links:  # unearth would ask the public index then
        raise TargetError(
            "pip is configured to use no index (no-index), and no find-links that exist.", "See `pip config list`."
        )
    finder = PackageFinder(
        session=client,  # type: ignore[arg-type]  # unearth's own client does not match its protocol to the letter
        index_urls=[url or PackageFinder().sources[0]["url"] for url in config.index_urls],
        find_links=links,
        trusted_hosts=config.trusted_hosts,
        target_python=TargetPython(),
        ignore_compatibility=ignore_compatibility,
    )
    return list(finder.find_matches(requirement))


def _absent(client: Client, config: PipConfig, requirement: str) -> TargetError | UnreachableError:
    from packaging.requirements import Requirement

    name = Requirement(requirement).name
    versions = {str(p.version) for p in _matches(client, config, name, ignore_compatibility=True)}
    if not versions and client.failures:
        return UnreachableError(
            f"No package index answered for {requirement}: {client.failures[0]}.",
            "Check the network, and `pip config list`; or download the wheel elsewhere and use wheel:FILE.",
        )
    if not versions:
        return TargetError(
            f"No configured index has a project called {name}.", "Check the name, and `pip config list`."
        )
    from packaging.version import Version

    newest = sorted(versions, key=Version, reverse=True)[:5]
    if client.failures:
        return UnreachableError(
            f"{requirement} is on no package index that answered, and one did not: {client.failures[0]}.",
            f"Check that index, see `pip config list`; the others have {', '.join(newest)}, ….",
        )
    return TargetError(f"There is no release {requirement}.", f"Take one of these: {', '.join(newest)}, ….")


@contextmanager
def _listening(client: Client) -> Iterator[None]:
    """unearth logs what it passes over; an index that is not trusted would otherwise be passed over in silence."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "not being trusted" in record.getMessage():
                place = redacted(str(record.args[0])) if isinstance(record.args, tuple) else "an index"
                client.failures.append(f"{place} is plain HTTP, and not in pip's trusted-host")

    logger, listener = logging.getLogger("unearth"), Listener()
    before = logger.propagate
    logger.propagate = False  # the other warnings are about indexes that do not answer, which the client remembers
    logger.addHandler(listener)
    try:
        yield
    finally:
        logger.removeHandler(listener)
        logger.propagate = before

"""``vllm==0.33.0``: a release on the package index, of which only what is needed is read.

In this order: what the cache knows; the wheel pip would take, by byte ranges (its directory, its RECORD, the members
that are wanted); where the index gives no ranges, the source archive, or the whole wheel if the user agrees.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from specaudit.cache import DerivedCache, recall
from specaudit.errors import TargetError
from specaudit.hosts import pipconfig
from specaudit.hosts.base import Installation, Manifest
from specaudit.hosts.probe.files import sha256
from specaudit.model import Environment, Failure, FileEntry, NotLooked, Server

if TYPE_CHECKING:
    from specaudit.hosts.fetch import Fetched
    from specaudit.hosts.find import Release
    from specaudit.hosts.http import Client

RELEASE_VERSION = 1

#: Told what happens; asked whether a whole wheel may be downloaded.
Progress = Callable[[str], None]
Consent = Callable[[str], bool]


class Known(msgspec.Struct, frozen=True):
    """What is remembered of a release, so that it is looked up once: everything but the bytes of its files."""

    engine: str
    version: str
    source: str
    filename: str
    record: dict[str, str]
    files: list[FileEntry]
    errors: list[Failure]


class ReleaseHost:
    """A release on the index.

    Args:
        requirement: ``name==version``.
        wants: which files will be read.
        cache: remembers the release.
        progress: told which file was chosen and how much of it was read.
        consent: asked before a whole wheel is downloaded, when nothing else is left.
        config: how pip is configured; default: read it.
    """

    def __init__(
        self,
        requirement: str,
        wants: Callable[[str], bool],
        cache: DerivedCache,
        progress: Progress,
        consent: Consent,
        config: pipconfig.PipConfig | None = None,
    ) -> None:
        self.label = requirement
        self._wants = wants
        self._cache = cache
        self._progress = progress
        self._consent = consent
        self._config = config or pipconfig.read()
        self._fetched: dict[str, bytes] = {}
        self._known: Known | None = None
        self.transferred = 0

    def installations(self, engines: tuple[str, ...]) -> tuple[Installation, ...]:
        """The release.

        Raises:
            TargetError: no such project or version; no engine; or nothing that can be read without the user's consent.
            UnreachableError: the index did not answer.
            IntegrityError: the bytes are not those that the index promised.
        """
        name = self.label.partition("==")[0]
        if name not in engines:
            raise TargetError(f"{name} is no engine that can be examined.", f"Known engines: {', '.join(engines)}.")
        known = self._known = self._recall() or self._look_up(name)
        return (Installation(known.engine, known.version, known.filename, known.source, record=known.record),)

    def manifest(self, installation: Installation) -> Manifest:
        """All ``.py`` files of the release; hashes of those that are not read are RECORD's."""
        assert self._known is not None
        why = "only the Python part of the release was read; scan an installation to include them"
        no_ops = NotLooked("compiled ops", why)
        return Manifest(tuple(self._known.files), not_looked=(no_ops,), errors=tuple(self._known.errors))

    def read(self, installation: Installation, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """The files' bytes, from what was just fetched, or over the network when the cache has lost some."""
        lacking = []
        for path in paths:
            data = self._fetched.get(path)
            if data is None:
                lacking.append(path)
            else:
                yield path, data
        if lacking:
            assert self._known is not None
            self._look_up(self._known.engine)
            yield from ((path, self._fetched[path]) for path in lacking if path in self._fetched)

    def environment(self) -> Environment:
        """Nothing is installed here."""
        return Environment()

    def servers(self) -> tuple[Server, ...]:
        """Nothing runs here."""
        return ()

    @property
    def _key(self) -> str:
        # The build that pip takes depends on the indexes, the interpreter and the platform.
        place = f"{self._config.fingerprint} {sys.implementation.cache_tag} {sys.platform}"
        return sha256(f"{self.label} {place}".encode())

    def _recall(self) -> Known | None:
        known = recall(self._cache, "release", self._key, RELEASE_VERSION, Known)
        if known is not None:
            self._progress(f"{self.label}: {known.filename}, read before")
        return known

    def _look_up(self, engine: str) -> Known:
        from specaudit.hosts.find import find
        from specaudit.hosts.http import open_client

        with open_client(self._config) as client:
            self._progress(f"{self.label}: asking the package index")
            fetched = self._take(client, engine, find(client, self._config, self.label))
        known = fetched.known
        amount = f"{fetched.transferred / 1e6:.1f} MB in {fetched.requests} requests"
        self._progress(
            f"{self.label}: {known.filename}, {amount}" if fetched.requests else f"{self.label}: {known.filename}"
        )
        self.transferred += fetched.transferred
        self._fetched.update(fetched.contents)
        self._cache.put("release", self._key, RELEASE_VERSION, msgspec.msgpack.encode(known))
        return known

    def _take(self, client: Client, engine: str, release: Release) -> Fetched:
        from specaudit.hosts import fetch
        from specaudit.hosts.http import NoRangesError

        wheel, sdist = release.wheel, release.sdist
        if wheel is not None:
            if not wheel.fits:
                self._progress(f"{self.label}: {wheel.filename} does not fit this Python or platform; it is only read")
            try:
                return fetch.by_ranges(client, engine, wheel, self._wants)
            except NoRangesError:
                self._progress(f"{self.label}: the index does not serve parts of files")
        if sdist is not None:
            return fetch.from_sdist(client, engine, sdist, self._wants)
        if wheel is not None and self._consent(f"Only the whole of {wheel.filename} can be had. Download it?"):
            return fetch.whole_wheel(client, engine, wheel, self._wants)
        raise TargetError(
            f"{self.label} can only be downloaded as a whole, which was not agreed to.",
            "Add --download, or get the wheel by other means and use wheel:FILE.",
        )

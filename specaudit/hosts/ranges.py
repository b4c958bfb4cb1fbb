"""A remote file that reads like a local one: what was announced is fetched in few, parallel, coalesced ranges.

Existing readers of remote zip files (remotezip) ask once per member, one member after the other: 1,400 round trips for
one release of vLLM. Members that lie side by side are one request here.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterable, Iterator

import httpx2

from specaudit.hosts.http import NoRangesError, get_range
from specaudit.threads import in_order, threads

#: Bytes read at first: holds the directory of a zip file with about 5,000 members.
_TAIL = 1 << 20
#: Two ranges closer than this are one: what lies between costs less than a request.
_GAP = 8 << 10
#: A range longer than this is split, so that several connections share it.
_SPLIT = 1 << 20
_CONNECTIONS = 6


class RangeFile(io.RawIOBase):
    """A read-only, seekable view of a remote file.

    ``fetched`` counts the bytes that came over the network, ``requests`` how many answers carried them.

    Raises:
        NoRangesError: at construction, when the server answers with whole files only.
        UnreachableError: whenever bytes are needed and the server does not answer.
    """

    def __init__(self, client: httpx2.Client, url: str, tail: int = _TAIL) -> None:
        super().__init__()
        self._client = client
        self._url = url
        self._starts: list[int] = []
        self._parts: list[bytes] = []
        self._position = 0
        self.fetched = 0
        self.requests = 0
        try:
            data, self.size = get_range(client, url, -tail, 0)
            self._keep(self.size - len(data), data)
        except NoRangesError:  # some servers know ranges, but none that count from the end
            data, self.size = get_range(client, url, 0, 0)
            self._keep(0, data)

    def prefetch(self, spans: Iterable[tuple[int, int]]) -> None:
        """Fetches byte spans ``(first, end)``, those that are not there yet, several at a time."""
        wanted = [piece for span in _coalesced(self._missing(spans)) for piece in _pieces(*span)]
        with threads(_CONNECTIONS) as pool:
            for (first, _), data in zip(wanted, in_order(pool, lambda piece: self._get(*piece), wanted), strict=True):
                self._keep(first, data)

    def _missing(self, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        return sorted((a, min(b, self.size)) for a, b in spans if a < b and self._at(a, min(b, self.size)) is None)

    def _get(self, first: int, end: int) -> bytes:
        return get_range(self._client, self._url, first, end - 1)[0]

    def _keep(self, start: int, data: bytes) -> None:
        self.requests += 1
        self.fetched += len(data)
        at = bisect_right(self._starts, start)
        self._starts.insert(at, start)
        self._parts.insert(at, data)

    def _at(self, start: int, end: int) -> bytes | None:
        """Kept bytes from ``start`` up to ``end`` at most; ``None`` when not even the first is kept."""
        for at in range(bisect_right(self._starts, start) - 1, -1, -1):
            offset = start - self._starts[at]
            if offset < len(self._parts[at]):
                return self._parts[at][offset : end - self._starts[at]]
            if offset > _SPLIT + _TAIL:
                break
        return None

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Position of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves; past the end is allowed, as for any file."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Reads ``size`` bytes (all when negative), fetching what is not kept."""
        end = self.size if size < 0 else min(self.size, self._position + size)
        out = []
        while self._position < end:
            data = self._at(self._position, end)
            if data is None:
                following = bisect_right(self._starts, self._position)
                stop = min(end, self._starts[following]) if following < len(self._starts) else end
                self._keep(self._position, self._get(self._position, stop))
                continue
            out.append(data)
            self._position += len(data)
        return b"".join(out)


def _coalesced(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    current: tuple[int, int] | None = None
    for first, end in spans:
        if current is None:
            current = first, end
        elif first - current[1] <= _GAP:
            current = current[0], max(current[1], end)
        else:
            yield current
            current = first, end
    if current is not None:
        yield current


def _pieces(first: int, end: int) -> Iterator[tuple[int, int]]:
    while end - first > _SPLIT:
        yield first, first + _SPLIT
        first += _SPLIT
    yield first, end

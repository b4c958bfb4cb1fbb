"""The content-addressed cache: blobs by SHA-256, and what was derived from a blob by (kind, SHA-256, version).

Lives under ``$XDG_CACHE_HOME/specaudit`` (default ``~/.cache/specaudit``). Nothing in it is trusted: a blob is hashed
when it is read back, and derived values are decoded with a typed schema, never unpickled.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import tempfile
import threading
import zlib
from pathlib import Path
from typing import Protocol, TypeVar

#: Changes when the table changes; another version's file is left alone.
_FILE = "derived-1.sqlite"
#: Seconds that a writer waits for another process.
_PATIENCE = 5.0
#: Values kept back until this many bytes are worth a transaction.
_BATCH = 4 << 20
#: Bytes of blobs that are remembered.
_RECENT = 64 << 20


class DerivedCache(Protocol):
    """Where derived values (outlines, walk facts, audits) are kept between runs."""

    def get(self, kind: str, key: str, version: int) -> bytes | None:
        """The stored bytes, ``None`` when there are none."""
        ...

    def put(self, kind: str, key: str, version: int, value: bytes) -> None:
        """Stores bytes; failing to store is not an error."""
        ...

    def flush(self) -> None:
        """Makes sure that what was put outlives this process."""
        ...


class NoCache:
    """A cache that keeps nothing."""

    def get(self, kind: str, key: str, version: int) -> bytes | None:
        """Always ``None``."""
        return None

    def put(self, kind: str, key: str, version: int, value: bytes) -> None:
        """Forgets."""

    def flush(self) -> None:
        """Nothing to write."""


Derived = TypeVar("Derived")


def recall(cache: DerivedCache, kind: str, key: str, version: int, type: type[Derived]) -> Derived | None:
    """A derived value, ``None`` when there is none: a damaged one, or one of another build of this program, is none."""
    stored = cache.get(kind, key, version)
    if stored is None:
        return None
    import msgspec

    try:
        return msgspec.msgpack.decode(stored, type=type)
    except msgspec.MsgspecError:
        return None


class BlobStore(Protocol):
    """Where file contents are kept between runs."""

    def blob(self, sha256: str) -> bytes | None:
        """The bytes with that hash; ``None`` when they are not there, or no longer what they were."""
        ...

    def put_blob(self, sha256: str, data: bytes) -> None:
        """Stores bytes; failing to store is not an error."""
        ...


class Cache:
    """Both stores in one folder, shared by concurrent processes and by threads.

    A cache that cannot be used is no error: everything is computed again, and :attr:`problem` says why, once.
    A damaged database is made anew; a damaged value or blob counts as absent.

    A forked process goes on with a connection of its own (SQLite's must not cross a fork); what it puts is written by
    its own :meth:`flush`.

    Args:
        folder: made when missing.
    """

    def __init__(self, folder: Path) -> None:
        self.problem = ""
        self._folder = folder
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._pending: dict[tuple[str, str, int], bytes] = {}
        self._pending_bytes = 0
        self._recent: dict[str, bytes] = {}
        self._recent_bytes = 0
        self._database = self._open()

    def _mine(self) -> None:
        if os.getpid() != self._process:
            self._inherited = self._database  # kept, unused: closing it would write to the parent's file
            self._begin()

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, kind: str, key: str, version: int) -> bytes | None:
        """See :class:`DerivedCache`."""
        self._mine()
        with self._lock:
            kept = self._pending.get((kind, key, version))
            if kept is not None or self._database is None:
                return kept
            query = "SELECT value, check_sum FROM derived WHERE kind = ? AND key = ? AND version = ?"
            try:
                row = self._database.execute(query, (kind, key, version)).fetchone()
            except sqlite3.OperationalError:  # locked for longer than our patience
                return None
            except sqlite3.DatabaseError as bad:
                self._renew(bad)
                return None
        return bytes(row[0]) if row is not None and zlib.crc32(row[0]) == row[1] else None

    def put(self, kind: str, key: str, version: int, value: bytes) -> None:
        """See :class:`DerivedCache`; values are written together, by :meth:`flush` at the latest."""
        self._mine()
        with self._lock:
            self._pending[kind, key, version] = value
            self._pending_bytes += len(value)
            if self._pending_bytes > _BATCH:
                self._flush()

    def flush(self) -> None:
        """Writes what was put."""
        self._mine()
        with self._lock:
            self._flush()

    def close(self) -> None:
        """Writes what was put, and closes the database."""
        with self._lock:
            self._flush()
            if self._database is not None:
                self._database.close()
                self._database = None

    def _flush(self) -> None:
        rows = [(*name, value, zlib.crc32(value)) for name, value in self._pending.items()]
        self._pending.clear()
        self._pending_bytes = 0
        if self._database is None or not rows:
            return
        try:
            with self._database:
                self._database.executemany("INSERT OR REPLACE INTO derived VALUES (?, ?, ?, ?, ?)", rows)
        except sqlite3.OperationalError as bad:  # read-only, disk full, or locked for longer than our patience
            self.problem = self.problem or str(bad)
        except sqlite3.DatabaseError as bad:
            self._renew(bad)

    def _open(self) -> sqlite3.Connection | None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return _connect(self._folder / _FILE)
        except sqlite3.OperationalError as bad:
            self.problem = str(bad)
        except sqlite3.DatabaseError as bad:
            return self._renew(bad)
        except OSError as bad:
            self.problem = bad.strerror or str(bad)
        return None

    def _renew(self, bad: sqlite3.DatabaseError) -> sqlite3.Connection | None:
        """A damaged database holds nothing that cannot be computed again."""
        if getattr(self, "_database", None) is not None:
            self._database.close()  # type: ignore[union-attr]
        self._database = None
        try:
            for suffix in ("", "-wal", "-shm"):
                (self._folder / (_FILE + suffix)).unlink(missing_ok=True)
            self._database = _connect(self._folder / _FILE)
        except (OSError, sqlite3.DatabaseError):
            self.problem = str(bad)
        return self._database

    def blob(self, sha256: str) -> bytes | None:
        """See :class:`BlobStore`; the last ones are remembered, since machines of a fleet share most of their files."""
        recent = self._recent.get(sha256)
        if recent is not None:
            return recent
        file = self._blob_file(sha256)
        try:
            data = file.read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data).hexdigest() != sha256:
            return None
        self._remember(sha256, data)
        return data

    def _remember(self, sha256: str, data: bytes) -> None:
        with self._lock:
            self._recent_bytes += len(data)
            if self._recent_bytes > _RECENT:
                self._recent, self._recent_bytes = {}, len(data)
            self._recent[sha256] = data

    def put_blob(self, sha256: str, data: bytes) -> None:
        """See :class:`BlobStore`; a reader never sees half a blob."""
        file = self._blob_file(sha256)
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=file.parent)
            try:
                with os.fdopen(handle, "wb") as scratch:
                    scratch.write(data)
                os.replace(name, file)
            except OSError:
                os.unlink(name)
                raise
        except OSError as bad:
            self.problem = self.problem or bad.strerror or str(bad)

    def _blob_file(self, sha256: str) -> Path:
        return self._folder / "blobs" / sha256[:2] / sha256


def _connect(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, timeout=_PATIENCE, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")  # after a power cut: made anew, or caught by the check sums
        connection.execute(
            "CREATE TABLE IF NOT EXISTS derived (kind TEXT, key TEXT, version INTEGER, value BLOB, check_sum INTEGER, "
            "PRIMARY KEY (kind, key, version)) WITHOUT ROWID"
        )
    except sqlite3.DatabaseError:
        connection.close()
        raise
    return connection


def folder() -> Path:
    """Where this user's cache lies; it need not exist."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the specification of XDG_CACHE_HOME: relative paths are to be ignored
        base = os.path.join(os.path.expanduser("~"), ".cache")
    if not os.path.isabs(base):  # an account without a home: nothing can be made there, least of all a folder named ~
        base = os.devnull
    return Path(base, "specaudit")

"""Target -> Scan: host, snapshot, index, audit, findings. One target's failure is that target's result."""

from __future__ import annotations

import hashlib
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Protocol

import msgspec

from specaudit import __version__
from specaudit.cache import Cache, recall
from specaudit.engines import ENGINES
from specaudit.errors import ChangedError, Exit, FaultError, IncompleteError, SpecauditError, TargetError
from specaudit.faults import unexpected
from specaudit.hosts.base import Direct, Host, Installation
from specaudit.hosts.opening import Means, opened
from specaudit.index import Index
from specaudit.model import Audit, Environment, Failure, Finding, NotLooked, Path, Scan, Server, Target, Tool, Verifier
from specaudit.serving import with_paths
from specaudit.snapshot import Snapshot, take
from specaudit.syntax import broken
from specaudit.targets import meant
from specaudit.threads import in_order, threads

if TYPE_CHECKING:
    from specaudit.hosts.machines import Machines

AUDIT_VERSION = 1
#: Seconds for which a machine waits for another one with the same engine.
_PATIENCE = 30.0

_COMPUTING = threading.Lock()
_TURNS_LOCK = threading.Lock()
_TURNS: dict[tuple[str, str], threading.Lock] = {}


class Judge(Protocol):
    """Finds known defects; given to :func:`scan` by those who have rules."""

    def wants(self, path: str) -> bool:
        """Whether a rule reads that file."""
        ...

    def findings(self, index: Index, audit: Audit) -> tuple[tuple[Finding, ...], tuple[Failure, ...]]:
        """One finding per rule, and what could not be evaluated."""
        ...


class Configure(Protocol):
    """Sees a scan with the eyes of a configuration, while the engine can still be read."""

    def __call__(self, scan: Scan, snapshot: Snapshot) -> Scan:
        """The scan with the configuration's paths and what it can reach."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    """What to do with each target.

    ``engine`` chooses one where several are installed; ``judge`` is ``None`` for a scan without rules; ``machines``
    says how machines are reached; ``jobs`` targets are worked on at the same time; ``configure`` is applied to each
    scan; ``metrics``: whether to read the counters of servers on this machine (``machines`` knows for the others).
    """

    engine: str | None = None
    judge: Judge | None = None
    machines: Machines | None = None
    jobs: int = 1
    configure: Configure | None = None
    metrics: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The document of one target, the hashes of all its files, and the error that kept it empty."""

    scan: Scan
    error: SpecauditError | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def code(self) -> Exit:
        """Clean, incomplete, or the code of the error."""
        if self.error is not None:
            return self.error.code
        return Exit.INCOMPLETE if self.scan.errors else Exit.CLEAN


def scan_all(
    targets: Iterable[Target],
    options: Options,
    cache: Cache,
    progress: Callable[[str], None],
    consent: Callable[[str], bool],
) -> Iterator[Outcome]:
    """Scans targets, several at a time, and gives them in their order; an error ends that target only."""

    def one(target: Target) -> Outcome:
        try:
            with (
                unexpected(f"{target.spec} could not be examined"),
                snapshot_of(target, options, cache, progress, consent) as (snapshot, servers),
            ):
                return Outcome(_scanned(target, snapshot, servers, options), None, snapshot.hashes)
        except SpecauditError as bad:
            if target.host is not None and meant(target.spec):
                bad.hint = f"{bad.hint} {meant(target.spec)}"
            failures = (Failure("", bad.message),)
            return Outcome(Scan(Tool(__version__), target, None, Environment(), errors=failures), bad)

    wanted_targets = list(targets)
    try:
        if len(wanted_targets) == 1:  # in this thread, where classification may use a second process
            yield one(wanted_targets[0])
            return
        with threads(max(1, min(options.jobs, len(wanted_targets))), "target") as pool:
            yield from in_order(pool, one, wanted_targets)
    finally:
        if options.machines is not None:
            options.machines.close()


def scan(
    target: Target,
    options: Options,
    cache: Cache,
    progress: Callable[[str], None] = lambda _: None,
    consent: Callable[[str], bool] = lambda _: False,
) -> Scan:
    """Scans one target.

    Args:
        target: from :func:`specaudit.targets.parse`.
        options: see there.
        cache: what was read or derived before.
        progress: told what happens; may be called from threads.
        consent: asked before a whole wheel is downloaded.

    Raises:
        SpecauditError: the target cannot be reached, or holds no engine.
    """
    with snapshot_of(target, options, cache, progress, consent) as (snapshot, servers):
        return _scanned(target, snapshot, servers, options)


def _scanned(target: Target, snapshot: Snapshot, servers: tuple[Server, ...], options: Options) -> Scan:
    made = document_of(target, snapshot, servers, options.judge)
    if made.tree is None:  # it could not be classified, and says so
        return made
    configure = options.configure
    with computing():
        if configure is not None:
            made = _stepped(made, "the configuration could not be followed", partial(configure, snapshot=snapshot))
        if made.servers:
            trace = partial(_path, snapshot, made.verifiers)
            made = _stepped(made, "the paths of servers could not be traced", partial(with_paths, trace=trace))
    return made


def _stepped(made: Scan, what: str, step: Callable[[Scan], Scan]) -> Scan:
    """A scan after one more step; where that fails as nobody expected, the scan before it, with the error."""
    try:
        with unexpected(what):
            return step(made)
    except IncompleteError as bad:
        return replace(made, errors=(*made.errors, _failure(bad)))


def _failure(bad: IncompleteError) -> Failure:
    return Failure("", str(bad))


@contextmanager
def snapshot_of(
    target: Target,
    options: Options,
    cache: Cache,
    progress: Callable[[str], None] = lambda _: None,
    consent: Callable[[str], bool] = lambda _: False,
) -> Iterator[tuple[Snapshot, tuple[Server, ...]]]:
    """The engine of a target, readable until the block ends, and the servers that run there; as in :func:`scan`.

    Raises:
        SpecauditError: the target cannot be reached, or holds no engine.
    """
    means = Means(cache, lambda path: wanted(path, options.judge), progress, consent, options.machines, options.metrics)
    with opened(target, means) as host:
        found, others = _choose(host, options.engine)
        progress(f"{target.spec}: {found.engine} {found.version or '(version unknown)'}")
        with _turn(found):
            snapshot = take(host, target, found, means.wants, cache, cache)
        snapshot = replace(snapshot, not_looked=(*snapshot.not_looked, *others))
        servers = host.servers()
        if isinstance(host, Direct):
            yield snapshot, servers
            return
    # What was fetched is here. A closed connection has no threads, which the classifier would have to mind.
    yield snapshot, servers


@contextmanager
def _turn(found: Installation) -> Iterator[None]:
    """Of machines with the same engine, the first fetches its files; the others find them in the cache.

    A machine that hangs holds them up for a while, not for ever.
    """
    with _TURNS_LOCK:
        lock = _TURNS.setdefault((found.engine, found.version), threading.Lock())
    mine = lock.acquire(timeout=_PATIENCE)
    try:
        yield
    finally:
        if mine:
            lock.release()


def document_of(target: Target, snapshot: Snapshot, servers: tuple[Server, ...], judge: Judge | None) -> Scan:
    """Everything that can be said of a snapshot; of several threads one at a time, since all of it is computing."""
    with computing():
        try:
            return _document_of(target, snapshot, servers, judge)
        except ChangedError:  # files came or went meanwhile: once more, with those that are as they were
            return _document_of(target, snapshot.settled(), servers, judge)


@contextmanager
def computing() -> Iterator[None]:
    """One thread at a time, which is not bothered by what Python's parser warns of in the engine's source."""
    with _COMPUTING, warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _document_of(target: Target, snapshot: Snapshot, servers: tuple[Server, ...], judge: Judge | None) -> Scan:
    made = Audit()
    findings: tuple[Finding, ...] = ()
    failures: tuple[Failure, ...] = ()
    not_looked = snapshot.not_looked
    try:
        with unexpected("could not be classified"):
            made = classify(snapshot)
            unopened = _watched(snapshot, made) - {failure.path for failure in made.errors}
            made = replace(made, errors=(*made.errors, *broken(Index(snapshot), unopened), *_empty(made)))
    except FaultError as bad:
        made = replace(made, errors=(*made.errors, _failure(bad)))
    if judge is not None:
        try:
            with unexpected("known defects could not be looked for"):
                findings, failures = judge.findings(Index(snapshot), made)
        except FaultError as bad:
            failures = (_failure(bad),)
    else:
        not_looked = (*not_looked, NotLooked("known defects", "the scan was made without rules"))
    told = {failure.path for failure in snapshot.errors if failure.path}
    more = (failure for failure in (*made.errors, *failures) if failure.path not in told)
    return Scan(
        tool=Tool(__version__),
        target=target,
        engine=snapshot.engine,
        environment=snapshot.environment,
        runners=made.runners,
        proposers=made.proposers,
        verifiers=made.verifiers,
        tree=made.tree,
        options=made.options,
        paths=made.paths,
        servers=servers,
        findings=findings,
        not_looked=not_looked,
        errors=tuple(dict.fromkeys((*snapshot.errors, *more))),
    )


def _empty(made: Audit) -> Iterator[Failure]:
    """Where there is nothing to audit: a gate must not take a part of an engine for a clean one."""
    if not (made.runners or made.proposers or made.verifiers):
        yield Failure("", "no runner, proposer or verifier was found: name the folder that holds the whole engine")


def _watched(snapshot: Snapshot, made: Audit) -> set[str]:
    """Files that must be Python for the answers to be whole: what differs from the release, and what lies beside that
    which drafts and verifies.
    """
    changed = {*snapshot.engine.modified, *snapshot.engine.added}
    found = [*(proposer.path for proposer in made.proposers), *(verifier.path for verifier in made.verifiers)]
    folders = {os.path.dirname(path) for path in found}
    return {path for path in snapshot.files if path in changed or os.path.dirname(path) in folders}


def wanted(path: str, judge: Judge | None = None) -> bool:
    """Whether classification or a rule may read that file of some engine."""
    return _classified(path) or (judge is not None and judge.wants(path))


@lru_cache(maxsize=1 << 15)
def _classified(path: str) -> bool:
    engine = ENGINES.get(path.partition("/")[0])
    return engine is not None and engine.wants(path)


def classify(snapshot: Snapshot) -> Audit:
    """The audit of a snapshot, from the cache when this version of the classifier has seen these files before."""
    narrow = snapshot.narrowed(ENGINES[snapshot.engine.name].wants)
    key = _audit_key(narrow)
    stored = recall(snapshot.cache, "audit", key, AUDIT_VERSION, Audit)
    if stored is not None:
        return stored
    from specaudit.classify.audit import audit

    made = audit(Index(narrow))
    snapshot.cache.put("audit", key, AUDIT_VERSION, msgspec.msgpack.encode(made))
    return made


def _path(snapshot: Snapshot, verifiers: tuple[Verifier, ...], method: str, settings: Mapping[str, str | None]) -> Path:
    """The first path of a method under settings, from the cache when it was traced before.

    Raises:
        ConfigurationError: the engine refuses them.
    """
    narrow = snapshot.narrowed(ENGINES[snapshot.engine.name].wants)
    asked = "\0".join([method, *(f"{name}={value}" for name, value in sorted(settings.items()))])
    key = hashlib.sha256(f"{_audit_key(narrow)}\0{asked}".encode("utf-8", "backslashreplace")).hexdigest()
    stored = snapshot.cache.get("path", key, AUDIT_VERSION)
    if stored is not None:
        return msgspec.msgpack.decode(stored, type=Path)
    from specaudit.classify.audit import trace

    made = trace(Index(narrow), method, settings, verifiers)[0]
    snapshot.cache.put("path", key, AUDIT_VERSION, msgspec.msgpack.encode(made))
    return made


def _audit_key(snapshot: Snapshot) -> str:
    parts = [code_fingerprint(), snapshot.engine.name, snapshot.engine.version]
    parts += [f"{path}\0{entry.sha256}" for path, entry in sorted(snapshot.files.items())]
    parts += [f"op\0{name}" for name in snapshot.ops]
    parts += [f"not looked\0{item.what}\0{item.why}" for item in snapshot.not_looked]
    parts += [f"unread\0{failure.path}" for failure in snapshot.errors]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "backslashreplace")).hexdigest()


@cache
def code_fingerprint() -> str:
    """Changes with the code that classifies, so that an edited or upgraded classifier never answers from the cache."""
    package = FilePath(__file__).parent
    files = [package / "index.py", package / "model.py"]
    files += [file for part in ("classify", "engines") for file in sorted((package / part).glob("**/*.py"))]
    facts = [(file.relative_to(package).as_posix(), file.stat()) for file in files]
    seen = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in facts]
    return hashlib.sha256(repr((__version__, seen)).encode()).hexdigest()


def _choose(host: Host, engine: str | None) -> tuple[Installation, tuple[NotLooked, ...]]:
    """The installation to examine, and the other engines that are there and were not asked for."""
    names = tuple(ENGINES)
    if engine is not None and engine not in names:
        raise TargetError(f"{engine} is no engine that can be examined.", f"Known engines: {', '.join(names)}.")
    found = host.installations((engine,) if engine else names)
    if not found:
        raise TargetError(
            f"{host.label} holds no engine (looked for {engine or ', '.join(names)}).",
            "Name the folder that holds the package (a site-packages or a checkout), a wheel of it, or a release.",
        )
    beside = dict.fromkeys(f"{one.engine} {one.version}".strip() for one in found if one.engine != found[0].engine)
    why = f"it lies beside {found[0].engine}; --engine chooses"
    return found[0], tuple(NotLooked(name, why) for name in beside)

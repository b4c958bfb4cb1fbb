"""Target -> Scan: host, snapshot, index, audit, findings. One target's failure is that target's result."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Protocol

import msgspec

from specaudit import __version__
from specaudit.cache import Cache
from specaudit.engines import ENGINES
from specaudit.errors import Exit, SpecauditError, TargetError
from specaudit.hosts.base import Host, Installation
from specaudit.hosts.opening import Means, opened
from specaudit.index import Index
from specaudit.model import Audit, Environment, Failure, Finding, NotLooked, Scan, Server, Target, Tool
from specaudit.snapshot import Snapshot, take

AUDIT_VERSION = 1


class Judge(Protocol):
    """Finds known defects; given to :func:`scan` by those who have rules."""

    def wants(self, path: str) -> bool:
        """Whether a rule reads that file."""
        ...

    def findings(self, index: Index, audit: Audit) -> tuple[tuple[Finding, ...], tuple[Failure, ...]]:
        """One finding per rule, and what could not be evaluated."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    """What to do with each target.

    ``engine`` chooses one where several are installed; ``judge`` is ``None`` for a scan without rules.
    """

    engine: str | None = None
    judge: Judge | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The document of one target, and the error that kept it empty."""

    scan: Scan
    error: SpecauditError | None = None

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
    """Scans targets one after the other; an error ends that target only."""
    for target in targets:
        try:
            yield Outcome(scan(target, options, cache, progress, consent))
        except SpecauditError as bad:
            failures = (Failure("", bad.message),)
            yield Outcome(Scan(Tool(__version__), target, None, Environment(), errors=failures), bad)


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
        return document_of(target, snapshot, servers, options.judge)


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
    means = Means(cache, lambda path: wanted(path, options.judge), progress, consent)
    with opened(target, means) as host:
        found = _choose(host, options.engine)
        progress(f"{target.spec}: {found.engine} {found.version or '(version unknown)'}")
        yield take(host, target, found, means.wants, cache, cache), host.servers()


def document_of(target: Target, snapshot: Snapshot, servers: tuple[Server, ...], judge: Judge | None) -> Scan:
    """Everything that can be said of a snapshot."""
    made = classify(snapshot)
    findings: tuple[Finding, ...] = ()
    failures: tuple[Failure, ...] = ()
    not_looked = snapshot.not_looked
    if judge is not None:
        findings, failures = judge.findings(Index(snapshot), made)
    else:
        not_looked = (*not_looked, NotLooked("known defects", "the scan was made without rules"))
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
        errors=tuple(dict.fromkeys((*snapshot.errors, *made.errors, *failures))),
    )


def wanted(path: str, judge: Judge | None = None) -> bool:
    """Whether classification or a rule may read that file of some engine."""
    engine = ENGINES.get(path.partition("/")[0])
    return (engine is not None and engine.wants(path)) or (judge is not None and judge.wants(path))


def classify(snapshot: Snapshot) -> Audit:
    """The audit of a snapshot, from the cache when this version of the classifier has seen these files before."""
    narrow = snapshot.narrowed(ENGINES[snapshot.engine.name].wants)
    key = _audit_key(narrow)
    stored = snapshot.cache.get("audit", key, AUDIT_VERSION)
    if stored is not None:
        return msgspec.msgpack.decode(stored, type=Audit)
    from specaudit.classify.audit import audit

    made = audit(Index(narrow))
    snapshot.cache.put("audit", key, AUDIT_VERSION, msgspec.msgpack.encode(made))
    return made


def _audit_key(snapshot: Snapshot) -> str:
    parts = [code_fingerprint(), snapshot.engine.name, snapshot.engine.version]
    parts += [f"{path}\0{entry.sha256}" for path, entry in sorted(snapshot.files.items())]
    parts += [f"op\0{name}" for name in snapshot.ops]
    parts += [f"not looked\0{item.what}\0{item.why}" for item in snapshot.not_looked]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


@cache
def code_fingerprint() -> str:
    """Changes with the code that classifies, so that an edited or upgraded classifier never answers from the cache."""
    package = Path(__file__).parent
    files = [package / "index.py", package / "model.py"]
    files += [file for part in ("classify", "engines") for file in sorted((package / part).glob("**/*.py"))]
    facts = [(file.relative_to(package).as_posix(), file.stat()) for file in files]
    seen = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in facts]
    return hashlib.sha256(repr((__version__, seen)).encode()).hexdigest()


def _choose(host: Host, engine: str | None) -> Installation:
    names = tuple(ENGINES)
    if engine is not None and engine not in names:
        raise TargetError(f"{engine} is no engine that can be examined.", f"Known engines: {', '.join(names)}.")
    found = host.installations((engine,) if engine else names)
    if not found:
        raise TargetError(
            f"{host.label} holds no engine (looked for {engine or ', '.join(names)}).",
            "Name the folder that holds the package (a site-packages or a checkout), a wheel of it, or a release.",
        )
    return found[0]


def only_methods(made: Scan, methods: tuple[str, ...]) -> Scan:
    """A scan with what concerns some methods alone.

    Raises:
        TargetError: the engine does not know a method.
    """
    known = {runner.method for runner in made.runners}
    for method in methods:
        if method not in known:
            raise TargetError(f"{made.target.spec} has no method {method!r}.", f"It has: {', '.join(sorted(known))}.")
    wanted_methods = set(methods)
    runners = tuple(r for r in made.runners if r.method in wanted_methods)
    labels = {r.runner for r in runners}
    return replace(
        made,
        runners=runners,
        proposers=tuple(p for p in made.proposers if wanted_methods.intersection(p.methods)),
        verifiers=tuple(v for v in made.verifiers if not v.runner or v.runner in labels),
        options=tuple(o for o in made.options if not o.method or o.method in wanted_methods),
        paths=tuple(p for p in made.paths if p.method in wanted_methods),
        findings=tuple(f for f in made.findings if not f.methods or wanted_methods.intersection(f.methods)),
    )

"""Index -> Audit: everything that classification says about one engine, and the paths of one configuration.

Depends on the engine's files alone, so that its result can be cached under their digest. What single files say of
acceptance, and what attention kernels do, needs nothing else: other processes share in that work.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

from specaudit.classify.arriving import ANY, Arriving
from specaudit.classify.beside import shared
from specaudit.classify.code import Code
from specaudit.classify.deciding import Request
from specaudit.classify.facts import Facts, Made
from specaudit.classify.installed import Installed
from specaudit.classify.methods import Methods
from specaudit.classify.options import Options
from specaudit.classify.paths import Tracer
from specaudit.classify.proposers import Proposers
from specaudit.classify.refusals import Refusals
from specaudit.classify.refusing import Refusing
from specaudit.classify.runners import RunnerChoice
from specaudit.classify.symbolic import Reader
from specaudit.classify.treeverdict import attention, tree_verdict
from specaudit.classify.verifiers import Verifiers, with_runners
from specaudit.engines import ENGINES
from specaudit.engines.base import Engine
from specaudit.errors import ConfigurationError
from specaudit.index import Index
from specaudit.model import Audit, Failure, Path, Runner, TreePart, Verifier


class Reading:
    """The parts of a classification that need one another, kept together so that a trace can start from them.

    They are read when they are asked for.
    """

    def __init__(self, index: Index, engine: Engine) -> None:
        self.index = index
        self.engine = engine
        self.reader = Reader(Code(index, engine.package), engine)

    def close(self) -> None:
        """Takes apart what refers to one another, so that it is gone at once: collecting it takes a while."""
        self.reader.close()

    @cached_property
    def methods(self) -> Methods:
        """The methods of the configuration."""
        return Methods(self.reader)

    @cached_property
    def choice(self) -> RunnerChoice:
        """What decides between runners."""
        return RunnerChoice(self.reader)

    @cached_property
    def proposers(self) -> Proposers:
        """Every class that drafts."""
        return Proposers(self.reader, self.choice, self.methods)

    @cached_property
    def refusing(self) -> Refusing:
        """What methods are refused with."""
        return Refusing(Arriving(self.reader, self.methods, self.choice), self.proposers)

    @cached_property
    def runners(self) -> tuple[Runner, ...]:
        """The runners of every method that some runner can draft with."""
        out: list[Runner] = []
        for method in self.methods.names:
            labels = dict.fromkeys(f.site.runner.label for f in self.proposers.found if method in f.ways)
            formulas = {label: self.methods.at(self.choice.formula(label), method) for label in labels}
            out.extend(one for one in self.choice.of(method, formulas) if not self._refused(one))
        return tuple(out)

    def _refused(self, way: Runner) -> bool:
        """Whether a way asks for an option that the engine refuses for the method."""
        given = [(c.option, ANY) for c in way.changes if c.op == "is set"]
        given += [(c.option, c.value) for c in way.changes if c.op == "=="]
        return any(self.refusing.at(option, (value,), way.method, way.runner) for option, value in given)

    def tracer(self, verifiers: Iterable[Verifier]) -> Tracer:
        """Traces paths, with the verifiers that they end in."""
        return Tracer(self.reader, self.methods, self.choice, self.proposers, tuple(verifiers))


def engine_of(index: Index) -> Engine:
    """The anchors of the engine in a snapshot."""
    return ENGINES[index.snapshot.engine.name]


def audit(index: Index) -> Audit:
    """Classifies one engine."""
    with _no_collections():
        return _of_engine(index, engine_of(index))


def _of_engine(index: Index, engine: Engine) -> Audit:
    reading = Reading(index, engine)
    try:
        return _read(reading)
    finally:
        reading.close()


def _read(reading: Reading) -> Audit:
    index, engine = reading.index, reading.engine
    facts = Facts(index)
    pieces: list[Callable[[], Made | Masking]] = [partial(_masking, index, engine), *facts.pieces()]
    masking = None
    with shared(pieces) as results:
        # what needs nothing of the others' work comes first
        runners = reading.runners
        options = Options(reading.reader, reading.methods, reading.choice, reading.proposers, reading.refusing)
        verification = Verifiers(reading.reader)
        for made in results():
            if isinstance(made, Made):
                facts.take(made)
            else:
                masking = made.part
                index.failed(made.failures)
    verifiers = with_runners(verification.all(facts.all()), runners)
    verifiers = Installed(verification.roles, reading.proposers).told(verifiers)
    tracer = reading.tracer(verifiers)
    whole = engine.config.whole
    paths = [path for method in reading.methods.names if whole for path in tracer.paths(Request(method, {}))]
    return Audit(
        runners=runners,
        proposers=tuple(f.proposer for f in reading.proposers.found),
        verifiers=verifiers,
        tree=tree_verdict(reading.reader, reading.proposers, verifiers, masking),
        options=options.of(runners, verifiers) if whole else (),
        paths=tuple(paths),
        errors=index.failures,
    )


@dataclass(frozen=True, slots=True)
class Masking:
    """What the target's attention does about trees, and the files that could not be read on the way to it."""

    part: TreePart
    failures: tuple[Failure, ...]


def _masking(index: Index, engine: Engine) -> Masking:
    return Masking(attention(Reader(Code(index, engine.package), engine)), index.failures)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Without cyclic garbage collection, which would look at every node of every tree again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def trace(
    index: Index, method: str, settings: Mapping[str, str | None], verifiers: Iterable[Verifier]
) -> tuple[Path, ...]:
    """The paths of one method under given settings; as :func:`tracing` tells."""
    return tracing(index, verifiers)(method, settings)


def tracing(index: Index, verifiers: Iterable[Verifier]) -> Callable[[str, Mapping[str, str | None]], tuple[Path, ...]]:
    """A function that gives the paths of one method under given settings.

    It takes the method's name, or an alias that the configuration rewrites, and settings by name: options of
    speculative decoding, environment flags, and what is known of the models (``object.attribute``, objects as the
    anchors name them); values as conditions show them, ``None`` for explicitly not set. It raises
    ``ConfigurationError`` when the engine does not know the method or an option, or refuses the combination.

    Raises:
        ConfigurationError: paths are not drawn for this engine.
    """
    engine = engine_of(index)
    if not engine.config.whole:
        raise ConfigurationError(
            f"Paths are not drawn for {engine.name}, so no configuration can be followed.",
            "Scan it, with --method alone: what drafts and verifies for it is told, with evidence.",
        )
    reading = Reading(index, engine)
    refusals = Refusals(reading.reader, reading.methods, reading.choice)
    tracer = reading.tracer(verifiers)
    return lambda method, settings: _traced(tracer, refusals.checked(method, settings), index)


def _traced(tracer: Tracer, request: Request, index: Index) -> tuple[Path, ...]:
    paths = tracer.paths(request)
    if not paths:
        why = tracer.deciding.refusal(request) or "nothing in it makes a proposer for them"
        version = f"{index.snapshot.engine.name} {index.snapshot.engine.version}"
        raise ConfigurationError(
            f"{version} cannot run method {request.method!r} with these settings: {why}.",
            "See the runners of the method in a scan, and leave out the settings that lead elsewhere.",
        )
    return tuple(paths)

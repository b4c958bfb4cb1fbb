"""Index -> Audit: everything that classification says about one engine.

Depends on the engine's files alone, so its result is cached under their digest. Verifiers are read in a second process while
this one reads configuration, runners and proposers: both need the files and neither needs the other's result.
"""

from __future__ import annotations

from specaudit.classify.code import Code
from specaudit.classify.methods import Methods
from specaudit.classify.proposers import Proposers
from specaudit.classify.runners import RunnerChoice
from specaudit.classify.symbolic import Reader
from specaudit.engines import ENGINES
from specaudit.engines.base import Engine
from specaudit.index import Index
from specaudit.model import Audit, Runner


class Reading:
    """The parts of a classification that need one another: kept together so that a trace can start from them."""

    def __init__(self, index: Index, engine: Engine) -> None:
        self.index = index
        self.engine = engine
        self.reader = Reader(Code(index, engine.package), engine)
        self.methods = Methods(self.reader)
        self.choice = RunnerChoice(self.reader)
        self.proposers = Proposers(self.reader, self.choice, self.methods)

    def runners(self) -> tuple[Runner, ...]:
        """The runners of every method that some runner can draft with."""
        out: list[Runner] = []
        for method in self.methods.names:
            labels = dict.fromkeys(f.site.runner.label for f in self.proposers.found if method in f.ways)
            out.extend(self.choice.of(method, {label: self.methods.at(self.choice.formula(label), method) for label in labels}))
        return tuple(out)


def engine_of(index: Index) -> Engine:
    """The anchors of the engine in a snapshot."""
    return ENGINES[index.snapshot.engine.name]


def audit(index: Index) -> Audit:
    """Classifies one engine."""
    reading = Reading(index, engine_of(index))
    return Audit(
        runners=reading.runners(),
        proposers=tuple(f.proposer for f in reading.proposers.found),
        errors=index.failures,
    )

"""Runs one function over symbolic values, with an oracle that gives every open comparison a truth value.

What a run does follows from the answers that it gets. A run that got the same answers before is not made again: of
those that are asked for, more than half.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from specaudit.classify.evaluator import Evaluator, Stop
from specaudit.classify.ir import Function
from specaudit.classify.runs import UNKNOWN, Oracle, Run, Value
from specaudit.classify.terms import Term

RUN_STEPS = 2_000  # nested loops and calls multiply; no accepting function needs as many statements in one run


@dataclass(frozen=True, slots=True)
class _End:
    """A whole run, and how many statements it took."""

    run: Run
    steps: int


@dataclass(frozen=True, slots=True)
class _Fork:
    """A question, and what followed each answer that was given to it so far."""

    asked: Term
    after: dict[bool, _Fork | _End] = field(default_factory=dict)


@dataclass(slots=True)
class Machine(Evaluator):
    """Runs ``program``."""

    _made: dict[bool, _Fork | _End] = field(default_factory=dict)

    @property
    def function(self) -> Function:
        """The function that is run."""
        return self.program.function

    def execute(self, oracle: Oracle) -> Run:
        """One run from top to bottom.

        Args:
            oracle: gives the same answer whenever it is asked about the same term.
        """
        known = self._known(oracle)
        if known is not None:
            self.steps += known.steps
            return known.run
        before = self.steps
        self._execute(oracle)
        self._keep(_End(self.run, self.steps - before))
        return self.run

    def _execute(self, oracle: Oracle) -> None:
        self.run = Run()
        self.oracle = oracle
        self.ends = self.steps + RUN_STEPS
        self.depth = 0
        self.testing = False
        self.open = []
        self.env = {}
        for param in self.function.params:
            if param.name in self.flags:
                self.env[param.name] = self.constant(self.flags[param.name].value)
            else:
                self.env[param.name] = Value(UNKNOWN, self.terms.leaf("param", param.name))
        with suppress(Stop):
            self.program.body(self)

    # --- what was run before ------------------------------------------------------------------------------------

    def _known(self, oracle: Oracle) -> _End | None:
        """The run that those answers lead to, where it was made before."""
        here = self._made.get(True)
        while isinstance(here, _Fork):
            here = here.after.get(oracle(here.asked))
        return here

    def _keep(self, end: _End) -> None:
        after, answer = self._made, True  # the way in: there is one start
        for asked in end.run.asked:
            fork = after.setdefault(answer, _Fork(self.terms.at(asked.key)))
            assert isinstance(fork, _Fork)  # the same answers so far: the same question
            after, answer = fork.after, asked.answer
        after[answer] = end

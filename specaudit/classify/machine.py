"""Runs one function over symbolic values, with an oracle that gives every open comparison a truth value."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from specaudit.classify.evaluator import Evaluator, Stop
from specaudit.classify.ir import Function
from specaudit.classify.runs import UNKNOWN, Oracle, Run, Value

RUN_STEPS = 2_000  # nested loops and calls multiply; no accepting function needs as many statements in one run


@dataclass(slots=True)
class Machine(Evaluator):
    """Runs ``program``."""

    @property
    def function(self) -> Function:
        """The function that is run."""
        return self.program.function

    def execute(self, oracle: Oracle) -> Run:
        """One run from top to bottom."""
        self.run = Run()
        self.oracle = oracle
        self.ends = self.steps + RUN_STEPS
        self.depth = 0
        self.open = []
        self.env = {}
        for param in self.function.params:
            if param.name in self.flags:
                self.env[param.name] = self.constant(self.flags[param.name].value)
            else:
                self.env[param.name] = Value(UNKNOWN, self.terms.leaf("param", param.name))
        with suppress(Stop):
            self.program.body(self)
        return self.run

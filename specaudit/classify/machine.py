"""Runs one function over symbolic values, with an oracle that gives every open comparison a truth value.

Loops run two turns: the first shows what the comparisons of a turn do to the carried names, the second whether the
loop goes on, that is, whether it compares again. Paths are never merged; the oracle decides every branch.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from specaudit.classify import ir
from specaudit.classify.evaluator import Evaluator
from specaudit.classify.ir import Assign, Block, Call, Effect, Expr, If, Jump, Loop
from specaudit.classify.runs import UNKNOWN, Oracle, Run, Turns, Value

TURNS = 2
RUN_STEPS = 2_000  # nested loops and calls multiply; no accepting function needs as many statements in one run


class _Stop(Exception):
    """The function returned, or ran for too long."""


@dataclass(slots=True)
class Machine(Evaluator):
    """Runs ``function``; ``steps`` counts statements over all runs."""

    steps: int = 0
    _ends: int = 0
    _loops: dict[int, int] = field(default_factory=dict)

    def execute(self, oracle: Oracle) -> Run:
        """One run from top to bottom."""
        self.run = Run()
        self.oracle = oracle
        self._ends = self.steps + RUN_STEPS
        self.depth = 0
        self.open = []
        self.env = {}
        for param in self.function.params:
            if param.name in self.flags:
                self.env[param.name] = self.constant(self.flags[param.name].value)
            else:
                self.env[param.name] = Value(UNKNOWN, self.terms.leaf("param", param.name))
        with suppress(_Stop):
            self.block(self.function.body)
        return self.run

    # --- statements ---------------------------------------------------------------------------------------------

    def block(self, block: Block) -> str:
        self.steps += len(block)
        if self.steps > self._ends:
            raise _Stop
        for statement in block:
            signal = self._statement(statement)
            if signal:
                return signal
        return ""

    def _statement(self, statement: ir.Stmt) -> str:
        form = type(statement)
        if form is Assign:
            assert isinstance(statement, Assign)
            self.assign(statement.target, self.evaluate(statement.value), statement.line)
        elif form is If:
            assert isinstance(statement, If)
            if self._leaves_early(statement):
                return ""
            return self.block(statement.body if self.truth(self.evaluate(statement.test)) else statement.orelse)
        elif form is Loop:
            assert isinstance(statement, Loop)
            return self._loop(statement)
        elif form is Effect:
            assert isinstance(statement, Effect)
            self.evaluate(statement.value)
        else:
            assert isinstance(statement, Jump)
            return self._jump(statement)
        return ""

    def _jump(self, statement: Jump) -> str:
        if statement.kind == "return" and self.depth == 0:
            if statement.value is not None:
                self.store("return", self.terms.const(None), self.evaluate(statement.value), None, statement.line)
            raise _Stop
        if statement.kind == "return":
            self.env["return"] = self.constant(None) if statement.value is None else self.evaluate(statement.value)
        if statement.kind == "raise":
            raise _Stop
        return statement.kind

    def _leaves_early(self, statement: If) -> bool:
        """``if …: return`` before anything was compared: a row that is not ours. The run is about the rows that are."""
        return (
            self.depth == 0
            and not self.open
            and not statement.orelse
            and bool(statement.body)
            and isinstance(statement.body[-1], Jump)
            and statement.body[-1].kind in ("return", "raise")
            and not any(seen.kind != "none" for seen in self.run.seen)
        )

    # --- loops --------------------------------------------------------------------------------------------------

    def _loop(self, loop: Loop) -> str:
        number = self._loops.setdefault(id(loop), len(self._loops))
        head: dict[str, Value] = {}
        for name in sorted(ir.assigned(loop.body)):
            before = self.env.get(name)
            if before is not None:
                head[name] = Value(before.known, self.terms.carried(name, number, before.term))
                self.env[name] = head[name]
        turns = Turns(number, head)
        first = number not in self.run.loops
        if first:
            self.run.loops[number] = turns
        self.open.append(turns)
        signal = self._turn(loop, number, turns)
        self.open.pop()
        return signal

    def _turn(self, loop: Loop, number: int, turns: Turns) -> str:
        for turn in range(TURNS):
            if loop.target is not None and loop.iterable is not None:
                # The next turn's index is another one, so that its comparisons are asked anew.
                index = Value(UNKNOWN, self.terms.leaf("loop", f"{number}+{turn}"))
                self.assign(loop.target, self._element(loop.iterable, index), loop.line)
            turns.compared.append([])
            turns.stores.append([])
            if loop.test is not None and not self._goes_on(loop.test):
                break
            signal = self.block(loop.body)
            turns.after.append({name: self.env[name] for name in turns.head})
            if signal == "break":
                break
            if signal == "return":
                return signal
        return ""

    def _goes_on(self, test: Expr) -> bool:
        """A ``while`` test: what only counts turns holds."""
        self.testing = True
        truth = self.truth(self.evaluate(test))
        self.testing = False
        return truth

    def _element(self, iterable: Expr, index: Value) -> Value:
        """What a ``for`` loop hands out: its index, or elements of what it goes through."""
        if not isinstance(iterable, Call):
            return self._at(self.evaluate(iterable), index)
        name = iterable.func.rpartition(".")[2]
        if name in ("range", "static_range", "persistent_range"):
            return index
        if name == "zip":
            return self.together([self._at(self.evaluate(a), index) for a in iterable.args])
        if name == "enumerate" and iterable.args:
            return self.together([index, self._element(iterable.args[0], index)])
        return self._at(self.evaluate(iterable), index)

    def _at(self, value: Value, index: Value) -> Value:
        return Value(UNKNOWN, self.terms.load(self.terms.op("+", value.term, index.term)))

"""Where a runner makes its proposer: every line that does, with the tests on the way there.

The runner keeps an object; what is stored there is made on the spot, returned by a function that the runner calls, or
of a class that a method of the configuration chose.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from specaudit import nodes
from specaudit.classify.code import Symbol, dotted, expression
from specaudit.classify.conditions import Formula, conj
from specaudit.classify.places import Place
from specaudit.classify.symbolic import Reader
from specaudit.classify.values import Obj
from specaudit.engines.base import RunnerAnchor
from specaudit.model import Evidence


@dataclass(frozen=True, slots=True)
class Site:
    """One line that makes a proposer: the class (``None``: a class the user names), its tests as a formula, and the
    way there.

    ``tests`` are the lines of the tests passed on the way, ``via`` the lines that lead from the runner to ``line``.
    ``lost`` is the file of the class, or of one behind it, where that cannot be read; ``named``: as the line names it.
    """

    runner: RunnerAnchor
    cls: Symbol | None
    maker: Symbol
    path: str
    line: int
    formula: Formula
    tests: tuple[Evidence, ...]
    via: tuple[Evidence, ...]
    attribute: str
    lost: str = ""
    named: str = ""


@dataclass(frozen=True, slots=True)
class _Way:
    """How far the search for a proposer's class has come: the tests and lines behind it, and where the object is
    kept.
    """

    formula: Formula = True
    tests: tuple[Evidence, ...] = ()
    via: tuple[Evidence, ...] = ()
    attribute: str = ""

    def site(self, runner: RunnerAnchor, cls: Symbol | None, maker: Symbol, path: str, line: int) -> Site:
        """The line where it ends."""
        return Site(runner, cls, maker, path, line, self.formula, self.tests, self.via, self.attribute)


class Making:
    """Finds the lines that make proposers."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.code = reader.code
        self.index = reader.code.index

    def sites(self, anchor: RunnerAnchor) -> Iterator[Site]:
        """The lines of one runner that make its proposer."""
        outline = self.index.outline(anchor.path)
        kept = (
            {anchor.keeps}
            if anchor.keeps
            else {
                c.func.split(".")[1]
                for c in outline.calls
                if c.func.startswith("self.") and c.func.endswith(f".{anchor.entry}") and c.func.count(".") == 2
            }
        )
        places = [a for a in outline.assigns if a.target.startswith("self.") and a.target[5:] in kept]
        if not places and not kept:
            places = [a for a in outline.assigns if a.scope.startswith(f"{anchor.cls}.") and a.target.isidentifier()]
        for scope in dict.fromkeys(a.scope for a in places):
            lines = {a.line: a.target.removeprefix("self.") for a in places if a.scope == scope}
            yield from self._made_in(anchor, anchor.path, scope, lines, _Way())

    def _made_in(
        self, anchor: RunnerAnchor, path: str, scope: str, lines: Mapping[int, str], way: _Way
    ) -> Iterator[Site]:
        """The sites among the statements at ``lines`` of one function (all returns when ``lines`` is empty)."""
        function = self.code.definition(path, scope)
        if function is None:
            return
        for place in self.reader.places(function):
            statement = place.statement
            wanted = statement.lineno in lines if lines else isinstance(statement, ast.Return)
            if not wanted or not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Return)):
                continue
            here = _Way(
                conj((way.formula, place.formula)),
                (*way.tests, *self._tests(place, path)),
                way.via,
                lines.get(statement.lineno, way.attribute),
            )
            for call in place.calls:
                made = self.code.resolve(path, scope, dotted(call.func))
                if made is not None and made.definition.kind == "class" and self._drafts(made, anchor):
                    yield here.site(anchor, made, made, path, call.lineno)
                elif made is not None and made.definition.kind == "function" and here.formula is not False:
                    step = self._step(here, path, call, made)
                    inner = list(self._made_in(anchor, made.path, made.qualname, {}, step)) if lines else []
                    inner = [site for site in inner if call is statement.value or not site.lost]
                    yield from inner
                    if lines and not inner and self._user_class(made):
                        yield here.site(anchor, None, made, path, call.lineno)
                elif call is statement.value and (lost := self._lost(made, path, scope, dotted(call.func))):
                    site = here.site(anchor, None, made or function, path, call.lineno)
                    yield replace(site, lost=lost, named=dotted(call.func))
                elif made is None and isinstance(call.func, ast.Name):
                    yield from self._chosen(anchor, path, scope, call, here)

    def _step(self, way: _Way, path: str, call: ast.Call, entered: Symbol) -> _Way:
        lines = (self.index.evidence(path, call.lineno), self.index.evidence(entered.path, entered.definition.line))
        return _Way(way.formula, way.tests, (*way.via, *lines), way.attribute)

    def _chosen(self, anchor: RunnerAnchor, path: str, scope: str, call: ast.Call, way: _Way) -> Iterator[Site]:
        """``Class = configuration.choose(…); self.x = Class(…)``: the classes that the method returns."""
        chooser = self._chooser(path, scope, dotted(call.func))
        if chooser is None:
            return
        method, obj = chooser
        way = self._step(way, path, call, method)
        for place in self.reader.places(method, obj.cls, obj):
            statement = place.statement
            name = dotted(statement.value) if isinstance(statement, ast.Return) and statement.value is not None else ""
            made = self.code.resolve(method.path, method.qualname, name) if name else None
            passed = (*way.tests, *self._tests(place, method.path))
            here = _Way(conj((way.formula, place.formula)), passed, way.via, way.attribute)
            if made is not None and made.definition.kind == "class" and self._drafts(made, anchor):
                yield here.site(anchor, made, made, method.path, statement.lineno)
            elif lost := self._lost(made, method.path, method.qualname, name):
                site = here.site(anchor, None, made or method, method.path, statement.lineno)
                yield replace(site, lost=lost, named=name)

    def _lost(self, made: Symbol | None, path: str, scope: str, name: str) -> str:
        """The file that keeps a class from being known, or from being known to draft; ``""``: none does."""
        if made is None:
            return self.code.lost(path, scope, name)
        return self.code.lost_behind(made) if made.definition.kind == "class" else ""

    def _chooser(self, path: str, scope: str, name: str) -> tuple[Symbol, Obj] | None:
        """The method of a configuration object whose result a local name holds, and that object."""
        for stored in self.index.outline(path).assigns:
            node = expression(stored.value) if (stored.scope, stored.target) == (scope, name) else None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                obj = self.reader.configuration.carried(dotted(node.func.value).rpartition(".")[2])
                method = self.code.method(obj.cls, node.func.attr) if obj is not None else None
                if obj is not None and method is not None:
                    return method, obj
        return None

    def _tests(self, place: Place, path: str) -> tuple[Evidence, ...]:
        return tuple(self.index.evidence(path, test.lineno) for test, _ in place.tests)

    def _drafts(self, cls: Symbol, anchor: RunnerAnchor) -> bool:
        return self.code.method(cls, anchor.entry) is not None

    def _user_class(self, function: Symbol) -> bool:
        """Whether a function makes an object of a class that it looked up by name at run time."""
        node = self.code.function(function)
        if node is None:
            return False
        looked_up = {
            target.id
            for n in nodes.walk(node)
            if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call) and dotted(n.value.func) == "getattr"
            for target in n.targets
            if isinstance(target, ast.Name)
        }
        return any(isinstance(n, ast.Call) and dotted(n.func) in looked_up for n in nodes.walk(node))

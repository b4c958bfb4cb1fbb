"""Under which settings a launch is made, and which setting turns a compile-time flag on.

Tests around the calls between the runner and the kernel become conditions; what only the running program knows (a
batch that is all greedy) is left out.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from specaudit import nodes
from specaudit.classify import arguments
from specaudit.classify.callers import Callers, Site
from specaudit.classify.code import Symbol
from specaudit.classify.conditions import Formula, conj, usual
from specaudit.classify.roles import Roles
from specaudit.classify.symbolic import Reader, Scope, calls, guarded, local
from specaudit.classify.values import Opaque, Value
from specaudit.classify.ways import alternatives, stated
from specaudit.model import Condition

_DEPTH = 6


class Selection:
    """Reads the conditions of launches and flags."""

    def __init__(self, reader: Reader, roles: Roles) -> None:
        self.reader = reader
        self.roles = roles
        self.callers: Callers = roles.callers
        self._scopes: dict[tuple[str, str], Scope | None] = {}
        self._formulas: dict[tuple[str, str], Formula] = {}

    def of_launch(self, function: Symbol, site: Site) -> Formula:
        """The formula of a call in a function, with what leads to that function from the runner."""
        return conj((self._above(function, 0), self._around(function, site)))

    def of_flag(self, kernel: Symbol, site: Site, name: str) -> tuple[Condition, ...]:
        """What turns a flag on: the settings behind it where they can be read, else the flag itself."""
        found = arguments.flag(self.callers, kernel, site, name)
        if found is not None:
            expr, function = found
            scope = self._scope(function, 0)
            formula = self.reader.truth(expr, scope) if scope is not None else False
            conditions = _first(formula)
            if conditions:
                return conditions
        return (Condition(name, "option", "is set", "", f"the kernel's flag {name} is on"),)

    def conditions(self, formula: Formula) -> tuple[Condition, ...]:
        """The settings that a formula needs beyond the defaults; empty when it can hold as nothing is configured."""
        if usual(formula) is not False:
            return ()
        return _first(formula)

    # --- formulas

    def _above(self, function: Symbol, depth: int) -> Formula:
        """What leads to a function from the runner, along the first chain that does."""
        key = function.path, function.qualname
        if key in self._formulas or depth > _DEPTH:
            return self._formulas.get(key, True)
        self._formulas[key] = True
        site = self._reached_from(function)
        above = self.callers.enclosing(site) if site is not None else None
        if site is not None and above is not None and not self.roles.runner_of(site):
            self._formulas[key] = conj((self._above(above, depth + 1), self._around(above, site)))
        return self._formulas[key]

    def _reached_from(self, function: Symbol) -> Site | None:
        """The site through which the runner reaches a function."""
        sites = self.callers.sites(function)
        direct = [site for site in sites if self.roles.runner_of(site)]
        if direct:
            return direct[0]
        for site in sites:
            above = self.callers.enclosing(site)
            if above is not None and self.roles.reach(above).runners:
                return site
        return sites[0] if sites else None

    def _around(self, function: Symbol, site: Site) -> Formula:
        """The tests around one call."""
        node = self.callers.code.function(function)
        scope = self._scope(function, 0)
        if node is None or scope is None:
            return True
        for place in guarded(node.body):
            if any(call.lineno == site.line for call in calls(place.statement)):
                return place.formula(self.reader, scope)
        return True

    # --- names

    def _scope(self, function: Symbol, depth: int) -> Scope | None:
        """The names of a function: its own, and its parameters as the caller on the way from the runner gives them."""
        key = function.path, function.qualname
        if key not in self._scopes:
            self._scopes[key] = None
            self._scopes[key] = self._make(function, depth)
        return self._scopes[key]

    def _make(self, function: Symbol, depth: int) -> Scope | None:
        node = self.callers.code.function(function)
        if node is None:
            return None
        owner = self.callers.objects.class_of(function.path, function.qualname)
        scope = Scope(function.path, function.qualname, owner)
        return local(self.reader, node, scope, self._given(function, depth))

    def _given(self, function: Symbol, depth: int) -> Mapping[str, Value]:
        site = self._reached_from(function) if depth < _DEPTH else None
        if site is None or site.call is None:
            return {}
        above = self.callers.enclosing(site)
        outer = self._scope(above, depth + 1) if above is not None else None
        node = self.callers.code.function(above) if above is not None else None
        if outer is None or node is None:
            return {}
        params = [p for p in function.definition.params if p not in ("self", "cls")]
        for call in nodes.walk(node):
            if isinstance(call, ast.Call) and call.lineno == site.line and (call.args or call.keywords):
                given = arguments.given_to(call, params)
                values = {name: self.reader.value(expr, outer) for name, expr in given.items()}
                return {name: value for name, value in values.items() if not isinstance(value, Opaque)}
        return {}


def _first(formula: Formula) -> tuple[Condition, ...]:
    """The conditions of the shortest way to make a formula true that needs any."""
    ways = [stated(way) for way in alternatives(formula)]
    told = sorted((way for way in ways if way), key=len)
    return told[0] if told else ()

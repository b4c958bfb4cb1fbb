"""Settings that the engine would refuse: an unknown method or option, a value it does not list, a combination it
raises on.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from specaudit import nodes
from specaudit.classify.code import dotted
from specaudit.classify.conditions import Formula, Lit, assume, literals, usual
from specaudit.classify.deciding import Request
from specaudit.classify.methods import Methods
from specaudit.classify.runners import RunnerChoice
from specaudit.classify.symbolic import Reader
from specaudit.errors import ConfigurationError


class Refusals:
    """Checks one request against one engine's configuration code."""

    def __init__(self, reader: Reader, methods: Methods, choice: RunnerChoice) -> None:
        self.reader = reader
        self.code = reader.code
        self.methods = methods
        self.choice = choice

    def checked(self, method: str, settings: Mapping[str, str | None]) -> Request:
        """The request with aliases resolved.

        Raises:
            ConfigurationError: what the engine would refuse, with its own line.
        """
        known = self.methods.aliases
        field = self.methods.anchors.method_field
        asked = settings.get(field)
        if method not in known:
            raise ConfigurationError(
                f"The engine has no method {method!r}.", f"It has: {', '.join(self.methods.names)}."
            )
        if asked is not None and known.get(asked, asked) != known[method]:
            raise ConfigurationError(
                f"The configuration says method {asked!r}, and method {method!r} was asked for.", "Give one of the two."
            )
        request = Request(known[method], {k: v for k, v in settings.items() if k != field})
        for option, value in request.settings.items():
            self._check_option(option, value)
        request = replace(request, settings={o: self._as_flag(o, v) for o, v in request.settings.items()})
        self._check_combination(request)
        return request

    def _as_flag(self, name: str, value: str | None) -> str | None:
        """The value as conditions show it: of a flag that is read by ``int``, every number but 0 is 1.

        Raises:
            ConfigurationError: it is no whole number, so the engine would not start.
        """
        path = self.reader.engine.environment_path
        if value is None or not name.isupper() or not self.reader.configuration.flag(name).boolean:
            return value
        line = _read_by_int(self.code.index.source(path), name)
        try:
            return str(int(int(value) != 0)) if line else value
        except ValueError:
            raise ConfigurationError(
                f"{name} cannot be {value!r}: the engine reads a whole number there, and would not start.",
                f"Write 0 or 1; see {path}:{line}.",
            ) from None

    def _check_option(self, option: str, value: str | None) -> None:
        cls = self.methods.cls
        if cls is None or option.isupper() or "." in option:
            return
        annotation, _ = self.reader.configuration.declared(cls, option)
        if not annotation:
            names = sorted(
                {
                    a.target
                    for a in self.code.assigns(cls.path, cls.qualname)
                    if a.scope == cls.qualname and a.target.isidentifier()
                }
            )
            raise ConfigurationError(
                f"The speculative configuration has no option {option!r}.", f"It has: {', '.join(names)}."
            )
        for word in annotation.replace("|", " ").split():
            allowed = self.reader.configuration.members(cls.path, word) if word[:1].isupper() else ()
            if allowed and value is not None and value not in allowed:
                raise ConfigurationError(f"{option} cannot be {value!r}.", f"This engine knows: {', '.join(allowed)}.")

    def _check_combination(self, request: Request) -> None:
        """Raises when a statement of the configuration that raises is reached under the settings that the user gave."""
        for method, place in self.methods.completing():
            if isinstance(place.statement, ast.Raise):
                about = {_about(lit) for lit in literals(place.formula)} & request.settings.keys()
                if about and self._certain(place.formula, request):
                    line = f"{method.path}:{place.statement.lineno}"
                    named = " with ".join(sorted(about))
                    raise ConfigurationError(
                        f"The engine refuses {named} for method {request.method!r}: {_message(place.statement)}",
                        f"See {line}; change one of these settings.",
                    )

    def _certain(self, f: Formula, request: Request) -> bool:
        """Whether a refusal meets a request, however many tokens are drafted where the user gave no number."""
        if usual(self.methods.at(f, request.method, request.settings)) is not True:
            return False
        count = self.methods.anchors.count_field
        left = () if count in request.settings else (count,)
        known = self.methods.at(f, request.method, request.settings, without=left)
        return assume(known, lambda lit: None if _about(lit) in left else lit.by_default) is True


def _about(lit: Lit) -> str:
    return lit.condition.option if lit.condition is not None else ""


def _read_by_int(source: str, name: str) -> int:
    """The line on which a table of a module has ``name`` and what makes a number of it, itself or by a function of the
    module; 0: there is none.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return 0
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for table in (node for node in nodes.walk(tree) if isinstance(node, ast.Dict)):
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == name:
                called = _called(value)
                inner = [_called(functions[known]) for known in called & functions.keys()]
                return key.lineno if "int" in called.union(*inner) else 0
    return 0


def _called(node: ast.AST) -> set[str]:
    return {dotted(call.func) for call in nodes.walk(node) if isinstance(call, ast.Call)}


def _message(raised: ast.Raise) -> str:
    """The text of the exception that a statement raises, with ``…`` for what is only known when it is raised."""
    call = raised.exc
    if not isinstance(call, ast.Call) or not call.args:
        return "it raises an error"
    text = " ".join(_text(call.args[0]).split()).replace(" (…)", "")
    return text if text.strip("…") else f"{dotted(call.func)} is raised"


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.FormattedValue):
        return "…"
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(_text(child) for child in nodes.children(node))

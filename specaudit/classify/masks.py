"""Does attention take a mask or bias between the tokens of one step, and who passes one?

Which kernel parameters pair queries with keys is told by :mod:`.visibility`. Such a parameter is followed outwards: to
the function that launches the kernel, to those who call it with that parameter, and to where the passed tensor is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from specaudit.classify.code import Code, Symbol, expression
from specaudit.classify.visibility import Pairing, Visibility
from specaudit.engines.base import Engine
from specaudit.index import Call
from specaudit.model import Evidence

_NEARBY = 60  # lines that the arguments of one call may take


@dataclass(frozen=True, slots=True)
class Host:
    """A function and the parameter of it that ends in a pairing."""

    function: Symbol
    param: str


@dataclass(frozen=True, slots=True)
class Passing:
    """A call that passes a tensor to such a parameter."""

    host: Host
    path: str
    call: Call
    value: str


class Masks:
    """All pairings of one engine."""

    def __init__(self, code: Code, engine: Engine) -> None:
        self.code = code
        self.index = code.index
        self.files = tuple(p for p in self.index.paths if any(fnmatchcase(p, g) for g in engine.attention))
        self.pairings = tuple(self._pairings())
        self.hosts, self.passings = self._follow()

    def _pairings(self) -> Iterator[Pairing]:
        visibility = Visibility(self.code)
        for path in self.index.mentioning(b".dot(", self.index.mentioning(b".jit", self.files)):
            outline = self.index.outline(path)
            entered = {call.func for call in outline.calls}  # by name, so inside another kernel
            for definition in outline.definitions:
                kernel = any(d.partition("(")[0].endswith("jit") for d in definition.decorators)
                if kernel and definition.kind == "function" and definition.name not in entered:
                    yield from visibility.pairings(Symbol(path, definition))

    # --- hosts

    def _follow(self) -> tuple[tuple[Host, ...], tuple[Passing, ...]]:
        hosts: dict[tuple[str, str, str], Host] = {}
        passings: list[Passing] = []
        todo: list[Host] = [Host(p.kernel, p.param) for p in self.pairings]
        done: set[tuple[str, str, str]] = set()
        while todo:
            host = todo.pop(0)
            key = host.function.path, host.function.qualname, host.param
            if key in done:
                continue
            done.add(key)
            for path, call, value in self._calls_with(host):
                caller = self.code.definition(path, call.scope)
                if caller is not None and value in caller.definition.params:
                    hosts.setdefault((path, call.scope, value), Host(caller, value))
                    todo.append(Host(caller, value))
                elif value != "None":
                    passings.append(Passing(host, path, call, self._local(path, call.scope, value)))
        return tuple(hosts.values()), tuple(passings)

    def _calls_with(self, host: Host) -> Iterator[tuple[str, Call, str]]:
        """Calls or launches of the host that pass its parameter, with the passed text."""
        name = host.function.name
        for path in self.index.mentioning(name.encode()):
            outline = self.index.outline(path)
            known = {name, *(i.alias for i in outline.imports if i.name == name)}
            for call in outline.calls:
                value = _given(host, call) if call.name in known and self._means(path, call, host) else None
                if value is not None:
                    yield path, call, value

    def _means(self, path: str, call: Call, host: Host) -> bool:
        """A call enters the host: its name says so, or it is a method or kept function of that name where the host is
        known.
        """
        func = call.func.partition("[")[0]
        found = self.code.resolve(path, call.scope, func)
        if found is not None:
            return (found.path, found.definition.line) == (host.function.path, host.function.definition.line)
        imported = any(i.name == host.function.name for i in self.index.outline(path).imports)
        return "." in func and (imported or self.code.owner(host.function) is not None)

    def _local(self, path: str, scope: str, value: str) -> str:
        """A passed local variable as what it was made from, where it is stored once."""
        stored = [a.value for a in self.index.outline(path).assigns if a.target == value and a.scope == scope]
        return stored[0] if len(stored) == 1 and re.fullmatch(r"[\w.]+", stored[0]) else value

    # --- where the passed tensor is made

    def built_once(self, passing: Passing) -> tuple[bool, tuple[Evidence, ...]]:
        """Whether the tensor is made when the object is made (not for each step), and the lines from there to the
        call.
        """
        lines: list[Evidence] = []
        once = False
        for field in self._stored_as(passing.path, passing.value):
            lines.extend(self.index.evidence(path, line) for path, line, _ in field)
            once = once or any(scope.endswith("__init__") for _, _, scope in field)
        lines.append(self.index.evidence(passing.path, self._argument_line(passing)))
        return once, tuple(dict.fromkeys(lines))

    def _argument_line(self, passing: Passing) -> int:
        """The line of the argument, or of the call where it does not stand on a line of its own."""
        by_name = self._line_of(passing.path, passing.call.line, f"{passing.host.param}=")
        return by_name or self._line_of(passing.path, passing.call.line, f"{passing.value},") or passing.call.line

    def _stored_as(self, path: str, value: str) -> Iterable[list[tuple[str, int, str]]]:
        """For ``x.name``: where ``name`` is filled in that file (as a keyword), and where what fills it is stored."""
        name = value.rpartition(".")[2]
        outline = self.index.outline(path)
        for call in outline.calls:
            for keyword, text in call.keywords:
                if keyword == name and text != "None":
                    kept = [
                        (path, a.line, a.scope)
                        for a in outline.assigns
                        if a.target == text and expression(a.value) is not None
                    ]
                    filled = self._line_of(path, call.line, f"{keyword}=") or call.line
                    yield [*kept, (path, filled, call.scope)]

    def _line_of(self, path: str, start: int, text: str) -> int:
        lines = self.index.lines(path)[start - 1 : start + _NEARBY]
        return next((n for n, line in enumerate(lines, start) if line.strip().startswith(text)), 0)


def _given(host: Host, call: Call) -> str | None:
    """The text that a call gives to the host's parameter, by name or by place."""
    for name, value in call.keywords:
        if name == host.param:
            return value
    params = [p for p in host.function.definition.params if p not in ("self", "cls")]
    place = params.index(host.param) if host.param in params else len(call.args)
    before = call.args[: place + 1]
    return before[place] if place < len(before) and not any(a.startswith("*") for a in before) else None

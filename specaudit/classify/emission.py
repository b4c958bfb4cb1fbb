"""What a drafter's entry method does, as events under formulas: runs of the draft model, loops around them, what is returned.

Methods are followed through inheritance and ``super()``; a test on configuration becomes part of the event's formula, so
that one reading answers for every configuration. A *run of the draft model* is a call of an object that the class keeps
(``self.x(...)``) and that is no method: its code is not the drafter's own. Where the kept object is of a class of the engine,
its ``forward`` is followed instead.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from specaudit.classify.code import Code, Symbol, dotted, expression
from specaudit.classify.conditions import Formula, conj, literals
from specaudit.classify.symbolic import Reader, Scope, Walk, calls
from specaudit.index import Call
from specaudit.model import Evidence

# Ways to hand a tensor or list on that keep its values.
_KEEPING = frozenset(
    ["view", "reshape", "contiguous", "to", "int", "long", "clone", "squeeze", "unsqueeze", "flatten", "transpose", "detach", "tolist", "cat", "stack", "type_as", "cpu", "cuda", "view_as", "expand", "append", "narrow", "copy", "astype"]
)
_BEST = frozenset({"topk", "sort", "argsort"})
_DEPTH = 8

#: What a value is made of: ``given`` (handed in by the caller), ``picked`` (one token per position), ``several`` (more
#: than one candidate per position), ``ranked`` (chosen among candidates by their scores), ``kept`` (state of the object),
#: ``made`` (computed otherwise). Of a run, ``pair``: its result is taken apart at once. Of a test: the settings it asks for.
Origin = frozenset[str]
NOTHING: Origin = frozenset()


#: ``run`` of the draft model, ``return`` of a value, step ``loop``, ``write`` into kept state, ``unpack`` of a run's result;
#: and what only a trace shows: ``enter`` (a call), ``def`` (what it enters), ``kernel`` (a launch), ``test`` (on a setting),
#: ``value`` (a step towards what is returned).
Kind = Literal["run", "return", "loop", "write", "unpack", "enter", "def", "kernel", "test", "value"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something the entry does under ``when``.

    ``loop`` is the step loop around it; ``aside`` says that it stands in a branch off the main path (an early exit that only
    the running program decides).
    """

    kind: Kind
    when: Formula
    path: str
    line: int
    loop: tuple[str, int] | None = None
    origin: Origin = NOTHING
    aside: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """What one method does and returns."""

    events: tuple[Event, ...] = ()
    origin: Origin = NOTHING


@dataclass(slots=True)
class _Frame:
    """One method being read: what its names hold, and what was found."""

    cls: Symbol
    method: Symbol
    names: dict[str, Origin] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    returned: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)
    bound: dict[str, list[Symbol]] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)
    loops: list[tuple[int, int, bool]] = field(default_factory=list)
    towards: frozenset[int] = frozenset()
    walk: Walk | None = None


class Emission:
    """Reads entry methods. ``runs`` are further names of methods whose call is a run of the draft model."""

    def __init__(self, reader: Reader, runs: Iterable[str] = ()) -> None:
        self.reader = reader
        self.code: Code = reader.code
        self.runs = frozenset(runs)
        self._known: dict[tuple[str, str, str, str], Summary] = {}
        self._handed: dict[tuple[str, str], dict[str, list[tuple[Symbol, tuple[str, int]]]]] = {}

    def of(self, cls: Symbol, entry: str) -> Summary | None:
        """The summary of the entry method of a class; ``None`` when the class has no such method."""
        method = self.code.method(cls, entry)
        return self._summary(cls, method, 0) if method is not None else None

    def _summary(self, cls: Symbol, method: Symbol, depth: int) -> Summary:
        key = cls.path, cls.qualname, method.path, method.qualname
        if key not in self._known:
            self._known[key] = Summary()  # recursion adds nothing new
            self._known[key] = self._read(cls, method, depth)
        return self._known[key]

    def _read(self, cls: Symbol, method: Symbol, depth: int) -> Summary:
        node = self.code.function(method)
        if node is None or depth > _DEPTH:
            return Summary()
        frame = _Frame(cls, method)
        frame.names = {p: frozenset({"given"}) for p in method.definition.params if p not in ("self", "cls")}
        frame.loops = [
            (n.lineno, n.end_lineno or n.lineno, _counted(n))
            for n in ast.walk(node)
            if isinstance(n, (ast.For, ast.While))
        ]

        frame.towards = _towards(node)

        def visit(statement: ast.stmt, path: Formula, here: Scope) -> None:
            self._statement(statement, path, frame, depth)

        frame.walk = Walk(self.reader, visit)
        frame.walk.run(node, Scope(method.path, method.qualname, cls))
        return Summary(tuple(frame.events), frozenset(frame.returned))

    def _statement(self, statement: ast.stmt, path: Formula, frame: _Frame, depth: int) -> None:
        for call in calls(statement):
            self._called(call, path, frame, depth, pair=_unpacked(statement) is call)
            if isinstance(statement, ast.Expr) and statement.value is call:
                self._filled(call, path, frame, depth)
        if statement.lineno in frame.towards and isinstance(
            statement, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)
        ):
            frame.events.append(self._event("value", path, statement.lineno, frame))
        match statement:
            case ast.If() if frame.walk is not None:
                options = frozenset(x.condition.option for x in literals(frame.walk.test) if x.condition is not None)
                if options:
                    frame.events.append(self._event("test", path, statement.lineno, frame, options))
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._store(target, value, path, frame, depth)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._store(target, value, path, frame, depth)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value])):
                frame.names[name] = frame.names.get(name, NOTHING) | self.origin(value, frame, depth)
            case ast.Return(value=ast.expr() as value):
                found = self.origin(
                    value.elts[0] if isinstance(value, ast.Tuple) and value.elts else value, frame, depth
                )
                frame.returned |= found
                frame.events.append(self._event("return", path, statement.lineno, frame, found))
            case ast.For() | ast.While() if _counted(statement):
                frame.events.append(self._event("loop", path, statement.lineno, frame))

    def _store(self, target: ast.expr, value: ast.expr, path: Formula, frame: _Frame, depth: int) -> None:
        found = self.origin(value, frame, depth)
        match target:
            case ast.Name(id=name):
                frame.names[name] = found
                if isinstance(value, ast.Call) and self._is_run(value, frame):
                    frame.ran.add(name)
                bound = [m for m in (self._own(n, frame) for n in _choices(value)) if m is not None]
                if bound:
                    frame.bound[name] = bound
                elif isinstance(value, ast.Attribute) and self._is_module(value, frame):
                    frame.modules.add(name)
            case ast.Tuple(elts=elts):
                if isinstance(value, ast.Name) and value.id in frame.ran:
                    frame.events.append(self._event("unpack", path, target.lineno, frame))
                for element in elts:
                    self._store(element, value, path, frame, depth)
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id="self"), attr=attr)):
                frame.events.append(self._event("write", path, target.lineno, frame, found | {f".{attr}"}))
            case ast.Attribute(value=ast.Name(id="self"), attr=attr):
                frame.events.append(self._event("write", path, target.lineno, frame, found | {f".{attr}"}))

    def _event(self, kind: Kind, when: Formula, line: int, frame: _Frame, origin: Origin = NOTHING) -> Event:
        around = [first for first, last, counted in frame.loops if counted and first < line <= last]
        loop = (frame.method.path, around[0]) if around else None
        return Event(
            kind, when, frame.method.path, line, loop, origin, frame.walk.aside if frame.walk is not None else False
        )

    # --- calls

    def _called(self, call: ast.Call, path: Formula, frame: _Frame, depth: int, *, pair: bool) -> None:
        methods = self._meant(call.func, frame)
        for method in methods:
            self._enter(method, self._summary(frame.cls, method, depth + 1), call.lineno, path, frame)
        if methods:
            return
        if isinstance(call.func, ast.Subscript) and isinstance(call.func.value, ast.Name):
            frame.events.append(self._event("kernel", path, call.lineno, frame))
        if self._is_run(call, frame):
            inner = self._kept_class(call.func, frame)
            forward = self.code.method(inner, "forward") if inner is not None else None
            if inner is not None and forward is not None:
                self._inline(self._summary(inner, forward, depth + 1), call.lineno, path, frame)
            else:
                frame.events.append(
                    self._event("run", path, call.lineno, frame, frozenset({"pair"}) if pair else NOTHING)
                )
        elif (
            isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Attribute)
            and self._replayed(call.func.value, frame)
        ):
            for method, place in self._replayed(call.func.value, frame):
                summary = self._summary(frame.cls, method, depth + 1)
                if any(e.kind in ("run", "kernel") for e in summary.events):
                    frame.events.append(self._event("enter", path, call.lineno, frame))
                    frame.events.append(replace(self._event("enter", path, place[1], frame), path=place[0]))
                self._enter(method, summary, call.lineno, path, frame)
        elif isinstance(call.func, ast.Attribute) and call.func.attr in self.runs:
            self._run_by_name(call, call.func.attr, path, frame, depth)

    def _filled(self, call: ast.Call, path: Formula, frame: _Frame, depth: int) -> None:
        """A function, or a method of a kept object, that is called for what it writes into the tensors handed to it."""
        match call.func:
            case ast.Name(id=name) if any(dotted(a).startswith("self.") for a in call.args):
                found = self.code.resolve(frame.method.path, frame.method.qualname, name)
                steps = (
                    self._function(found, depth) if found is not None and found.definition.kind == "function" else ()
                )
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="self")) as kept, attr=attr):
                inner = self._kept_class(kept, frame)
                found = self.code.method(inner, attr) if inner is not None else None
                summary = (
                    self._summary(inner, found, depth + 1) if inner is not None and found is not None else Summary()
                )
                steps = tuple(e for e in summary.events if e.kind in ("kernel", "enter", "def") and not e.aside)
                steps = steps if any(e.kind == "kernel" for e in steps) else ()
            case _:
                return
        if found is not None and steps:
            frame.events.append(self._event("enter", path, call.lineno, frame))
            frame.events.append(replace(self._event("def", path, found.definition.line, frame), path=found.path))
            frame.events.extend(replace(e, when=conj((path, e.when))) for e in steps)

    def _function(self, function: Symbol, depth: int) -> tuple[Event, ...]:
        """The launches of a plain function, and the functions of its file whose results it uses."""
        out: list[Event] = []
        if depth > _DEPTH:
            return ()
        for call in self.code.index.outline(function.path).calls:
            if call.scope != function.qualname:
                continue
            if call.func.endswith("]") and call.func.partition("[")[0].isidentifier():
                out.append(Event("kernel", True, function.path, call.line))
                continue
            inner = self.code.definition(function.path, call.func)
            if inner is not None and inner.definition.kind == "function":
                out.append(Event("enter", True, function.path, call.line))
                out.append(Event("def", True, function.path, inner.definition.line))
        return tuple(out)

    def _enter(self, method: Symbol, summary: Summary, line: int, path: Formula, frame: _Frame) -> None:
        """A call of a method of the same object: shown when it does anything that counts, or leads to what is returned."""
        leads = line in frame.towards
        if leads or any(e.kind in ("run", "kernel", "loop") for e in summary.events):
            frame.events.append(self._event("enter", path, line, frame))
            entered = self._event("def", path, method.definition.line, frame)
            frame.events.append(replace(entered, path=method.path))
        shown = summary if leads else replace(summary, events=tuple(e for e in summary.events if e.kind != "value"))
        self._inline(shown, line, path, frame)

    def _inline(self, summary: Summary, line: int, path: Formula, frame: _Frame) -> None:
        here = self._event("run", path, line, frame)
        for event in summary.events:
            if event.kind != "return":
                inner = replace(
                    event, when=conj((path, event.when)), loop=event.loop or here.loop, aside=event.aside or here.aside
                )
                frame.events.append(inner)

    def _meant(self, func: ast.expr, frame: _Frame) -> list[Symbol]:
        """The methods of the same object that a call may mean, those bound to a name before included."""
        if isinstance(func, ast.Name):
            return frame.bound.get(func.id, [])
        found = self._own(func, frame)
        return [found] if found is not None else []

    def _own(self, func: ast.expr, frame: _Frame) -> Symbol | None:
        """The method of the same object that a call means (``self.x``, ``super().x``)."""
        match func:
            case ast.Attribute(value=ast.Name(id="self"), attr=attr):
                return self.code.method(frame.cls, attr)
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=attr):
                return self.code.method(frame.cls, attr, after=self.code.owner(frame.method))
        return None

    def _is_run(self, call: ast.Call, frame: _Frame) -> bool:
        match call.func:
            case ast.Name(id=name):
                return name in frame.modules
            case ast.Attribute(attr="forward", value=ast.Attribute() as inner):
                return self._is_module(inner, frame)
            case ast.Attribute() as func:
                return self._is_module(func, frame)
            case ast.Subscript(value=ast.Attribute() as func):
                return self._is_module(func, frame) and not _is_kernel(call)
        return False

    def _is_module(self, node: ast.Attribute, frame: _Frame) -> bool:
        """``self.x`` that is an object kept by the class, not one of its methods."""
        if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            return False
        if self.code.method(frame.cls, node.attr) is not None:
            return False
        stored = self.code.attribute(frame.cls, node.attr)
        return not any(self._is_function(f.path, f.scope, f.value) for f in stored)

    def _is_function(self, path: str, scope: str, text: str) -> bool:
        node = expression(text)
        name = dotted(node) if node is not None else ""
        found = self.code.resolve(path, scope, name) if name else None
        return found is not None and found.definition.kind == "function"

    def _kept_class(self, func: ast.expr, frame: _Frame) -> Symbol | None:
        """The class of the engine that a kept object is made from, when its code is at hand."""
        if not isinstance(func, ast.Attribute):
            return None
        for stored in self.code.attribute(frame.cls, func.attr):
            node = expression(stored.value)
            for call in ast.walk(node) if node is not None else ():
                name = dotted(call.func) if isinstance(call, ast.Call) else ""
                found = self.code.resolve(stored.path, stored.scope, name) if name[:1].isupper() else None
                if found is not None and found.definition.kind == "class":
                    return found
        return None

    def _replayed(self, kept: ast.Attribute, frame: _Frame) -> list[tuple[Symbol, tuple[str, int]]]:
        """The methods that were handed to the kept object (for capture), and where: a call of it runs them again."""
        if not self._is_module(kept, frame):
            return []
        key = frame.cls.path, frame.cls.qualname
        if key not in self._handed:
            self._handed[key] = {}
            for owner in self.code.bases(frame.cls):
                for call in self.code.index.outline(owner.path).calls:
                    if (
                        call.scope.startswith(f"{owner.qualname}.")
                        and call.func.startswith("self.")
                        and call.func.count(".") == 2
                    ):
                        found = self._handed_in(frame.cls, owner.path, call)
                        self._handed[key].setdefault(call.func.split(".")[1], []).extend(found)
        return self._handed[key].get(kept.attr, [])

    def _handed_in(self, cls: Symbol, path: str, call: Call) -> Iterator[tuple[Symbol, tuple[str, int]]]:
        """The methods among the arguments of a call, with the line of each argument."""
        for argument in call.args:
            method = self.code.method(cls, argument[5:]) if argument.startswith("self.") else None
            if method is not None and not method.definition.decorators:
                lines = self.code.index.lines(path)[call.line - 1 : call.line + 20]
                yield method, (path, call.line + next((i for i, text in enumerate(lines) if argument in text), 0))

    def _run_by_name(self, call: ast.Call, name: str, path: Formula, frame: _Frame, depth: int) -> None:
        """A run through a method of the model; its body is followed when the arguments tell which class's it is."""
        given = {k.arg for k in call.keywords}
        found = [m for m in self._methods_named(name) if given and given <= set(m.definition.params)]
        fitting = [m for m in found if len(m.definition.params) == min(len(f.definition.params) for f in found)]
        owner = self.code.owner(fitting[0]) if len(fitting) == 1 else None
        if owner is not None:
            inner = self._summary(owner, fitting[0], depth + 1)
            if any(e.kind == "run" for e in inner.events):
                self._inline(inner, call.lineno, path, frame)
                return
        frame.events.append(self._event("run", path, call.lineno, frame))

    def _methods_named(self, name: str) -> Iterable[Symbol]:
        for path in self.code.index.mentioning(f"def {name}(".encode()):
            for definition in self.code.index.outline(path).definitions:
                if definition.name == name and definition.scope and definition.kind == "function":
                    yield Symbol(path, definition)

    # --- values

    def origin(self, node: ast.expr, frame: _Frame, depth: int = 0) -> Origin:
        """What the value of an expression is made of."""
        match node:
            case ast.Constant():
                return NOTHING
            case ast.Name(id=name):
                return frame.names.get(name, frozenset({"made"}))
            case ast.Attribute(value=ast.Name(id="self"), attr=attr):
                return frozenset({"kept", f".{attr}"})
            case ast.Attribute(value=inner, attr=attr):
                return self.origin(inner, frame, depth)
            case ast.Subscript(value=inner, slice=index):
                found = self.origin(inner, frame, depth)
                chosen = self.origin(index, frame, depth) if not isinstance(index, (ast.Slice, ast.Tuple)) else NOTHING
                return found | {"ranked"} if "several" in chosen else found
            case ast.List(elts=elts) | ast.Tuple(elts=elts):
                return frozenset().union(*(self.origin(e, frame, depth) for e in elts))
            case ast.ListComp(elt=inner):
                return self.origin(inner, frame, depth)
            case ast.IfExp(body=body, orelse=orelse):
                return self.origin(body, frame, depth) | self.origin(orelse, frame, depth)
            case ast.Call():
                return self._result(node, frame, depth)
        return frozenset({"made"})

    def _result(self, call: ast.Call, frame: _Frame, depth: int) -> Origin:
        method = self._own(call.func, frame)
        if method is not None:
            return self._summary(frame.cls, method, depth + 1).origin - {"given"} or frozenset({"made"})
        name = call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func)
        if name in _BEST:
            return frozenset({"picked"}) if _one(call, name) else frozenset({"several"})
        if name == "argmax":
            return frozenset({"picked"})
        parts = [*call.args]
        if isinstance(call.func, ast.Attribute) and dotted(call.func.value) not in ("torch", "np", "numpy"):
            parts.insert(0, call.func.value)
        if name in ("gather", "index_select", "take_along_dim") and len(parts) >= 2:
            chosen = frozenset().union(*(self.origin(p, frame, depth) for p in parts[1:]))
            found = self.origin(parts[0], frame, depth)
            return found | {"ranked"} if "several" in chosen else found
        if name in _KEEPING and parts:
            return self.origin(parts[0], frame, depth)
        return frozenset({"made"})

    def evidence(self, event: Event) -> Evidence:
        """The line of an event."""
        return self.code.index.evidence(event.path, event.line)


def _towards(node: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[int]:
    """Lines of the statements that the returned value comes from, followed through what keeps a value as it is."""
    stored: dict[str, list[tuple[int, ast.expr]]] = {}
    wanted: set[str] = set()
    for inner in ast.walk(node):
        match inner:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    for part in ast.walk(target):
                        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                            stored.setdefault(part.id, []).append((inner.lineno, value))
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value])):
                stored.setdefault(name, []).append((inner.lineno, value))
            case ast.Return(value=ast.expr() as value):
                wanted |= _kept_names(value)
    lines: set[int] = set()
    seen: set[str] = set()
    while wanted - seen:
        name = min(wanted - seen)
        seen.add(name)
        for line, value in stored.get(name, ()):
            lines.add(line)
            wanted |= _kept_names(value)
    return frozenset(lines)


def _kept_names(node: ast.expr) -> set[str]:
    """Names whose value reaches the result unchanged."""
    match node:
        case ast.Name(id=name):
            return {name}
        case (
            ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.ListComp(elt=inner) | ast.Starred(value=inner)
        ):
            return _kept_names(inner)
        case ast.List(elts=elts) | ast.Tuple(elts=elts):
            return set().union(*(_kept_names(e) for e in elts))
        case ast.IfExp(body=body, orelse=orelse):
            return _kept_names(body) | _kept_names(orelse)
        case ast.Call(func=ast.Attribute(value=inner, attr=attr), args=args) if attr in _KEEPING:
            return _kept_names(inner) | set().union(*(_kept_names(a) for a in args[:1]))
    return set()


def _counted(node: ast.AST) -> bool:
    """A loop over steps: ``for … in range(…)`` or ``while``."""
    if isinstance(node, ast.While):
        return True
    return (
        isinstance(node, ast.For)
        and isinstance(node.iter, ast.Call)
        and dotted(node.iter.func) in ("range", "tqdm.trange")
    )


def _unpacked(statement: ast.stmt) -> ast.expr | None:
    """The value that a statement takes apart into several names."""
    match statement:
        case ast.Assign(targets=[ast.Tuple()], value=value):
            return value
    return None


def _choices(node: ast.expr) -> list[ast.expr]:
    """The values that a conditional expression chooses between."""
    return [*_choices(node.body), *_choices(node.orelse)] if isinstance(node, ast.IfExp) else [node]


def _is_kernel(call: ast.Call) -> bool:
    """``kernel[grid](…)`` has a tuple or a function as its subscript."""
    return isinstance(call.func, ast.Subscript) and isinstance(call.func.slice, (ast.Tuple, ast.Lambda))


def _one(call: ast.Call, name: str) -> bool:
    """``topk`` of a single element."""
    k = next((a.value for a in call.keywords if a.arg == "k"), None)
    at = 1 if dotted(call.func).startswith("torch.") else 0
    if k is None and len(call.args) > at:
        k = call.args[at]
    return name == "topk" and isinstance(k, ast.Constant) and k.value == 1

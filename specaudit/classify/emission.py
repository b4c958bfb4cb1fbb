"""What a drafter's entry method does, as events under formulas.

Methods are followed through inheritance and ``super()``; a test on configuration becomes part of the event's formula,
so that one reading answers for every configuration. A *run of the draft model* is a call of an object that the class
keeps (``self.x(...)``) and that is no method: its code is not the drafter's own. Where the kept object is of a class
of the engine, its ``forward`` is followed instead.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace

from specaudit.classify.code import Symbol, dotted
from specaudit.classify.conditions import Formula, conj, literals
from specaudit.classify.events import KEEPING, NOTHING, Event, Frame, Origin, Summary, is_step_loop, leading, step_loops
from specaudit.classify.members import Members
from specaudit.classify.places import calls
from specaudit.classify.scopes import Scope
from specaudit.classify.symbolic import Reader
from specaudit.classify.walking import Walk
from specaudit.model import Evidence

_BEST = frozenset({"topk", "sort", "argsort"})
_CHOOSING = frozenset({"gather", "index_select", "take_along_dim"})
_ARRAYS = frozenset({"torch", "np", "numpy"})
_MADE: Origin = frozenset({"made"})
_DEPTH = 8


class Emission:
    """Reads entry methods. ``runs`` are further names of methods whose call is a run of the draft model."""

    def __init__(self, reader: Reader, runs: Iterable[str] = ()) -> None:
        self.reader = reader
        self.code = reader.code
        self.members = Members(reader.code)
        self.runs = frozenset(runs)
        self._known: dict[tuple[str, str, str, str], Summary] = {}

    def of(self, cls: Symbol, entry: str) -> Summary | None:
        """The summary of the entry method of a class; ``None`` when the class has no such method."""
        method = self.code.method(cls, entry)
        return self._summary(cls, method, 0) if method is not None else None

    def evidence(self, event: Event) -> Evidence:
        """The line of an event."""
        return self.code.index.evidence(event.path, event.line)

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
        walk = Walk(self.reader, lambda statement, path, _: self._statement(statement, path, frame))
        given = {p: frozenset({"given"}) for p in method.definition.params if p not in ("self", "cls")}
        frame = Frame(cls, method, walk, depth, tuple(step_loops(node)), leading(node), given)
        walk.run(node, Scope(method.path, method.qualname, cls))
        walk.close()
        return Summary(tuple(frame.events), frozenset(frame.returned))

    # --- statements

    def _statement(self, statement: ast.stmt, path: Formula, frame: Frame) -> None:
        apart = _taken_apart(statement)
        for call in calls(statement):
            self._called(call, path, frame, pair=call is apart)
            if isinstance(statement, ast.Expr) and statement.value is call:
                self._filled(call, path, frame)
        plain = isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr))
        if plain and statement.lineno in frame.towards:
            frame.see("value", path, statement.lineno)
        match statement:
            case ast.If():
                asked = frozenset(x.condition.option for x in literals(frame.walk.test) if x.condition is not None)
                if asked:
                    frame.see("test", path, statement.lineno, asked)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._store(target, value, path, frame)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._store(target, value, path, frame)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value])):
                frame.names[name] = frame.names.get(name, NOTHING) | self._origin(value, frame)
            case ast.Return(value=ast.expr() as value):
                first = value.elts[0] if isinstance(value, ast.Tuple) and value.elts else value
                found = self._origin(first, frame)
                frame.returned |= found
                frame.see("return", path, statement.lineno, found)
            case ast.For() | ast.While() if is_step_loop(statement):
                frame.see("loop", path, statement.lineno)

    def _store(self, target: ast.expr, value: ast.expr, path: Formula, frame: Frame) -> None:
        found = self._origin(value, frame)
        match target:
            case ast.Name(id=name):
                frame.names[name] = found
                if isinstance(value, ast.Call) and self._is_run(value, frame):
                    frame.ran.add(name)
                self._bind(name, value, frame)
            case ast.Tuple(elts=elts):
                if isinstance(value, ast.Name) and value.id in frame.ran:
                    frame.see("unpack", path, target.lineno)
                for element in elts:
                    self._store(element, value, path, frame)
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id="self"), attr=attr)):
                frame.see("write", path, target.lineno, found | {f".{attr}"})
            case ast.Attribute(value=ast.Name(id="self"), attr=attr):
                frame.see("write", path, target.lineno, found | {f".{attr}"})

    def _bind(self, name: str, value: ast.expr, frame: Frame) -> None:
        """A name that stands for own methods, or for a kept object, from here on."""
        found = (self.members.own(choice, frame.cls, frame.method) for choice in _choices(value))
        bound = [method for method in found if method is not None]
        if bound:
            frame.bound[name] = bound
        elif self.members.is_kept(value, frame.cls):
            frame.modules.add(name)

    # --- calls

    def _called(self, call: ast.Call, path: Formula, frame: Frame, *, pair: bool) -> None:
        methods = self._meant(call.func, frame)
        if methods:
            for method in methods:
                self._enter(method, call.lineno, path, frame)
            return
        func = call.func
        if isinstance(func, ast.Subscript) and isinstance(func.value, ast.Name):
            frame.see("kernel", path, call.lineno)
        if self._is_run(call, frame):
            self._run(call, path, frame, pair=pair)
        elif isinstance(func, ast.Attribute) and (handed := self.members.handed(func.value, frame.cls)):
            for method, where, line in handed:
                self._replay(method, (where, line), call.lineno, path, frame)
        elif isinstance(func, ast.Attribute) and func.attr in self.runs:
            self._run_by_name(call, func.attr, path, frame)

    def _meant(self, func: ast.expr, frame: Frame) -> list[Symbol]:
        """The methods of the same object that a call may mean, those bound to a name before included."""
        if isinstance(func, ast.Name):
            return frame.bound.get(func.id, [])
        found = self.members.own(func, frame.cls, frame.method)
        return [found] if found is not None else []

    def _is_run(self, call: ast.Call, frame: Frame) -> bool:
        match call.func:
            case ast.Name(id=name):
                return name in frame.modules
            case ast.Attribute(attr="forward", value=inner):
                return self.members.is_kept(inner, frame.cls)
            case ast.Attribute() as func:
                return self.members.is_kept(func, frame.cls)
            case ast.Subscript(value=func, slice=index):  # one of several kept objects; a launch has a grid in there
                return not isinstance(index, (ast.Tuple, ast.Lambda)) and self.members.is_kept(func, frame.cls)
        return False

    def _run(self, call: ast.Call, path: Formula, frame: Frame, *, pair: bool) -> None:
        cls = self.members.kept_class(call.func, frame.cls)
        forward = self.code.method(cls, "forward") if cls is not None else None
        if cls is not None and forward is not None:
            self._inline(self._summary(cls, forward, frame.depth + 1), call.lineno, path, frame)
        else:
            frame.see("run", path, call.lineno, frozenset({"pair"}) if pair else NOTHING)

    def _run_by_name(self, call: ast.Call, name: str, path: Formula, frame: Frame) -> None:
        """A run through a method of the model; its body is followed when the arguments tell which class's it is."""
        method = self.members.by_keywords(name, {k.arg for k in call.keywords if k.arg is not None})
        owner = self.code.owner(method) if method is not None else None
        inner = self._summary(owner, method, frame.depth + 1) if owner is not None and method is not None else Summary()
        if any(e.kind == "run" for e in inner.events):
            self._inline(inner, call.lineno, path, frame)
        else:
            frame.see("run", path, call.lineno)

    def _replay(self, method: Symbol, handed: tuple[str, int], line: int, path: Formula, frame: Frame) -> None:
        """A kept object runs a method that it was handed before."""
        summary = self._summary(frame.cls, method, frame.depth + 1)
        if any(e.kind in ("run", "kernel") for e in summary.events):
            frame.see("enter", path, line)
            frame.events.append(replace(frame.event("enter", path, handed[1]), path=handed[0]))
        self._enter(method, line, path, frame)

    def _enter(self, method: Symbol, line: int, path: Formula, frame: Frame) -> None:
        """A call of an own method: shown when it does anything that counts, or leads to what is returned."""
        summary = self._summary(frame.cls, method, frame.depth + 1)
        leads = line in frame.towards
        if leads or any(e.kind in ("run", "kernel", "loop") for e in summary.events):
            self._show(method, line, path, frame)
        shown = summary if leads else replace(summary, events=tuple(e for e in summary.events if e.kind != "value"))
        self._inline(shown, line, path, frame)

    def _show(self, entered: Symbol, line: int, path: Formula, frame: Frame) -> None:
        frame.see("enter", path, line)
        frame.events.append(replace(frame.event("def", path, entered.definition.line), path=entered.path))

    def _inline(self, summary: Summary, line: int, path: Formula, frame: Frame) -> None:
        here = frame.event("enter", path, line)
        for e in summary.events:
            if e.kind != "return":
                when, loop, aside = conj((path, e.when)), e.loop or here.loop, e.aside or here.aside
                frame.events.append(replace(e, when=when, loop=loop, aside=aside))

    def _filled(self, call: ast.Call, path: Formula, frame: Frame) -> None:
        """A function, or a method of a kept object, that is called for what it writes into tensors handed to it."""
        found: Symbol | None = None
        steps: tuple[Event, ...] = ()
        match call.func:
            case ast.Name(id=name) if any(dotted(a).startswith("self.") for a in call.args):
                found = self.code.resolve(frame.method.path, frame.method.qualname, name)
                steps = self._function(found) if found is not None and found.definition.kind == "function" else ()
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="self")) as kept, attr=attr):
                cls = self.members.kept_class(kept, frame.cls)
                found = self.code.method(cls, attr) if cls is not None else None
                inner = self._summary(cls, found, frame.depth + 1) if cls is not None and found is not None else None
                if inner is not None and any(e.kind == "kernel" for e in inner.events):
                    steps = tuple(e for e in inner.events if e.kind in ("kernel", "enter", "def") and not e.aside)
        if found is not None and steps:
            self._show(found, call.lineno, path, frame)
            frame.events.extend(replace(e, when=conj((path, e.when))) for e in steps)

    def _function(self, function: Symbol) -> tuple[Event, ...]:
        """The launches of a plain function, and the functions of its file that it calls."""
        out: list[Event] = []
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

    # --- values

    def _origin(self, node: ast.expr, frame: Frame) -> Origin:
        """What the value of an expression is made of."""
        match node:
            case ast.Constant():
                return NOTHING
            case ast.Name(id=name):
                return frame.names.get(name, _MADE)
            case ast.Attribute(value=ast.Name(id="self"), attr=attr):
                return frozenset({"kept", f".{attr}"})
            case ast.Attribute(value=inner) | ast.ListComp(elt=inner):
                return self._origin(inner, frame)
            case ast.Subscript(value=inner, slice=index):
                by = NOTHING if isinstance(index, (ast.Slice, ast.Tuple)) else self._origin(index, frame)
                return _selected(self._origin(inner, frame), by)
            case ast.List(elts=elts) | ast.Tuple(elts=elts):
                return NOTHING.union(*(self._origin(e, frame) for e in elts))
            case ast.IfExp(body=body, orelse=orelse):
                return self._origin(body, frame) | self._origin(orelse, frame)
            case ast.Call():
                return self._result(node, frame)
        return _MADE

    def _result(self, call: ast.Call, frame: Frame) -> Origin:
        method = self.members.own(call.func, frame.cls, frame.method)
        if method is not None:
            return self._summary(frame.cls, method, frame.depth + 1).origin - {"given"} or _MADE
        name = call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func)
        if name in _BEST:
            return frozenset({"picked"}) if _one(call, name) else frozenset({"several"})
        if name == "argmax":
            return frozenset({"picked"})
        parts = [*call.args]
        if isinstance(call.func, ast.Attribute) and dotted(call.func.value) not in _ARRAYS:
            parts.insert(0, call.func.value)
        if name in _CHOOSING and len(parts) >= 2:
            return _selected(self._origin(parts[0], frame), NOTHING.union(*(self._origin(p, frame) for p in parts[1:])))
        return self._origin(parts[0], frame) if name in KEEPING and parts else _MADE


def _selected(value: Origin, by: Origin) -> Origin:
    """What an element of ``value`` is made of that was chosen by an index."""
    return value | {"ranked"} if "several" in by else value


def _taken_apart(statement: ast.stmt) -> ast.expr | None:
    """The value that a statement takes apart into several names."""
    match statement:
        case ast.Assign(targets=[ast.Tuple()], value=value):
            return value
    return None


def _choices(node: ast.expr) -> list[ast.expr]:
    """The values that a conditional expression chooses between."""
    return [*_choices(node.body), *_choices(node.orelse)] if isinstance(node, ast.IfExp) else [node]


def _one(call: ast.Call, name: str) -> bool:
    """``topk`` of a single element."""
    k = next((a.value for a in call.keywords if a.arg == "k"), None)
    at = 1 if dotted(call.func).startswith("torch.") else 0
    if k is None and len(call.args) > at:
        k = call.args[at]
    return name == "topk" and isinstance(k, ast.Constant) and k.value == 1

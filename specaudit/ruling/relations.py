"""Named relations over the index: what a shape in one file cannot say.

Each function answers one kind of test for a set of places. Names and file sets come from the rule; nothing here knows
an engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from specaudit.model import Evidence
from specaudit.ruling.answers import Answer, joined
from specaudit.ruling.places import Ground, Place, matches_name
from specaudit.ruling.rule import (
    Declares,
    Difference,
    Flows,
    Inherits,
    Match,
    Order,
    Overrides,
    Passes,
    Shape,
    Uses,
    Values,
    Verdict,
    Writers,
)
from specaudit.ruling.shapes import find_all, needles
from specaudit.words import counted

if TYPE_CHECKING:
    from ast_grep_py import SgNode

Places = tuple[Place, ...]
_CLASS_PARTS = frozenset({"expression_statement", "assignment", "block"})


def match(ground: Ground, test: Match, places: Places) -> Answer:
    """A node of the shape is in one of the places."""
    sites: list[Evidence] = []
    looked = 0
    for place, node in _nodes(ground, places, needles(test.shape)):
        found = find_all(node, test.shape)
        looked += 1
        sites.extend(_site(ground, place, one) for one in found)
    return Answer(bool(sites), _unique(sites), f"shape {_brief(test.shape)}", _paths(places), looked)


def uses(ground: Ground, test: Uses, places: Places) -> Answer:
    """One of the names is used in one of the places."""
    sites: list[Evidence] = []
    looked = 0
    for name in test.names:
        shape = {"any": [{"kind": kind, "regex": f"^{re.escape(name)}$"} for kind in ("identifier", "string_content")]}
        for place, node in _nodes(ground, places, {name.encode()}):
            looked += 1
            sites.extend(_site(ground, place, one) for one in find_all(node, shape))
    return Answer(bool(sites), _unique(sites), f"a use of {' or '.join(test.names)}", _paths(places), looked)


def declares(ground: Ground, test: Declares, places: Places) -> Answer:
    """A class, or one that it inherits from, has a field, class attribute or method of one of the names."""
    sites: list[Evidence] = []
    chain = [one for place in places for one in ground.chain(place)]
    for place in chain:
        for d in ground.definitions(place.path):
            if d.scope == place.symbol and matches_name(d.name, test.names):
                sites.append(ground.evidence(place.path, d.line))
        sites.extend(_site(ground, place, node) for node in _fields(ground, place, test.names))
    asked = f"a declaration of {' or '.join(test.names)}"
    return Answer(bool(sites), _unique(sites), asked, _paths(chain), len(chain))


def _fields(ground: Ground, place: Place, names: tuple[str, ...]) -> Iterator[SgNode]:
    """Assignments and annotations that stand directly in a class body."""
    body = ground.node(place).field("body")
    for statement in body.children() if body is not None else []:
        for inner in statement.children():
            target = inner.field("left") if inner.kind() == "assignment" else None
            if target is not None and target.kind() == "identifier" and matches_name(target.text(), names):
                yield inner


def inherits(ground: Ground, test: Inherits, places: Places) -> Answer:
    """A class derives from one of the names, also from one that lies outside the engine."""
    sites: list[Evidence] = []
    chain = [one for place in places for one in ground.chain(place)]
    for place in chain:
        bases = place.definition.bases if place.definition else ()
        if any(matches_name(text.partition("[")[0].rpartition(".")[2], test.names) for text in bases):
            sites.append(ground.evidence(place.path, place.line))
    asked = f"a base class {' or '.join(test.names)}"
    return Answer(bool(sites), _unique(sites), asked, _paths(chain), len(chain))


def overrides(ground: Ground, test: Overrides, places: Places) -> Answer:
    """Some place's class chain, up to the class ``below``, defines the method."""
    sites: list[Evidence] = []
    looked: list[Place] = []
    for place in places:
        for one in ground.chain(place):
            if one.definition is not None and one.definition.name == test.below:
                break
            looked.append(one)
            found = [d for d in ground.definitions(one.path) if d.qualname == f"{one.symbol}.{test.method}"]
            if found:
                sites.append(ground.evidence(one.path, found[-1].line))
                break
    asked = f"an override of {test.method} below {test.below}"
    return Answer(bool(sites), _unique(sites), asked, _paths(looked), len(looked))


def writers(ground: Ground, test: Writers, places: Places) -> Answer:
    """All functions that assign to the attribute are among the given ones."""
    inside: list[Evidence] = []
    outside: list[Evidence] = []
    names: set[str] = set()
    shape = {"kind": "assignment", "has": {"field": "left", "regex": rf"[.]{re.escape(test.attribute)}$"}}
    for place, node in _nodes(ground, places, {test.attribute.encode()}):
        for assign in find_all(node, shape):
            line = assign.range().start.line + 1
            writer = ground.enclosing(place.path, line, "function") or place.path
            names.add(writer)
            known = matches_name(writer.rpartition(".")[2], test.within)
            (inside if known else outside).append(ground.evidence(place.path, line))
    note = f"written by {', '.join(sorted(names))}" if names else f"nothing writes {test.attribute}"
    asked = f"writers of .{test.attribute} other than {', '.join(test.within)}"
    return Answer(not outside, _unique(outside or inside), asked, _paths(places), len(inside + outside), (note,))


def passes(ground: Ground, test: Passes, places: Places) -> Answer:
    """Some call in the places gives the function a value for the parameter."""
    sites: list[Evidence] = []
    position = _position(ground, test, places)
    name = re.escape(test.function)
    shape = {"kind": "call", "has": {"field": "function", "regex": rf"^(.*[.])?{name}(\[[^\]]*\])?$"}}
    calls = 0
    for place, node in _nodes(ground, places, {test.function.encode()}):
        for call in find_all(node, shape):
            calls += 1
            if _given(call, test.parameter, position):
                sites.append(_site(ground, place, call))
    note = f"{counted(calls, 'call')} of {test.function}, {len(sites)} with {test.parameter}"
    asked = f"a call of {test.function} that passes {test.parameter}"
    return Answer(bool(sites), _unique(sites), asked, _paths(places), calls, (note,))


def _position(ground: Ground, test: Passes, places: Places) -> int | None:
    """The parameter's position among a call's arguments (``self`` not counted)."""
    for path in ground.holding(sorted(_paths(places)), {b"def " + test.function.encode()}):
        for found in ground.definitions(path):
            if found.name == test.function and test.parameter in found.params:
                params = [name for name in found.params if name not in ("self", "cls")]
                return params.index(test.parameter)
    return None


def _given(call: SgNode, parameter: str, position: int | None) -> bool:
    listed = call.field("arguments")
    arguments = [one for one in listed.children() if one.is_named()] if listed is not None else []
    for argument in arguments:
        if argument.kind() in ("dictionary_splat", "list_splat"):
            return True
        name = argument.field("name") if argument.kind() == "keyword_argument" else None
        if name is not None and name.text() == parameter:
            return True
    plain = [one for one in arguments if one.kind() not in ("keyword_argument", "comment")]
    return position is not None and len(plain) > position


def difference(ground: Ground, test: Difference) -> Answer:
    """Values that are in one of the first sets and in none of the second."""
    of, of_answer = _union(ground, test.of)
    minus, minus_answer = _union(ground, test.minus)
    left = sorted(of - minus)
    note = (
        f"{', '.join(left)}: among {counted(len(of), 'value')}, not among the other {len(minus)}"
        if left
        else "no value is left"
    )
    asked = f"values of ({of_answer.asked}) that are not in ({minus_answer.asked})"
    files = of_answer.files | minus_answer.files
    return Answer(bool(left), of_answer.sites, asked, files, len(of) + len(minus), (note,))


def _union(ground: Ground, sets: tuple[Values, ...]) -> tuple[set[str], Answer]:
    found: set[str] = set()
    answers: list[Answer] = []
    for values in sets:
        found.update(values.literals)
        if values.literals:
            answers.append(Answer(True, asked=", ".join(values.literals)))
        if values.shape is not None and values.at is not None:
            texts, answer = _strings(ground, values.shape, ground.places(values.at))
            found |= texts
            answers.append(answer)
    return found, joined(True, answers, "and")


def _strings(ground: Ground, shape: Shape, places: Places) -> tuple[set[str], Answer]:
    """String literals in nodes of the shape."""
    found: set[str] = set()
    sites: list[Evidence] = []
    for place, node in _nodes(ground, places, needles(shape)):
        for one in find_all(node, shape):
            sites.append(_site(ground, place, one))
            found.update(text.text() for text in find_all(one, {"kind": "string_content"}))
    return found, Answer(True, _unique(sites), f"strings in {_brief(shape)}", _paths(places), len(sites))


def order(ground: Ground, test: Order, places: Places) -> Answer:
    """In one place, ``first`` begins before the first ``then``."""
    sites: list[Evidence] = []
    looked = 0
    for place, node in _nodes(ground, places, needles(test.first) | needles(test.then)):
        looked += 1
        before, after = find_all(node, test.first), find_all(node, test.then)
        if before and after and _start(before[0]) < _start(after[0]):
            sites += [_site(ground, place, before[0]), _site(ground, place, after[0])]
    asked = f"{_brief(test.first)} before {_brief(test.then)}"
    return Answer(bool(sites), _unique(sites), asked, _paths(places), looked)


def _start(node: SgNode) -> tuple[int, int]:
    start = node.range().start
    return start.line, start.column


def flows(ground: Ground, test: Flows, places: Places) -> Answer:
    """In one place, a value of shape ``source`` reaches a node of shape ``sink``, directly or through local names.

    Flow-insensitive: an assignment anywhere in the place carries a value on. That is enough for "is this value used for
    that at all", and it cannot miss a flow by order.
    """
    sites: list[Evidence] = []
    looked = 0
    for place, node in _nodes(ground, places, needles(test.source) | needles(test.sink)):
        looked += 1
        sources = find_all(node, test.source)
        carried = _carried(node, sources)
        sinks = [sink for sink in find_all(node, test.sink) if _carries(sink, sources, carried)]
        sites += [_site(ground, place, one) for one in (*(sources if sinks else ()), *sinks)]
    asked = f"a flow from {_brief(test.source)} to {_brief(test.sink)}"
    return Answer(bool(sites), _unique(sites), asked, _paths(places), looked)


def _carried(node: SgNode, sources: list[SgNode]) -> set[str]:
    """Names that hold a source's value, directly or through other names."""
    carried: set[str] = set()
    assigns = [(one.field("left"), one.field("right")) for one in node.find_all(kind="assignment")]
    pairs = [(left, right) for left, right in assigns if left is not None and right is not None]
    grown = True
    while grown:
        grown = False
        for left, right in pairs:
            if _carries(right, sources, carried):
                new = {n.text() for n in find_all(left, {"kind": "identifier"})} - carried - {"self"}
                grown = grown or bool(new)
                carried |= new
    return carried


def _carries(node: SgNode, sources: list[SgNode], carried: set[str]) -> bool:
    span = node.range()
    for source in sources:
        inner = source.range()
        if span.start.index <= inner.start.index and inner.end.index <= span.end.index:
            return True
    return bool(carried) and any(name.text() in carried for name in find_all(node, {"kind": "identifier"}))


def verdict(ground: Ground, test: Verdict) -> Answer:
    """One part of the tree verdict is among the given ones."""
    asked = f"the tree verdict on {test.part} is {' or '.join(test.among)}"
    if ground.tree is None:
        return Answer(False, asked=asked, notes=("no tree verdict was made",))
    parts = {
        "drafting": ground.tree.drafting,
        "attention": ground.tree.attention,
        "verification": ground.tree.verification,
    }
    part = parts[test.part]
    note = f"{test.part}: {part.verdict}" + (f" ({part.reason})" if part.reason else "")
    return Answer(part.verdict in test.among, part.evidence, asked, notes=(note,), searched=part.searched)


# --- helpers --------------------------------------------------------------------------------------------------------


def _nodes(ground: Ground, places: Places, words: Iterable[bytes]) -> Iterator[tuple[Place, SgNode]]:
    """Places whose files hold the words, with their syntax nodes."""
    wanted = tuple(words)
    for place in places:
        data = ground.bytes_of(place.path)
        if all(word in data for word in wanted):
            yield place, ground.node(place)


def _site(ground: Ground, place: Place, node: SgNode) -> Evidence:
    return ground.evidence(place.path, node.range().start.line + 1)


def _paths(places: Iterable[Place]) -> frozenset[str]:
    return frozenset(place.path for place in places)


def _unique(sites: Iterable[Evidence]) -> tuple[Evidence, ...]:
    return tuple(dict.fromkeys(sites))


def _brief(shape: Shape) -> str:
    """A shape in few words, for the record of a search."""
    pattern = shape.get("pattern")
    if isinstance(pattern, str):
        return repr(pattern)
    return ", ".join(f"{key} {value}" if isinstance(value, str) else key for key, value in shape.items())[:160]

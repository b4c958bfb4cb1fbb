"""Whether a function of another file draws random numbers: what a synthetic walk rests on."""

from __future__ import annotations

import re
from dataclasses import replace

from specaudit.classify.code import Code, Symbol
from specaudit.classify.facts import FunctionFacts, WalkFact

_RANDOM = re.compile(r"\b(?:rand|randn|randint)(?:4x)?\(|\bphilox\w*\(")
_DEPTH = 4


def confirmed(code: Code, function: Symbol, known: FunctionFacts) -> FunctionFacts:
    """The facts with every walk that rests on a draw which is none, or which cannot be read, called ``unknown``."""

    def settled(fact: WalkFact) -> WalkFact:
        if not fact.draws or any(draws(code, function, name) for name in fact.draws):
            return fact
        return replace(fact, walk="unknown")

    return replace(known, walks=tuple(settled(fact) for fact in known.walks))


def draws(code: Code, function: Symbol, name: str, depth: int = 0) -> bool:
    """Whether what ``name`` means in a function draws random numbers, itself or through what it calls."""
    found = code.resolve(function.path, function.qualname, name)
    if found is None or found.definition.kind != "function" or depth > _DEPTH:
        return False
    lines = range(found.definition.line + 1, found.definition.end + 1)
    if any(_RANDOM.search(code.index.line(found.path, number)) for number in lines):
        return True
    calls = code.index.outline(found.path).calls
    names = {call.func for call in calls if call.scope == found.qualname and call.func.isidentifier()}
    return any(draws(code, found, inner, depth + 1) for inner in sorted(names) if inner != name)

"""Which tensor meets which parameter: the arguments of a launch, through the function that a decorator binds to a
kernel.

Tensors are told apart by the source text of the argument in the launching function: ``target_probs`` there is one
tensor, whatever two kernels call it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from specaudit import nodes
from specaudit.classify.callers import Callers, Site
from specaudit.classify.code import Symbol
from specaudit.index import Call


def meet(params: Sequence[str], call: Call) -> dict[str, str]:
    """The text of the argument that each parameter is given."""
    given = dict(zip(params, call.args, strict=False))
    given |= {name: text for name, text in call.keywords if name in params}
    return given


def of_launch(callers: Callers, kernel: Symbol, site: Site) -> dict[str, str]:
    """The arguments that a kernel is launched with at a site of :meth:`specaudit.classify.roles.Roles.launchers`."""
    assert site.call is not None
    if site.call.name == kernel.name:
        return meet(kernel.definition.params, site.call)
    stub = callers.code.resolve(site.path, site.scope, site.call.func.partition("[")[0])
    if stub is None or stub.definition.kind != "function":
        return {}
    given = meet(stub.definition.params, site.call)
    renamed = _through(callers, kernel, stub)
    return {renamed[name]: text for name, text in given.items() if name in renamed}


def _through(callers: Callers, kernel: Symbol, stub: Symbol) -> dict[str, str]:
    """Parameter of the bound function -> parameter of the kernel: by name where names agree, else in order.

    What the bound function returns by name (flags, sizes) is given by it, not by its caller.
    """
    params = kernel.definition.params
    made = _returned_names(callers, stub)
    rest = [name for name in params if name not in made]
    out: dict[str, str] = {}
    for name in stub.definition.params:
        found = next((p for p in params if p == name or p.rpartition("_")[0] == name), None)
        if found is not None:
            out[name] = found
    if len(out) == len(stub.definition.params):
        return out
    return dict(zip(stub.definition.params, rest, strict=False))


def _returned_names(callers: Callers, stub: Symbol) -> frozenset[str]:
    return frozenset(keyword.arg for keyword in _returned(callers, stub) if keyword.arg is not None)


def _returned(callers: Callers, stub: Symbol) -> list[ast.keyword]:
    node = callers.code.function(stub)
    returns = [n for n in nodes.walk(node) if isinstance(n, ast.Return)] if node is not None else []
    return [k for r in returns for n in nodes.walk(r) if isinstance(n, ast.Call) for k in n.keywords]


def flag(callers: Callers, kernel: Symbol, site: Site, name: str) -> tuple[ast.expr, Symbol] | None:
    """The expression that a compile-time flag is given, and the function whose names it uses."""
    assert site.call is not None
    own = callers.enclosing(site)
    if site.call.name == kernel.name:
        node = _call_at(callers, own, site) if own is not None else None
        found = next((k.value for k in node.keywords if k.arg == name), None) if node is not None else None
        return (found, own) if found is not None and own is not None else None
    stub = callers.code.resolve(site.path, site.scope, site.call.func.partition("[")[0])
    if stub is None:
        return None
    found = next((k.value for k in _returned(callers, stub) if k.arg == name), None)
    return (found, stub) if found is not None else None


def _call_at(callers: Callers, function: Symbol, site: Site) -> ast.Call | None:
    """The tree of a call, as that of its function has it."""
    node = callers.code.function(function)
    for inner in nodes.walk(node) if node is not None else ():
        if isinstance(inner, ast.Call) and inner.lineno == site.line and inner.keywords:
            return inner
    return None


def given_to(call: ast.Call, params: Sequence[str]) -> Mapping[str, ast.expr]:
    """The expressions that a call gives to parameters."""
    given = {k.arg: k.value for k in call.keywords if k.arg is not None}
    return given | {p: a for p, a in zip(params, call.args, strict=False) if not isinstance(a, ast.Starred)}

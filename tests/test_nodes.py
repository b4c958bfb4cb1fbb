"""Walks over real syntax trees, held against those of ``ast``."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

from specaudit.nodes import children, walk

FILES = ("vllm/v1/worker/gpu_model_runner.py", "vllm/v1/sample/rejection_sampler.py", "vllm/config/speculative.py")
LEFT_OUT = (ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop)
RARE = """
match point:
    case {"x": 0, **rest} if rest: pass
    case Point(x=0) | [1, *_] as found: pass
async def f(a, /, b: int = 1, *args, c=lambda: 0, **kw) -> None:
    global g
    async with x as y, z: yield (w := [i async for i in y if i])
    print(f"{a!r:>{b}}", {**kw, 1: 2}, ~b, a < b <= c)
    return {*args}
"""


def test_the_same_nodes_in_the_same_order(release: Callable[[str], Path]) -> None:
    for text in (RARE, *((release("0.33.0") / file).read_text(encoding="utf-8") for file in FILES)):
        tree = ast.parse(text)
        assert walk(tree) == [node for node in ast.walk(tree) if not isinstance(node, LEFT_OUT)]
        for node in walk(tree):
            assert children(node) == [n for n in ast.iter_child_nodes(node) if not isinstance(n, LEFT_OUT)]

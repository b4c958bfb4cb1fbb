"""What reaches the driver when a kernel is launched again, told without a GPU.

Prints one line a call: its name, the variant that was launched (numbered as they are compiled), and whether the driver
got what Triton itself hands it. Run without TRITON_INTERPRET; test_launch.py does.
"""

from __future__ import annotations

from typing import Any

import torch
from dispatch import Machine
from triton.compiler.compiler import LazyDict
from triton.runtime import driver

from specaudit.ddtree import launch, layout
from specaudit.ddtree.commit import UNITS, _commit_kv
from specaudit.ddtree.engine import rows
from specaudit.ddtree.engine.settings import Settings
from specaudit.ddtree.engine.state import TreeState
from specaudit.ddtree.walk import _linear_walk

handed: list[tuple[Any, ...]] = []
variants: list[Any] = []


class Recording(Machine):
    def launcher_cls(self, *_: Any) -> Any:
        def launcher(*handed_over: Any) -> None:
            handed.append((launcher, *handed_over))

        return launcher


def same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(equal(a, b) for a, b in zip(one, other, strict=True))


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, LazyDict):  # for hooks of a launch
        return bool(a.get() == b.get())
    return a is b if isinstance(a, torch.Tensor) or callable(a) else bool(a == b)


def told(name: str, kernel: Any, grid: tuple[int, ...], *args: Any, **given: Any) -> None:
    """Launches by Triton alone, for the first time, and again."""
    handed.clear()
    fixed = given.pop("fixed", launch.NOTHING)
    kernel.kernel[grid](*args, *fixed, **given)
    for _ in range(2):
        kernel[grid](*args, fixed=fixed, **given)
    by_triton, first, again = handed
    if again[0] not in variants:
        variants.append(again[0])
    print(name, variants.index(again[0]), "same" if same(by_triton, first) and same(by_triton, again) else "DIFFERENT")


def main() -> None:
    driver.set_active(Recording())
    target, tokens = torch.zeros(64, dtype=torch.int64), torch.zeros(64, dtype=torch.int64)
    starts, out = torch.zeros(5, dtype=torch.int32), layout.Walk.empty(4, 7, "cpu")
    ends = (out.accepted, out.emitted, out.num_accepted, out.num_emitted)
    walked = {"DEPTHS": 8, "num_warps": 1}
    told("walk", _linear_walk, (4,), target, tokens, starts, None, *ends, 7, **walked)
    told("other-numbers", _linear_walk, (2, 1), target, tokens, starts, None, *ends, 6, **walked)
    told("one", _linear_walk, (4,), target, tokens, starts, None, *ends, 1, **walked)
    told("sixteen", _linear_walk, (4,), target, tokens, starts, None, *ends, 16, **walked)
    told("none-given", _linear_walk, (4,), target, tokens, starts, starts, *ends, 7, **walked)
    told("other-type", _linear_walk, (4,), target.int(), tokens, starts, None, *ends, 7, **walked)
    told("not-aligned", _linear_walk, (4,), target[1:], tokens, starts, None, *ends, 7, **walked)
    told("other-warps", _linear_walk, (4,), target, tokens, starts, None, *ends, 7, DEPTHS=8, num_warps=2)
    told("other-constant", _linear_walk, (4,), target, tokens, starts, None, *ends, 7, DEPTHS=16, num_warps=1)

    state = TreeState(Settings(budget=16, max_batch=4, horizon=7), 4, torch.device("cpu"))
    counts = torch.zeros(4, dtype=torch.int32)
    words = state.batch.ancestors.shape[2]
    prepared = {"fixed": state.staging, "W": words, "BLOCK": 32, "WORDS": words, "BY_SLOT": True}
    for name, requests in (("fixed", 2), ("fixed-again", 3)):
        slots = torch.zeros(requests, dtype=torch.int64)
        told(name, rows._prepare_kernel, (4,), target, slots, starts, counts, counts, requests, requests, **prepared)

    print("sizes", len(rows._prepare_kernel._compiled), "same")

    told(
        "in-a-plane", _commit_kv, (2, 4, 3), torch.zeros(2, dtype=torch.int64), target, starts, out.accepted,
        out.num_accepted, 7, 512, 32, 16, BLOCK_SIZE=16, HEAD_UNITS=16, ROW_UNITS=32, UNIT=UNITS[8][0], DEPTHS=8,
        COLUMNS=32,
    )  # fmt: skip


if __name__ == "__main__":
    main()

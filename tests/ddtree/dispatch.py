"""How often the kernels of an engine's step are compiled as batches change, told without a GPU.

Triton compiles for sm_90 here; a launch does nothing. Prints one line per kernel: its name and how many variants there
are after steps of many sizes. Run without TRITON_INTERPRET; test_compile.py does.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from specaudit.ddtree import commit, kernels, walk
from specaudit.ddtree.engine import order, rows
from specaudit.ddtree.engine.settings import Settings
from specaudit.ddtree.engine.state import Step, TreeState
from specaudit.ddtree.layout import KVCaches

NODES, HORIZON, SLOTS = 16, 15, 40
BATCHES = (1, 2, 3, 16, 32, 33)


class Machine:
    """As much of a driver as a launch asks for."""

    utils = SimpleNamespace(
        load_binary=lambda *_: (1, 2, 32, 0, 1024),
        get_device_properties=lambda _: {"max_shared_mem": 232448, "multiprocessor_count": 132, "max_num_regs": 65536},
    )

    def launcher_cls(self, *_: Any) -> Any:
        return lambda *_: None

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def steps() -> None:
    device = torch.device("cpu")
    state = TreeState(Settings(budget=NODES, max_batch=SLOTS, horizon=HORIZON), SLOTS, device)
    starts = order.ChainStarts(SLOTS, state.batch.max_depth, device)
    hidden = [torch.zeros(1024, 64, dtype=torch.bfloat16) for _ in range(3)]
    caches = KVCaches.of([torch.zeros(64, 16, 4, 256, dtype=torch.uint8) for _ in range(2)])
    computed, known = torch.zeros(SLOTS, dtype=torch.int32), order.Addresses()
    for batch in BATCHES:
        for trees in sorted({batch, max(1, batch - 1)}):
            row_starts = torch.arange(batch + 1, dtype=torch.int32) * (1 + NODES)
            slots, positions = torch.zeros(batch, dtype=torch.int32), torch.arange(1024)
            rejected = torch.zeros(batch, dtype=torch.int32)
            rows.prepare(state, positions, slots, row_starts, computed, computed, trees)
            target = torch.zeros(batch * (1 + NODES), dtype=torch.int64)
            kernels.walk(target, target, state.batch, row_starts, state.walk)
            commit.commit_kv(caches, positions, state.walk, row_starts)
            step = Step(trees, trees * (1 + NODES), True)
            lengths = np.full(batch, 1 + NODES)
            new_starts, on_device = starts.of(lengths, trees, torch.from_numpy)
            order.compact(state, hidden, positions, row_starts, rejected, step, new_starts, on_device, known)


if __name__ == "__main__":
    driver.set_active(Machine())
    steps()
    for kernel in (rows._prepare_kernel, walk._walk, commit._commit_kv, order._compact_kernel):
        print(kernel.kernel.fn.__name__, len(kernel.kernel.device_caches[0][0]))

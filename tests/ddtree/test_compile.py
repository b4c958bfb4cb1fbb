"""Every kernel compiles for the GPUs people run, without one of them here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SMALLEST_SHARED = 99 * 1024  # bytes a block may have on sm_120, the least of the four


KERNELS = {
    "core": {"_scan", "_select", "_grow", "_link", "_ancestors", "_stage", "_write_positions", "_argmax_chunk", "_walk",
             "_linear_walk", "_commit_kv", "_commit_rows"},
    "attention": {"tree_attention_kernel", "paged_tree_attention_kernel", "merge_splits_kernel"},
    "engine": {"_prepare_kernel", "_chain_kernel", "_scatter_kernel", "_compact_kernel"},
}  # fmt: skip


@pytest.mark.parametrize("part", KERNELS)
def test_every_kernel_compiles_for_every_capability(part: str, capfd: pytest.CaptureFixture[str]) -> None:
    # a process of its own: in this one the kernels may be the interpreter's
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(HERE.parents[1])
    command = [sys.executable, HERE / "aot.py", part]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=HERE)
    with capfd.disabled():
        print(f"\n{run.stdout}", end="")
    assert run.returncode == 0, run.stderr[-3000:]
    rows = [line.split() for line in run.stdout.splitlines()[1:]]
    seen = {(name, capability) for name, capability, *_ in rows}
    assert seen == {(name, capability) for name in KERNELS[part] for capability in ("80", "90", "100", "120")}
    small = [int(shared) for _, capability, _, shared, _ in rows if capability == "120"]
    assert max(small) <= SMALLEST_SHARED

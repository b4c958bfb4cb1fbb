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
    "engine": {"_prepare_kernel", "_chain_kernel", "_read_chains_kernel", "_scatter_kernel", "_compact_kernel",
               "_sequences_kernel", "_noise_kernel"},
}  # fmt: skip


def compiled(*script: str) -> str:
    """What a script beside this file prints, in a process of its own: here the kernels may be the interpreter's."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(HERE.parents[1])
    run = subprocess.run(
        [sys.executable, *script], capture_output=True, text=True, env=environment, check=False, cwd=HERE
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


@pytest.mark.parametrize("part", KERNELS)
def test_every_kernel_compiles_for_every_capability(part: str, capfd: pytest.CaptureFixture[str]) -> None:
    printed = compiled("aot.py", part)
    with capfd.disabled():
        print(f"\n{printed}", end="")
    rows = [line.split() for line in printed.splitlines()[1:]]
    seen = {(name, capability) for name, capability, *_ in rows}
    assert seen == {(name, capability) for name in KERNELS[part] for capability in ("80", "90", "100", "120")}
    small = [int(shared) for _, capability, _, shared, _ in rows if capability == "120"]
    assert max(small) <= SMALLEST_SHARED


def test_a_batch_of_another_size_compiles_nothing() -> None:
    """Triton makes a variant for 1 and for multiples of 16 where it is not told otherwise: a stall while serving."""
    variants = dict(line.split() for line in compiled("dispatch.py").splitlines())
    assert variants == dict.fromkeys(("_prepare_kernel", "_walk", "_commit_kv", "_compact_kernel"), "1")

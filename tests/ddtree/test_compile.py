"""Every kernel compiles for the GPUs people run, without one of them here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SMALLEST_SHARED = 99 * 1024  # bytes a block may have on sm_120, the least of the four


def test_every_kernel_compiles_for_every_capability(capfd: pytest.CaptureFixture[str]) -> None:
    # a process of its own: in this one the kernels may be the interpreter's
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(HERE.parents[1])
    run = subprocess.run(
        [sys.executable, HERE / "aot.py"], capture_output=True, text=True, env=environment, check=False, cwd=HERE
    )
    with capfd.disabled():
        print(f"\n{run.stdout}", end="")
    assert run.returncode == 0, run.stderr[-3000:]
    rows = [line.split() for line in run.stdout.splitlines()[1:]]
    seen = {(name, capability) for name, capability, *_ in rows}
    names = {name for name, _ in seen}
    assert {"_scan", "_select", "_grow", "_link", "_walk", "_commit_kv", "tree_attention_kernel"} <= names
    assert seen == {(name, capability) for name in names for capability in ("80", "90", "100", "120")}
    small = [int(shared) for _, capability, _, shared, _ in rows if capability == "120"]
    assert max(small) <= SMALLEST_SHARED

"""Compile Triton kernels ahead of time for GPUs that are not here, and read what the assembler says of them.

Run as a program (without TRITON_INTERPRET) it compiles every kernel of the package for every capability and prints one
line each. test_compile.py runs it that way.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

CAPABILITIES = (80, 90, 100, 120)


class Kernel(NamedTuple):
    """One specialisation: types of the run-time arguments as Triton spells them, values of the constexpr ones."""

    fn: Any
    signature: dict[str, str]
    constexprs: dict[str, Any]
    num_warps: int
    num_stages: int = 2
    aligned: tuple[str, ...] = ()  # integer arguments that are multiples of 16, which Triton specialises on


class Compiled(NamedTuple):
    capability: int
    registers: int
    shared: int  # bytes
    stack: int  # bytes per thread: spills


def aot_compile(
    fn: Any,
    signature: dict[str, str],
    constexprs: dict[str, Any],
    capabilities: tuple[int, ...] = CAPABILITIES,
    num_warps: int = 4,
    num_stages: int = 2,
    aligned: tuple[str, ...] = (),
) -> list[Compiled]:
    """Compile to a cubin for each capability. Raises what Triton or ptxas raises."""
    types = {name: "constexpr" if name in constexprs else signature[name] for name in fn.arg_names}
    values = {(fn.arg_names.index(name),): value for name, value in constexprs.items()}
    # what the launcher would find at run time: every pointer is 16-byte aligned
    divisible = [types[name].startswith("*") or (name in aligned and types[name] == "i32") for name in fn.arg_names]
    attrs = {(i,): [["tt.divisibility", 16]] for i, yes in enumerate(divisible) if yes}
    compiled = []
    for capability in capabilities:
        kernel = triton.compile(
            ASTSource(fn, signature=types, constexprs=values, attrs=attrs),
            target=GPUTarget("cuda", capability, 32),
            options={"num_warps": num_warps, "num_stages": num_stages},
        )
        registers, stack = _resource_usage(kernel.asm["cubin"])
        compiled.append(Compiled(capability, registers, kernel.metadata.shared, stack))
    return compiled


def _resource_usage(cubin: bytes) -> tuple[int, int]:
    """(registers, stack bytes) of the one kernel in a cubin, by the cuobjdump that comes with Triton."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    if found is None:
        raise ValueError(f"no resource line in: {text}")
    return int(found[1]), int(found[2])


def core_kernels() -> list[Kernel]:
    """The kernels as build, walk and commit launch them at N = 64, K = 15, V = 151,936, bfloat16 logits."""
    from specaudit.ddtree import build

    n, k = 64, 15
    strides = {"batch_stride": "i32", "position_stride": "i32", "horizon": "i32", "vocabulary": "i32", "supers": "i32"}
    groups = {"GROUP": 16, "FAN": 16}
    return [
        Kernel(
            build._scan,
            {"logits_ptr": "*bf16", "temperature_ptr": "*fp32", "group_ptr": "*bf16", "super_ptr": "*bf16",
             "partial_ptr": "*fp32", **strides},
            {**groups, "CHUNK": build.CHUNK}, 4,
        ),
        Kernel(
            build._select,
            {"logits_ptr": "*bf16", "temperature_ptr": "*fp32", "group_ptr": "*bf16", "super_ptr": "*bf16",
             "partial_ptr": "*fp32", "logprobs_ptr": "*fp32", "ids_ptr": "*i32", "lse_ptr": "*fp32", **strides,
             "splits": "i32"},
            {**groups, "N": n, "TOP": n, "SUPERS": 1024, "SPLITS": 32}, 4,
        ),
        Kernel(
            build._grow,
            {"logprobs_ptr": "*fp32", "budgets_ptr": "*i32", "parents_ptr": "*i32", "depths_ptr": "*i32",
             "ranks_ptr": "*i32", "scores_ptr": "*fp32", "num_rows_ptr": "*i32", "spine": "i32"},
            {"bonus_ptr": None, "K": k, "N": n, "K_POW2": 16, "N_POW2": 64}, 1,
        ),
        Kernel(
            build._link,
            {name: "*i32" for name in ("table_ids_ptr", "parents_ptr", "depths_ptr", "ranks_ptr", "num_rows_ptr",
                                       "tokens_ptr", "first_child_ptr", "next_sibling_ptr", "ancestors_ptr")},
            {"K": k, "N": n, "W": 3, "ROWS": build.LINK_ROWS, "ALL_ROWS": 128, "WORDS": 4}, 4,
        ),
        Kernel(
            build._ancestors, {"parents_ptr": "*i32", "ancestors_ptr": "*i32", "R": "i32"},
            {"W": 3, "ROWS": build.LINK_ROWS, "WORDS": 4}, 4,
        ),
    ]  # fmt: skip


def main() -> int:
    from aot_attention import attention_kernels

    print(f"{'kernel':<28}{'sm':>5}{'registers':>11}{'shared B':>10}{'stack B':>9}")
    for kernel in [*core_kernels(), *attention_kernels()]:
        for c in aot_compile(*kernel[:3], CAPABILITIES, *kernel[3:]):
            print(f"{kernel.fn.__name__:<28}{c.capability:>5}{c.registers:>11}{c.shared:>10}{c.stack:>9}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Compile Triton kernels ahead of time for GPUs that are not here, and read what the assembler says of them.

Run as a program (without TRITON_INTERPRET) it compiles every kernel of the package for every capability and prints one
line each; `aot.py core`, `attention` and `engine` are its parts. test_compile.py runs it that way.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from specaudit.ddtree.launch import relaunched

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
            ASTSource(fn.kernel if isinstance(fn, relaunched) else fn, signature=types, constexprs=values, attrs=attrs),
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
    """The kernels as build, walk, commit and stage launch them at N = 64, K = 15, V = 151,936, bfloat16 logits."""
    from specaudit.ddtree import build, commit, stage, table, walk

    scan = pointers("*fp32", "temperature_ptr partial_ptr")
    scan |= integers("batch_stride position_stride horizon vocabulary supers")
    best = pointers("*fp32", "logprobs_ptr lse_ptr") | pointers("*i32", "ids_ptr") | integers("splits N")
    groups = {"GROUP": 16, "FAN": 16}
    tree = "num_rows_ptr tokens_ptr parents_ptr depths_ptr ranks_ptr first_child_ptr next_sibling_ptr ancestors_ptr"
    walked = pointers("*i32", "accepted_ptr emitted_ptr num_accepted_ptr num_emitted_ptr row_starts_ptr")
    flat = pointers("*i32", "target_ptr tokens_ptr")
    out = {f"out_{name}": kind for name, kind in (pointers("*i32", tree) | pointers("*fp32", "scores_ptr")).items()}
    return [
        *(
            variant
            for kind, top in (("*bf16", 64), ("*fp16", 16), ("*fp32", 16))
            for variant in (
                Kernel(
                    table._scan,
                    scan | pointers(kind, "logits_ptr group_ptr super_ptr"),
                    groups | {"CHUNK": table.CHUNK},
                    table.SCAN_WARPS,
                ),
                Kernel(
                    table._select,
                    scan | best | pointers(kind, "logits_ptr group_ptr super_ptr"),
                    groups | {"TOP": top, "SUPERS": 1024, "SPLITS": 128},
                    table.select_warps(top, rows=15),
                ),
            )
        ),
        Kernel(
            build._grow,
            pointers("*i32", tree + " budgets_ptr") | pointers("*fp32", "logprobs_ptr scores_ptr")
            | integers("spine K N"),
            {"bonus_ptr": None, "K_POW2": 16, "N_POW2": 64},
            1,
        ),
        Kernel(
            build._grow,
            pointers("*i32", tree) | pointers("*fp32", "logprobs_ptr scores_ptr bonus_ptr") | integers("spine K N"),
            {"budgets_ptr": None, "K_POW2": 16, "N_POW2": 64},
            1,
        ),
        Kernel(
            build._link,
            pointers("*i32", tree + " table_ids_ptr") | integers("K N W"),
            {"ROWS": build.LINK_ROWS, "ALL_ROWS": 128, "WORDS": 4},
            1,
        ),
        Kernel(build._ancestors, pointers("*i32", tree) | integers("R W"), {"ROWS": build.LINK_ROWS, "WORDS": 4}, 1),
        Kernel(
            walk._walk,
            walked | flat | pointers("*i32", tree + " best_id_ptr") | pointers("*fp32", "best_ptr")
            | integers("splits R D W"),
            {"ROWS": 128, "DEPTHS": 16, "SPLITS": 32},
            walk.warps(128),
        ),
        Kernel(
            walk._walk,
            walked | flat | pointers("*i32", tree) | integers("splits R D W"),
            {"best_ptr": None, "best_id_ptr": None, "ROWS": 128, "DEPTHS": 16, "SPLITS": 1},
            walk.warps(128),
        ),
        Kernel(
            walk._argmax_chunk,
            pointers("*bf16", "logits_ptr") | pointers("*fp32", "best_ptr") | pointers("*i32", "best_id_ptr")
            | integers("stride vocabulary"),
            {"CHUNK": walk.CHUNK},
            walk.ARGMAX_WARPS,
        ),
        Kernel(walk._linear_walk, walked | flat | integers("D"), {"num_rows_ptr": None, "DEPTHS": 64}, 1),
        Kernel(
            commit._commit_kv,
            walked | pointers("*i64", "pointers_ptr slots_ptr")
            | integers("D block_stride slot_stride head_stride"),
            {"BLOCK_SIZE": 16, "HEAD_UNITS": 32, "ROW_UNITS": 256, "UNIT": tl.int64, "DEPTHS": 16, "COLUMNS": 64},
            4,
        ),
        Kernel(
            commit._commit_rows,
            walked | pointers("*i64", "rows_ptr out_ptr")
            | integers("D row_stride out_batch_stride out_row_stride units"),
            {"IN_PLACE": False, "DEPTHS": 16, "COLUMNS": 64},
            4,
        ),
        Kernel(
            stage._write_positions,
            pointers("*i64", "positions_ptr") | pointers("*i32", tree + " row_starts_ptr") | integers("R"),
            {"ROWS": 128},
            1,
        ),
        Kernel(
            stage._stage,
            pointers("*i32", tree + " slots_ptr row_starts_ptr") | pointers("*fp32", "scores_ptr") | out
            | integers("R W"),
            {"ROWS": stage.ROWS, "WORDS": 4},
            1,
        ),
    ]  # fmt: skip


def pointers(kind: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), kind)


def integers(names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), "i32")


def main() -> int:
    from aot_attention import attention_kernels
    from aot_engine import engine_kernels

    print(f"{'kernel':<28}{'sm':>5}{'registers':>11}{'shared B':>10}{'stack B':>9}")
    lists = {"core": core_kernels, "attention": attention_kernels, "engine": engine_kernels}
    for kernel in [kernel for name in sys.argv[1:] or lists for kernel in lists[name]()]:
        for c in aot_compile(*kernel[:3], CAPABILITIES, *kernel[3:]):
            print(f"{kernel.fn.__name__:<28}{c.capability:>5}{c.registers:>11}{c.shared:>10}{c.stack:>9}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

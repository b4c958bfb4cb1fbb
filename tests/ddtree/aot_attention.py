"""The attention kernels as `attention.py` launches them, for ahead-of-time compilation: see aot.py."""

from __future__ import annotations

import triton.language as tl
from aot import Kernel

from specaudit.ddtree import attention, paged_kernels
from specaudit.ddtree.attention_kernels import tree_attention_kernel

HEADS, GROUP, ROWS = 32, 4, 65
E4M3_BYTES = "*u8"
TYPES = {"*bf16": tl.bfloat16, "*fp16": tl.float16, "*fp32": tl.float32}
INTEGERS = ("words", "rows", "requests", "splits", "table_request", "ancestors_request", "ancestors_row")
STRIDES = tuple(
    f"{tensor}_{dim}"
    for tensor, dims in {
        "merged": ("row", "head"),
        "out": ("row", "head"),
        "lse": ("row", "head"),
        "query": ("row", "head"),
        "key": ("block", "position", "head"),
        "value": ("block", "position", "head"),
    }.items()
    for dim in dims
)


def kernel(fn: object, dtype: str, head_size: int, cache: str = "", **constexprs: object) -> Kernel:
    """One specialisation for 32 query and 8 KV heads, N = 64, block size 16."""
    operand = TYPES[dtype]
    itemsize = operand.primitive_bitwidth // 8
    sizes = head_size, itemsize, 1 if cache == E4M3_BYTES else itemsize
    is_tree = fn is tree_attention_kernel
    tile = attention.tree_tile(512, ROWS - 1, *sizes) if is_tree else attention.paged_tile(*sizes)
    pointers = {
        **dict.fromkeys(("Merged", "Out", "Query"), dtype),
        **dict.fromkeys(("Key", "Value"), cache or dtype),
        **dict.fromkeys(("Lse", "Partial", "PartialLse", "QueryScale", "KeyScale", "ValueScale"), "*fp32"),
        **dict.fromkeys(("RowStarts", "Ancestors", "Table", "ContextLens"), "*i32"),
        "Slots": "*i64",
    }
    signature = {**pointers, **dict.fromkeys((*INTEGERS, *STRIDES), "i32"), "scale": "fp32"}
    values = {
        "HEADS": HEADS,
        "GROUP": GROUP,
        "BLOCK_SIZE": 16,
        "HEAD_SIZE": head_size,
        "BLOCK_D": head_size,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BY_TABLE": False,
        "FIRST_ROW": 1,
        "FIRST_KEY": 1,
        "SINGLE": True,
        "EARLY": tile.early,
        "E4M3_QUERY": False,
        "E4M3_CACHE": cache == E4M3_BYTES,
        "OPERAND": operand,
        "PRECISION": attention._precision(operand),
        **constexprs,
    }
    values = {name: value for name, value in values.items() if name in fn.arg_names}
    signature = {name: spelled for name, spelled in signature.items() if name in fn.arg_names}
    # Strides are multiples of 16 elements in any real cache, and Triton specialises on it: loads become wide.
    return Kernel(fn, signature, values, tile.warps, tile.stages, aligned=STRIDES)


def attention_kernels() -> list[Kernel]:
    tree, paged = tree_attention_kernel, paged_kernels.paged_tree_attention_kernel
    return [
        kernel(tree, "*bf16", 128),
        kernel(tree, "*bf16", 128, E4M3_BYTES),
        kernel(tree, "*fp16", 256, BY_TABLE=True, FIRST_ROW=0, FIRST_KEY=0, SINGLE=False),
        kernel(tree, "*fp32", 256),
        kernel(paged, "*bf16", 128, DIRECT=False),
        kernel(paged, "*bf16", 128, E4M3_BYTES, DIRECT=False),
        kernel(paged, "*fp16", 256, DIRECT=True),
        kernel(paged, "*fp32", 256, DIRECT=False),
        kernel(paged_kernels.merge_splits_kernel, "*bf16", 128, BLOCK_S=16)._replace(num_warps=2),
    ]

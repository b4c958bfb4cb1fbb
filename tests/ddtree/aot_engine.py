"""The kernels of engine/ as the hooks launch them at N = 64, for aot.py to compile."""

from __future__ import annotations

from aot import Kernel, integers, pointers

from specaudit.ddtree.engine import exact, order, rows, slots
from specaudit.ddtree.v1 import noise

TREES = "FromParents FromDepths FromChild FromSibling FromWords FromRows"
TREES += " ToParents ToDepths ToChild ToSibling ToWords ToRows"


def engine_kernels() -> list[Kernel]:
    """By slot (V2) and by row of the step before (V1); slots and positions are int64 in both."""
    sizes = {"W": 3, "BLOCK": 128}
    prepared = pointers("*i64", "Positions Slots") | pointers("*i32", "ContextLens RowStarts NumComputed PrefillLens")
    prepared |= pointers("*i32", TREES) | integers("requests tree_requests R")
    chain = pointers("*i64", "Slots Tokens Ids Chains") | pointers("*i32", "Parents Depths Child Sibling Words Rows")
    read = pointers("*i64", "Slots Chains") | pointers("*i32", "Ids RowStarts LogitStarts NumComputed PrefillLens")
    compacted = pointers("*i64", "OutPositions In InPositions") | integers("in_row out_row D")
    compacted |= pointers("*i32", "OutStarts OutRejected InStarts Accepted NumAccepted")
    sequences = pointers("*i32", "Table Lens Schedule RowStarts ContextLens Depths Words BlockTable")
    sequences |= pointers("*i64", "Slots") | {"heads": "fp32", "multiprocessors": "fp32"}
    sequences |= integers("requests aligned_rows block_row unit horizon query_blocks most_runs width packed_rows")
    return [
        Kernel(
            exact._sequences_kernel,
            sequences,
            {
                "R": 65,
                "W": 3,
                "BLOCK_SIZE": 16,
                "KEYS": 192,
                "REQUESTS": 32,
                "BLOCK_R": 128,
                "CHUNK": exact.CHUNK,
                "ROWS_AT": 0,
                "RUNS_AT": 1,
                "ORDER_AT": -1,
                "VECTORS": 2,
            },
            4,
        ),
        *(
            Kernel(rows._prepare_kernel, prepared, sizes | {"WORDS": 4, "BY_SLOT": by_slot}, 4)
            for by_slot in (True, False)
        ),
        Kernel(slots._chain_kernel, chain | integers("ids_request K length R"), sizes | {"DEPTHS": 16}, 4),
        Kernel(rows._read_chains_kernel, read | integers("K"), {"DRAFTS": 64}, 4),
        Kernel(
            noise._noise_kernel,
            {"Noise": "*fp32", "Positions": "*i64"} | integers("root seed_low seed_high vocabulary"),
            {"BLOCK": noise.BLOCK},
            4,
        ),
        Kernel(
            slots._scatter_kernel,
            pointers("*i64", "Slots Chains")
            | pointers("*i32", f"{TREES} Ids")
            | integers("R ids_request ids_position K"),
            sizes | {"WORDS": 4, "DEPTHS": 16},
            4,
        ),
        *(
            Kernel(
                order._compact_kernel,
                compacted | pointers(kind, "Out"),
                {"LAYERS": layers, "WIDTH": width, "BLOCK": 1024},
                4,
            )
            for kind, layers, width in (("*bf16", 5, 4096), ("*fp32", 3, 512))
        ),
    ]

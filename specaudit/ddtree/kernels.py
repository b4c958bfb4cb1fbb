"""The functions of reference.py as Triton kernels: same names, same signatures, batched, on the GPU.

Every function launches a fixed number of kernels, never waits for the device, and allocates by shape alone, so all of
them can be captured in a CUDA graph (give `out` where the result needs a fixed address outside of it).
"""

from .build import ancestor_mask, best_first, build
from .commit import commit_kv, commit_rows
from .stage import stage, write_positions
from .table import draft_table
from .walk import greedy_walk, linear_walk, walk

__all__ = [
    "ancestor_mask",
    "best_first",
    "build",
    "commit_kv",
    "commit_rows",
    "draft_table",
    "greedy_walk",
    "linear_walk",
    "stage",
    "walk",
    "write_positions",
]

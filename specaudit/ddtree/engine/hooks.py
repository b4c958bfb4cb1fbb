"""The functions that patched lines of an engine call, so that each such line says no more than that it is a hook.

`drafter` is the engine's speculator (V2) or drafter (V1); without DDTree it has no tree, and every hook does nothing.
"""

from __future__ import annotations

from typing import Any

from .state import TreeState, chain_only


def tree_of(drafter: Any) -> TreeState | None:
    """The drafter's trees, None when this engine drafts none."""
    tree = getattr(drafter, "tree", None)
    return tree if isinstance(tree, TreeState) else None


def classify(drafter: Any, batch_state: Any, uniform: int | None) -> int | None:
    """V2, where a batch is gathered: what kind of step this is; returns the uniform length that may pick a graph."""
    tree = tree_of(drafter)
    return uniform if tree is None else tree.begin_step(batch_state, uniform)


def new_request(drafter: Any, slot: int, params: Any, custom_processors: bool) -> None:
    """V2, where a request gets its slot."""
    tree = tree_of(drafter)
    if tree is not None:
        tree.void(slot, chain_only(params, custom_processors or tree.custom_processors))

"""``hybrid-mamba-margin``: a recurrent state is never taken from beyond the matched prefix."""

from __future__ import annotations

from specaudit.patching.recipes.base import Recipe
from specaudit.patching.workspace import Workspace

SCOPE = "HybridKVCacheCoordinator.find_longest_cache_hit"
MARGIN = """_max_length = min(
                    curr_hit_length + spec.block_size, max_cache_hit_length
                )"""


class HybridMambaMargin(Recipe):
    """The look-up margin of one block that EAGLE's dropped block needs is given to attention groups alone.

    Attention finds one block more and drops it again. A Mamba or GDN group drops nothing: with the margin it returns
    the state after one block more than the attention prefix holds, and answers turn wrong without an error.
    """

    name = "hybrid-mamba-margin"
    version = "1"
    summary = "Hybrid models with prefix caching and EAGLE, MTP or DFlash take the state that fits the cached prefix"
    repairs = ("hybrid-coordinator-eagle-margin-on-mamba",)

    def write(self, work: Workspace, present: frozenset[str]) -> None:
        """One condition, and the import that it needs."""
        path = work.find_class("HybridKVCacheCoordinator", "vllm/v1/core")
        coordinator = work.edit(path)
        coordinator.add_import("FullAttentionSpec", "MambaSpec")
        assigned = {assign.target for assign in work.index.outline(path).assigns if assign.scope == SCOPE}
        flag = "drop_eagle_block" if "drop_eagle_block" in assigned else "use_eagle"
        coordinator.replace(
            SCOPE,
            f"""
            if {flag}:
                {MARGIN}
            """,
            f"""
            if {flag} and not isinstance(spec, MambaSpec):
                # Attention finds one block more and drops it again; a recurrent
                # state is taken where it is found.
                {MARGIN}
            """,
        )

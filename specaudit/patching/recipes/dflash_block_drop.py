"""``dflash-block-drop``: DFlash and DSpark keep the last block of a cached prefix."""

from __future__ import annotations

from specaudit.errors import RecipeRefused
from specaudit.patching.recipes.base import Recipe
from specaudit.patching.workspace import Workspace

SCHEDULER = "vllm/v1/core/sched/scheduler.py"


class DFlashBlockDrop(Recipe):
    """``use_eagle()`` asks "does the drafter read hidden states", and is also taken for "drop the last cached block".

    EAGLE's draft KV at a position depends on the next token, so the last block of a matched prefix cannot be trusted;
    DFlash's and DSpark's depends on the target's hidden state alone (vllm#54360). The second question gets a name of
    its own. Releases 0.30 to 0.32 have that name and a switch, but answer the old way.
    """

    name = "dflash-block-drop"
    version = "1"
    summary = "DFlash and DSpark keep the last block of a cached prefix"
    repairs = ("eagle-block-drop-applied-to-dflash",)
    notes = (
        "KV connectors (LMCache, Mooncake, offloading) that ask use_eagle() on their own go on dropping the block: "
        "fewer hits there, nothing wrong.",
    )

    def write(self, work: Workspace, present: frozenset[str]) -> None:
        """The question, then those who ask it."""
        path = work.find_class("SpeculativeConfig", "vllm/config")
        names = {d.qualname for d in work.index.outline(path).definitions}
        if "SpeculativeConfig.needs_eagle_block_drop" in names:
            raise RecipeRefused("needs_eagle_block_drop is there already, in another shape.", "Look at it by hand.")
        config = work.edit(path)
        dspark = " or self.use_dspark()" if "SpeculativeConfig.use_dspark" in names else ""
        excepted = f"(self.use_dflash(){dspark})" if dspark else "self.use_dflash()"
        config.add_definition(
            "SpeculativeConfig.use_eagle",
            f'''
            def needs_eagle_block_drop(self) -> bool:
                """Whether draft KV at a position depends on the token after it."""
                return self.use_eagle() and not {excepted}
            ''',
        )
        if "SpeculativeConfig.use_eagle_block_drop" in names:
            config.replace(
                "SpeculativeConfig.use_eagle_block_drop", "self.use_eagle()", "self.needs_eagle_block_drop()"
            )
            work.edit(SCHEDULER).replace(
                "Scheduler.__init__",
                "self.use_eagle and not self.use_eagle_block_drop",
                "speculative_config.needs_eagle_block_drop() and not self.use_eagle_block_drop",
            )
            return
        self._groups(work)
        self._scheduler(work)

    def _groups(self, work: Workspace) -> None:
        """Functions that mark the KV groups whose last block is dropped."""
        path = "vllm/v1/core/kv_cache_utils.py"
        marking = {a.scope for a in work.index.outline(path).assigns if a.target.endswith(".is_eagle_group")}
        for scope in sorted(marking):
            work.edit(path).replace(scope, "spec_config.use_eagle()", "spec_config.needs_eagle_block_drop()")

    def _scheduler(self, work: Workspace) -> None:
        scheduler = work.edit(SCHEDULER)
        scheduler.replace_argument("Scheduler.__init__", "KVCacheManager", "use_eagle", "self.use_eagle_block_drop")
        scheduler.insert_after(
            "Scheduler.__init__",
            "self.use_eagle = False",
            """
            self.use_eagle_block_drop = (
                speculative_config is not None
                and speculative_config.needs_eagle_block_drop()
            )
            """,
        )
        scheduler.replace(
            "Scheduler._mamba_block_aligned_split",
            """
            if self.use_eagle:
                last_cache_position = max(last_cache_position - block_size, 0)
            """,
            """
            if self.use_eagle_block_drop:
                last_cache_position = max(last_cache_position - block_size, 0)
            """,
        )

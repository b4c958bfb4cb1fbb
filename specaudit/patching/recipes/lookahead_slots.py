"""``lookahead-slots``: the scheduler reserves a KV slot for everything that the drafter writes."""

from __future__ import annotations

from specaudit.patching.recipes.base import Recipe
from specaudit.patching.workspace import Workspace

ONE_SHORT = "dflash-lookahead-slot-missing"
ZEROED = "first-prefill-lookahead-zeroed"


class LookaheadSlots(Recipe):
    """Two places where the drafter writes KV into slots that were never reserved (vllm#43733, #41971).

    DFlash fills in: one query for the bonus token and one per draft token, one more than is reserved. And on the first
    step of a request nothing is reserved at all, a workaround for prefill and decode on separate hosts, although the
    drafter runs in that same step; it is needed only while KV is loaded from elsewhere.
    """

    name = "lookahead-slots"
    version = "1"
    summary = "KV slots are reserved for every row that the drafter writes, from the first step on"
    repairs = (ONE_SHORT, ZEROED)

    def write(self, work: Workspace, present: frozenset[str]) -> None:
        """Both are in the scheduler."""
        scheduler = work.edit("vllm/v1/core/sched/scheduler.py")
        if ONE_SHORT in present:
            scheduler.insert_before(
                "Scheduler.__init__",
                """
                if speculative_config.uses_draft_model():
                    self.num_lookahead_tokens = self.num_spec_tokens
                """,
                """
                if speculative_config.use_dflash():
                    # One query for the bonus token, one for each draft token.
                    self.num_lookahead_tokens = self.num_spec_tokens + 1
                """,
            )
        if ZEROED in present:
            scheduler.replace(
                "Scheduler.schedule",
                """
                effective_lookahead_tokens = (
                    0 if request.num_computed_tokens == 0 else self.num_lookahead_tokens
                )
                """,
                """
                effective_lookahead_tokens = (
                    0 if load_kv_async else self.num_lookahead_tokens
                )
                """,
            )

"""``gdn-state-index``: a recurrent kernel never reads the state table in front of its first column."""

from __future__ import annotations

import re

from specaudit.errors import RecipeRefused
from specaudit.patching.recipes.base import Recipe
from specaudit.patching.workspace import Workspace

_LOAD = re.compile(r"tl\.load\(num_accepted_tokens(_ptr)? \+ \w+\)\.to\(tl\.int64\) - 1")


class GdnStateIndex(Recipe):
    """GDN and KDA decode kernels index a request's states with "accepted tokens - 1", which nothing bounds.

    When no draft of a request was scheduled (all of them placeholders) the count is 0 and the index is -1: a read in
    front of the table, then an illegal address within a few requests. Column 0, the state before the drafts, is what
    such a request needs.
    """

    name = "gdn-state-index"
    version = "1"
    summary = "Hybrid GDN and KDA models do not read a state in front of the state table"
    repairs = ("gdn-accepted-index-unbounded",)

    def write(self, work: Workspace, present: frozenset[str]) -> None:
        """Every kernel that loads the count so, those of convolution states with it."""
        found = 0
        for path in work.index.mentioning(b"tl.load(num_accepted_tokens"):
            for assign in work.index.outline(path).assigns:
                load = _LOAD.search(assign.value)
                if load is None or f"tl.maximum({assign.target}, 0)" in work.index.source(path):
                    continue
                # A request without drafts has accepted nothing: its state is in the first column.
                work.edit(path).replace(assign.scope, load[0], f"tl.maximum({load[0]}, 0)")
                found += 1
        if not found:
            raise RecipeRefused("no kernel loads the count in the known way", "Report it.")

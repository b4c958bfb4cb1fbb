"""``gdn-state-index``: a recurrent kernel never reads the state table in front of its first column."""

from __future__ import annotations

import re

from specaudit.errors import RecipeRefused
from specaudit.patching.recipes.base import Recipe
from specaudit.patching.workspace import Workspace

_LOAD = re.compile(rb"= tl\.load\(num_accepted_tokens \+ i_n\)\.to\(tl\.int64\) - 1$", re.MULTILINE)


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
        """Every kernel that loads the count so."""
        found = 0
        for path in work.index.mentioning(b"num_accepted_tokens + i_n"):
            if not _LOAD.search(work.index.snapshot.read(path)):
                continue
            for assign in work.index.outline(path).assigns:
                if assign.value == "tl.load(num_accepted_tokens + i_n).to(tl.int64) - 1":
                    work.edit(path).replace(
                        assign.scope,
                        f"{assign.target} = tl.load(num_accepted_tokens + i_n).to(tl.int64) - 1",
                        f"""
                        # A request without drafts has accepted nothing: column 0.
                        {assign.target} = tl.maximum(
                            tl.load(num_accepted_tokens + i_n).to(tl.int64) - 1, 0
                        )
                        """,
                    )
                    found += 1
        if not found:
            raise RecipeRefused("no kernel loads the count in the known way", "Report it.")

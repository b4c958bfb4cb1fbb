"""The trees of all request slots, and the static batch-ordered buffers that captured graphs read.

Letters as in layout.py; S is the number of request slots (max_num_seqs). The engine's own idx_mapping (batch row ->
slot) has no fixed address, so what a graph needs is gathered into batch order every step (rows.prepare).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..launch import Fixed
from ..layout import Tree, Walk
from .exact import Exact
from .settings import Settings

VOID, CHAIN, TREE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Step:
    """What this step's batch is, known on the CPU.

    requests: leading requests whose whole query is root + draft rows. rows: their query rows. tree: whether attention,
    positions and walk treat them as trees (else the engine's stock path runs, untouched). uniform: whether the batch is
    nothing but trees of 1 + N rows, so that a graph of them may run, with padding requests behind it. as_chains:
    whether the trees are verified as their greedy chains, which the stock path does.
    """

    requests: int
    rows: int
    tree: bool
    uniform: bool = False
    as_chains: bool = False


class TreeState:
    """All device and host state that the hooks share; made by the speculator, one per engine process."""

    def __init__(self, settings: Settings, slots: int, device: torch.device) -> None:
        self.settings = settings
        self.horizon = settings.horizon
        # rows of a whole tree, and room: where N < K, a chain that was drafted while the batch was large may meet trees
        self.rows = 1 + settings.budget
        self.nodes = settings.width
        self.slots = Tree.empty(slots, self.nodes, settings.horizon, device, token_dtype=torch.int64)
        self.slots.num_rows.fill_(1)
        self.chains = torch.zeros(slots, settings.horizon, dtype=torch.int64, device=device)  # the greedy ones
        self.batch = Tree.empty(slots, self.nodes, settings.horizon, device, token_dtype=torch.int64)
        self.walk = Walk.empty(slots, self.batch.max_depth, device, token_dtype=torch.int64)
        # keys of the context part of attention: the tokens before the root, and the root
        self.context_lens = torch.zeros(slots, dtype=torch.int32, device=device)
        moved = ("parents", "depths", "first_child", "next_sibling", "ancestors", "num_rows")
        held = [getattr(trees, name) for trees in (self.slots, self.batch) for name in moved]
        self.staging = Fixed.of(self.context_lens, *held, 1 + self.nodes)  # of rows.prepare
        self.exact: Exact | None = None  # where rows are attended to as a chain's are, one by one
        # by slot; 0: chain-shaped
        self.budgets = torch.full((slots,), settings.budget, dtype=torch.int32, device=device)
        self._sent_budgets = np.full(slots, settings.budget, dtype=np.int32)  # what V2 has put there
        self.kinds = np.zeros(slots, dtype=np.int8)  # what each slot's drafts are: VOID, CHAIN or TREE
        self.step: Step | None = None
        self.custom_processors = False  # whether the engine has logits processors that it does not know itself

    def begin_step(self, state: Any, uniform: int | None) -> int | None:
        """Hook of gather_batch_req_state: classifies the batch and returns the uniform length that may pick a graph.

        A graph of length 1 + N attends over trees; every other graph is the stock chain's, so a batch that holds a tree
        of another length gets no uniform graph (it runs piecewise, with tree attention). Beside prompts there is none
        anyway, attention is launched by the host, and a tree's would take twice as many launches: there trees are
        verified as chains, unless the settings say otherwise. The rows are as many as were drafted, 1 + N.
        """
        if state is None:
            self.step = None
            return uniform
        drafts = state.num_draft_tokens_np
        if drafts is None:
            self.step = Step(0, 0, False)
            return uniform
        whole = (drafts > 0) & (state.num_scheduled_tokens == drafts + 1)
        cut = int(whole.argmin())
        requests = len(whole) if whole[cut] else cut
        slots = state.idx_mapping_np[:requests]
        kinds = self.kinds[slots].tolist()  # a list: of a few values, numpy would take longer to ask
        has_tree = TREE in kinds
        if VOID in kinds:
            self._forget_trees(slots)
        graph = uniform == self.rows  # of trees
        as_chains = (
            has_tree and state.has_prefill and requests < len(whole) and not graph and self.settings.mixed == "chain"
        )
        tree = requests > 0 and not as_chains and (has_tree or graph)
        rows = int(state.num_scheduled_tokens[:requests].sum())
        self.step = Step(requests, rows, tree, graph, as_chains)
        return uniform if graph or not has_tree else None

    def void(self, slot: int, chain_only: bool) -> None:
        """Hook of add_request: the slot belongs to a new (or resumed) request and has no drafts yet.

        Steps full of prompts take many requests in, and the host is what they wait for: nothing is launched here unless
        the slot's budget changes. The tree that the slot held goes when somebody would read it, see begin_step.
        """
        self.kinds[slot] = VOID
        budget = 0 if chain_only else self.settings.budget
        if self._sent_budgets[slot] != budget:
            self._sent_budgets[slot] = budget
            self.budgets[slot].fill_(budget)

    def _forget_trees(self, slots: np.ndarray) -> None:
        """Rows count as drafts although nothing was drafted for their slots, placeholders: each is a root alone."""
        for slot in slots[self.kinds[slots] == VOID]:
            self.slots.num_rows[slot].fill_(1)


def chain_only(params: Any, custom_processors: bool) -> bool:
    """Whether a request's logits processing depends on the tokens before the row, so that only a chain is right.

    Penalties, bad words, structured output and thinking budgets read the drafted prefix from the rows in order; a row
    of a bushy tree has another prefix than the rows above it.
    """
    if params is None:
        return False
    return bool(
        custom_processors
        or params.presence_penalty
        or params.frequency_penalty
        or params.repetition_penalty != 1.0
        or params.bad_words
        or params.structured_outputs is not None
        or getattr(params, "thinking_token_budget", None) is not None
    )

"""DFlash's speculator with a tree at its end: same drafter, same context handling, same graphs up to the draft logits.

K is the drafter's horizon, N the tree's nodes. The parent is built for K; only its last stage differs: from the draft
logits [B, K, V] the core builds each request's tree, writes it to the request's slot and hands the engine N token ids.
After a step with trees the accepted rows are put into chain order first, so that the drafter sees what it sees after a
chain of K tokens of which the rest was rejected.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.worker.gpu.spec_decode.dflash.speculator import DFlashSpeculator

from ..engine.commit import Commit
from ..engine.context import attach
from ..engine.order import Addresses, ChainStarts, compact
from ..engine.rows import prepare, read_chains
from ..engine.settings import Settings, read
from ..engine.slots import scatter, write_chains
from ..engine.state import CHAIN, TREE, TreeState
from ..kernels import best_first, draft_table
from ..layout import Table, Tree
from .graphs import offer_every_length
from .sampler import TreeRejectionSampler


class DDTreeSpeculator(DFlashSpeculator):
    """Drafts trees of N nodes, or the stock chain of K tokens when the scheduler asks for K."""

    _speculator_name = "DDTree"

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        settings = read(vllm_config)
        assert settings is not None
        chain_config = copy.copy(vllm_config)
        chain_config.speculative_config = copy.copy(vllm_config.speculative_config)
        chain_config.speculative_config.num_speculative_tokens = settings.horizon
        chain_config.speculative_config.num_speculative_tokens_per_batch_size = None
        super().__init__(chain_config, device)
        self.settings: Settings = settings
        self.tree = TreeState(settings, self.max_num_reqs, device)
        self.commit: Commit | None = None
        # The parent's draft_tokens stays [S, K]; the engine gets these.
        self.node_tokens = torch.zeros(
            self.max_num_reqs, vllm_config.num_speculative_tokens, dtype=torch.int64, device=device
        )
        self._proposed = Tree.empty(self.max_num_reqs, self.tree.nodes, settings.horizon, device, torch.int64)
        self._table = Table.empty(self.max_num_reqs, settings.horizon, self.tree.nodes, device)
        self._draft_budgets = torch.zeros(self.max_num_reqs, dtype=torch.int32, device=device)
        self._draw_trees = True
        # Attributes, not a dict: the engine's memory profiling finds and drops graph managers by looking at attributes.
        self.tree_graphs: Any = None
        self.chain_graphs: Any = None
        self._addresses = Addresses()
        self._chain_starts = ChainStarts(self.max_num_reqs, self.tree.batch.max_depth, device)
        bonus = settings.depth_bonus
        self._bonus = torch.full((settings.horizon,), bonus, device=device) if bonus else None

    # ---- hooks of the model runner ----

    def bind(self, runner: Any) -> None:
        """Hook of initialize_kv_cache: buffers for the target's attention, addresses of its caches, sampler, graphs."""
        offer_every_length(runner.cudagraph_manager)
        layers = runner.compilation_config.static_forward_context
        attach(runner.attn_groups, layers, self.draft_attn_layer_names, self.tree)
        runner.rejection_sampler = TreeRejectionSampler(
            runner.sampler, runner.speculative_config, runner.device, state=self.tree
        )
        processors = getattr(runner.sampler, "logits_processors", ())  # plugins' ones are in no configuration
        self.tree.custom_processors = any(not type(p).__module__.startswith("vllm.") for p in processors)
        self.commit = Commit(runner.kv_cache_config.kv_cache_groups, layers, self.draft_attn_layer_names)

    def prepare_rows(self, input_batch: Any, num_computed: Tensor, prefill_lens: Tensor) -> None:
        """Hook of prepare_attn, after the KV slots were computed from sequential positions."""
        step = self.tree.step
        if step is None:
            return
        slots, row_starts = input_batch.idx_mapping, input_batch.query_start_loc
        if step.as_chains:
            logit_starts = input_batch.cu_num_logits
            read_chains(self.tree, input_batch.input_ids, slots, row_starts, logit_starts, num_computed, prefill_lens)
        elif step.tree:
            prepare(self.tree, input_batch.positions, slots, row_starts, num_computed, prefill_lens, step.requests)

    def commit_rows(self, input_batch: Any, slot_mappings: Tensor) -> None:
        """Hook right after sampling: accepted KV rows to the first slots."""
        step = self.tree.step
        if step is not None and step.tree and self.commit is not None:
            self.commit.run(self.tree, slot_mappings, input_batch.query_start_loc[: step.requests + 1])

    # ---- graphs: one set that ends in a tree, one that ends in the stock chain ----

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """Two managers of the parent's kind, so that a chain step never pays for the tree's build."""
        super().init_cudagraph_manager(cudagraph_mode)
        self.tree_graphs = self.query_cudagraph_manager
        self.chain_graphs = None
        if self._uses_chain():
            super().init_cudagraph_manager(cudagraph_mode)
            self.chain_graphs = self.query_cudagraph_manager
        self._choose(trees=True)

    def capture(self) -> None:
        """Captures both."""
        for trees in (True, False) if self._uses_chain() else (True,):
            self._choose(trees)
            super().capture()
        self._choose(trees=True)

    def _uses_chain(self) -> bool:
        tiers = self.settings.schedule(self.max_num_reqs)
        return any(tokens == self.settings.horizon != self.settings.budget for _, _, tokens in tiers)

    def _choose(self, trees: bool) -> None:
        self._draw_trees = trees
        self.query_cudagraph_manager = self.tree_graphs if trees else self.chain_graphs

    # ---- drafting ----

    def propose(self, input_batch: Any, *args: Any, **kwargs: Any) -> Tensor:
        """As the parent; `num_speculative_tokens` chooses tree (N), chain (K) or nothing (0). [B, width] ids."""
        asked = kwargs.get("num_speculative_tokens")
        dummy = kwargs.get("dummy_run", False)
        self._choose(trees=asked != self.settings.horizon or asked == self.settings.budget)
        step = None if dummy else self.tree.step
        if step is not None and step.tree:
            input_batch, args = self._in_chain_order(input_batch, args)
        super().propose(input_batch, *args, **kwargs)
        if not dummy and asked != 0:
            self._publish(input_batch)
        self.tree.step = None  # over: a graph captured after warm-up steps must not be taken for one of them
        return self.node_tokens[: input_batch.num_reqs]

    def _publish(self, input_batch: Any) -> None:
        """What was drafted, as the engine's ids and as the slots' kind."""
        requests, slots = input_batch.num_reqs, input_batch.idx_mapping_np
        if self._draw_trees:
            self.tree.kinds[slots] = TREE
            return
        write_chains(self.tree, input_batch.idx_mapping, self.draft_tokens[:requests], self.node_tokens)
        self.tree.kinds[slots] = CHAIN

    def _in_chain_order(self, input_batch: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        step = self.tree.step
        assert step is not None
        attention, slots, last_hidden, aux, num_sampled, num_rejected, *rest = args
        starts, row_starts = self._chain_starts.of(input_batch.num_scheduled_tokens, step.requests, self._upload)
        order = compact(
            self.tree,
            aux,
            input_batch.positions,
            input_batch.query_start_loc,
            num_rejected,
            step,
            starts,
            row_starts,
            self._addresses,
        )
        view = copy.copy(input_batch)
        view.num_tokens = int(starts[-1])
        view.num_scheduled_tokens = np.diff(starts)
        view.query_start_loc, view.positions = row_starts, order.positions
        return view, (attention, slots, last_hidden, [order.hidden], num_sampled, order.rejected, *rest)

    def _upload(self, values: np.ndarray) -> Tensor:
        uploaded: Tensor = async_tensor_h2d(values, device=self.device)
        return uploaded

    def sample_draft(
        self, hidden_states: Tensor, sample_src_positions: Tensor, idx_mapping: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        """[B * K] ids of the greedy chain, as the parent; beside it the trees, when they are wanted."""
        if not self._draw_trees:
            return super().sample_draft(hidden_states, sample_src_positions, idx_mapping, *args, **kwargs)
        horizon, budget = self.settings.horizon, self.settings.budget
        requests = hidden_states.shape[0] // horizon
        logits = self.compute_draft_logits(hidden_states, 0).view(requests, horizon, -1)
        proposed = Tree(**{name: x[:requests] for name, x in self._proposed.tensors().items()}, horizon=horizon)
        table = Table(self._table.logprobs[:requests], self._table.ids[:requests], self._table.lse[:requests])
        slots = idx_mapping[::horizon].contiguous()  # one per request; -1 for padding
        budgets = self._draft_budgets[:requests]
        torch.index_select(self.tree.budgets, 0, slots.clamp(min=0), out=budgets)
        draft_table(logits, self.tree.nodes, out=table)
        best_first(table, budgets, self.settings.spine, self._bonus, out=proposed)
        chains = table.ids[:, :, 0]
        scatter(self.tree, proposed, chains, slots)
        self.node_tokens[:requests, :budget] = proposed.tokens[:, 1 : 1 + budget]
        return chains.flatten()

"""DFlash's V1 proposer with a tree at its end, and the hooks of the V1 model runner."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.spec_decode.dflash import DFlashProposer

from ..engine.commit import Commit
from ..engine.context import attach
from ..engine.order import Addresses, ChainStarts, compact
from ..engine.rows import prepare
from ..engine.settings import Settings, read
from ..engine.slots import scatter
from ..engine.state import Step, TreeState, chain_only
from ..kernels import best_first, draft_table
from ..layout import Table, Tree


class DDTreeProposer(DFlashProposer):
    """Drafts trees of N nodes: the parent is built for K, its draft logits [B, K, V] become a tree per request."""

    def __init__(self, vllm_config: Any, device: torch.device, runner: Any = None) -> None:
        settings = read(vllm_config)
        assert settings is not None
        chain_config = copy.copy(vllm_config)
        chain_config.speculative_config = copy.copy(vllm_config.speculative_config)
        chain_config.speculative_config.num_speculative_tokens = settings.horizon
        super().__init__(chain_config, device, runner)
        self.settings: Settings = settings
        self.runner = runner
        requests = self.max_batch_size
        self.tree = TreeState(settings, requests, device)
        self.commit: Commit | None = None
        self._nodes: Tensor | None = None  # what the last drafting gave, [B, N]
        self._proposed = Tree.empty(requests, self.tree.nodes, settings.horizon, device)
        self._table = Table.empty(requests, settings.horizon, self.tree.nodes, device)
        self._batch_rows = torch.arange(requests, dtype=torch.int64, device=device)
        self._previous = torch.empty(requests, dtype=torch.int64, pin_memory=True)
        self._chain_only: dict[str, bool] = {}
        self._addresses = Addresses()
        self._chain_starts = ChainStarts(requests, self.tree.batch.max_depth, device)
        self._walks = False  # whether this step holds drafts, so that the sampler walks its trees
        self._widen(vllm_config.compilation_config.max_cudagraph_capture_size or 0)
        bonus = settings.depth_bonus
        self._bonus = torch.full((settings.horizon,), bonus, device=device) if bonus else None

    def _widen(self, rows: int) -> None:
        """The drafter's rows are padded to the engine's graph sizes, multiples of 1 + N: more than the parent, which
        was made for multiples of 1 + K, has room for. Padding reads position 0 and writes no KV."""
        rows = max(rows, self.max_query_tokens)
        self.positions = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self._slot_mapping_buffer = torch.zeros(rows, dtype=torch.int64, device=self.device)

    # ---- hooks of the model runner ----

    def bind(self) -> None:
        """Hook of initialize_kv_cache: buffers for the target's attention, addresses of its caches, the sampler."""
        from .sampler import TreeRejectionSampler

        runner = self.runner
        runner.rejection_sampler = TreeRejectionSampler(runner.sampler, runner.speculative_config, runner.device, self)
        layers = self.runner.compilation_config.static_forward_context
        attach(self.runner.attn_groups, layers, self._draft_attn_layer_names, self.tree)
        # the runner's own sorting: what decodes comes first, so that no tree of a mixed batch lies behind a prompt
        runner.reorder_batch_threshold = self.tree.rows
        self.commit = Commit(self.runner.kv_cache_config.kv_cache_groups, layers, self._draft_attn_layer_names)

    def begin_step(self, scheduler_output: Any, num_scheduled: np.ndarray) -> None:
        """Hook of _prepare_inputs, after the KV slots were computed: classifies the batch and prepares its rows.

        A batch in which every request has 1 + N rows replays the graph of that length, so all of it goes through tree
        attention; a request in it that has no tree (a prompt chunk of that very length) is a chain there.
        """
        runner, requests = self.runner, len(num_scheduled)
        scheduled = scheduler_output.scheduled_spec_decode_tokens
        batch = runner.input_batch
        drafts = np.array([len(scheduled.get(r, ())) for r in batch.req_ids[:requests]], dtype=np.int32)
        self._walks = bool(drafts.any())
        decodes = batch.num_computed_tokens_cpu[:requests] >= batch.num_prompt_tokens[:requests]
        whole = (drafts > 0) & (num_scheduled == drafts + 1) & decodes & (runner.prev_positions.np[:requests] >= 0)
        uniform = bool((num_scheduled == self.tree.rows).all())
        trees = requests if uniform or whole.all() else int(np.argmin(whole))
        has_trees = trees > 0 and bool(uniform or whole.any())
        self.tree.step = Step(trees, int(num_scheduled[:trees].sum()), has_trees, uniform)
        if not self.tree.step.tree:
            return
        previous = self._previous[:requests]
        previous.numpy()[:] = np.where(whole, runner.prev_positions.np[:requests], -1)
        prepare(
            self.tree,
            runner.positions,
            previous.to(self.device, non_blocking=True),
            runner.query_start_loc.gpu[: requests + 1],
            runner.num_computed_tokens,
            None,
            trees,
        )

    def commit_rows(self) -> None:
        """Hook right after sampling: accepted KV rows to the first slots."""
        step = self.tree.step
        if step is not None and step.tree and self._walks and self.commit is not None:
            tables = self.runner.input_batch.block_table
            slots = [tables[gid].slot_mapping.gpu for gid in range(len(self.runner.kv_cache_config.kv_cache_groups))]
            self.commit.run(self.tree, slots, self.runner.query_start_loc.gpu[: step.requests + 1])

    def void(self) -> None:
        """Hook where the runner zeroes its drafts: nobody proposed them, so no request has a tree."""
        self.tree.slots.num_rows.fill_(1)
        self.tree.step = None

    # ---- drafting ----

    def propose(self, *args: Any, **kwargs: Any) -> Tensor:
        """As the parent, with [B, N] node ids instead of [B, K]."""
        assert not args, "the runner calls with keywords"
        step = self.tree.step
        if step is not None and step.tree and self._walks:
            kwargs = self._in_chain_order(kwargs)
        self._set_budgets(kwargs["common_attn_metadata"].batch_size())
        super().propose(**kwargs)
        self.tree.step = None  # over: a graph captured after warm-up steps must not be taken for one of them
        assert self._nodes is not None
        return self._nodes

    def _set_budgets(self, requests: int) -> None:
        """0 (a chain-shaped tree) for requests whose processors read the drafted prefix."""
        known, current = self._chain_only, {}
        for request_id in self.runner.input_batch.req_ids[:requests]:
            if request_id not in known:
                state = self.runner.requests.get(request_id)
                params = state and state.sampling_params
                known[request_id] = chain_only(params, bool(self.runner.model_config.logits_processors))
            current[request_id] = known[request_id]
        if any(current.values()) or any(known.values()):
            budgets = [0 if chain else self.settings.budget for chain in current.values()]
            self.tree.budgets[:requests].copy_(torch.tensor(budgets, dtype=torch.int32), non_blocking=True)
        self._chain_only = current

    def _in_chain_order(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        step, common = self.tree.step, kwargs["common_attn_metadata"]
        assert step is not None
        requests, starts = common.num_reqs, common.query_start_loc_cpu
        lengths = (starts[1 : requests + 1] - starts[:requests]).numpy()
        new_starts, row_starts = self._chain_starts.of(lengths, step.requests, self._upload)
        kept = np.diff(new_starts)
        gone = lengths.astype(np.int32) - kept
        lost = int(gone[0]) if (gone == gone[0]).all() else self._upload(gone)
        order = compact(
            self.tree,
            [kwargs["target_hidden_states"]],
            kwargs["target_positions"],
            common.query_start_loc[: requests + 1],
            kwargs["num_rejected_tokens_gpu"],
            step,
            new_starts,
            row_starts,
            self._addresses,
        )
        rows = int(new_starts[-1])
        view = replace(
            common,
            query_start_loc=row_starts,
            query_start_loc_cpu=torch.from_numpy(new_starts.copy()),
            num_actual_tokens=rows,
            max_query_len=int(kept.max()),
            seq_lens=common.seq_lens[:requests] - lost,
        )
        return kwargs | {
            "target_token_ids": kwargs["target_token_ids"][:rows],
            "target_positions": order.positions,
            "target_hidden_states": order.hidden,
            "common_attn_metadata": view,
            "num_rejected_tokens_gpu": order.rejected,
        }

    def _upload(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).pin_memory().to(self.device, non_blocking=True)

    def _greedy_sample(self, hidden_states: Tensor) -> Tensor:
        """[B * K] ids of the greedy chain, as the parent; beside it the trees."""
        horizon, budget = self.settings.horizon, self.settings.budget
        requests = hidden_states.shape[0] // horizon
        logits = self.model.compute_logits(hidden_states).view(requests, horizon, -1)
        proposed = Tree(**{name: x[:requests] for name, x in self._proposed.tensors().items()}, horizon=horizon)
        table = Table(self._table.logprobs[:requests], self._table.ids[:requests], self._table.lse[:requests])
        draft_table(logits, self.tree.nodes, out=table)
        best_first(table, self.tree.budgets[:requests], self.settings.spine, self._bonus, out=proposed)
        chains = table.ids[:, :, 0]  # kept with the trees, for V2's steps with prompts
        scatter(self.tree, proposed, chains, self._batch_rows[:requests])
        self._nodes = proposed.tokens[:, 1 : 1 + budget].clone()  # the runner reads them after the next drafting began
        return chains.flatten()

"""``ddtree-v1``: tree drafting, tree attention and a tree-walk sampler in the V1 runner, all on the GPU."""

from __future__ import annotations

from specaudit.index import Index
from specaudit.patching.recipes.base import Recipe
from specaudit.patching.recipes.ddtree_files import (
    CONFIG,
    EXACT_NOTE,
    MODULE,
    edit_attention,
    edit_configuration,
    expect,
    install_package,
    tree_verdict,
)
from specaudit.patching.workspace import Workspace

RUNNER = "vllm/v1/worker/gpu_model_runner.py"
SCHEDULER = "vllm/v1/core/sched/scheduler.py"
READ = f"from {MODULE}.engine.settings import read as read_ddtree"
#: What the installed modules override and call, with the parameters they rely on.
RELIED_ON = {
    "vllm/v1/spec_decode/dflash.py": {
        "DFlashProposer.__init__": "self vllm_config device runner",
        "DFlashProposer.set_inputs_first_pass": "self target_token_ids next_token_ids target_positions "
        "target_hidden_states token_indices_to_sample cad num_rejected_tokens_gpu",
    },
    "vllm/v1/spec_decode/llm_base_proposer.py": {
        "SpecDecodeBaseProposer._greedy_sample": "self hidden_states",
        "SpecDecodeBaseProposer.propose": "self target_token_ids target_positions target_hidden_states next_token_ids "
        "token_indices_to_sample common_attn_metadata sampling_metadata mm_embed_inputs num_rejected_tokens_gpu",
    },
    "vllm/v1/sample/rejection_sampler.py": {
        "RejectionSampler.__init__": "self sampler spec_config device",
        "RejectionSampler.forward": "self metadata draft_probs logits sampling_metadata",
        "RejectionSampler.apply_logits_processors": "self logits sampling_metadata metadata",
        "RejectionSampler._combine_outputs_with_spec_tokens": "output_token_ids spec_token_ids",
        "apply_sampling_constraints": "logits cu_num_draft_tokens sampling_metadata",
    },
    RUNNER: {
        "GPUModelRunner._prepare_inputs": "self scheduler_output num_scheduled_tokens",
        "GPUModelRunner._compute_prev_positions": "self num_reqs",
        "GPUModelRunner._may_reorder_batch": "self scheduler_output",
    },
}


class DDTreeV1(Recipe):
    """DDTree (arXiv:2604.12989) on top of a DFlash drafter for releases in which DFlash runs on V1 (0.20.x).

    Off until ``additional_config={"ddtree": {"budget": N}}`` asks for it. A tree on a drafter that reads the wrong
    layers buys nothing, so the layer ids are mended first.
    """

    name = "ddtree-v1"
    version = "1"
    summary = "draft trees from a DFlash drafter, verified by a tree walk, in the V1 runner; off until switched on"
    requires = ("dflash-layer-ids",)
    siblings = ("ddtree",)
    notes = (
        'Switched on by --additional-config \'{"ddtree": {"budget": 16}}\' beside a DFlash speculative configuration; '
        "budget is the number of tree nodes (1 to 128).",
        "Static per engine: trees when --max-num-seqs is at most max_batch, else the stock chain.",
        "Needs asynchronous scheduling, which is the default.",
        "V1 drafts nothing for a batch that comes within two trees of --max-model-len: leave room behind the longest "
        "answer.",
        EXACT_NOTE,
        "Experimental. Run on an H200 (sm_90) with 0.20.1, dflash-layer-ids and a small pair, temperature 0: "
        "acceptance length 3.40 (16 nodes) and 3.88 (64) against 2.68 of the chain; with exact, all outputs equal the "
        "chain's at batch 1, 8 and 32; tokens per second at batch 1 1.17 and 1.26 times the chain's.",
        "Compiled for sm_80, sm_100 and sm_120, and not run there.",
    )

    def write(self, work: Workspace, present: frozenset[str]) -> None:
        """New files, then attention, configuration, scheduler; the runner, which is the switch, last."""
        expect(work, RELIED_ON)
        install_package(work, "v1")
        edit_attention(work)
        edit_configuration(work, "v1")
        self._reservations(work)
        self._runner(work)

    def _reservations(self, work: Workspace) -> None:
        """Tokens and KV slots are reserved for the drafter's K + 1 rows, not for N nodes."""
        work.edit(CONFIG).insert_after(
            "VllmConfig._set_max_num_scheduled_tokens",
            "max_num_batched_tokens = self.scheduler_config.max_num_batched_tokens",
            f"""
            {READ}

            if (ddtree := read_ddtree(self)) is not None and ddtree.horizon:
                scheduled_token_delta = (ddtree.horizon - 1) * self.scheduler_config.max_num_seqs
            """,
        )
        work.edit(CONFIG).replace(
            "VllmConfig._set_max_num_scheduled_tokens",
            """
            max_num_batched_tokens < max_num_scheduled_tokens + (
                self.speculative_config.max_num_new_slots_for_drafting * self.scheduler_config.max_num_seqs
            )
            """,
            "max_num_batched_tokens < max_num_scheduled_tokens + scheduled_token_delta",
        )
        work.edit(SCHEDULER).insert_after(
            "Scheduler.__init__",
            "self.use_eagle = True",
            f"""
            {READ}

            if (ddtree := read_ddtree(vllm_config)) is not None and ddtree.horizon:
                self.ddtree_lookahead = max(self.num_spec_tokens, ddtree.horizon + 1)
            """,
        )
        work.edit(SCHEDULER).insert_before(
            "Scheduler.__init__",
            "self.kv_cache_manager = __any",
            """
            self.num_lookahead_tokens = max(self.num_lookahead_tokens, getattr(self, "ddtree_lookahead", 0))
            """,
        )

    def _runner(self, work: Workspace) -> None:
        runner = work.edit(RUNNER)
        runner.add_import("DFlashProposer", "hooks as ddtree_hooks", module=f"{MODULE}.engine")
        runner.insert_after(
            "GPUModelRunner._prepare_inputs",
            """
            self.input_batch.block_table.compute_slot_mapping(
                num_reqs,
                self.query_start_loc.gpu[: num_reqs + 1],
                self.positions[:total_num_scheduled_tokens],
            )
            """,
            """
            if ddtree_hooks.tree_of(getattr(self, "drafter", None)) is not None:
                self.drafter.begin_step(scheduler_output, num_scheduled_tokens)
            """,
        )
        runner.insert_after(
            "GPUModelRunner.sample_tokens",
            "sampler_output = self._sample(logits, spec_decode_metadata)",
            """
            if ddtree_hooks.tree_of(getattr(self, "drafter", None)) is not None:
                self.drafter.commit_rows()
            """,
        )
        runner.insert_after(
            "GPUModelRunner.sample_tokens",
            "self._copy_draft_token_ids_to_cpu(scheduler_output, zeros_only=True)",
            """
            if ddtree_hooks.tree_of(self.drafter) is not None:
                self.drafter.void()
            """,
        )
        runner.insert_after(
            "GPUModelRunner.initialize_kv_cache",
            "kv_caches = self.initialize_kv_cache_tensors(kv_cache_config, kernel_block_sizes)",
            """
            if ddtree_hooks.tree_of(getattr(self, "drafter", None)) is not None:
                self.drafter.bind()
            """,
        )
        runner.insert_after(
            "GPUModelRunner.__init__",
            "self.drafter = DFlashProposer(self.vllm_config, self.device, self)",
            f"""
            {READ}

            if read_ddtree(self.vllm_config) is not None:
                from {MODULE}.v1.proposer import DDTreeProposer

                self.drafter = DDTreeProposer(self.vllm_config, self.device, self)
            """,
        )

    def check(self, before: Index, after: Index) -> tuple[str, ...]:
        """The scan of the patched tree says that trees are drafted, masked and walked."""
        return tree_verdict(after)

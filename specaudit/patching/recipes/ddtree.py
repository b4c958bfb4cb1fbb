"""``ddtree``: tree drafting, tree attention and a tree-walk sampler in the V2 runner, all on the GPU."""

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

RUNNER = "vllm/v1/worker/gpu/model_runner.py"
FACTORY = "vllm/v1/worker/gpu/spec_decode/__init__.py"
SPEC = "vllm/v1/worker/gpu/spec_decode"
#: What the installed modules override and call, with the parameters they rely on.
RELIED_ON = {
    f"{SPEC}/dflash/speculator.py": {
        "DFlashSpeculator.__init__": "self vllm_config device",
        "DFlashSpeculator.init_cudagraph_manager": "self cudagraph_mode",
        "DFlashSpeculator.capture": "self",
        "DFlashSpeculator.propose": "self input_batch attn_metadata slot_mappings last_hidden_states aux_hidden_states "
        "num_sampled num_rejected last_sampled next_prefill_tokens temperature seeds",
    },
    f"{SPEC}/speculator.py": {
        "DraftModelSpeculator.sample_draft": "self hidden_states sample_src_positions idx_mapping",
        "DraftModelSpeculator.compute_draft_logits": "self hidden_states spec_step_idx",
    },
    f"{SPEC}/rejection_sampler.py": {
        "get_max_chunk_logits": "vocab_size",
        "RejectionSampler.__init__": "self sampler spec_config device",
        "RejectionSampler.__call__": "self logits input_batch draft_logits invalid_drafts",
        "RejectionSampler._verify": "self logits draft_logits draft_sampled pos cu_num_logits idx_mapping "
        "idx_mapping_np expanded_idx_mapping expanded_local_pos seq_lens_upper_bound_np verify_draft_sampled",
        "RejectionSampler._verify_in_chunks": "self logits input_batch draft_logits draft_sampled pos "
        "max_chunk_logits max_num_logprobs verify_draft_sampled",
        "RejectionSampler._get_logprobs_tensors": "self sampled num_sampled logits cu_num_logits cu_num_logits_np "
        "max_num_logprobs",
    },
    "vllm/v1/worker/gpu/input_batch.py": {
        "get_num_sampled_and_rejected": "num_sampled seq_lens cu_num_logits idx_mapping prefill_len",
    },
    "vllm/v1/worker/gpu/sample/gumbel.py": {
        "gumbel_sample": "logits expanded_idx_mapping temperature seed pos apply_temperature is_drafting",
    },
    "vllm/v1/worker/gpu/sample/sampler.py": {
        "Sampler.apply_sampling_params": "self logits expanded_idx_mapping idx_mapping idx_mapping_np pos input_ids "
        "expanded_local_pos seq_lens_upper_bound_np",
    },
}


class DDTree(Recipe):
    """DDTree (arXiv:2604.12989) on top of a DFlash drafter, asked for in vllm#40809.

    Off until ``additional_config={"ddtree": {"budget": N}}`` asks for it: without it, every hook returns at once.
    """

    name = "ddtree"
    version = "1"
    summary = "draft trees from a DFlash drafter, verified by a tree walk, in the V2 runner; off until switched on"
    siblings = ("ddtree-v1",)
    notes = (
        'Switched on by --additional-config \'{"ddtree": {"budget": 16}}\' beside a DFlash speculative configuration; '
        "budget is the number of tree nodes (1 to 512).",
        "It runs the target on FLASH_ATTN. Where stock would pick another backend (FLASHINFER on Blackwell), compare "
        "with the chain on that one, too.",
        EXACT_NOTE,
        'Steps that hold prompts, too, verify each tree\'s greedy chain, on the stock path; "mixed": "tree" beside the '
        "budget verifies the trees there, which pays where the GPU bounds a step.",
        "Experimental. Run on an H200 (sm_90) with 0.33.0 and a small pair, temperature 0: acceptance length 3.42 (16 "
        "nodes) and 3.86 (64) against 2.67 of the chain; with exact, all outputs equal the chain's at batch 1, 8 and "
        "32; tokens per second 1.24 to 1.50 times the chain's at batch 1 (64), 1.38 and 1.19 (16) at 8 and 32.",
        "Compiled for sm_80, sm_100 and sm_120, and not run there.",
    )

    def write(self, work: Workspace, present: frozenset[str]) -> None:
        """New files, then attention, configuration and runner; the factory, which is the switch, last."""
        expect(work, RELIED_ON)
        install_package(work, "v2")
        edit_attention(work)
        edit_configuration(work, "v2")
        self._lookahead(work)
        self._runner(work)
        work.edit(FACTORY).insert_before(
            "init_speculator",
            "from vllm.v1.worker.gpu.spec_decode.dflash.speculator import DFlashSpeculator",
            f"""
            from {MODULE}.engine.settings import read as read_ddtree

            if read_ddtree(vllm_config) is not None:
                from {MODULE}.v2.speculator import DDTreeSpeculator

                return DDTreeSpeculator(vllm_config, device)
            """,
        )

    def _lookahead(self, work: Workspace) -> None:
        """The drafter writes K + 1 rows of KV, however many nodes are scheduled."""
        work.edit(CONFIG).insert_after(
            "VllmConfig.num_lookahead_tokens",
            """
            if speculative_config is None:
                return 0
            """,
            f"""
            from {MODULE}.engine.settings import read as read_ddtree

            if (ddtree := read_ddtree(self)) is not None and ddtree.horizon:
                return ddtree.horizon + 1
            """,
        )

    def _runner(self, work: Workspace) -> None:
        runner = work.edit(RUNNER)
        runner.add_import("init_speculator", "hooks as ddtree_hooks", module=f"{MODULE}.engine")
        runner.insert_after(
            "GPUModelRunner.add_requests",
            "req_index = self.req_states.req_id_to_index[req_id]",
            """
            ddtree_hooks.new_request(
                self.speculator, req_index, sampling_params, bool(self.model_config.logits_processors)
            )
            """,
        )
        runner.replace(
            "GPUModelRunner.gather_batch_req_state",
            "get_uniform_decode_token_count(num_reqs, num_toks, max_query_len, decode_graph_eligible)",
            """ddtree_hooks.classify(
                self.speculator,
                batch_state,
                get_uniform_decode_token_count(num_reqs, num_toks, max_query_len, decode_graph_eligible),
            )""",
        )
        runner.insert_before(
            "GPUModelRunner.prepare_attn",
            "return block_tables, slot_mappings",
            """
            if ddtree_hooks.tree_of(self.speculator) is not None:
                self.speculator.prepare_rows(
                    input_batch, self.req_states.num_computed_tokens.gpu, self.req_states.prefill_len.gpu
                )
            """,
        )
        runner.insert_after(
            "GPUModelRunner.sample_tokens",
            """
            sampler_output, num_sampled, num_rejected = self.sample(hidden_states, input_batch, grammar_output)
            """,
            """
            if ddtree_hooks.tree_of(self.speculator) is not None:
                self.speculator.commit_rows(input_batch, self.block_tables.slot_mappings)
            """,
        )
        runner.insert_before(
            "GPUModelRunner.initialize_kv_cache",
            "self.model_state.initialize_kv_cache(self.kv_cache_config, self.block_tables)",
            """
            if ddtree_hooks.tree_of(self.speculator) is not None:
                self.speculator.bind(self)
            """,
        )

    def check(self, before: Index, after: Index) -> tuple[str, ...]:
        """The scan of the patched tree says that trees are drafted, masked and walked."""
        return tree_verdict(after)

"""``v1-draft-probs``: the V1 runner verifies against the drafter's distribution when it is asked to."""

from __future__ import annotations

from importlib.resources import files

from specaudit.errors import RecipeRefused
from specaudit.patching.recipes.base import Recipe
from specaudit.patching.workspace import Workspace

RUNNER = "vllm/v1/worker/gpu_model_runner.py"
MODULE = "vllm/v1/spec_decode/draft_probs.py"

#: (type in the configuration, option, value): ways in which a release lets a user ask for it, and V1 does not listen.
ASKING = (
    ("RejectionSampleMethod", "rejection_sample_method", "probabilistic"),
    ("DraftSampleMethod", "draft_sample_method", "gumbel"),
)


class V1DraftProbs(Recipe):
    """V1 hands its rejection sampler no draft distribution, whatever the configuration says (vllm#40149).

    Drafts are taken greedily and verified as certainties. With the recipe, a configuration that asks for it makes the
    drafter draw from its distribution and the sampler accept with min(1, p/q). The output distribution is the target's
    either way; what changes is how much is accepted at temperatures above zero.
    """

    name = "v1-draft-probs"
    version = "1"
    summary = "V1 draws drafts and verifies them against the draft distribution, where the configuration asks for it"
    repairs = ("v1-draft-probs-hardwired-none",)
    also = ("v1-rejection-method-literal-unhandled",)
    notes = (
        "Nothing changes until the speculative configuration asks for it: rejection_sample_method=probabilistic, or "
        "draft_sample_method=gumbel where that is the name.",
        "It keeps batch x drafts x vocabulary floats between two steps: 2.3 GB for 256 requests, 15 drafts and a "
        "vocabulary of 152k.",
        "Seeded requests stay correct in distribution, but their drafts are drawn from the global generator.",
    )

    def write(self, work: Workspace, present: frozenset[str]) -> None:
        """One module; the drafter's sampling; the runner, whose call of the rejection sampler is the switch."""
        option, value = self._asking(work)
        work.add(MODULE, files("specaudit.patching.payload").joinpath("draft_probs.py").read_bytes())
        drafter = work.edit(work.find_class("SpecDecodeBaseProposer", "vllm/v1/spec_decode"))
        drafter.insert_after(
            "SpecDecodeBaseProposer._greedy_sample",
            """
            if self.use_local_argmax_reduction:
                return self.model.get_top_tokens(hidden_states)
            """,
            """
            if (kept := getattr(self, "draft_probs", None)) is not None:
                logits = self.model.compute_logits(hidden_states)
                drawn = kept.sample(logits)
                return logits.argmax(dim=-1) if drawn is None else drawn
            """,
        )
        runner = work.edit(RUNNER)
        runner.add_import("SpecDecodeMetadata", "draft_probs", module="vllm.v1.spec_decode")
        runner.insert_before(
            "GPUModelRunner.propose_draft_token_ids",
            "num_scheduled_tokens = scheduler_output.total_num_scheduled_tokens",
            f"""
            if self.speculative_config.{option} == "{value}":
                draft_probs.begin(self, sampling_metadata)
            """,
        )
        runner.replace_argument(
            "GPUModelRunner._sample",
            "self.rejection_sampler",
            1,
            "draft_probs.recall(self, spec_decode_metadata, logits.shape[-1])",
        )

    def _asking(self, work: Workspace) -> tuple[str, str]:
        path = work.find_class("SpeculativeConfig", "vllm/config")
        values = {a.target: a.value for a in work.index.outline(path).assigns if not a.scope}
        for kind, option, value in ASKING:
            if f'"{value}"' in values.get(kind, ""):
                return option, value
        raise RecipeRefused("the configuration has no option that asks for it", "Nothing can switch it on here.")

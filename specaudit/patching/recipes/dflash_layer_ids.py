"""``dflash-layer-ids``: DFlash's layer ids counted as the hooks count them, and held in the compile-cache key."""

from __future__ import annotations

from specaudit.patching.recipes.base import Recipe
from specaudit.patching.workspace import Workspace

SHIFT = "dflash-target-layer-ids-off-by-one"
CACHE_KEY = "dflash-layer-ids-missing-from-compile-hash"


class DFlashLayerIds(Recipe):
    """Two defects that hide each other.

    A DFlash checkpoint counts outputs of layers, vLLM's hooks count inputs (vllm#40727). And the key of the
    torch.compile cache does not hold the ids, so that after the shift alone the graph compiled without it is loaded
    again: acceptance length 1.816 in place of 2.679, seen on an H200 with 0.20.1.
    """

    name = "dflash-layer-ids"
    version = "1"
    summary = "DFlash reads the target layers that its checkpoint names, without disabling the compile cache"
    repairs = (SHIFT, CACHE_KEY)
    notes = (
        "The first start after it compiles once more: the key of the compile cache changes with it, and changes back "
        "with a revert.",
    )

    def write(self, work: Workspace, present: frozenset[str]) -> None:
        """The key first; then checkpoints in the other format, which count inputs; the runner last."""
        if CACHE_KEY in present:
            self._key(work)
        if SHIFT in present:
            self._speculators(work)
            self._runner(work)

    def _key(self, work: Workspace) -> None:
        config = work.edit(work.find_class("SpeculativeConfig", "vllm/config"))
        config.insert_before(
            "SpeculativeConfig.compute_hash",
            "hash_str = safe_hash(str(factors).encode(), usedforsecurity=False).hexdigest()",
            """
            # The layers that a block drafter reads are named elsewhere in its checkpoint.
            if uses_aux_hidden_states and self.draft_model_config is not None:
                hf_config = self.draft_model_config.hf_config
                dflash_config = getattr(hf_config, "dflash_config", None) or {}
                factors.append(str(dflash_config.get("target_layer_ids")))
                factors.append(str(getattr(hf_config, "target_layer_ids", None)))

            """,
        )

    def _speculators(self, work: Workspace) -> None:
        algos = work.edit("vllm/transformers_utils/configs/speculators/algos.py")
        algos.replace(
            "update_dflash",
            """
            pre_trained_config["dflash_config"] = {
                "mask_token_id": __mask,
                "target_layer_ids": aux_layer_ids,
            }
            """,
            """
            # This format counts layer inputs, a DFlash configuration layer outputs.
            pre_trained_config["dflash_config"] = {
                "mask_token_id": __mask,
                "target_layer_ids": [i - 1 for i in aux_layer_ids],
            }
            """,
        )

    def _runner(self, work: Workspace) -> None:
        runner = work.edit("vllm/v1/worker/gpu_model_runner.py")
        runner.replace(
            "GPUModelRunner._get_eagle3_aux_layers_from_config",
            'layer_ids = dflash_config.get("target_layer_ids")',
            """
            # DFlash counts layer outputs, the hooks count layer inputs.
            layer_ids = [
                i + 1 for i in dflash_config.get("target_layer_ids") or []
            ]
            """,
        )

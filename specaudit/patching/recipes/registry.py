"""All recipes by name."""

from __future__ import annotations

from collections.abc import Iterable

from specaudit.errors import UsageError
from specaudit.patching.recipes.base import Recipe
from specaudit.words import meant


def recipes() -> dict[str, Recipe]:
    """Every recipe, in the order in which they are listed."""
    from specaudit.patching.recipes.ddtree import DDTree
    from specaudit.patching.recipes.ddtree_v1 import DDTreeV1
    from specaudit.patching.recipes.dflash_block_drop import DFlashBlockDrop
    from specaudit.patching.recipes.dflash_layer_ids import DFlashLayerIds
    from specaudit.patching.recipes.gdn_state_index import GdnStateIndex
    from specaudit.patching.recipes.hybrid_mamba_margin import HybridMambaMargin
    from specaudit.patching.recipes.lookahead_slots import LookaheadSlots
    from specaudit.patching.recipes.v1_draft_probs import V1DraftProbs

    made: list[Recipe] = [
        DFlashLayerIds(),
        DFlashBlockDrop(),
        V1DraftProbs(),
        LookaheadSlots(),
        HybridMambaMargin(),
        GdnStateIndex(),
        DDTree(),
        DDTreeV1(),
    ]
    return {recipe.name: recipe for recipe in made}


def named(names: Iterable[str]) -> list[Recipe]:
    """The recipes of these names.

    Raises:
        UsageError: there is no such recipe.
    """
    known = recipes()
    found = []
    for name in dict.fromkeys(names):
        if name not in known:
            hint = meant(name, known, 3, 0.4) or f"There are: {', '.join(known)}."
            raise UsageError(f"There is no recipe {name!r}.", hint)
        found.append(known[name])
    return found

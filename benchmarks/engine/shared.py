"""Arms that parts have in common: equal wherever they can be, and with the same graphs, so that one engine serves all.

On V2 the policy goes by the batch of each step, and an engine for 128 requests measures every batch size. On V1 it goes
by the engine (more possible requests than trees are made for: the stock chain), so there is one for up to 8 requests
and one per larger batch.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from typing import Any

from .arms import Arm, chain, none, policy, tree

LARGEST = 512
COUNTS = (1, 2, 4, 8, 16, 24, 30, 32)
SMALL_BATCH, WIDE_BATCH = 8, 32
SOAK_AT_ONCE = 48


def captures(options: Namespace, *lengths: int) -> dict[str, Any]:
    """The same capture sizes for all arms, multiples of every arm's rows per request: what one arm's graphs cover, the
    other's cover, too. lengths: those of an arm that no other part has."""
    usual = {options.horizon, 1 + options.horizon, *(1 + budget for budget in options.budgets)}
    sizes = {length * count for length in usual | {*lengths} for count in COUNTS if length * count <= LARGEST}
    return {"compilation_config": {"cudagraph_capture_sizes": sorted(sizes | {LARGEST})}}


def seqs_for(options: Namespace, batch: int) -> int:
    """`max_num_seqs` of the engines that measure a batch of that size."""
    if options.runner == "v2":
        return max(128, batch)
    return SMALL_BATCH if batch <= SMALL_BATCH else batch


def plain_decoding(options: Namespace) -> Arm:
    return none(seqs=128).with_engine(**captures(options))


def stock_chain(options: Namespace, batch: int = SMALL_BATCH) -> Arm:
    return chain(horizon=options.horizon, seqs=seqs_for(options, batch)).with_engine(**captures(options))


def shorter_chain(options: Namespace, batch: int = SMALL_BATCH) -> Arm:
    """K - 1: another stock arm, for what two of them agree on."""
    return replace(stock_chain(options, batch), horizon=options.horizon - 1).named(f"chain {options.horizon - 1}")


def default_policy(options: Namespace, batch: int = SMALL_BATCH) -> Arm:
    """The first budget as a user gets it: trees up to as many requests as fit one captured graph, then the chain."""
    return policy(options.budgets[0], seqs=seqs_for(options, batch)).with_engine(**captures(options))


def small_batch_tree(options: Namespace, budget: int) -> Arm:
    """A tree of that budget at batch 1 (and 8, where one graph holds as many): the default policy where it is that."""
    fit = LARGEST // (1 + budget)
    if fit >= SMALL_BATCH:
        arm = policy(budget, f"tree {budget}", seqs=seqs_for(options, SMALL_BATCH))
    else:
        arm = tree(budget, seqs=max(1, fit))
    return arm.with_engine(**captures(options))


def wide_tree(options: Namespace, budget: int) -> Arm:
    """A tree in every step of a batch of 32."""
    return tree(budget, seqs=WIDE_BATCH).with_engine(**captures(options))


def to_the_last_bit(arm: Arm) -> Arm:
    """That tree with attention that rounds as the chain's does."""
    return replace(arm, name=f"{arm.name}, exact", ddtree=arm.ddtree | {"exact": True})


def beside_prompts(options: Namespace, arm: Arm) -> Arm:
    """That arm with trees in steps that hold prompts, too, as V1 has them; V2 verifies chains there by default."""
    return replace(arm, ddtree=arm.ddtree | {"mixed": "tree"}) if options.runner == "v2" else arm


def exact(arm: Arm) -> Arm:
    """That arm in fp32, for comparisons to the last token; its graphs are gone, it is eager."""
    rest = {name: value for name, value in arm.engine.items() if name != "compilation_config"}
    ddtree = {"max_batch": 64} if arm.kind == "tree" else {}
    return replace(arm, name=f"{arm.name}, fp32", plain=True, seqs=64, engine=rest, ddtree=ddtree)


def small_cache(options: Namespace) -> Arm:
    """A KV cache that does not hold what runs: requests are preempted and come back into other slots. More requests at
    once than get trees where the policy can change between steps."""
    budget = options.budgets[0]
    trees = min(SOAK_AT_ONCE, LARGEST // (1 + budget))
    seqs = SOAK_AT_ONCE if options.runner == "v2" else trees
    arm = tree(budget, "tree, small cache", seqs=seqs, ddtree={"max_batch": trees})
    limits = {"max_model_len": 512, "num_gpu_blocks_override": options.small_cache}
    return arm.with_engine(**limits, **captures(options))

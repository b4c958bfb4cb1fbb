"""How the V2 runner's hooks classify a step, and the switch itself."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from specaudit.ddtree.engine import hooks
from specaudit.ddtree.engine.settings import Settings, default_max_batch, read
from specaudit.ddtree.engine.state import CHAIN, TREE, VOID, Step, TreeState, chain_only

K = 15


def state(budget: int = 16, mixed: str = "chain") -> TreeState:
    return TreeState(Settings(budget=budget, max_batch=4, horizon=K, mixed=mixed), 8, torch.device("cpu"))


def batch(scheduled: list[int], drafts: list[int] | None, prompts: bool = True) -> SimpleNamespace:
    return SimpleNamespace(
        has_prefill=prompts,
        num_scheduled_tokens=np.array(scheduled, dtype=np.int32),
        num_draft_tokens_np=None if drafts is None else np.array(drafts, dtype=np.int32),
        idx_mapping_np=np.arange(len(scheduled)),
    )


def test_a_uniform_batch_of_trees_takes_the_graph_of_its_length() -> None:
    s = state()
    s.kinds[:2] = TREE
    assert s.begin_step(batch([17, 17], [16, 16]), 17) == 17
    assert s.step == Step(2, 34, True, True)


def test_chains_take_the_stock_graph_and_no_tree_path() -> None:
    s = state()
    s.kinds[:2] = CHAIN
    assert s.begin_step(batch([16, 16], [15, 15]), 16) == 16
    assert s.step == Step(2, 32, False)


def test_a_tree_cut_to_the_chains_length_must_not_run_in_the_chains_graph() -> None:
    s = state(budget=64)
    s.kinds[0] = TREE
    assert s.begin_step(batch([16], [15]), 16) is None
    assert s.step == Step(1, 16, True)


def test_beside_prompts_trees_are_read_as_their_chains() -> None:
    s = state()
    s.kinds[:2] = TREE, CHAIN
    assert s.begin_step(batch([17, 16, 300], [16, 15, 0]), None) is None
    assert s.step == Step(2, 33, tree=False, as_chains=True)
    s.kinds[0] = CHAIN  # stock drafts are what they are
    s.begin_step(batch([16, 16, 300], [15, 15, 0]), None)
    assert s.step == Step(2, 32, tree=False)
    s.kinds[0] = TREE  # beside a request that has no drafts and no prompt either
    s.begin_step(batch([17, 1], [16, 0], prompts=False), None)
    assert s.step == Step(1, 17, tree=True)
    s.begin_step(batch([17, 17], [16, 16]), None)  # the last token of a prompt, and placeholders
    assert s.step == Step(2, 34, tree=True)
    # a graph of trees attends over trees, whatever they stand beside
    assert s.begin_step(batch([17, 17], [16, 0]), 17) == 17
    assert s.step == Step(1, 17, tree=True, uniform=True)


def test_prompt_rows_follow_the_trees_and_are_none() -> None:
    s = state(mixed="tree")
    s.kinds[0] = TREE
    assert s.begin_step(batch([17, 300], [16, 0]), None) is None
    assert s.step == Step(1, 17, True)


def test_a_prompt_chunk_with_placeholder_drafts_ends_the_trees() -> None:
    s = state(mixed="tree")
    s.kinds[:] = TREE
    s.begin_step(batch([17, 20, 17], [16, 16, 16]), None)
    assert s.step == Step(1, 17, True)


def test_a_step_without_drafts_or_a_dummy_is_stock() -> None:
    s = state()
    assert s.begin_step(batch([1, 1], None), 1) == 1
    assert s.step == Step(0, 0, False)
    assert s.begin_step(None, 17) == 17
    assert s.step is None


def test_a_reused_slot_forgets_its_tree() -> None:
    """Before it is read: where rows of the new request count as drafts, which are placeholders."""
    s = state()
    s.kinds[2:5] = TREE
    s.slots.num_rows[2:5] = 17
    s.void(3, chain_only=True)
    assert (s.kinds[3], int(s.budgets[3])) == (VOID, 0)
    scheduled = batch([17, 17, 300], [16, 16, 0])
    scheduled.idx_mapping_np = np.array([4, 3, 2])
    s.begin_step(scheduled, None)
    assert s.slots.num_rows[2:5].tolist() == [17, 1, 17]
    s.void(3, chain_only=False)
    assert int(s.budgets[3]) == 16


class Launches(TorchDispatchMode):
    """Counts what a device would be asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_new_requests_launch_nothing_while_their_budget_is_the_slots() -> None:
    """Many come in one step, and the host is what that step waits for."""
    s = state()
    s.kinds[:] = TREE
    with Launches() as launches:
        for slot in range(8):
            hooks.new_request(SimpleNamespace(tree=s), slot, params(), custom_processors=False)
        s.begin_step(batch([300] * 8, [0] * 8), None)
    assert launches.names == []
    with Launches() as launches:
        hooks.new_request(SimpleNamespace(tree=s), 2, params(bad_words=["x"]), custom_processors=False)
        hooks.new_request(SimpleNamespace(tree=s), 2, params(bad_words=["y"]), custom_processors=False)
    assert sum("fill" in name for name in launches.names) == 1
    assert s.budgets.tolist() == [16, 16, 0, *[16] * 5]


def params(**changed: Any) -> SimpleNamespace:
    plain = {
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "bad_words": [],
        "structured_outputs": None,
        "thinking_token_budget": None,
    }
    return SimpleNamespace(**plain | changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"presence_penalty": 0.5},
        {"frequency_penalty": -0.1},
        {"repetition_penalty": 1.1},
        {"bad_words": ["x"]},
        {"structured_outputs": object()},
        {"thinking_token_budget": 0},
    ],
)
def test_processors_that_read_the_prefix_get_a_chain(changed: dict[str, Any]) -> None:
    assert chain_only(params(**changed), custom_processors=False)
    assert not chain_only(params(), custom_processors=False)
    assert chain_only(params(), custom_processors=True)


def config(section: Any) -> SimpleNamespace:
    found = {} if section is None else {"ddtree": section}
    return SimpleNamespace(additional_config=found, speculative_config=object())


def test_the_switch() -> None:
    assert read(config(None)) is None
    assert read(config({"budget": 64})) == Settings(budget=64, max_batch=default_max_batch(64))
    with pytest.raises(ValueError, match="unknown option 'buget'; known are budget"):
        read(config({"buget": 64}))
    assert read(config({})) == Settings(budget=16, max_batch=30)
    assert read(SimpleNamespace(additional_config=None, speculative_config=object())) is None


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (True, 'must be an object, such as {"budget": 16}, got True'),
        ("on", "must be an object"),
        ({"budget": 513}, "budget must be a whole number from 1 to 512, got 513"),
        ({"budget": "many"}, "budget must be a whole number from 1 to 512, got 'many'"),
        ({"budget": None}, "budget must be"),
        ({"budget": 16.7}, "budget must be"),
        ({"budget": True}, "budget must be"),
        ({"max_batch": -5}, "max_batch must be a whole number of at least 0, got -5"),
        ({"chain_max_batch": -1}, "chain_max_batch must be"),
        ({"spine": 600}, "spine must be a whole number from 0 to 512"),
        ({"depth_bonus": float("nan")}, "depth_bonus must be a number, got nan"),
        ({"depth_bonus": "1"}, "depth_bonus must be a number"),
        ({"horizon": 3}, "unknown option 'horizon'; known are budget, max_batch"),
    ],
)
def test_a_value_that_makes_no_sense_is_named_with_what_it_may_be(section: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^ddtree: {re.escape(said)}"):
        read(config(section))


def test_the_policy_is_a_schedule_over_batch_sizes() -> None:
    settings = Settings(budget=64, max_batch=4, chain_max_batch=32, horizon=K)
    assert settings.schedule(128) == [(1, 4, 64), (5, 32, K), (33, 128, 0)]
    assert settings.schedule(4) == [(1, 4, 64)]
    assert Settings(budget=64, max_batch=4, horizon=K).schedule(128) == [(1, 4, 64), (5, 128, K)]


def test_a_plugins_logits_processor_makes_every_tree_a_chain() -> None:
    """It may read the tokens before a row, and no configuration names it."""
    s = state()
    hooks.new_request(SimpleNamespace(tree=s), 2, params(), custom_processors=False)
    assert int(s.budgets[2]) == 16
    s.custom_processors = True
    hooks.new_request(SimpleNamespace(tree=s), 2, params(), custom_processors=False)
    assert int(s.budgets[2]) == 0


def test_hooks_do_nothing_for_an_engine_without_trees() -> None:
    for drafter in (None, SimpleNamespace(), SimpleNamespace(tree="of another kind")):
        assert hooks.tree_of(drafter) is None
        assert hooks.classify(drafter, object(), 16) == 16
        hooks.new_request(drafter, 0, params(), custom_processors=True)

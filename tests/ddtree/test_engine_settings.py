"""The switch where the configuration settles it: what is refused, and what a taken one turns into."""

from __future__ import annotations

import copy
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from specaudit.ddtree.engine.settings import install, read, refusals

FLASH = SimpleNamespace(name="FLASH_ATTN")


def engine(budget: int = 16, seqs: int = 32, **ddtree: Any) -> SimpleNamespace:
    """A configuration that is taken: the attributes of vLLM's that the recipe reads."""
    return SimpleNamespace(
        additional_config={"ddtree": {"budget": budget, **ddtree}},
        speculative_config=SimpleNamespace(
            method="dflash", num_speculative_tokens=15, num_speculative_tokens_per_batch_size=None,
            draft_model_config=SimpleNamespace(architectures=["DFlashDraftModel"]), draft_sample_method="greedy",
            rejection_sample_method="standard", use_local_argmax_reduction=False, enable_adaptive_verification=False,
        ),
        model_config=SimpleNamespace(
            use_mla=False, is_hybrid=False, has_inner_state=False, uses_mrope=False, uses_alibi=False,
            get_sliding_window=lambda: None, return_sampling_mask=False, disable_cascade_attn=True,
        ),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=1, data_parallel_size=1, decode_context_parallel_size=1, enable_dbo=False,
            prefill_context_parallel_size=1, enable_batch_sharded_sampling=False,
        ),
        cache_config=SimpleNamespace(cache_dtype="auto", kv_sharing_fast_prefill=False),
        compilation_config=SimpleNamespace(cudagraph_mode=SimpleNamespace(name="FULL_AND_PIECEWISE")),
        scheduler_config=SimpleNamespace(max_num_seqs=seqs, async_scheduling=True),
        attention_config=SimpleNamespace(backend=FLASH),
        kv_transfer_config=None, watermark_config=None, lora_config=None, use_v2_model_runner=True,
    )  # fmt: skip


def test_more_positions_than_a_tree_is_built_for_are_refused_and_nodes_are_none_of_them() -> None:
    long = engine(64)
    long.speculative_config.num_speculative_tokens = 33
    with pytest.raises(ValueError, match="more than 32 draft tokens: lower num_speculative_tokens"):
        install(long)
    whole = engine(64)
    install(whole)
    assert whole.speculative_config.num_speculative_tokens == 64
    install(whole)  # a copy of the configuration runs it again


REFUSED: list[tuple[str, str, Any, str]] = [
    ("both", "speculative_config.method", "eagle3", "use method dflash"),
    ("both", "speculative_config.draft_model_config.architectures", ["DFlash2Model"], "use its chain"),
    ("both", "speculative_config.draft_sample_method", "probabilistic", "draft_sample_method=greedy"),
    ("both", "speculative_config.rejection_sample_method", "block", "leave it at its default"),
    ("both", "speculative_config.use_local_argmax_reduction", True, "switch it off"),
    ("both", "speculative_config.enable_adaptive_verification", True, "switch it off"),
    ("both", "parallel_config.pipeline_parallel_size", 2, "use tensor parallelism"),
    ("both", "parallel_config.data_parallel_size", 2, "one engine per replica"),
    ("both", "parallel_config.decode_context_parallel_size", 2, "set it to 1"),
    ("both", "parallel_config.prefill_context_parallel_size", 2, "set it to 1"),
    ("both", "parallel_config.enable_batch_sharded_sampling", True, "switch it off"),
    ("both", "parallel_config.enable_dbo", True, "switch it off"),
    ("both", "model_config.use_mla", True, "use the stock chain"),
    ("both", "model_config.is_hybrid", True, "use the stock chain"),
    ("both", "model_config.has_inner_state", True, "use the stock chain"),
    ("both", "model_config.uses_mrope", True, "use the stock chain"),
    ("both", "model_config.uses_alibi", True, "use the stock chain"),
    ("both", "model_config.get_sliding_window", lambda: 4096, "use the stock chain"),
    ("both", "model_config.return_sampling_mask", True, "use the stock chain"),
    ("both", "model_config.disable_cascade_attn", False, "leave disable_cascade_attn at its default"),
    ("both", "kv_transfer_config", SimpleNamespace(), "remove it"),
    ("both", "cache_config.cache_dtype", "int4_per_token_head", "use fp8 or auto"),
    ("both", "cache_config.kv_sharing_fast_prefill", True, "switch it off"),
    ("both", "watermark_config", SimpleNamespace(), "use the stock chain"),
    ("both", "compilation_config.cudagraph_mode", SimpleNamespace(name="FULL"), "use FULL_AND_PIECEWISE"),
    ("both", "attention_config.backend", SimpleNamespace(name="FLASHINFER"), "set attention_backend so"),
    ("v2", "use_v2_model_runner", False, "use what V2 supports"),
    ("v1", "scheduler_config.async_scheduling", False, "switch it on"),
    ("v1", "lora_config", SimpleNamespace(), "use the stock chain"),
]


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_a_usual_configuration_is_taken(runner: str) -> None:
    assert refusals(engine(), runner) == []


@pytest.mark.parametrize(("runner", "where", "value", "instead"), REFUSED, ids=[row[1] for row in REFUSED])
def test_what_a_tree_gets_wrong_is_refused_with_one_line_that_says_what_to_use(
    runner: str, where: str, value: Any, instead: str
) -> None:
    config = engine()
    *folders, name = where.split(".")
    holder: Any = config
    for folder in folders:
        holder = getattr(holder, folder)
    setattr(holder, name, value)
    for one in ("v1", "v2") if runner == "both" else (runner,):
        (line,) = refusals(config, one)
        assert instead in line
        before = copy.deepcopy(config.additional_config)
        with pytest.raises(ValueError, match="ddtree cannot run in this engine:\n  - ") as caught:
            install(config, one)
        assert line in str(caught.value)
        assert config.additional_config == before


def test_a_release_without_a_field_refuses_nothing_for_it() -> None:
    config = engine()
    for holder, names in (
        (config.model_config, ("uses_alibi", "return_sampling_mask", "disable_cascade_attn")),
        (config.parallel_config, ("enable_batch_sharded_sampling", "enable_dbo")),
        (config.speculative_config, ("draft_sample_method", "enable_adaptive_verification")),
        (config, ("watermark_config", "lora_config")),
    ):
        for name in names:
            delattr(holder, name)
    assert refusals(config, "v1") == refusals(config, "v2") == []


def test_off_means_untouched() -> None:
    config = engine()
    config.additional_config = {}
    before = copy.deepcopy(config)
    install(config, "v2")
    assert config.speculative_config == before.speculative_config
    assert config.additional_config == {}


def test_on_v2_the_policy_becomes_the_engines_own_schedule() -> None:
    config = engine(budget=64, seqs=128)
    install(config, "v2")
    spec = config.speculative_config
    assert spec.num_speculative_tokens == 64
    assert spec.num_speculative_tokens_per_batch_size == [(1, 7, 64), (8, 128, 15)]
    settings = read(config)
    assert settings is not None
    assert (settings.horizon, settings.max_batch) == (15, 7)
    install(config, "v2")  # a copy of the configuration passes through here again
    assert (read(config), spec.num_speculative_tokens) == (settings, 64)


def test_fewer_nodes_than_the_drafters_horizon_leave_room_for_its_chain() -> None:
    config = engine(budget=8, seqs=64)
    install(config, "v2")
    assert config.speculative_config.num_speculative_tokens == 15
    assert config.speculative_config.num_speculative_tokens_per_batch_size == [(1, 56, 8), (57, 64, 15)]
    config = engine(budget=8, seqs=4)
    install(config, "v2")
    assert config.speculative_config.num_speculative_tokens == 8
    assert config.speculative_config.num_speculative_tokens_per_batch_size is None


def test_on_v1_the_policy_is_settled_by_max_num_seqs() -> None:
    config = engine(budget=64, seqs=8)
    install(config, "v1")
    assert config.additional_config == {}
    assert config.speculative_config.num_speculative_tokens == 15
    config = engine(budget=64, seqs=7)
    install(config, "v1")
    assert config.additional_config["ddtree"]["_horizon"] == 15
    assert config.speculative_config.num_speculative_tokens == 64
    with pytest.raises(ValueError, match="takes at most 128 nodes: lower the budget"):
        install(engine(budget=129, seqs=2), "v1")


def test_an_unset_backend_becomes_flash_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = ModuleType("vllm.v1.attention.backends.registry")
    registry.AttentionBackendEnum = SimpleNamespace(FLASH_ATTN=FLASH)  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, registry.__name__, registry)
    config = engine()
    config.attention_config.backend = None
    install(config, "v2")
    assert config.attention_config.backend is FLASH


@pytest.mark.parametrize("exact", [True, False])
def test_exact_is_a_flag(exact: bool) -> None:
    settings = read(engine(exact=exact))
    assert settings is not None
    assert settings.exact is exact
    plain = read(engine())
    assert plain is not None
    assert plain.exact is False
    with pytest.raises(ValueError, match="ddtree: exact must be true or false, got 'yes'"):
        read(engine(exact="yes"))


def test_beside_prompts_a_tree_is_a_chain_unless_it_is_asked_for() -> None:
    assert [read(engine(**given)).mixed for given in ({}, {"mixed": "tree"}, {"mixed": "chain"})] == [  # type: ignore[union-attr]
        "chain", "tree", "chain",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="ddtree: mixed must be chain or tree, got True"):
        read(engine(mixed=True))
    with pytest.raises(ValueError, match="on V1, steps with prompts verify trees, too: leave mixed out"):
        install(engine(mixed="chain"), "v1")
    install(engine(mixed="tree"), "v2")

"""What configurations reach, beside what the code of three releases says (read by hand)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import yaml

from specaudit.cache import Cache, folder
from specaudit.configured import Configured
from specaudit.model import Scan
from specaudit.ruling.judge import RuleJudge
from specaudit.ruling.store import rulebook
from specaudit.scan import Options, scan
from specaudit.serving import setting
from specaudit.targets import parse

RULES = {rule.id: rule for rule in rulebook().rules}


@pytest.fixture(scope="module")
def scanned(release: Callable[[str], Path]) -> Callable[..., Scan]:
    plain: dict[str, Scan] = {}

    def get(version: str, configuration: str = "", variables: Mapping[str, str] | None = None) -> Scan:
        if not configuration and version in plain:
            return plain[version]
        with Cache(folder()) as cache:
            judge = RuleJudge(rulebook(), cache)
            configure = None
            if configuration:
                given = {name: setting(value) for name, value in json.loads(configuration).items()}
                method = given.pop("method")
                assert method is not None
                configure = Configured((method,), {**given, **(variables or {})}, judge.summary.needs)
            made = scan(parse(f"dir:{release(version)}"), Options(judge=judge, configure=configure), cache)
        if not configuration:
            plain[version] = made
        return made

    return get


V1, V2 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}, {"VLLM_USE_V2_MODEL_RUNNER": "1"}
ANY = ("mean-acceptance-counts-past-eos", "flashinfer-spec-downgrades-full-cudagraph")


@pytest.mark.parametrize(
    ("version", "configuration", "variables", "runner", "reaches", "misses"),
    [
        # use_eagle() is true for dflash, and the runner fills skipped drafts with zeros whatever drafted.
        (
            "0.20.1", '{"method": "dflash"}', {}, "v1",
            (*ANY, "skipped-draft-zero-filled", "all-kv-groups-flagged-eagle", "mamba-align-split-unaligned-after-"
             "last-cache-position", "draft-parallel-config-copies-pp", "grammar-bitmask-frozen-inside-draft-window",
             "gdn-accepted-index-unbounded", "dflash-target-layer-ids-off-by-one"),
            ("v2-no-drafter-length-gate", "medusa-drafts-one-token-per-head", "tree-bias-on-chain-positions"),
        ),
        # The scheduler and the drafter's parallel configuration are the same for both runners.
        (
            "0.20.1", '{"method": "eagle3", "draft_tensor_parallel_size": 1}', V2, "v2",
            (*ANY, "first-prefill-lookahead-zeroed", "draft-tp-size-ignored-for-eagle", "v2-no-drafter-length-gate",
             "v2-strict-match-rejection-default", "grammar-bitmask-frozen-inside-draft-window"),
            ("skipped-draft-zero-filled", "placeholder-draft-id-not-rejected", "recovered-token-out-of-vocab",
             "v1-draft-probs-hardwired-none", "dflash-lookahead-slot-missing"),
        ),
        (
            "0.20.1", '{"method": "eagle", "speculative_token_tree": "[(0,), (1,)]"}', {}, "v1",
            (*ANY, "all-kv-groups-flagged-eagle", "tree-bias-on-chain-positions", "tree-drafts-but-linear-rejection",
             "attention-group-key-misses-drafter-fields"),
            ("v2-all-nan-row-emits-vocab-size", "ngram-gpu-ignores-max-model-len"),
        ),
        (
            "0.20.1", '{"method": "ngram"}', {}, "v1",
            (*ANY, "async-scheduling-silently-off-for-method", "gdn-zero-draft-batch-falls-back-to-column-0",
             "grammar-bitmask-frozen-inside-draft-window", "drafter-length-gate-is-batch-wide"),
            ("first-prefill-lookahead-zeroed", "all-kv-groups-flagged-eagle", "draft-parallel-config-copies-pp"),
        ),
        (
            "0.20.1", '{"method": "mtp"}', V1, "v1",
            (*ANY, "hybrid-coordinator-eagle-margin-on-mamba", "draft-max-position-embeddings-not-raised"),
            ("v2-strict-match-rejection-default", "dflash-drafter-sliding-window-ignored"),
        ),
        (
            "0.29.0", '{"method": "eagle3"}', {}, "v2",
            (*ANY, "embed-sharing-decided-per-rank", "v2-draft-attention-backend-ignored", "v2-runner-default"),
            ("v1-block-method-drops-draft-probs", "pp-drafter-attr-missing-on-other-ranks"),
        ),
        (
            "0.29.0", '{"method": "dflash", "rejection_sample_method": "block"}', {}, "v2",
            (*ANY, "gdn-accepted-index-unbounded", "noncausal-drafter-picks-fa2-on-sm12x"),
            ("v1-rejection-method-literal-unhandled", "v1-block-method-drops-draft-probs",
             "v2-draft-attention-backend-ignored"),
        ),
        (
            "0.29.0", '{"method": "dflash", "rejection_sample_method": "block"}', V1, "v1",
            (*ANY, "v1-rejection-method-literal-unhandled", "v1-block-method-drops-draft-probs"),
            ("v2-no-drafter-length-gate", "v2-logprob-token-ids-dropped"),
        ),
        (
            "0.29.0", '{"method": "suffix"}', {}, "v1",
            (*ANY, "async-scheduling-silently-off-for-method", "skipped-draft-zero-filled"),
            ("v2-no-drafter-length-gate", "draft-max-position-embeddings-not-raised", "embed-sharing-decided-per-rank"),
        ),
        (
            "0.29.0", '{"method": "medusa"}', {}, "v1",
            (*ANY, "medusa-drafts-one-token-per-head", "draft-parallel-config-copies-pp"),
            ("all-kv-groups-flagged-eagle", "probabilistic-draft-sampling-is-opt-in"),
        ),
        (
            "0.33.0", '{"method": "eagle3", "draft_sample_method": "probabilistic"}', {}, "v2",
            (*ANY, "v2-no-drafter-length-gate", "v2-logprob-token-ids-dropped", "draft-tp-size-ignored-for-eagle"),
            ("probabilistic-draft-sampling-is-opt-in", "skipped-draft-zero-filled"),
        ),
        (
            "0.33.0", '{"method": "ngram"}', {}, "v2",
            (*ANY, "v2-logprob-token-ids-dropped", "gdn-accepted-index-unbounded"),
            ("v2-no-drafter-length-gate", "async-scheduling-silently-off-for-method"),
        ),
        (
            "0.33.0", '{"method": "dspark"}', {}, "v2",
            (*ANY, "embed-sharing-decided-per-rank", "probabilistic-draft-sampling-is-opt-in",
             "all-kv-groups-flagged-eagle"),
            ("draft-tp-size-ignored-for-eagle", "image-token-index-read-unconditionally"),
        ),
        (
            "0.33.0", '{"method": "eagle", "parallel_drafting": true}', {}, "v1",
            (*ANY, "v1-block-method-drops-draft-probs", "mrope-drafter-slot-from-temporal-position"),
            ("v2-no-drafter-length-gate", "removed-method-medusa"),
        ),
        (
            "0.33.0", '{"method": "custom_class"}', {}, "v1",
            (*ANY, "async-scheduling-silently-off-for-method", "rejection-sampler-skips-argmax-invariant-procs"),
            ("v2-logprob-token-ids-dropped", "embed-sharing-decided-per-rank"),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_a_configuration_reaches(
    scanned: Callable[..., Scan],
    version: str,
    configuration: str,
    variables: Mapping[str, str],
    runner: str,
    reaches: tuple[str, ...],
    misses: tuple[str, ...],
) -> None:
    plain = {finding.rule: finding for finding in scanned(version).findings}
    made = scanned(version, configuration, variables)
    found = {finding.rule: finding for finding in made.findings}
    assert {path.runner for path in made.paths} == {runner}
    for rule in reaches:
        assert found[rule].status == plain[rule].status, rule
        assert found[rule].status in ("present", "partial"), rule
    for rule in misses:
        assert found[rule].status in ("unreachable", "not-applicable"), rule
        if found[rule].status == "unreachable":
            assert plain[rule].status in ("present", "partial"), rule
            assert found[rule].reason.startswith("the source has it"), rule


@pytest.mark.parametrize("value", ["0", "1"])
def test_who_sets_the_variable_is_not_on_the_runner_that_the_engine_chooses(
    scanned: Callable[..., Scan], value: str
) -> None:
    made = scanned("0.33.0", '{"method": "eagle"}', {"VLLM_USE_V2_MODEL_RUNNER": value})
    (found,) = (finding for finding in made.findings if finding.rule == "v2-runner-default")
    assert found.status == "unreachable"
    assert found.reason.endswith(f"VLLM_USE_V2_MODEL_RUNNER is not set, and VLLM_USE_V2_MODEL_RUNNER is {value}")


def test_rules_name_methods_that_engines_have(scanned: Callable[..., Scan]) -> None:
    known = {runner.method for version in ("0.9.2", "0.20.1", "0.33.0") for runner in scanned(version).runners}
    named = {method for rule in RULES.values() for method in rule.methods}
    assert named - {"all"} <= known


def test_documents_mean_the_same_to_yaml_without_libyaml() -> None:
    """PyYAML built from source may lack the C parser, whose grammar is wider."""
    for name, data, _ in rulebook().documents:
        assert isinstance(data, bytes)
        first, second = (
            [(type(event), getattr(event, "value", None)) for event in yaml.parse(data, Loader=loader)]
            for loader in (yaml.SafeLoader, yaml.CSafeLoader)
        )
        assert first == second, name

"""SGLang: tree verification in compiled operators and in a kernel, beside linear verification."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from support.engines import index_of

from specaudit.classify.verifiers import verifiers
from specaudit.engines import ENGINES
from specaudit.model import Verifier

Release = Callable[[str], Path]
ENGINE = ENGINES["sglang"]
SPECULATIVE = "sglang/srt/speculative"
KERNELS = "sglang/kernels/ops/speculative"

OPERATORS = {  # name, path, line of the function that calls it: line of the call
    ("verify_tree_greedy", f"{SPECULATIVE}/eagle_utils.py", 161): 175,
    ("verify_tree_greedy", f"{SPECULATIVE}/ngram_info.py", 280): 298,
    ("tree_speculative_sampling_target_only", f"{SPECULATIVE}/eagle_info.py", 216): 361,
    ("tree_speculative_sampling_target_only", f"{SPECULATIVE}/eagle_info_v2.py", 259): 345,
    ("tree_speculative_sampling_target_only", f"{SPECULATIVE}/ngram_info.py", 309): 360,
}
#: Name, path, line, role, walks; dispatchers left out.
ACCEPTING = {
    ("_dflash_accept_bonus_contig_kernel", f"{KERNELS}/dflash.py", 9, "kernel", "linear"),
    ("_fused_correct_drafts_and_bonus_kernel", f"{KERNELS}/dflash.py", 326, "kernel", "linear"),
    ("compute_dflash_correct_drafts_and_bonus", f"{KERNELS}/dflash.py", 348, "function", "linear"),
    ("_rejection_kernel", f"{KERNELS}/dspark/blockwise_rejection.py", 195, "kernel", "linear"),
    ("_resample_kernel", f"{KERNELS}/dspark/blockwise_rejection.py", 292, "kernel", "helper"),
    ("blockwise_rejection_torch", f"{KERNELS}/dspark/blockwise_rejection.py", 492, "function", "linear"),
    ("_static_accept_tail_kernel", f"{KERNELS}/dspark/static_accept_tail.py", 29, "kernel", "linear"),
    ("speculative_sampling_classic_kernel", f"{KERNELS}/reject_sampling.py", 6, "kernel", "linear block"),
    ("verify_tree_greedy_kernel_triton", f"{KERNELS}/spec_tree.py", 211, "kernel", "tree"),
    ("sgl_verify_tree_greedy_cpu", f"{KERNELS}/spec_tree.py", 480, "compiled", "tree"),
    ("verify_tree_greedy", f"{KERNELS}/spec_tree.py", 480, "compiled", "tree"),
    ("tree_speculative_sampling_target_only", f"{SPECULATIVE}/dflash_utils.py", 893, "compiled", "tree"),
    ("tree_speculative_sampling_target_only", f"{SPECULATIVE}/eagle_utils.py", 521, "compiled", "tree"),
    ("_sparse_rejection_from_support", f"{SPECULATIVE}/uno_utils.py", 37, "function", "linear"),
    ("_accept_and_pack", f"{SPECULATIVE}/uno_worker_v2.py", 356, "function", "linear"),
}


@pytest.fixture(scope="module")
def found(release: Release) -> Callable[[str], tuple[Verifier, ...]]:
    """The verifiers of one release."""
    return cache(lambda v: verifiers(index_of(release(f"sglang=={v}"), "sglang", ENGINE.wants), ENGINE))


def test_operators_that_are_handed_a_tree_walk_it(found: Callable[[str], tuple[Verifier, ...]]) -> None:
    operators = {v for v in found("0.5.9") if v.role == "compiled"}
    assert {(v.name, v.path, v.line): v.evidence[0].line for v in operators} == OPERATORS
    for verifier in operators:
        assert verifier.walk == "tree"
        assert (verifier.evidence[0].path, verifier.runner) == (verifier.path, "scheduler")
        assert "retrive_next_token, retrive_next_sibling" in verifier.reason


def test_operators_are_all_that_accepts_there(found: Callable[[str], tuple[Verifier, ...]]) -> None:
    others = {(v.name, v.path, v.role, v.walk) for v in found("0.5.9") if v.role != "compiled"}
    assert others == {
        ("NgramVerifyInput", f"{SPECULATIVE}/ngram_info.py", "class", "dispatcher"),
        ("verify_tree_greedy_func", f"{SPECULATIVE}/eagle_utils.py", "function", "dispatcher"),
    }


def test_kernels_and_functions_of_a_newer_release(found: Callable[[str], tuple[Verifier, ...]]) -> None:
    accepting = [v for v in found("0.5.23") if v.walk != "dispatcher"]
    assert {
        (v.name, v.path, v.line, v.role, " ".join((v.walk, *(x.walk for x in v.variants)))) for v in accepting
    } == ACCEPTING
    assert {v.name for v in accepting if v.runner != "scheduler"} == {"_static_accept_tail_kernel"}


def test_an_operator_that_only_builds_a_tree_is_none(found: Callable[[str], tuple[Verifier, ...]]) -> None:
    for version in ("0.5.9", "0.5.23"):
        assert not [v.name for v in found(version) if "build" in v.name]

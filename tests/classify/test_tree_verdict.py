"""Is a tree drafted, masked, walked: real releases, the same with DDTree installed, and what only looks like it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.derived import audited
from support.engines import index_of, replaced

from specaudit.classify.audit import Reading, trace
from specaudit.classify.code import Code
from specaudit.classify.treeverdict import tree_verdict
from specaudit.classify.visibility import Visibility
from specaudit.engines import ENGINES
from specaudit.index import Index
from specaudit.model import Audit, NotLooked, TreeVerdict
from specaudit.patching.recipes.base import Recipe
from specaudit.patching.recipes.ddtree import DDTree
from specaudit.patching.recipes.ddtree_v1 import DDTreeV1
from specaudit.patching.workspace import Workspace, overlay

Read = Callable[[str], Reading]
Release = Callable[[str], Path]
VLLM = ENGINES["vllm"]
UNIFIED = "vllm/v1/attention/ops/triton_unified_attention.py"
HELPERS = "vllm/v1/attention/ops/triton_attention_helpers.py"


def of(reading: Reading) -> TreeVerdict:
    return tree_verdict(reading.reader, reading.proposers, ())


def changed(release: Release, version: str, files: dict[str, list[tuple[str, str]]]) -> Reading:
    root = release(version)
    texts = {path: replaced((root / path).read_text(encoding="utf-8"), *edits) for path, edits in files.items()}
    return Reading(index_of(root, wants=VLLM.wants, changed=texts), VLLM)


def test_a_tree_from_the_configuration_is_static(read: Read) -> None:
    found = of(read("0.20.1"))
    assert (found.drafting.verdict, found.attention.verdict) == ("static", "static")
    assert any("speculative_token_tree" in e.text for e in found.drafting.evidence)
    assert any("__init__" not in e.text and "tree_attn_bias" in e.text for e in found.attention.evidence)
    assert found.drafting.searched is None


def test_what_is_not_there_says_what_was_looked_through(read: Read) -> None:
    found = of(read("0.33.0"))
    assert (found.drafting.verdict, found.attention.verdict, found.verification.verdict) == ("none", "dead", "none")
    for part in (found.drafting, found.attention):
        assert part.searched is not None
        assert part.searched.files > 10
        assert len(part.searched.digest) == 64
        assert part.searched.looked_at > 0
    assert [unread.what for unread in found.drafting.not_looked] == ["<user class> via create_custom_proposer()"]


@pytest.mark.parametrize(("version", "drafted", "masked"), [("0.20.2", "static", "static"), ("0.21.0", "none", "dead")])
def test_the_drafted_tree_went_with_0_21_0(
    release: Release, read: Read, version: str, drafted: str, masked: str
) -> None:
    """0.21.0 has neither the backend nor the option; what is left are a parameter and comments."""
    root = release(version) / "vllm"
    there = version == "0.20.2"
    assert (root / "v1/attention/backends/tree_attn.py").exists() is there
    assert ("speculative_token_tree" in (root / "config/speculative.py").read_text()) is there
    assert ("propose_tree" in (root / "v1/spec_decode/llm_base_proposer.py").read_text()) is there
    found = of(read(version))
    assert (found.drafting.verdict, found.attention.verdict) == (drafted, masked)


def test_only_compiled_code_counts_as_unread(release: Release) -> None:
    index = index_of(release("0.20.1"), wants=VLLM.wants)
    notes = (
        NotLooked("vllm 0.9.2 in /opt/venv", "a second installation"),
        NotLooked("compiled ops of /opt/_C.so", "damaged"),
    )
    reading = Reading(Index(replace(index.snapshot, not_looked=notes)), VLLM)
    unread = {item.what for item in of(reading).verification.not_looked}
    assert unread == {"compiled ops of /opt/_C.so"}


def test_compiled_code_is_named_as_not_looked_at(audited: Callable[[str], Audit]) -> None:
    tree = audited("0.33.0").tree
    assert tree is not None
    assert tree.verification.verdict == "none"
    assert any("torch.ops" in unread.what for unread in tree.verification.not_looked)


def test_a_mask_that_nothing_passes_is_dead_and_one_that_is_passed_is_not(release: Release) -> None:
    caller = "vllm/v1/attention/backends/triton_attn.py"
    call = "            k_scale_cache=k_scale_cache,\n"
    reading = changed(
        release, "0.33.0", {caller: [(call, call + "            qq_bias=attn_metadata.per_step_bias,\n")]}
    )
    found = of(reading).attention
    assert found.verdict == "per-request"
    assert any("qq_bias=attn_metadata.per_step_bias" in e.text for e in found.evidence)


def test_a_bias_that_does_not_meet_the_scores_is_no_mask(release: Release) -> None:
    bias = (
        "            S += load_qq_bias_tile(\n"
        "                qq_bias_row_ptrs, seq_offset, context_len, qq_bias_stride_0\n"
        "            )\n"
    )
    reading = changed(release, "0.20.1", {UNIFIED: [(bias, "            S += 0.0\n")]})
    assert of(reading).attention.verdict == "none"


def test_data_that_differs_by_key_alone_is_no_mask(release: Release) -> None:
    """A limit per query, and a bias per key, as lengths and windows are: neither pairs a query with a key."""
    row = "qq_bias_row_ptrs + key_rel_pos[None, :],"
    reading = changed(release, "0.20.1", {HELPERS: [(row, "qq_bias_row_ptrs + 0 * seq_offset,")]})
    assert of(reading).attention.verdict == "none"


KERNEL = """
import triton
import triton.language as tl

@triton.jit
def bits_of(words, rows, live, first):
    return tl.load(words + rows + first // 32, mask=live, other=0)

@triton.jit
def attend(s, v, visible):
    s = tl.where(visible, s, float("-inf"))
    p = tl.exp(s - tl.max(s, 1)[:, None])
    return tl.dot(p, v)

@triton.jit
def kernel(q_ptr, k_ptr, v_ptr, out_ptr, data_ptr, stride, n):
    row, col = tl.arange(0, 16), tl.arange(0, 16)
    q = tl.load(q_ptr + row[:, None] * stride + col[None, :])
    for first in range(0, n, 16):
        k = tl.load(k_ptr + (first + col)[None, :] * stride + row[:, None])
        v = tl.load(v_ptr + (first + col)[:, None] * stride + row[None, :])
        s = tl.dot(q, k)
        VISIBLE
        o = attend(s, v, visible)
    tl.store(out_ptr + row[:, None] * stride + col[None, :], o)
"""


@pytest.mark.parametrize(
    ("visible", "paired"),
    [
        ("visible = tl.load(data_ptr + row[:, None] * n + (first + col)[None, :]) != 0", True),
        ("visible = ((bits_of(data_ptr, row, row < n, first)[:, None] >> (col % 32)[None, :]) & 1) != 0", True),
        ("visible = (bits_of(data_ptr, row, row < n, first)[:, None] & (1 << (col % 32)[None, :])) != 0", True),
        ("visible = (first + col)[None, :] <= row[:, None]", False),
        ("visible = (first + col)[None, :] < tl.load(data_ptr + row)[:, None]", False),
        ("visible = tl.load(data_ptr + first + col)[None, :] == tl.load(data_ptr + row)[:, None]", False),
        ("visible = (tl.load(data_ptr + row)[:, None] >> (row % 32)[:, None]) & 1", False),
    ],
)
def test_a_mask_pairs_queries_with_keys_by_data(visible: str, paired: bool, tmp_path: Path) -> None:
    folder = tmp_path / "vllm"
    folder.mkdir()
    (folder / "x.py").write_text(KERNEL.replace("VISIBLE", visible))
    code = Code(index_of(tmp_path), "vllm")
    kernel = code.definition("vllm/x.py", "kernel")
    assert kernel is not None
    found = Visibility(code).pairings(kernel)
    assert [(p.param, p.line) for p in found] == ([("data_ptr", 11)] if paired else [])


@pytest.mark.parametrize(("version", "recipe"), [("0.33.0", DDTree()), ("0.20.1", DDTreeV1())])
def test_installed_trees_are_recognised(version: str, recipe: Recipe, release: Release) -> None:
    work = Workspace(index_of(release(version)))
    recipe.write(work, frozenset())
    switch = "vllm/specaudit_ddtree/engine/settings.py"
    text = work.after().source(switch).replace("return Settings(\n", "return Settings(\n" + "\n" * 16)
    after = overlay(work.after().snapshot, {switch: text.encode()})  # a long call makes no long function
    found = audited(after)
    assert found.tree is not None
    parts = (found.tree.drafting, found.tree.attention, found.tree.verification)
    assert [part.verdict for part in parts] == ["dynamic", "per-request", "tree-walk"]
    for part in parts:
        assert any(e.path.startswith("vllm/specaudit_ddtree/") for e in part.evidence)
    (drafter,) = (p for p in found.proposers if p.topology == "tree-dynamic")
    assert (drafter.methods, drafter.reachable) == (("dflash",), "conditional")
    assert ("additional_config.ddtree", "is set") in {(c.option, c.op) for c in drafter.conditions}
    chain = [p for p in found.proposers if p.methods == ("dflash",) and p.reachable == "default"]
    assert {p.topology for p in chain} == {"chain-parallel"}
    index = Index(after.narrowed(VLLM.wants))
    for settings, installed in (({}, False), ({"additional_config.ddtree": "on"}, True)):
        (way,) = trace(index, "dflash", settings, found.verifiers)
        kernels = {hop.path for hop in way.hops if hop.what == "kernel"}
        assert ("vllm/specaudit_ddtree/walk.py" in kernels) == installed
        assert any(hop.text.startswith(f"class {drafter.name}(") for hop in way.hops) == installed

"""Graphs of trees and chains side by side, by the engine's own code for candidates and dispatch."""

from __future__ import annotations

import ast
import enum
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specaudit.ddtree.v2 import graphs as ours

FILE = "vllm/v1/worker/gpu/cudagraph_utils.py"
METHODS = {"_init_candidates", "dispatch", "_resolve_effective_loras", "_maybe_ubatch_twin"}
NAMES = {"BatchExecutionDescriptor", "_is_compatible", "CudaGraphManager"}


class Mode(enum.Enum):
    """As much of vLLM's CUDAGraphMode as its code asks for: FULL for uniform decodes, PIECEWISE for the rest."""

    NONE = 0
    PIECEWISE = 1
    FULL = 2
    BOTH = 3

    def decode_mode(self) -> Mode:
        return Mode.FULL

    def mixed_mode(self) -> Mode:
        return Mode.PIECEWISE

    def separate_routine(self) -> bool:
        return True


def manager(site: Path, sizes: list[int], tree: int, chain: int) -> Any:
    """The engine's manager with its candidates made, as for trees up to 30 requests and the chain above."""
    body = [n for n in ast.parse((site / FILE).read_text()).body if getattr(n, "name", "") in NAMES]
    scope: dict[str, Any] = {
        "dataclass": dataclass, "replace": replace, "groupby": groupby, "product": product, "defaultdict": defaultdict,
        "CUDAGraphMode": Mode, "round_up": lambda n, k: -(-n // k) * k,
        "build_dynamic_sd_schedule_lookup": lambda *_, **__: [0, tree, chain],
    }  # fmt: skip
    for node in (node for node in body if isinstance(node, ast.ClassDef)):
        node.body = [n for n in node.body if not isinstance(n, ast.FunctionDef) or n.name in METHODS]
    exec(compile(ast.Module(body, []), FILE, "exec"), scope)  # with this file's `annotations`, as that one has them
    made = object.__new__(scope["CudaGraphManager"])
    speculative = SimpleNamespace(
        uses_dynamic_speculative_decoding=lambda: True, num_speculative_tokens_per_batch_size=None
    )
    config = SimpleNamespace(
        speculative_config=speculative,
        num_speculative_tokens=max(tree, chain),
        cache_config=SimpleNamespace(use_kda_recoverssm=False),
    )
    made.__dict__ |= {
        "vllm_config": config, "compilation_config": SimpleNamespace(
            cudagraph_capture_sizes=sizes, max_cudagraph_capture_size=max(sizes)
        ),
        "max_num_reqs": 128, "decode_query_len": 1 + max(tree, chain), "cudagraph_mode": Mode.BOTH,
        "varlen_decode": False, "ubatch_runner": None, "lora_capture_cases": [0], "_lora_dispatch_map": {},
        "_max_lora_case": 0, "_candidates": {}, "_capture_descs": {}, "_graphs_captured": True,
    }  # fmt: skip
    made._init_candidates()
    return made


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
def test_every_batch_of_trees_or_chains_finds_a_graph_of_its_length(
    version: str, release: Callable[[str], Path]
) -> None:
    found = manager(release(version), [1, 2, 4, 8, 16, 32, 64, 128, 256, 512], tree=16, chain=15)

    def full(requests: int, length: int) -> bool:
        desc = found.dispatch(requests, requests * length, length, 0)
        if desc.cg_mode == Mode.FULL:
            assert desc.uniform_token_count == length
            assert desc.num_reqs >= requests
        return desc.cg_mode == Mode.FULL

    most = {17: max(d.num_reqs for d in found._capture_descs[Mode.FULL] if d.uniform_token_count == 17), 16: 32}
    assert not full(7, 17)  # as the engine has it
    ours.offer_every_length(found)
    assert all(full(requests, length) for length in (16, 17) for requests in range(1, most[length] + 1))
    smallest = found.dispatch(7, 7 * 17, 17, 0)
    assert smallest.num_tokens == min(
        d.num_tokens for d in found._capture_descs[Mode.FULL] if d.uniform_token_count == 17 and d.num_reqs >= 7
    )
    mixed = found.dispatch(3, 300, None, 0)  # a batch with a prompt
    assert (mixed.cg_mode, mixed.num_tokens) == (Mode.PIECEWISE, 512)
    ours.offer_every_length(None)

"""The second engine: its workers, its trees, and what is not said about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.engines import index_of

from specaudit.classify.audit import trace
from specaudit.engines import ENGINES
from specaudit.errors import ConfigurationError
from specaudit.model import Audit

Audited = Callable[[str], Audit]


@pytest.mark.parametrize("version", ["0.5.9", "0.5.23"])
def test_its_trees_are_found(version: str, audited: Audited, release: Callable[[str], Path]) -> None:
    found = audited(f"sglang=={version}")
    assert found.tree is not None
    parts = (found.tree.drafting, found.tree.attention, found.tree.verification)
    assert [part.verdict for part in parts] == ["dynamic", "per-request", "tree-walk"]
    walks = [v for v in found.verifiers if (v.role, v.walk) == ("compiled", "tree")]
    assert {v.name for v in walks} >= {"verify_tree_greedy", "tree_speculative_sampling_target_only"}
    for verifier in walks:
        assert "links of a tree" in verifier.reason
        call = verifier.called_from[0]
        lines = (release(f"sglang=={version}") / call.path).read_text(encoding="utf-8").split("\n")
        assert call.text == lines[call.line - 1].strip()
        assert "(" in call.text
    assert found.errors == ()


def test_workers_of_0_5_9(audited: Audited) -> None:
    found = {p.name: p for p in audited("sglang==0.5.9").proposers}
    table = {name: (p.path.rpartition("/")[2], p.line, p.methods, p.reachable) for name, p in found.items()}
    assert table == {
        "MultiLayerEagleWorkerV2": ("multi_layer_eagle_worker_v2.py", 531, ("EAGLE", "EAGLE3"), "conditional"),
        "MultiLayerEagleWorker": ("multi_layer_eagle_worker.py", 70, ("EAGLE", "EAGLE3"), "conditional"),
        "EAGLEWorkerV2": ("eagle_worker_v2.py", 583, ("EAGLE", "EAGLE3"), "default"),
        "EAGLEWorker": ("eagle_worker.py", 78, ("EAGLE", "EAGLE3"), "conditional"),
        "StandaloneWorkerV2": ("standalone_worker_v2.py", 131, ("STANDALONE",), "default"),
        "StandaloneWorker": ("standalone_worker.py", 24, ("STANDALONE",), "conditional"),
        "NGRAMWorker": ("ngram_worker.py", 25, ("NGRAM",), "default"),
    }
    assert {p.topology for p in found.values()} == {"tree-dynamic"}
    assert [c.option for c in found["EAGLEWorker"].conditions] == ["disable_overlap_schedule"]


def test_a_worker_that_builds_no_tree_is_unknown_with_a_reason(audited: Audited) -> None:
    found = {p.name: p for p in audited("sglang==0.5.23").proposers}
    assert found["EAGLEWorkerV2"].topology == "tree-dynamic"
    for name in ("DFlashWorkerV2", "DSparkWorkerV2"):
        assert found[name].topology == "unknown"
        assert "drafts and verifies" in found[name].reason


def test_nothing_is_said_about_options_and_paths(audited: Audited, release: Callable[[str], Path]) -> None:
    found = audited("sglang==0.5.9")
    assert (found.options, found.paths) == ((), ())
    assert {r.method for r in found.runners} == {"EAGLE", "EAGLE3", "STANDALONE", "NGRAM"}
    index = index_of(release("sglang==0.5.9"), "sglang", ENGINES["sglang"].wants)
    with pytest.raises(ConfigurationError, match="not drawn for sglang"):
        trace(index, "EAGLE", {}, found.verifiers)

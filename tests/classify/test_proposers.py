"""Proposers and runners of fourteen releases against a table that was checked by reading their factories.

``drafting.json``: per release the tree verdicts of drafting and attention, the default runners of each method, and
every proposer as name, path, line, methods, runner, topology, further topologies, reachability.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.engines import index_of, replaced

from specaudit.classify.audit import Reading
from specaudit.classify.treeverdict import tree_verdict
from specaudit.engines import ENGINES
from specaudit.model import Condition, Evidence, Proposer

EXPECTED = json.loads((Path(__file__).parents[1] / "data" / "drafting.json").read_text(encoding="utf-8"))
VLLM = ENGINES["vllm"]
Read = Callable[[str], Reading]
Release = Callable[[str], Path]


def proposers(reading: Reading) -> list[Proposer]:
    return [found.proposer for found in reading.proposers.found]


def row(proposer: Proposer) -> list[object]:
    """A proposer as the table has it."""
    further = sorted({variant.topology for variant in proposer.variants} - {proposer.topology})
    place = [proposer.name, proposer.path, proposer.line]
    return [*place, list(proposer.methods), proposer.runner, proposer.topology, further, proposer.reachable]


def named(reading: Reading, name: str, runner: str = "") -> Proposer:
    (found,) = (p for p in proposers(reading) if p.name == name and runner in ("", p.runner))
    return found


def conditions(found: tuple[Condition, ...]) -> set[tuple[str, str, str]]:
    return {(c.option, c.op, c.value) for c in found}


@pytest.mark.parametrize("version", EXPECTED)
def test_a_release_has_these_proposers_and_no_others(version: str, read: Read) -> None:
    reading, expected = read(version), EXPECTED[version]
    rows = [row(proposer) for proposer in proposers(reading)]
    assert sorted(rows, key=lambda entry: (entry[1], entry[2])) == expected["proposers"]  # type: ignore[arg-type,return-value]
    defaults: dict[str, set[str]] = {}
    for runner in reading.runners:
        if runner.default:
            defaults.setdefault(runner.method, set()).add(runner.runner)
    assert {method: sorted(labels) for method, labels in defaults.items()} == expected["runners"]
    tree = tree_verdict(reading.reader, reading.proposers, ())
    assert (tree.drafting.verdict, tree.attention.verdict) == (expected["drafting"], expected["attention"])
    shown: list[Evidence] = [e for p in proposers(reading) for part in (p, *p.variants) for e in part.evidence]
    shown += [e for part in (tree.drafting, tree.attention) for e in part.evidence]
    shown += [e for runner in reading.runners for e in runner.evidence]
    assert all(p.evidence for p in proposers(reading))
    for evidence in shown:
        lines = reading.index.source(evidence.path).split("\n")
        assert evidence.text == lines[evidence.line - 1].strip()
    for proposer in proposers(reading):
        head = reading.index.line(proposer.path, proposer.line)
        assert head.lstrip().startswith((f"class {proposer.name}", "def "))


def test_a_loop_over_steps_is_the_evidence_of_an_autoregressive_chain(read: Read) -> None:
    found = named(read("0.20.1"), "EagleProposer")
    assert any(e.text.startswith("for ") for e in found.evidence)
    variants = {v.topology: conditions(v.when) for v in found.variants}
    assert ("parallel_drafting", "==", "true") in variants["chain-parallel"]
    assert ("speculative_token_tree", "is set", "") in variants["tree-static"]
    assert any(value == "TREE_ATTN" for _, _, value in variants["tree-static"])


def test_branches_on_the_draft_models_architecture_are_conditions(read: Read) -> None:
    found = named(read("0.33.0"), "LiLiCorrSpeculator")
    assert ("draft_model_config.architectures", "in", "LiLiCorrDraftModel") in conditions(found.conditions)
    other = named(read("0.33.0"), "DFlashSpeculator")
    assert ("draft_model_config.architectures", "not in", "LiLiCorrDraftModel") in conditions(other.conditions)
    assert all(c.kind == "model" for c in found.conditions)


def test_a_class_that_the_user_names_is_unknown_with_the_reason(read: Read) -> None:
    found = named(read("0.33.0"), "<user class> via create_custom_proposer()")
    assert found.topology == "unknown"
    assert "named by the user" in found.reason
    assert found.methods == ("custom_class",)


def test_what_only_a_flag_reaches_is_conditional(read: Read) -> None:
    found = named(read("0.20.1"), "EagleSpeculator")
    assert found.reachable == "conditional"
    assert ("VLLM_USE_V2_MODEL_RUNNER", "==", "1") in conditions(found.conditions)


# --- the same release, changed


RUNNER = "vllm/v1/worker/gpu_model_runner.py"


def changed(release: Release, version: str, files: dict[str, Callable[[str], str]]) -> Reading:
    root = release(version)
    texts = {path: edit((root / path).read_text(encoding="utf-8")) for path, edit in files.items()}
    return Reading(index_of(root, wants=VLLM.wants, changed=texts), VLLM)


def test_a_class_that_nothing_makes_is_dead(release: Release) -> None:
    old = "                self.drafter = SuffixDecodingProposer(self.vllm_config)\n"
    reading = changed(
        release,
        "0.20.1",
        {
            RUNNER: lambda text: replaced(
                text,
                ("from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer\n", ""),
                (old, "                raise NotImplementedError\n"),
            ).replace("SuffixDecodingProposer", "object")
        },
    )
    found = named(reading, "SuffixDecodingProposer")
    assert (found.reachable, found.methods, found.topology) == ("dead", (), "chain-lookup")
    assert "nothing in the engine makes" in found.reason
    assert "suffix" not in {runner.method for runner in reading.runners}


def test_a_step_loop_that_is_taken_out_leaves_no_autoregressive_chain(release: Release) -> None:
    path = "vllm/v1/spec_decode/llm_base_proposer.py"
    loop = "        for token_index in range(self.num_speculative_tokens - 1):\n"
    reading = changed(release, "0.20.1", {path: lambda text: replaced(text, (loop, "        if True:\n"))})
    assert named(reading, "EagleProposer").topology == "chain-parallel"


def test_a_predicate_is_read_from_its_body(release: Release) -> None:
    def narrower(text: str) -> str:
        head, mark, tail = text.partition("    def use_eagle(self) -> bool:\n")
        assert mark
        body, end, rest = tail.partition("\n\n")
        assert '"eagle3"' in body
        return head + mark + body.replace('"eagle3"', '"ngram"') + end + rest

    reading = changed(release, "0.20.1", {"vllm/config/speculative.py": narrower})
    assert "eagle3" not in named(reading, "EagleProposer").methods


def test_names_say_nothing(release: Release) -> None:
    """A parallel drafter that calls itself a tree stays parallel."""
    path = "vllm/v1/spec_decode/medusa.py"
    reading = changed(
        release,
        "0.20.1",
        {
            path: lambda text: text.replace("MedusaProposer", "TreeProposer").replace("logits", "tree_children"),
            RUNNER: lambda text: text.replace("MedusaProposer", "TreeProposer"),
        },
    )
    assert row(named(reading, "TreeProposer"))[3:6] == [["medusa"], "v1", "chain-parallel"]

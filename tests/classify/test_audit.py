"""One audit as a whole: engines with broken or missing parts, and the same result in one process or two."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.derived import Outlines
from support.engines import index_of

from specaudit.classify.audit import audit, trace
from specaudit.engines import ENGINES
from specaudit.errors import ConfigurationError
from specaudit.model import Audit

Release = Callable[[str], Path]
VLLM = ENGINES["vllm"]


def changed(release: Release, version: str, texts: dict[str, str]) -> Audit:
    return audit(index_of(release(version), wants=VLLM.wants, changed=texts))


def test_one_process_or_two_give_the_same(audited: Callable[[str], Audit], release: Release) -> None:
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)  # beside a thread nothing is forked
    other.start()
    try:
        alone = audit(index_of(release("0.20.1"), wants=VLLM.wants, cache=Outlines()))
    finally:
        stop.set()
        other.join()
    assert alone == audited("0.20.1")


@pytest.mark.parametrize(
    ("path", "text", "gone"),
    [
        ("vllm/v1/spec_decode/medusa.py", "class MedusaProposer(:\n", "MedusaProposer"),
        ("vllm/v1/spec_decode/suffix_decoding.py", "x = 1\0\n", "SuffixDecodingProposer"),
        ("vllm/v1/worker/gpu/model_runner.py", "def broken(\n", "EagleSpeculator"),
    ],
)
def test_a_broken_file_costs_its_own_part(path: str, text: str, gone: str, release: Release) -> None:
    found = changed(release, "0.20.1", {path: text})
    assert [failure.path for failure in found.errors] == [path]
    names = {p.name for p in found.proposers if p.topology != "unknown"}
    assert gone not in names
    assert {"EagleProposer", "NgramProposer"} <= names
    assert {v.walk for v in found.verifiers} >= {"linear", "dispatcher"}


@pytest.mark.parametrize("path", ["vllm/config/speculative.py", "vllm/v1/worker/gpu_worker.py", "vllm/envs.py"])
def test_without_a_central_file_less_is_known_and_nothing_fails(path: str, release: Release) -> None:
    found = changed(release, "0.20.1", {path: ""})
    assert found.errors == ()
    assert found.tree is not None
    if path.endswith("speculative.py"):
        assert (found.runners, found.proposers, found.options, found.paths) == ((), (), (), ())


def test_a_package_without_speculative_decoding(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("__version__ = '0'\n")
    index = index_of(tmp_path)
    found = audit(index)
    assert (found.runners, found.proposers, found.verifiers, found.options, found.paths) == ((), (), (), (), ())
    assert found.tree is not None
    parts = (found.tree.drafting, found.tree.attention, found.tree.verification)
    assert [part.verdict for part in parts] == ["none", "none", "none"]
    assert all(part.searched is not None for part in parts)
    with pytest.raises(ConfigurationError):
        trace(index, "eagle3", {}, ())


def test_modules_that_import_each_other_and_classes_that_inherit_in_a_circle(release: Release) -> None:
    path = "vllm/v1/spec_decode/medusa.py"
    text = (release("0.20.1") / path).read_text(encoding="utf-8")
    circle = text.replace(
        "class MedusaProposer:", "from vllm.v1.spec_decode.ring import Ring\n\n\nclass MedusaProposer(Ring):"
    )
    assert circle != text
    ring = "from vllm.v1.spec_decode.medusa import MedusaProposer\n\n\nclass Ring(MedusaProposer):\n    pass\n"
    found = changed(release, "0.20.1", {path: circle, "vllm/v1/spec_decode/ring.py": ring})
    assert {p.topology for p in found.proposers if p.name == "MedusaProposer"} == {"chain-parallel"}

"""The toy pair, made tiny on a processor: it is what it says it is, and others load it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import specaudit
from specaudit.ddtree.dflash import DFlashDrafter
from specaudit.ddtree.generate import generate
from specaudit.smoke.train import Drafter, Shape, Target, corpus, length_of, make_pair

SHAPE = Shape(
    hidden=64, inner=128, heads=4, kv_heads=2, head=16, vocabulary=512, layers=4, draft_layers=2, block=6, context=64
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained for seconds: far from good, complete in form."""
    folder = tmp_path_factory.mktemp("pair")
    torch.manual_seed(0)
    make_pair(folder, [os.path.dirname(os.__file__)], 0.1, "cpu", SHAPE, batch=4, megabytes=1)
    return folder


def test_transformers_loads_the_target_and_computes_the_same(pair: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    theirs = AutoModelForCausalLM.from_pretrained(pair / "target", dtype=torch.float32).eval()
    ours = Target(SHAPE)
    ours.load_state_dict({k: v.float() for k, v in load_file(pair / "target/model.safetensors").items()})
    ids = torch.tensor([json.loads((pair / "prompts.json").read_text())[0][:40]])
    torch.testing.assert_close(ours(ids)[0], theirs(ids).logits, atol=1e-4, rtol=1e-4)
    written = theirs.generate(ids, max_new_tokens=10, do_sample=False, eos_token_id=None)
    assert torch.equal(ours.continued(ids, 50, 0.0), written)
    tokenizer = AutoTokenizer.from_pretrained(pair / "target")
    text = "def f(x):\n    return 'ä'\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_drafter_is_a_dflash_drafter_and_drafts_what_training_measured(pair: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    theirs = DFlashDrafter.load(pair / "draft")
    assert theirs.config.block_size == SHAPE.block
    assert theirs.config.target_layer_ids == tuple(SHAPE.taps)
    target, drafter = Target(SHAPE), Drafter(SHAPE)
    for model, name in ((target, "target"), (drafter, "draft")):
        model.load_state_dict({k: v.float() for k, v in load_file(pair / name / "model.safetensors").items()})
    prompt = json.loads((pair / "prompts.json").read_text())[1][:30]
    ids = torch.tensor([prompt])
    # One block after the prompt's last token, as training sees it and as an engine runs it.
    _, tapped = target(ids)
    block = target.model.embed_tokens(torch.tensor([[prompt[-1], *[3] * (SHAPE.block - 1)]]))
    positions = torch.arange(len(prompt) - 1, len(prompt) - 1 + SHAPE.block)[None]
    mask = torch.ones(1, 1, SHAPE.block, len(prompt) + SHAPE.block, dtype=torch.bool)
    mask[..., len(prompt) - 1] = False  # the anchor itself is in the block
    mine = drafter(block, positions, tapped, mask)[0]
    context = theirs.extend(theirs.empty_context(), tapped[0, : len(prompt) - 1])
    torch.testing.assert_close(mine, theirs(block[0], context), atol=1e-4, rtol=1e-4)
    huggingface = AutoModelForCausalLM.from_pretrained(pair / "target", dtype=torch.float32).eval()
    assert generate(huggingface, theirs, prompt, 20).acceptance_length >= 1


def test_prompts_come_from_files_that_training_never_saw(pair: Path) -> None:
    prompts = json.loads((pair / "prompts.json").read_text())
    assert 1 <= len(prompts) <= 64
    assert all(0 < len(prompt) <= 64 and max(prompt) < SHAPE.vocabulary for prompt in prompts)


def test_files_are_taken_in_a_fixed_order_and_odd_ones_left_out(tmp_path: Path) -> None:
    for name, data in {"a.py": b"x = 1\n" * 200, "short.py": b"x\n", "test_b.py": b"x = 2\n" * 200}.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "latin.py").write_bytes("# ä\n".encode("latin-1") * 300)
    assert corpus([str(tmp_path)], 1) == ["x = 1\n" * 200]
    with pytest.raises(SystemExit, match=r"Too few Python files lie below .* \(1\): name a folder"):
        make_pair(tmp_path / "out", [str(tmp_path)], 0.01, "cpu", SHAPE, 2)


def test_acceptance_length_stops_at_the_first_wrong_draft() -> None:
    right = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1.0]])
    assert length_of(right) == pytest.approx(1 + (2 + 0 + 4) / 3)


def test_without_a_gpu_nothing_is_trained(tmp_path: Path) -> None:
    script = Path(specaudit.__file__).parent / "smoke/train.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "pair"), "--minutes", "9"],
        capture_output=True, text=True, check=False, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("no GPU: torch finds no CUDA device here; run this on a GPU host")
    assert not (tmp_path / "pair").exists()

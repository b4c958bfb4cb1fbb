"""``specaudit patch launch``: the script that starts a patched engine, run with a program that notes its arguments."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from specaudit.cli import run
from specaudit.errors import Exit, UsageError
from specaudit.model import Gpu
from specaudit.patching.launch import ORDER_PATH, Launch, script, stock_order

MODELS = ["--model", "a/target", "--draft", "it's a draft"]


@pytest.fixture
def patched(release: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def make(version: str, *recipes: str) -> str:
        site = tmp_path / "my site"
        subprocess.run(["cp", "-al", str(release(version)), str(site)], check=True)
        named = [word for recipe in recipes for word in ("--recipe", recipe)]
        assert not named or run(["patch", f"dir:{site}", *named, "--yes", "--no-diff"]) == Exit.CLEAN
        return f"dir:{site}"

    return make


def started(text: str, folder: Path, *more: str) -> list[str]:
    """The arguments with which a script starts the engine's program."""
    (folder / "vllm").write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    (folder / "vllm").chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    (folder / "starts.sh").write_bytes(text.encode())
    command = ["sh", str(folder / "starts.sh"), *more]
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert done.stderr == b""
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize(
    ("version", "recipes"), [("0.33.0", ["ddtree"]), ("0.20.1", ["dflash-layer-ids", "ddtree-v1"])]
)
def test_the_script_starts_the_engine_with_trees_and_says_the_way_back(
    version: str, recipes: list[str], patched: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = patched(version, *recipes)
    capsys.readouterr()
    assert run(["patch", "launch", target, *MODELS, "--budget", "64", "--draft-tokens", "7", "--exact"]) == Exit.CLEAN
    text, err = capsys.readouterr()
    assert err == ""
    command, model, *options, port, number = started(text, tmp_path, "--port", "9000")
    assert (command, model, port, number) == ("serve", "a/target", "--port", "9000")
    found = dict(zip(options[::2], options[1::2], strict=True))
    assert json.loads(found.pop("--speculative-config")) == {
        "method": "dflash", "model": "it's a draft", "num_speculative_tokens": 7,
    }  # fmt: skip
    assert json.loads(found.pop("--additional-config")) == {"ddtree": {"budget": 64, "exact": True}}
    assert found == {"--attention-backend": "FLASH_ATTN"}
    assert f"# vllm {version} with DDTree, which specaudit's recipe {recipes[-1]} installed.\n" in text
    assert "#   Hopper (9.0): FLASH_ATTN, FLASHINFER, " in text  # no GPU of the target is known
    assert "#   Blackwell (10.x): FLASHINFER, FLASH_ATTN, " in text
    assert f"#       specaudit patch revert '{target}' --yes\n" in text


def test_a_script_that_is_written_can_be_run(
    patched: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, file = patched("0.33.0", "ddtree"), tmp_path / "start.sh"
    capsys.readouterr()
    assert run(["patch", "launch", target, *MODELS, "--output", str(file)]) == Exit.CLEAN
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"note: {file}: starts it; arguments of vllm serve may follow\n")
    assert os.access(file, os.X_OK)
    assert started(file.read_text(), tmp_path)[-2:] == ["--attention-backend", "FLASH_ATTN"]


def test_without_trees_there_is_nothing_to_start(
    patched: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["patch", "launch", patched("0.33.0"), *MODELS]) == Exit.ERROR
    out, err = capsys.readouterr()
    assert out == ""
    assert "No recipe for trees stands there" in err
    assert "--recipe ddtree or ddtree-v1" in err


@pytest.mark.parametrize(("recipe", "most"), [("ddtree", 512), ("ddtree-v1", 128)])
def test_a_tree_that_the_recipe_does_not_build_is_refused(recipe: str, most: int) -> None:
    assert Launch("t", "d", 15, most).arguments(recipe)
    for budget in (0, most + 1):
        with pytest.raises(UsageError, match=f"builds no tree of {budget} nodes") as told:
            Launch("t", "d", 15, budget).arguments(recipe)
        assert told.value.hint == f"Write --budget 1 to --budget {most}."


@pytest.mark.parametrize("version", ["0.20.1", "0.23.0", "0.32.0", "0.33.0"])
def test_what_stock_would_pick_is_read_off_the_engine(version: str, release: Callable[[str], Path]) -> None:
    source = (release(version) / ORDER_PATH).read_text()
    assert [stock_order(source, major)[0] for major in (8, 9, 10, 12)] == [
        "FLASH_ATTN", "FLASH_ATTN", "FLASHINFER", "FLASH_ATTN",
    ]  # fmt: skip
    told = script(Launch("t", "d", 15, 16), "ddtree", "vllm", "gpu1", source, [Gpu("B200", "10.0")], "/env/bin/python")
    assert "#   B200 (10.0): FLASHINFER, FLASH_ATTN, " in told
    assert "Hopper" not in told
    assert 'vllm=/env/bin/vllm\nexec "${VLLM:-$vllm}" serve t \\\n' in told


def test_no_name_ends_a_comment_or_runs(tmp_path: Path) -> None:
    evil = "x\ntouch ran\r$(touch ran)`touch ran`"
    text = script(Launch(evil, evil, 15, 16), "ddtree", evil, evil, "", [Gpu(evil, "9.0")], f"/{evil}/bin/python")
    told = started(text.replace("set -eu", f"set -eu; cd '{tmp_path}'; VLLM=vllm"), tmp_path)
    assert told[1] == evil
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("source", ["", "def f(:", "x = 1", "def _get_backend_priorities(a):\n    return a.b(c)\n"])
def test_an_order_that_cannot_be_read_is_not_known(source: str) -> None:
    assert stock_order(source, 9) == ()
    assert ": not known\n" in script(Launch("t", "d", 15, 16), "ddtree", "vllm", "gpu1", source, [], None)

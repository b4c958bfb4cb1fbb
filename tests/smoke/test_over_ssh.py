"""A smoke run on a machine whose SSH connections break again and again: the run goes on, and its result arrives."""

from __future__ import annotations

import json
import shlex
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from specaudit.cli import run as program
from specaudit.errors import Exit
from specaudit.smoke import session
from tests.hosts.conftest import Client, client, keys, start_sshd  # noqa: F401
from tests.hosts.machines import make_environment
from tests.hosts.sshd import Sshd
from tests.smoke.engine import SOURCE, TORCH


def test_connections_break_and_the_run_goes_on(
    client: Client,  # noqa: F811
    start_sshd: Callable[..., Sshd],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(session, "WAIT", 1.0)
    monkeypatch.setattr(session, "PAUSE", 0.2)
    server = start_sshd()
    client.host("gpu1", server)
    python = make_environment(tmp_path / "env", {"vllm/__init__.py": SOURCE, "torch.py": TORCH}, "0.20.1")
    broken: list[int] = []

    def breaks() -> None:
        until = time.monotonic() + 60
        while not list((tmp_path / "far/specaudit/smoke").glob("*/state.json")) and time.monotonic() < until:
            time.sleep(0.05)
        for _ in range(3):
            broken.extend(server.sessions())
            server.kill_sessions()
            time.sleep(1.0)

    thread = threading.Thread(target=breaks)
    thread.start()
    command = ["smoke", "gpu1", "-F", str(client.config), "--python", str(python), "--target", "t", "--draft", "d"]
    # Runs of the test lie in a folder of its own, not in that of the account.
    command += ["--via", f"env XDG_CACHE_HOME={tmp_path / 'far'}"]
    more = ["--draft-tokens", "4", "--tokens", "20", "--count", "3", "--env", "FAKE_ENGINE=slow", "--json"]
    prompts = tmp_path / "prompts.json"
    prompts.write_text("[[1, 2], [3], [4]]")
    assert program([*command, *more, "--prompts", str(prompts)]) == Exit.CLEAN
    thread.join()
    assert len(broken) >= 2
    out, err = capsys.readouterr()
    made = json.loads(out)
    advised = err[err.index("specaudit smoke gpu1") :].partition(" --attach")[0]
    assert advised == shlex.join(
        ["specaudit", "smoke", "gpu1", "-F", str(client.config), "--python", str(python), "--via", command[-1]]
    )
    assert [mode["error"] for mode in made["modes"]] == [None, None]
    assert made["gpus"] == {"stand-in (compute capability 9.0)": 1}
    assert made["not_run_on"] == ["8.0 Ampere (A100)", "10.0 Blackwell (B200)"]
    assert not list((tmp_path / "far/specaudit/smoke").iterdir())

"""``specaudit patch`` on machines: a fleet over real SSH connections, one of which fails; a container."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from specaudit.cli import run as program
from specaudit.errors import Exit
from tests.hosts.conftest import Client, client, keys, start_sshd  # noqa: F401
from tests.hosts.machines import make_environment, site_of
from tests.hosts.sshd import Sshd
from tests.patching import tree

SCHEDULER = "vllm/v1/core/sched/scheduler.py"
HOSTS = ("gpu1", "gpu2", "gpu3")


@pytest.fixture
def fleet(
    release: Callable[[str], Path],
    tmp_path: Path,
    client: Client,  # noqa: F811
    start_sshd: Callable[..., Sshd],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, Path]:
    """Three hosts behind one server, each with an environment of its own that holds 0.20.1; an inventory of them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    server = start_sshd()
    lines, sites = [], {}
    for host in HOSTS:
        client.host(host, server)
        python = make_environment(tmp_path / host, {}, "0")
        site = sites[host] = site_of(tmp_path / host)
        subprocess.run(["rm", "-r", str(site / "vllm"), str(site / "vllm-0.dist-info")], check=True)
        for part in ("vllm", "vllm-0.20.1.dist-info"):
            subprocess.run(["cp", "-a", str(release("0.20.1") / part), str(site)], check=True)
        lines.append(f'[hosts.{host}]\npython = "{python}"\n')
    (tmp_path / "fleet.toml").write_text("\n".join(lines))
    return sites


def options(client: Client, tmp_path: Path) -> list[str]:  # noqa: F811
    return ["-F", str(client.config), "--inventory", str(tmp_path / "fleet.toml")]


def on(host: str, client: Client, tmp_path: Path) -> list[str]:  # noqa: F811
    return [host, "-F", str(client.config), "--python", str(tmp_path / host / "bin/python")]


def test_a_fleet_is_changed_verified_and_taken_back(
    fleet: dict[str, Path],
    client: Client,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {host: tree.facts(site) for host, site in fleet.items()}
    command = ["patch", *options(client, tmp_path), "--recipe", "lookahead-slots", "--json"]
    assert program([*command, "--yes"]) == Exit.CLEAN
    done = json.loads(capsys.readouterr().out)["targets"]
    assert [(t["target"], t["applied"], t["verification"]["problems"]) for t in done] == [(h, True, []) for h in HOSTS]
    assert len({tree.sha((site / SCHEDULER).read_bytes()) for site in fleet.values()}) == 1
    assert program(["scan", *on("gpu2", client, tmp_path), "--no-rules", "--json"]) == Exit.CLEAN
    engine = json.loads(capsys.readouterr().out)["engine"]
    assert (engine["patched"], engine["modified"]) == ([SCHEDULER], [])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))  # from a machine that knows nothing of it
    for host in HOSTS:
        assert program(["patch", "revert", *on(host, client, tmp_path), "--yes"]) == Exit.CLEAN
    assert {host: tree.facts(site) for host, site in fleet.items()} == before


def test_one_of_three_hosts_fails_and_only_that_one_is_taken_back(
    fleet: dict[str, Path],
    client: Client,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    immutable = fleet["gpu2"] / "vllm/v1/worker/gpu_model_runner.py"  # the last file of the recipe
    before = tree.facts(fleet["gpu2"])
    subprocess.run(["chattr", "+i", str(immutable)], check=True)
    try:
        command = ["patch", *options(client, tmp_path), "--recipe", "dflash-layer-ids", "--yes", "--no-diff"]
        assert program(command) == Exit.INCOMPLETE
    finally:
        subprocess.run(["chattr", "-i", str(immutable)], check=True)
    out, err = capsys.readouterr()
    assert "gpu1: verified" in out
    assert "gpu3: verified" in out
    assert "error: gpu2: The operation is not permitted" in err
    assert tree.facts(fleet["gpu2"]) == before


def test_a_half_patched_fleet_is_refused(
    fleet: dict[str, Path],
    client: Client,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert program(["patch", *on("gpu3", client, tmp_path), "--recipe", "lookahead-slots", "--yes"]) == Exit.CLEAN
    capsys.readouterr()
    command = ["patch", *options(client, tmp_path), "--recipe", "lookahead-slots", "--yes", "--no-diff"]
    assert program(command) == Exit.ERROR
    said = "do not hold the same engine, so none was changed: gpu1, gpu2 / gpu3 (has lookahead-slots 1 by specaudit)."
    assert said in capsys.readouterr().err
    assert program([*command, "--allow-partial"]) == Exit.CLEAN
    assert len({tree.sha((site / SCHEDULER).read_bytes()) for site in fleet.values()}) == 1


def test_inside_a_container_by_a_command_that_leads_there(
    fleet: dict[str, Path],
    client: Client,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``env`` runs a command as ``docker exec`` does; what matters is that the agent goes the same way as a scan."""
    before = tree.facts(fleet["gpu1"])
    there = [*on("gpu1", client, tmp_path), "--via", "env -i"]
    assert program(["patch", *there, "--recipe", "lookahead-slots", "--yes", "--no-diff"]) == Exit.CLEAN
    assert "gpu1: verified" in capsys.readouterr().out
    assert program(["patch", "revert", *there, "--yes"]) == Exit.CLEAN
    assert tree.facts(fleet["gpu1"]) == before

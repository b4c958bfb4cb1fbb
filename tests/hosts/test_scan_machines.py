"""``specaudit scan`` of machines as its users see it: over real SSH, with a real release, running servers, a fleet."""

from __future__ import annotations

import json
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from specaudit.cache import Cache
from specaudit.cli import run
from specaudit.errors import Exit
from specaudit.fleet import compare, member
from specaudit.hosts.fake import FakeShell, Fault
from specaudit.hosts.machines import Machines
from specaudit.hosts.remote import RemoteHost
from specaudit.hosts.shell import Ended, Sink
from specaudit.scan import Options, scan_all
from specaudit.snapshot import take
from specaudit.targets import parse
from tests.hosts.conftest import Client
from tests.hosts.machines import install_release, make_environment, site_of, start_server
from tests.hosts.sshd import Sshd, free_port
from tests.hosts.test_probe import METRICS, SECRETS

Server = Callable[..., Sshd]
Scan = Callable[..., tuple[int, str, str]]

VERSION = "0.20.1"
CONFIG = {"method": "eagle3", "model": "https://me:hunter2@host/draft", "num_speculative_tokens": 3}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, release: Callable[[str], Path]) -> Path:
    """An environment with a real release; its interpreter."""
    python = make_environment(tmp_path_factory.mktemp("real") / "venv", {}, "1", "other")
    install_release(site_of(python.parent.parent), release(VERSION))
    return python


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory, engine: Path) -> Path:
    """The same with one file changed and one added."""
    prefix = tmp_path_factory.mktemp("changed") / "venv"
    python = make_environment(prefix, {}, "1", "other")
    site = site_of(prefix)
    for entry in site_of(engine.parent.parent).glob("vllm*"):
        shutil.copytree(entry, site / entry.name)
    with (site / "vllm/v1/spec_decode/eagle.py").open("a") as file:
        file.write("# a local change\n")
    (site / "vllm/v1/spec_decode/extra.py").write_text("EXTRA = 1\n")
    return python


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the tests of this file: classifying takes seconds."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def scan(
    client: Client, cache_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Scan:
    """Runs ``specaudit scan`` with the client's ssh configuration; exit code, stdout, stderr."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_folder))

    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(["scan", "--ssh-config", str(client.config), "--no-rules", *arguments])
        sys.stdout.flush()
        out, err = capfd.readouterr()
        return code, out, err

    return call


@pytest.fixture
def served(engine: Path) -> Iterator[int]:
    """A process like ``vllm serve`` of that engine, with secrets; its pid."""
    port = free_port()
    arguments = ["--api-key", SECRETS[0], "--speculative-config", json.dumps(CONFIG), "--hf-token=" + SECRETS[1]]
    process = start_server(engine, arguments, {"VLLM_USE_V2_MODEL_RUNNER": "0", "HF_TOKEN": SECRETS[2]}, port, METRICS)
    yield process.pid
    process.kill()
    process.wait()


def test_a_running_server_is_found_traced_and_counted(
    client: Client, start_sshd: Server, engine: Path, served: int, scan: Scan
) -> None:
    client.host("gpu1", start_sshd())
    code, out, err = scan("gpu1", "--python", str(engine), "--metrics", "--json")
    assert (code, err) == (0, "")
    document: dict[str, Any] = json.loads(out)
    assert document["target"] == {"spec": "gpu1", "host": "gpu1", "python": str(engine), "via": None}
    assert document["engine"]["version"] == VERSION
    (server,) = [one for one in document["servers"] if one["pid"] == served]
    path = document["paths"][server["path"]]
    assert (path["method"], path["runner"]) == ("eagle3", "v1")
    kinds = [hop["what"] for hop in path["hops"]]
    assert {"config", "runner", "proposer", "sampler", "kernel"} <= set(kinds)
    lines = (site_of(engine.parent.parent) / path["hops"][-1]["path"]).read_text().splitlines()
    assert lines[path["hops"][-1]["line"] - 1].strip() == path["hops"][-1]["text"]
    assert server["metrics"]["drafts"] == 160
    assert server["metrics"]["accepted_at_1"] == 110
    assert server["metrics"]["acceptance_length"] == 2.5
    assert not any(secret in out for secret in SECRETS)


def test_the_page_of_one_machine_shows_the_server(
    client: Client, start_sshd: Server, engine: Path, served: int, scan: Scan
) -> None:
    client.host("gpu1", start_sshd())
    code, out, _ = scan("gpu1", "--python", str(engine), "--metrics", "--brief")
    assert code == 0
    assert f"process {served}:" in out
    assert "takes eagle3 on v1" in out
    assert "160 drafts, 480 draft tokens, 240 accepted" in " ".join(out.split())
    assert not any(secret in out for secret in SECRETS)


def test_a_fleet_is_one_table_with_its_differences_and_one_dead_host(
    client: Client, start_sshd: Server, engine: Path, changed: Path, scan: Scan, tmp_path: Path
) -> None:
    server = start_sshd()
    for name in ("gpu1", "gpu2", "gpu3"):
        client.host(name, server)
    client.host("dead", server, Port="1")
    inventory = tmp_path / "fleet.toml"
    inventory.write_text(
        f'[groups.same]\nhosts = ["gpu1", "gpu2"]\npython = "{engine}"\n'
        f'[groups.other]\nhosts = ["gpu3", "dead"]\npython = "{changed}"\n'
    )
    document_file = tmp_path / "run.json"
    code, out, err = scan("--inventory", str(inventory), "--brief", "--output", str(document_file), "--jobs", "4")
    assert code == 3
    assert "error: dead (127.0.0.1 port 1) refuses the connection." in err
    rows = [line.split() for line in out.splitlines()[:5]]
    assert [row[:2] for row in rows] == [
        ["group", "machine"],
        ["A", "gpu1"],
        ["A", "gpu2"],
        ["B", "gpu3"],
        ["-", "dead"],
    ]
    assert re.search(r"differ\s+vllm/v1/spec_decode/eagle\.py\n", out)
    assert re.search(r"only here\s+vllm/v1/spec_decode/extra\.py\n", out)
    document = json.loads(document_file.read_text())
    assert document["schema"] == "specaudit/run/1"
    first, second = document["fleet"]["groups"]
    assert (first["hosts"], second["hosts"]) == (["gpu1", "gpu2"], ["gpu3"])
    assert second["changed"] == ["vllm/v1/spec_decode/eagle.py"]
    assert second["added"] == ["vllm/v1/spec_decode/extra.py"]
    assert list(document["fleet"]["failed"]) == ["dead"]
    assert [one["engine"]["digest"] == first["digest"] for one in document["scans"][:3]] == [True, True, False]
    assert document["scans"][2]["engine"]["modified"] == ["vllm/v1/spec_decode/eagle.py"]
    assert document["scans"][3]["engine"] is None
    limited = scan("--inventory", str(inventory), "--limit", "same,!gpu2", "--brief")
    assert limited[0] == 0
    assert "gpu1" in limited[1]
    assert "gpu2" not in limited[1]


def test_a_second_scan_moves_little_over_the_wire(
    client: Client, start_sshd: Server, engine: Path, scan: Scan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted by a forwarder before the real server: everything that SSH itself adds is in it."""
    from tests.hosts.forwarder import Forwarder

    with Forwarder(start_sshd().port) as forwarder:
        client.host("gpu1", Sshd(client.folder, [client.keys.host], port=forwarder.port))
        client.host("gpu2", Sshd(client.folder, [client.keys.host], port=forwarder.port))
        assert scan("gpu1", "--python", str(engine), "--brief")[0] == 0
        forwarder.reset()
        assert scan("gpu2", "--venv", str(engine.parent.parent), "--brief")[0] == 0
        assert 10_000 < forwarder.sent + forwarder.received < 60_000


def test_other_commands_reach_machines_by_the_same_options(
    client: Client, start_sshd: Server, engine: Path, scan: Scan, capfd: pytest.CaptureFixture[str]
) -> None:
    client.host("gpu1", start_sshd())
    reach = ["--ssh-config", str(client.config), "--python", str(engine)]
    assert run(["patch", "status", "gpu1", *reach]) == 0
    assert "clean" in capfd.readouterr().out
    config = '{"method": "eagle3", "num_speculative_tokens": 2}'
    assert run(["trace", "gpu1", *reach, "--speculative-config", config, "-q"]) == 0
    assert "eagle3 on v1" in capfd.readouterr().out
    assert run(["patch", "status", "gpu1", *reach, "-o", "Port=1"]) == 3
    assert "refuses the connection" in capfd.readouterr().err


def test_the_fake_host_stands_in_for_all_of_it(engine: Path, changed: Path, cache_folder: Path) -> None:
    """The same scan of a fleet, through the same probe, with no SSH."""
    pythons = {"gpu1": engine, "gpu2": engine, "gpu3": changed, "dead": engine}
    faults: dict[str, set[Fault]] = {"gpu2": {"noise", "stderr"}, "dead": {"unreachable"}}
    machines = Machines(connect=lambda name, _: FakeShell(name, faults.get(name, ())))
    targets = [parse(name, python=str(python)) for name, python in pythons.items()]
    with Cache(cache_folder / "specaudit") as cache:
        options = Options(machines=machines, jobs=4)
        outcomes = list(scan_all(targets, options, cache, lambda _: None, lambda _: False))
    fleet = compare([member(outcome) for outcome in outcomes])
    assert [group.hosts for group in fleet.groups] == [("gpu1", "gpu2"), ("gpu3",)]
    assert fleet.groups[1].changed == ("vllm/v1/spec_decode/eagle.py",)
    assert list(fleet.failed) == ["dead"]
    assert [outcome.code for outcome in outcomes] == [Exit.CLEAN] * 3 + [Exit.INCOMPLETE]
    alone = RemoteHost(FakeShell("alone"), python=str(engine))
    (found,) = alone.installations(("vllm",))
    assert take(alone, targets[0], found, lambda _: False).engine.digest == fleet.groups[0].digest


def test_each_machine_has_a_thread_of_its_own(engine: Path, cache_folder: Path) -> None:
    together = threading.Barrier(3, timeout=60)

    class Waiting(FakeShell):
        def run(self, command: Sequence[str], stdin: bytes, sink: Sink, deadline: float) -> Ended:
            if not self.commands:
                together.wait()
            return super().run(command, stdin, sink, deadline)

    machines = Machines(connect=lambda name, _: Waiting(name))
    targets = [parse(f"gpu{number}", python=str(engine)) for number in range(3)]
    with Cache(cache_folder / "specaudit") as cache:
        options = Options(machines=machines, jobs=3)
        outcomes = list(scan_all(targets, options, cache, lambda _: None, lambda _: False))
    assert [outcome.scan.target.spec for outcome in outcomes] == ["gpu0", "gpu1", "gpu2"]
    assert [outcome.error for outcome in outcomes] == [None] * 3


def test_bad_options_are_one_error_each(client: Client, start_sshd: Server, scan: Scan) -> None:
    client.host("gpu1", start_sshd())
    for arguments, words in (
        (("gpu1", "--via", "docker exec x"), "does not pass stdin on"),
        (("gpu1", "--host-keys", "maybe"), "is no policy"),
        (("gpu1", "--limit", "x"), "--limit goes with --inventory"),
        (("gpu1", "--inventory", "/absent.toml"), "cannot be read"),
        (("dir:/tmp", "--via", "x"), "--via does not go with"),
        (("--", "-oProxyCommand=x"), "'-oProxyCommand=x' names no"),
    ):
        code, out, err = scan(*arguments)
        assert code == 2, arguments
        assert words in err
        assert out == ""
        assert "Traceback" not in err


@pytest.mark.parametrize("option", ["--venv", "--python"])
def test_an_interpreter_that_is_not_there_is_the_same_mistake_everywhere(
    client: Client,
    start_sshd: Server,
    engine: Path,
    scan: Scan,
    tmp_path: Path,
    option: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    server = start_sshd()
    for name in ("gpu1", "gpu2"):
        client.host(name, server)
    here = run(["scan", option, "/nope"])  # this machine takes no configuration of SSH
    assert "error: /nope" in capfd.readouterr().err
    there = scan("gpu1", option, "/nope")
    assert (here, there[0]) == (2, 2)
    assert f"error: gpu1 has no /nope{'/bin/python' if option == '--venv' else ''}." in there[2]
    inventory = tmp_path / "fleet.toml"
    inventory.write_text(f'[hosts.gpu1]\n{option[2:]} = "/nope"\n[hosts.gpu2]\npython = "{engine}"\n')
    code, out, err = scan("--inventory", str(inventory), "--brief")
    assert (code, "error: gpu1 has no /nope" in err) == (3, True)
    rows = [line.split()[:2] for line in out.splitlines()[:3]]
    assert rows[1:] == [["A", "gpu2"], ["-", "gpu1"]]

"""What the probe finds on a machine: engines, servers, GPUs, counters, and secrets that stay there."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from specaudit.cache import Cache
from specaudit.errors import IntegrityError, TargetError
from specaudit.hosts.bundle import PROBE, bundle
from specaudit.hosts.fake import FakeShell
from specaudit.hosts.machine import PythonCaller
from specaudit.hosts.metrics import read_metrics
from specaudit.hosts.probe import configfile, processes, redact
from specaudit.hosts.remote import Looking, RemoteHost
from specaudit.hosts.shell import LocalShell
from tests.hosts.machines import install, looking, make_environment, site_of, start_server
from tests.hosts.sshd import free_port

ENGINES = ("vllm", "sglang")
SOURCE = {"vllm/v1/a.py": "A = 1\n", "vllm/v1/b.py": "B = 2\n", "vllm/_version.py": '__version__ = "0.30.0"\n'}


def interpreters() -> list[str]:
    """Every Python 3.8 to 3.14 of this machine, one per minor version."""
    found = {f"{sys.version_info.major}.{sys.version_info.minor}": sys.executable}
    pyenv = Path.home() / ".pyenv" / "versions"
    candidates = [str(path) for path in sorted(pyenv.glob("3.*/bin/python3"))]
    candidates += [path for minor in range(8, 15) if (path := shutil.which(f"python3.{minor}"))]
    for path in [*candidates, "/usr/bin/python3"]:
        done = subprocess.run(
            [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True
        )
        version = done.stdout.strip()
        if done.returncode == 0 and tuple(map(int, version.split("."))) >= (3, 8):
            found.setdefault(version, path)
    return list(found.values())


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with vLLM 0.30.0; its interpreter."""
    return make_environment(tmp_path_factory.mktemp("machine") / "venv", SOURCE, "0.30.0")


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    """An empty cache."""
    with Cache(tmp_path / "cache") as made:
        yield made


@pytest.mark.parametrize("python", interpreters(), ids=lambda path: path.replace(str(Path.home()), "~"))
def test_the_probe_runs_on_every_python_there_is(tmp_path: Path, venv: Path, python: str) -> None:
    host = RemoteHost(FakeShell("gpu1"), looking=looking(tmp_path, venv.parent.parent))
    host._caller.python = python
    (found,) = host.installations(ENGINES)
    assert (found.engine, found.version, found.source) == ("vllm", "0.30.0", "dist")
    assert found.python == str(venv.with_name("python3"))
    paths = [entry.path for entry in host.manifest(found).files]
    assert paths == sorted(["vllm/__init__.py", *SOURCE])
    assert dict(host.read(found, paths)) == {"vllm/__init__.py": b"", **{p: t.encode() for p, t in SOURCE.items()}}


@pytest.mark.parametrize("name", [*PROBE, "specaudit.hosts.far_side"])
def test_everything_that_is_sent_is_python_3_8_and_stdlib(name: str) -> None:
    """Syntax by the compiler; imports by name. What runs where is for the test above, on the oldest Python there is."""
    package, _, module = name.rpartition(".")
    tree = ast.parse(files(package).joinpath(module + ".py").read_text(), feature_version=(3, 8))
    imported = {
        alias.name if isinstance(node, ast.Import) else node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    foreign = {path for path in imported if path.partition(".")[0] not in sys.stdlib_module_names}
    assert foreign <= {"specaudit.hosts.probe"}


def test_bytes_are_written_nowhere(tmp_path: Path, venv: Path) -> None:
    """No ``.pyc``, no cache, nothing: the machine is as it was."""
    before = sorted(venv.parent.parent.rglob("*"))
    RemoteHost(FakeShell("gpu1"), python=str(venv), looking=looking(tmp_path)).installations(ENGINES)
    assert sorted(venv.parent.parent.rglob("*")) == before


def test_a_named_interpreter_is_the_only_one_that_counts(tmp_path: Path, venv: Path) -> None:
    other = make_environment(tmp_path / "other", {"vllm/v1/a.py": "A = 3\n"}, "0.31.0")
    host = RemoteHost(FakeShell("gpu1"), python=str(other), looking=looking(tmp_path, venv.parent.parent))
    (found,) = host.installations(ENGINES)
    assert found.version == "0.31.0"
    assert host.environment().python == ".".join(map(str, sys.version_info[:3]))


def test_several_engines_are_listed_and_none_is_guessed(tmp_path: Path, venv: Path) -> None:
    other = make_environment(tmp_path / "other", {"vllm/v1/a.py": "A = 3\n"}, "0.31.0")
    host = RemoteHost(FakeShell("gpu1"), looking=looking(tmp_path, venv.parent.parent, other.parent.parent))
    with pytest.raises(TargetError, match="gpu1 has more than one vllm") as caught:
        host.installations(ENGINES)
    for python, version in ((venv, "0.30.0"), (other, "0.31.0")):
        assert f"--python {python.with_name('python3')}  vllm {version} in " in caught.value.message


def test_the_same_environment_by_two_ways_is_one(tmp_path: Path, venv: Path) -> None:
    (tmp_path / "link").symlink_to(venv.parent.parent)
    host = RemoteHost(FakeShell("gpu1"), looking=looking(tmp_path, venv.parent.parent, tmp_path / "link"))
    assert len(host.installations(ENGINES)) == 1


def test_the_lib64_of_an_environment_is_no_second_installation(tmp_path: Path, server: tuple[Path, int]) -> None:
    python, pid = server
    prefix = python.parent.parent
    assert (prefix / "lib64").is_symlink(), "as every venv on a machine of 64 bits has it"
    host = RemoteHost(FakeShell("gpu1"), looking=looking(tmp_path, prefix, pids=[pid]))
    (found,) = host.installations(ENGINES)
    assert found.root == str(site_of(prefix))
    assert [item.what for item in host.manifest(found).not_looked if "lib64" in item.what + item.why] == []


def test_a_link_to_the_package_of_another_environment_is_told(tmp_path: Path, venv: Path) -> None:
    other = make_environment(tmp_path / "other", {}, "1", "other")
    (site_of(other.parent.parent) / "vllm").symlink_to(site_of(venv.parent.parent) / "vllm")
    (site_of(venv.parent.parent) / "more.pth").write_text(f"{site_of(other.parent.parent)}\n")
    try:
        host = RemoteHost(FakeShell("gpu1"), looking=looking(tmp_path, venv.parent.parent))
        (found,) = host.installations(ENGINES)
    finally:
        (site_of(venv.parent.parent) / "more.pth").unlink()
    told = [item.what for item in host.manifest(found).not_looked if "a second installation" in item.why]
    assert told == [f"vllm 0.30.0 in {site_of(other.parent.parent)}"]


def test_no_engine_at_all(tmp_path: Path) -> None:
    host = RemoteHost(FakeShell("gpu1"), looking=looking(tmp_path))
    with pytest.raises(TargetError, match="gpu1 has no vllm or sglang") as caught:
        host.installations(ENGINES)
    assert "--via" in caught.value.hint


def test_a_container_that_cannot_be_looked_into_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "proc" / "77"
    (folder / "ns").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "ns").mkdir(parents=True)
    (folder / "cmdline").write_bytes(b"/usr/bin/python3\0/usr/local/bin/vllm\0serve\0m\0")
    (folder / "environ").write_bytes(b"")
    (folder / "stat").write_text("77 (python3) S 1 1 1")
    (folder / "cgroup").write_text("0::/system.slice/docker-" + "ab" * 32 + ".scope\n")
    (folder / "ns" / "mnt").symlink_to("mnt:[2]")
    (tmp_path / "proc" / "self" / "ns" / "mnt").symlink_to("mnt:[1]")
    host = RemoteHost(FakeShell("gpu1"), looking=Looking(proc=str(tmp_path / "proc"), usual=()))
    with pytest.raises(TargetError) as caught:
        host.installations(ENGINES)
    assert 'Process 77 runs vllm in a container: --via "docker exec -i abababababab"' in caught.value.hint


def test_operators_of_libraries_are_read_there_once(tmp_path: Path, cache: Cache) -> None:
    found = []
    for number in range(2):
        python = make_environment(tmp_path / f"host{number}", SOURCE, "0.30.0")
        library = site_of(tmp_path / f"host{number}") / "vllm" / "_C.abi3.so"
        library.write_bytes(b"\x7fELF" + bytes(100_000) + b"\0_C::merge(Tensor a, int n) -> Tensor\0" + bytes(100_000))
        shell = FakeShell(f"gpu{number}")
        host = RemoteHost(shell, python=str(python), cache=cache, looking=looking(tmp_path))
        (one,) = host.installations(ENGINES)
        found.append((host.manifest(one).ops, host.manifest(one).not_looked, shell.traffic.calls))
    assert found == [(("_C::merge",), (), 2), (("_C::merge",), (), 1)]


def test_a_second_scan_of_the_same_build_moves_little(tmp_path: Path, cache: Cache) -> None:
    """On another host, in another folder: the manifest is known by its digest."""
    many = {f"vllm/v1/part{n}/module{n}.py": f"VALUE = {n}\n" * 400 for n in range(3000)}
    traffic = []
    for number in range(2):
        python = make_environment(tmp_path / f"host{number}", many, "0.33.0")
        shell = FakeShell(f"gpu{number}")
        host = RemoteHost(shell, python=str(python), cache=cache, looking=looking(tmp_path))
        (found,) = host.installations(ENGINES)
        assert len(host.manifest(found).files) == 3001
        assert found.record == {entry.path: entry.sha256 for entry in host.manifest(found).files}
        traffic.append((shell.traffic.calls, shell.traffic.sent + shell.traffic.received))
    assert traffic[0][0] == 2
    assert traffic[0][1] > 100_000
    assert traffic[1][0] == 1
    assert traffic[1][1] < 40_000


def test_files_that_differ_from_record_are_told(tmp_path: Path, cache: Cache) -> None:
    python = make_environment(tmp_path / "venv", SOURCE, "0.30.0")
    site = site_of(tmp_path / "venv")
    (site / "vllm/v1/a.py").write_text("A = 'changed'\n")
    (site / "vllm/v1/b.py").unlink()
    (site / "vllm/v1/new.py").write_text("NEW = 1\n")
    for _ in range(2):  # fresh, then from the cache
        host = RemoteHost(FakeShell("gpu1"), python=str(python), cache=cache, looking=looking(tmp_path))
        (found,) = host.installations(ENGINES)
        have = {entry.path: entry.sha256 for entry in host.manifest(found).files}
        assert {p for p in have if found.record.get(p, have[p]) != have[p]} == {"vllm/v1/a.py"}
        assert set(found.record) - set(have) == {"vllm/v1/b.py"}
        assert set(have) - set(found.record) == {"vllm/v1/new.py"}


def test_an_editable_install_is_followed(tmp_path: Path) -> None:
    checkout = tmp_path / "src"
    (checkout / "vllm").mkdir(parents=True)
    (checkout / "vllm" / "__init__.py").write_text("")
    python = make_environment(tmp_path / "venv", {}, "0.30.0", "other")
    info = site_of(tmp_path / "venv") / "vllm-0.30.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: vllm\nVersion: 0.30.0\n")
    (info / "direct_url.json").write_text(json.dumps({"url": f"file://{checkout}", "dir_info": {"editable": True}}))
    host = RemoteHost(FakeShell("gpu1"), python=str(python), looking=looking(tmp_path))
    (found,) = host.installations(ENGINES)
    assert (found.root, found.source, found.record) == (str(checkout), "editable", {})


def test_versions_and_gpus_without_an_import(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "venv", SOURCE, "0.30.0")
    site = site_of(tmp_path / "venv")
    install(
        site, {"torch/version.py": "cuda: Optional[str] = '12.8'\n", "torch/__init__.py": "1 / 0\n"}, "2.9.1", "torch"
    )
    install(site, {}, "3.5.1", "triton")
    host = RemoteHost(FakeShell("gpu1"), looking=looking(tmp_path, python.parent.parent))
    host.installations(ENGINES)
    facts = host.environment()
    assert (facts.torch, facts.cuda, facts.triton) == ("2.9.1", "12.8", "3.5.1")
    assert facts.python == ".".join(map(str, sys.version_info[:3]))
    assert [(g.name, g.capability, g.driver, g.memory_mib) for g in facts.gpus] == [
        ("NVIDIA H200", "9.0", "570.124.06", 143771)
    ] * 2


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'Driver/library version mismatch'; exit 18", "exit code 18: Driver/library version mismatch"),
        ("exec sleep 60", "did not answer within"),
    ],
)
def test_a_broken_driver_is_said(tmp_path: Path, venv: Path, script: str, why: str) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n{script}\n")
    smi.chmod(0o755)
    text = bundle().replace("SMI_SECONDS = 15.0", "SMI_SECONDS = 0.5")
    request = {
        "do": "survey", "engines": ["vllm"], "explicit": True, "proc": "/proc", "usual": [], "smi": str(smi),
        "metrics": False,
    }  # fmt: skip
    answer = PythonCaller(LocalShell(), str(venv)).call(text, request)
    assert answer.header["gpus"] == []
    assert why in answer.header["gpus_why"]


METRICS = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="some/model"} 100.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="some/model"} 60.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="some/model"} 300.0
vllm:spec_decode_num_draft_tokens_total{engine="1",model_name="some/model"} 180.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="some/model"} 150.0
vllm:spec_decode_num_accepted_tokens_total{engine="1",model_name="some/model"} 90.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="some/model",position="0"} 80.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="some/model",position="0"} 50.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="some/model",position="1"} 7.0e+01
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="\\", position=\\"9\\"",position="1"} 40.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="some/model"} 1.7e+09
vllm:request_success_total{engine="0",finished_reason="stop",model_name="some/model"} 5.0
"""


def test_counters_are_added_over_the_engines_of_a_server() -> None:
    assert read_metrics(METRICS) == {
        "drafts": 160.0,
        "draft_tokens": 480.0,
        "accepted_tokens": 240.0,
        "accepted_at_0": 130.0,
        "accepted_at_1": 110.0,
        "acceptance_length": 2.5,
    }
    assert read_metrics('sglang:spec_accept_length{tp="0"} 3.0\nsglang:spec_accept_length{tp="1"} 4.0\n') == {
        "acceptance_length": 3.5
    }
    assert read_metrics("vllm:spec_decode_num_drafts_total 0\nnonsense\nvllm:spec_decode_num_drafts nan?\n") == {
        "drafts": 0.0
    }


SECRETS = ("s3cr3t-key", "hf_abcdefghijklmnopqrstuvwxyz", "hunter2", "topsecret", "sk-abcdefghijklmnop1234")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A process that looks like ``vllm serve``, with secrets in its arguments and environment; (interpreter, pid)."""
    python = make_environment(tmp_path / "served", SOURCE, "0.30.0")
    port = free_port()
    arguments = [
        "--api-key", "s3cr3t-key", "sk-abcdefghijklmnop1234", "--hf-token=hf_abcdefghijklmnopqrstuvwxyz",
        "--speculative-config", json.dumps({"method": "eagle3", "num_speculative_tokens": 3, "hf_token": "hunter2"}),
        "--max-num-batched-tokens", "8192", "--host", "127.0.0.1",
    ]  # fmt: skip
    env = {"VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_API_KEY": "topsecret", "HF_TOKEN": "hunter2", "SECRET": "hunter2"}
    process = start_server(python, arguments, env, port, METRICS)
    yield python, process.pid
    process.kill()
    process.wait()


def test_a_server_is_found_and_its_secrets_stay_there(
    tmp_path: Path, server: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    python, pid = server
    answers: list[bytes] = []
    real = LocalShell.run

    def watched(self, command, stdin, sink, deadline):  # type: ignore[no-untyped-def]
        return real(self, command, stdin, lambda chunk: answers.append(chunk) or sink(chunk), deadline)  # type: ignore[func-returns-value]

    monkeypatch.setattr(LocalShell, "run", watched)
    host = RemoteHost(FakeShell("gpu1"), metrics=True, looking=looking(tmp_path, pids=[pid]))
    (found,) = host.installations(ENGINES)
    assert found.python == str(python)
    (one,) = [server for server in host.servers() if server.pid == pid]
    assert one.argv[1:4] == (str(python.with_name("vllm")), "serve", "some/model")
    assert one.argv[one.argv.index("--api-key") + 1 :][:2] == ("***", "***")
    config = json.loads(one.argv[one.argv.index("--speculative-config") + 1])
    assert config == {"method": "eagle3", "num_speculative_tokens": 3, "hf_token": "***"}
    assert one.argv[one.argv.index("--max-num-batched-tokens") + 1] == "8192"
    assert one.env == {"VLLM_API_KEY": "***", "VLLM_USE_V2_MODEL_RUNNER": "1"}
    assert one.metrics["drafts"] == 160.0
    assert one.metrics["acceptance_length"] == 2.5
    # Not even in what travelled, unpacked.
    import zlib

    plain = b"".join(answers)
    body = plain.partition(b"--\n")[2][8:-32]
    for secret in SECRETS:
        assert secret.encode() not in zlib.decompress(body)


def test_metrics_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "served", SOURCE, "0.30.0")
    port = free_port()
    process = start_server(python, ["--port", "1"], {}, port)  # the last --port counts for the reader, as for argparse
    try:
        host = RemoteHost(FakeShell("gpu1"), metrics=True, looking=looking(tmp_path, pids=[process.pid]))
        (found,) = host.installations(ENGINES)
        told = [item for item in host.manifest(found).not_looked if item.what == f"metrics of process {process.pid}"]
        assert "127.0.0.1:1 cannot be read" in told[0].why
    finally:
        process.kill()
        process.wait()


def test_a_server_of_another_installation_is_not_traced_on_this_one(
    tmp_path: Path, server: tuple[Path, int], venv: Path
) -> None:
    host = RemoteHost(FakeShell("gpu1"), python=str(venv), looking=looking(tmp_path, pids=[server[1]]))
    (found,) = host.installations(ENGINES)
    assert [one.pid for one in host.servers()] == []
    assert f"process {server[1]}" in [item.what for item in host.manifest(found).not_looked]


@pytest.mark.parametrize(
    ("line", "engine"),
    [
        ("/opt/venv/bin/python3 /opt/venv/bin/vllm serve model --port 1", "vllm"),
        ("vllm serve model", "vllm"),
        ("python3 -m vllm.entrypoints.openai.api_server --model m", "vllm"),
        ("python -u -X dev -m vllm.entrypoints.openai.api_server", "vllm"),
        ("python3 -mvllm.entrypoints.openai.api_server --model m", "vllm"),
        ("python3 -um vllm.entrypoints.cli.main serve m", "vllm"),
        ("python3 -m vllm.entrypoints.cli.main bench serve", ""),
        ("python3 -m vllm.collect_env", ""),
        ("uv run vllm serve m", ""),
        ("tini -- vllm serve m", ""),
        ("numactl -N 0 vllm serve m", ""),
        ("python3 -c from_multiprocessing.spawn_import_spawn_main vllm serve", ""),
        ("/usr/bin/python3.12 -m sglang.launch_server --model-path m", "sglang"),
        ("sglang serve --model-path m", "sglang"),
        ("VLLM::EngineCore", "vllm"),
        ("sglang::scheduler_TP0", "sglang"),
        ("bash -c vllm serve model", ""),
        ("docker run vllm/vllm-openai vllm serve model", ""),
        ("grep vllm serve", ""),
        ("vllm bench serve", ""),
        ("python3 train.py", ""),
        ("python3 -m", ""),
        ("tail -f vllm serve", ""),
        ("", ""),
    ],
)
def test_what_counts_as_a_server(line: str, engine: str) -> None:
    assert processes.engine_of(line.split()) == engine


YAML = """\
# for the team
model: some/model   # the target
port: 8000
"quoted": 'yes'
speculative-config:
  method: "eagle3"
  num_speculative_tokens: 3
  parallel_drafting: true
  hf_token: s3cr3t-key
  nested:
    deeper: 1
api-key: hunter2
api_keys:
  - topsecret
served_model_name: [a, b]
compilation-config: {"level": 3, "password": "topsecret"}
empty:
"""


def test_a_configuration_file_of_a_server_is_read_there_without_its_secrets(tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_text(YAML)
    words = configfile.arguments(["vllm", "serve", "--config", "serve.yaml"], str(tmp_path), "")
    given = dict(word[2:].split("=", 1) for word in words)
    assert json.loads(given.pop("speculative-config")) == {
        "method": "eagle3", "num_speculative_tokens": 3, "parallel_drafting": True, "hf_token": "***",
    }  # fmt: skip
    assert json.loads(given.pop("compilation-config")) == {"level": 3, "password": "***"}
    assert given == {
        "model": "some/model", "port": "8000", "quoted": "yes", "api-key": "***", "served_model_name": "[a, b]",
    }  # fmt: skip
    assert configfile.arguments(["vllm", "serve", "--config=/absent"], "/", "") == []
    assert configfile.arguments(["vllm", "serve"], "/", "") == []


def test_workers_belong_to_their_server(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    tree = {
        10: (1, ["/v/bin/python3", "/v/bin/vllm", "serve", "m"]),
        11: (10, ["VLLM::EngineCore"]),
        12: (11, ["VLLM::Worker_TP0"]),
        20: (1, ["VLLM::EngineCore"]),
        30: (1, ["bash", "-c", "vllm serve"]),
    }
    for pid, (parent, argv) in tree.items():
        folder = proc / str(pid)
        folder.mkdir(parents=True)
        (folder / "cmdline").write_bytes(b"\0".join(map(str.encode, argv)) + b"\0")
        (folder / "stat").write_text(f"{pid} (a (strange) name) S {parent} 1 1")
        (folder / "environ").write_bytes(b"")
    assert [server["pid"] for server in processes.servers(str(proc))] == [10, 20]


@pytest.mark.parametrize(
    "word",
    [
        "--api-key=VALUE", "HF_TOKEN=VALUE", "--hf-token=VALUE", "Authorization: Bearer VALUE", "x-api-key: VALUE",
        '{"a": [{"password": "VALUE"}]}', '{"client_secret": "VALUE", broken', "https://user:VALUE@host/path",
        "https://host/x?token=VALUE&b=1", "sh -c 'vllm serve --api-key VALUE --port 1'", "--env=OPENAI_API_KEY=VALUE",
        "--kv-transfer-config.extra.password=VALUE", "AWS_SECRET_ACCESS_KEY='VALUE'", "accessToken=VALUE",
        "--header=Cookie: session=VALUE; b=VALUE", "curl -H 'Authorization: Basic VALUE'", "--dbPassword VALUE",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nVALUE\n", '{"url": "postgres://u:VALUE@h"}', "X_PASS: \"VALUE\"",
    ],
)  # fmt: skip
def test_secrets_are_hidden_in_every_dress(word: str) -> None:
    secret = "Zq7-no-one-may-see_this"
    assert secret not in " ".join(redact.arguments(["vllm", "serve", word.replace("VALUE", secret)]))


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve meta-llama/Llama-3.1-8B --max-num-batched-tokens 8192 --tokenizer x --port 8000 -tp 8",
        'vllm serve m --speculative-config {"method":"eagle3","num_speculative_tokens":3}',
        "vllm serve m --revision 0123456789abcdef0123456789abcdef01234567 --ssl-keyfile /etc/key.pem",
        "python -m sglang.launch_server --speculative-algorithm EAGLE3 --speculative-num-draft-tokens 4",
    ],
)
def test_what_is_no_secret_stays(line: str) -> None:
    words = line.split()
    shown = redact.arguments(words)
    assert [json.loads(w) if w[0] == "{" else w for w in shown] == [json.loads(w) if w[0] == "{" else w for w in words]


def test_shapes_are_hidden_without_a_name() -> None:
    line = [
        "run",
        "hf_abcdefghijklmnopqrstuvwxyz",
        "sk-proj-abcdefghijklmnopqrst",
        "ghp_" + "a" * 36,
        "AKIAABCDEFGHIJKLMNOP",
    ]
    assert redact.arguments(line) == ["run"] + ["***"] * 4


def test_a_fifo_or_a_huge_file_does_not_hold_the_probe_up(tmp_path: Path) -> None:
    python = make_environment(tmp_path / "venv", SOURCE, "0.30.0")
    site = site_of(tmp_path / "venv")
    os.mkfifo(site / "vllm" / "pipe.py")
    with (site / "vllm" / "huge.py").open("wb") as file:
        file.truncate(64 << 20)
    host = RemoteHost(FakeShell("gpu1"), python=str(python), looking=looking(tmp_path))
    (found,) = host.installations(ENGINES)
    assert {failure.path for failure in host.manifest(found).errors} == {"vllm/pipe.py", "vllm/huge.py"}


class Forger:
    """A host whose probe answers truly, but for what ``forge`` makes of it."""

    def __init__(self, host: RemoteHost, forge: dict[str, object]) -> None:
        self._call = host._caller.call
        self._forge = forge
        host._caller.call = self  # type: ignore[method-assign]

    def __call__(self, script, request, **rest):  # type: ignore[no-untyped-def]
        answer = self._call(script, request, **rest)
        return self._forge[request["do"]](answer) if request["do"] in self._forge else answer  # type: ignore[operator]


EVIL = [
    "../../../etc/passwd.py",
    "/etc/cron.py",
    "vllm/../../x.py",
    "vllm/./x.py",
    "other/x.py",
    "vllm\\x.py",
    "vllm/x\x1b[2J.py",
]


def test_paths_that_lead_out_are_refused_and_nothing_is_written(tmp_path: Path, venv: Path, cache: Cache) -> None:
    from specaudit.hosts.base import Answer

    def forge(answer: Answer) -> Answer:
        lines = answer.blobs["files"].decode() + "".join(f"\n1 {path}" for path in EVIL)
        hashes = answer.blobs["hashes"] + bytes(32) * len(EVIL)
        header = {**answer.header, "record": {path: "0" * 64 for path in EVIL}}
        return Answer(header, {"files": lines.encode(), "hashes": hashes})

    def give(answer: Answer) -> Answer:
        return Answer({}, {**answer.blobs, **dict.fromkeys(EVIL, b"evil")})

    host = RemoteHost(FakeShell("gpu1"), python=str(venv), cache=cache, looking=looking(tmp_path))
    Forger(host, {"manifest": forge, "contents": give})
    before = sorted(tmp_path.parent.rglob("*"))
    (found,) = host.installations(ENGINES)
    listed = host.manifest(found)
    assert [entry.path for entry in listed.files] == sorted(["vllm/__init__.py", *SOURCE])
    assert len(listed.errors) == len(EVIL)
    assert all("not inside vllm; refused" in failure.error for failure in listed.errors)
    assert all(failure.path.isprintable() for failure in listed.errors)
    assert not set(EVIL) & set(found.record)
    got = dict(host.read(found, [*(entry.path for entry in listed.files), *EVIL]))
    assert set(got) == {entry.path for entry in listed.files}
    assert sorted(tmp_path.parent.rglob("*")) == before
    assert cache.get("manifest", "x", 1) is None


def test_contents_that_are_not_what_was_promised_are_left_out(tmp_path: Path, venv: Path) -> None:
    from specaudit.hosts.base import Answer

    host = RemoteHost(FakeShell("gpu1"), python=str(venv), looking=looking(tmp_path))
    Forger(host, {"contents": lambda answer: Answer({}, {**answer.blobs, "vllm/v1/a.py": b"evil"})})
    (found,) = host.installations(ENGINES)
    assert set(dict(host.read(found, [entry.path for entry in host.manifest(found).files]))) == {
        "vllm/__init__.py", "vllm/v1/b.py", "vllm/_version.py",
    }  # fmt: skip


@pytest.mark.parametrize(
    "forge",
    [
        {"survey": {"installations": 5}},
        {"survey": {"gpus": [["only one"]]}},
        {"survey": {"servers": [{}]}},
        {"manifest": {"ops": []}},
    ],
)
def test_answers_of_another_form_are_one_error(tmp_path: Path, venv: Path, forge: dict[str, dict[str, object]]) -> None:
    from specaudit.hosts.base import Answer

    host = RemoteHost(FakeShell("gpu1"), python=str(venv), looking=looking(tmp_path))
    ((what, change),) = forge.items()
    Forger(host, {what: lambda answer: Answer({**answer.header, **change}, answer.blobs)})
    with pytest.raises(IntegrityError, match="The answer of gpu1 is malformed"):
        host.installations(ENGINES)

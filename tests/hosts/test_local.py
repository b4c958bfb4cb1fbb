"""``@local``: real environments of this machine."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from support.wheels import part_of_release

from specaudit.errors import TargetError
from specaudit.hosts.local import LocalHost

ENGINES = ("vllm", "sglang")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, release: Callable[[str], Path]) -> Path:
    """A virtual environment with a part of a real vLLM that would fail when imported."""
    root = tmp_path_factory.mktemp("venv")
    venv.create(root, symlinks=True, with_pip=False)
    (site,) = root.glob("lib/python3*/site-packages")
    files = part_of_release(release("0.20.1"), "vllm/v1/sample/*.py", "vllm-0.20.1.dist-info/*")
    for path, data in {**files, "vllm/__init__.py": b"raise SystemExit('imported')\n"}.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(data)
    return root


def test_the_environment_of_an_interpreter_is_examined_and_nothing_is_imported(environment: Path) -> None:
    host = LocalHost(str(environment / "bin/python"))
    (found,) = host.installations(ENGINES)
    assert (found.engine, found.version, found.source) == ("vllm", "0.20.1", "dist")
    manifest = host.manifest(found)
    assert {entry.path for entry in manifest.files} >= {"vllm/__init__.py", "vllm/v1/sample/rejection_sampler.py"}
    assert found.record["vllm/__init__.py"] not in {entry.sha256 for entry in manifest.files}
    assert host.environment().python == ".".join(map(str, sys.version_info[:3]))
    assert not list(environment.rglob("vllm/**/*.pyc"))


def test_an_environment_without_an_engine_is_answered_with_what_to_do() -> None:
    with pytest.raises(TargetError, match="has none of: vllm, sglang") as refused:
        LocalHost().installations(ENGINES)
    assert sys.executable in refused.value.message
    assert "--python" in refused.value.hint


@pytest.mark.parametrize(
    "line",
    [
        "import sys; print('hello')",
        "import sys; sys.stdout.write('no end of line')",
        "import atexit; atexit.register(print, '[1, 2, 3]')",
        "import sys; sys.stdout.buffer.write(bytes(range(128, 256)))",
    ],
)
def test_what_an_environment_prints_as_it_starts_is_not_the_answer(tmp_path: Path, line: str) -> None:
    venv.create(tmp_path, symlinks=True, with_pip=False)
    (site,) = tmp_path.glob("lib/python3*/site-packages")
    (site / "vllm").mkdir()
    (site / "vllm/__init__.py").touch()
    (site / "loud.pth").write_text(line + "\n")
    (found,) = LocalHost(str(tmp_path / "bin/python")).installations(ENGINES)
    assert found.root == str(site)


@pytest.mark.parametrize(
    ("python", "why"),
    [
        ("/no/such/python", "No such file or directory"),
        ("/dev/null", "Permission denied"),
        ("/bin/false", "it gives no answer"),
        ("/bin/echo", "it gives no answer"),
        ("/tmp", "it is a folder"),
    ],
)
def test_what_is_no_interpreter_is_named_with_the_reason(python: str, why: str) -> None:
    with pytest.raises(TargetError) as told:
        LocalHost(python)
    assert told.value.message == f"{python} is no Python interpreter that can be started: {why}."
    assert ("--venv the environment" in told.value.hint) == (python == "/tmp")


def test_the_place_is_a_machine_that_runs_scripts_on_its_interpreter(environment: Path) -> None:
    host = LocalHost(str(environment / "bin/python"))
    answer = host.call(
        "import sys\ndef main(request, blobs):\n    return {'prefix': sys.prefix, **request}, {}\n", {"a": 1}
    )
    assert answer.header == {"prefix": str(environment), "a": 1}


def test_the_interpreter_that_is_asked_knows_folders_that_pth_files_add(environment: Path, tmp_path: Path) -> None:
    root = tmp_path / "env"
    venv.create(root, symlinks=True, with_pip=False)
    (site,) = root.glob("lib/python3*/site-packages")
    (other,) = environment.glob("lib/python3*/site-packages")
    (site / "more.pth").write_text(f"{other}\n")
    assert LocalHost(str(root / "bin/python")).installations(ENGINES)[0].root == str(other)
    said = subprocess.run([root / "bin/python", "-c", "import sys; print(sys.path)"], capture_output=True, text=True)
    assert str(other) in said.stdout


def test_running_servers_of_the_environment_are_listed_without_their_secrets(environment: Path, tmp_path: Path) -> None:
    program = environment / "bin/vllm"
    program.write_text("import time\nprint('up', flush=True)\ntime.sleep(60)\n")
    command = [environment / "bin/python", program, "serve", "a/model", "--api-key", "s3cret-s3cret"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            server.stdout.readline()
            host = LocalHost(str(environment / "bin/python"))
            host.installations(ENGINES)
            (found,) = (one for one in host.servers() if one.pid == server.pid)
        finally:
            server.kill()
    assert found.argv[-4:] == ("serve", "a/model", "--api-key", "***")
    other = LocalHost()
    assert server.pid not in {one.pid for one in other.servers()}

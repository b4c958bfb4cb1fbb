"""``--via`` and ``--sudo``: through a wrapper with its own file system root, and by a real sudo rule, over SSH."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specaudit.errors import ConfigurationError, IncompleteError, UnreachableError
from specaudit.hosts.fake import FakeShell
from specaudit.hosts.machine import PythonCaller
from specaudit.hosts.remote import RemoteHost
from specaudit.hosts.shell import LocalShell
from specaudit.hosts.via import PrefixedShell, words_of
from tests.hosts.conftest import WHOAMI, Account, Client
from tests.hosts.machines import install
from tests.hosts.sshd import Sshd, run

Server = Callable[..., Sshd]
Accounts = Callable[..., Account]

SOURCE = {"vllm/v1/a.py": "A = 1\n"}


@pytest.fixture(scope="module")
def container() -> Iterator[Path]:
    """A file system root with a shell, the system's Python, and vLLM in its site-packages: what a container is."""
    root = Path(tempfile.mkdtemp(prefix="specaudit-root-"))
    for folder in ("bin", "lib", "lib64", "usr/bin", "usr/local", "tmp", "proc", "dev"):
        (root / folder).mkdir(parents=True)
    (root / "dev" / "null").touch()
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
    binaries = ["/bin/sh", "/usr/bin/timeout", "/bin/true", python]
    libraries = {word for path in binaries for word in run("ldd", path).split() if word.startswith("/")}
    stdlib = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))").strip())
    extensions = stdlib / "lib-dynload"
    for module in extensions.glob("*.so"):
        if module.name.startswith(
            ("_struct", "zlib", "_hashlib", "_ssl", "_json", "_socket", "_posix", "mmap", "_bisect")
        ):
            libraries |= {word for word in run("ldd", module).split() if word.startswith("/")}
    for path in [*binaries, *libraries]:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy(os.path.realpath(path), target)
    keep = shutil.ignore_patterns(
        "test", "tests", "idlelib", "tkinter", "site-packages", "dist-packages", "__pycache__", "*.a"
    )
    shutil.copytree(stdlib, root / str(stdlib).lstrip("/"), ignore=keep, dirs_exist_ok=True)
    if not (root / "usr/bin/python3").exists():
        (root / "usr/bin/python3").symlink_to(python)
    version = run(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    install(root / f"usr/local/lib/python{version}/dist-packages", SOURCE, "0.30.0")
    yield root
    shutil.rmtree(root)


def test_the_probe_runs_behind_another_root(client: Client, start_sshd: Server, container: Path) -> None:
    client.host("gpu1", start_sshd())
    inside = PrefixedShell(client.shell("gpu1"), words_of(f"chroot {container}"))
    host = RemoteHost(inside)
    (found,) = host.installations(("vllm", "sglang"))
    assert (found.version, found.source) == ("0.30.0", "dist")
    assert found.root.startswith("/usr/local/lib/python3")
    assert not Path(found.root, "vllm").exists(), "it is the root's, not ours"
    assert dict(host.read(found, ["vllm/v1/a.py"])) == {"vllm/v1/a.py": b"A = 1\n"}


def test_the_same_without_ssh(container: Path) -> None:
    for shell in (LocalShell(), FakeShell("gpu1", {"noise"})):
        host = RemoteHost(PrefixedShell(shell, words_of(f"chroot '{container}'")))
        (found,) = host.installations(("vllm",))
        assert found.version == "0.30.0"


def test_a_process_in_another_root_is_seen_from_outside(tmp_path: Path, container: Path) -> None:
    """Root on the host may look into a container by ``/proc/PID/root``: its engine is a candidate, and read there."""
    folder = tmp_path / "proc" / "77"
    (folder / "ns").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "ns").mkdir(parents=True)
    (folder / "cmdline").write_bytes(b"/usr/bin/python3\0/usr/local/bin/vllm\0serve\0m\0")
    (folder / "environ").write_bytes(b"VLLM_USE_V1=1\0")
    (folder / "cgroup").write_text("0::/system.slice/docker-" + "ab" * 32 + ".scope\n")
    (folder / "stat").write_text("77 (python3) S 1 1 1")
    (folder / "root").symlink_to(container)
    (folder / "ns" / "mnt").symlink_to("mnt:[2]")
    (tmp_path / "proc" / "self" / "ns" / "mnt").symlink_to("mnt:[1]")
    from specaudit.hosts.remote import Looking

    host = RemoteHost(FakeShell("gpu1"), looking=Looking(proc=str(tmp_path / "proc"), usual=()))
    (found,) = host.installations(("vllm",))
    assert found.root.startswith(str(folder / "root"))
    assert dict(host.read(found, ["vllm/v1/a.py"])) == {"vllm/v1/a.py": b"A = 1\n"}
    assert [server.pid for server in host.servers()] == [77]


def test_a_container_that_is_not_there(client: Client, start_sshd: Server) -> None:
    client.host("gpu1", start_sshd())
    with pytest.raises(IncompleteError, match=r"(?s)exit code 125 and no answer.*cannot change root directory"):
        PythonCaller(PrefixedShell(client.shell("gpu1"), ("chroot", "/no/such/root"))).call(WHOAMI, {})
    with pytest.raises((IncompleteError, UnreachableError), match="gpu1"):
        PythonCaller(PrefixedShell(client.shell("gpu1"), ("no-docker", "exec", "-i", "x"))).call(WHOAMI, {})


@pytest.mark.parametrize(
    ("via", "sudo", "command"),
    [
        ("chroot /no/such/root", False, "chroot /no/such/root /opt/v/bin/python -V"),
        ("chroot '/no such/root'", True, "sudo -n -- chroot '/no such/root' /opt/v/bin/python -V"),
    ],
)
def test_the_command_to_try_by_hand_is_the_whole_one(
    client: Client, start_sshd: Server, via: str, sudo: bool, command: str
) -> None:
    client.host("gpu1", start_sshd())
    shell = PrefixedShell(client.shell("gpu1"), words_of(via), sudo)
    with pytest.raises(IncompleteError, match="exit code 125 and no answer") as caught:
        PythonCaller(shell, "/opt/v/bin/python").call(WHOAMI, {})
    assert caught.value.hint == f"Try by hand on gpu1: {command}."


@pytest.fixture
def rule() -> Iterator[Callable[[str], None]]:
    """``rule(text)``: a file in /etc/sudoers.d, removed at the end."""
    made: list[Path] = []

    def write(text: str) -> None:
        file = Path("/etc/sudoers.d") / f"specaudit-test-{os.getpid()}-{len(made)}"
        made.append(file)
        file.touch(mode=0o440)
        file.write_text(text + "\n")
        run("visudo", "-cf", file)

    yield write
    for file in made:
        file.unlink()


def test_sudo_by_a_real_rule(
    client: Client, start_sshd: Server, account: Accounts, rule: Callable[[str], None]
) -> None:
    user = account()
    client.host("gpu1", start_sshd(), User=user.name)
    assert client.whoami("gpu1") == int(run("id", "-u", user.name))
    rule(f"{user.name} ALL=(root) NOPASSWD: ALL")
    assert PythonCaller(PrefixedShell(client.shell("gpu1"), sudo=True)).call(WHOAMI, {}).header["uid"] == 0


def test_sudo_and_via_together(
    client: Client, start_sshd: Server, account: Accounts, rule: Callable[[str], None], container: Path
) -> None:
    user = account()
    client.host("gpu1", start_sshd(), User=user.name)
    rule(f"{user.name} ALL=(root) NOPASSWD: {shutil.which('chroot')} {container} sh *")
    shell = PrefixedShell(client.shell("gpu1"), words_of(f"chroot {container}"), sudo=True)
    (found,) = RemoteHost(shell).installations(("vllm",))
    assert found.version == "0.30.0"
    with pytest.raises(IncompleteError, match="sudo on gpu1 refuses"):
        PythonCaller(PrefixedShell(client.shell("gpu1"), sudo=True)).call(WHOAMI, {})


def test_a_machine_without_sudo(client: Client, start_sshd: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specaudit.hosts.via.SUDO", ("/opt/none/sudo", "-n", "--"))
    shell = PrefixedShell(client.shell(client.host("gpu1", start_sshd())), sudo=True)
    with pytest.raises(IncompleteError, match="gpu1 has no sudo"):
        PythonCaller(shell).call(WHOAMI, {})


def test_sudo_that_wants_a_password_is_one_clear_error(
    client: Client, start_sshd: Server, account: Accounts, rule: Callable[[str], None]
) -> None:
    user = account()
    client.host("gpu1", start_sshd(), User=user.name)
    rule(f"{user.name} ALL=(root) ALL")
    with pytest.raises(IncompleteError, match="sudo on gpu1 refuses: a password is required") as caught:
        PythonCaller(PrefixedShell(client.shell("gpu1"), sudo=True)).call(WHOAMI, {})
    assert "NOPASSWD" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("docker exec -i vllm", ("docker", "exec", "-i", "vllm")),
        ("kubectl exec -i pod/a -c 'my box' --", ("kubectl", "exec", "-i", "pod/a", "-c", "my box", "--")),
        ("/usr/bin/podman exec --interactive x", ("/usr/bin/podman", "exec", "--interactive", "x")),
        ("kubectl -n ns exec --stdin pod --", ("kubectl", "-n", "ns", "exec", "--stdin", "pod", "--")),
        ("nsenter -t 1 -m", ("nsenter", "-t", "1", "-m")),
        ("docker exec -i -w/tmp x", ("docker", "exec", "-i", "-w/tmp", "x")),
        ("docker exec --interactive=true -eA=t x", ("docker", "exec", "--interactive=true", "-eA=t", "x")),
        ("docker compose exec -T vllm", ("docker", "compose", "exec", "-T", "vllm")),
        ("kubectl exec -i pod -ctrainer -- nice -t", ("kubectl", "exec", "-i", "pod", "-ctrainer", "--", "nice", "-t")),
    ],
)
def test_via_is_read_like_a_command_line(text: str, words: tuple[str, ...]) -> None:
    assert words_of(text) == words


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("docker exec 'x", "cannot be read"),
        ("docker exec vllm", "does not pass stdin on"),
        ("kubectl exec pod --", "does not pass stdin on"),
        ("docker exec -it vllm", "asks for a terminal"),
        ("docker exec -i -t vllm", "asks for a terminal"),
        ("docker exec -i --tty vllm", "asks for a terminal"),
        ("docker exec -eI=i vllm", "does not pass stdin on"),
        ("docker compose exec vllm", "asks for a terminal"),
        ("docker-compose exec -i vllm", "asks for a terminal"),
        ("kubectl exec -i pod", "does not say where the command begins"),
    ],
)
def test_via_that_cannot_work_is_refused_before_anything_runs(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        words_of(text)

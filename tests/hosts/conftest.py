"""Servers, keys and machines for the tests of remote hosts."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from specaudit.hosts.machine import PythonCaller
from specaudit.hosts.ssh.config import SshOptions
from specaudit.hosts.ssh.connection import Connector
from specaudit.hosts.ssh.shell import SshShell
from tests.hosts.sshd import Sshd, keygen, public, run

WHOAMI = "import os\ndef main(request, blobs):\n    return {'uid': os.getuid()}, {}\n"


@dataclass(frozen=True)
class Keys:
    """Key pairs that all tests share: making RSA keys takes time."""

    host: Path
    host_rsa: Path
    other_host: Path
    user: Path
    other_user: Path
    authority: Path


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """See :class:`Keys`."""
    folder = tmp_path_factory.mktemp("keys")
    kinds = {"host_rsa": "rsa"}
    names = ("host", "host_rsa", "other_host", "user", "other_user", "authority")
    return Keys(**{name: keygen(folder / name, kinds.get(name, "ed25519")) for name in names})


@pytest.fixture
def start_sshd(tmp_path: Path, keys: Keys) -> Iterator[Callable[..., Sshd]]:
    """``start_sshd(**sshd_config lines)``: a server that knows the user's key, stopped at the end of the test."""
    started: list[Sshd] = []

    def start(host_keys: list[Path] | None = None, authorized: list[str] | None = None, **settings: str) -> Sshd:
        server = Sshd(
            tmp_path / f"sshd{len(started)}",
            host_keys or [keys.host],
            [public(keys.user)] if authorized is None else authorized,
            settings,
        )
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.stop()


class Client:
    """The user's side: an ssh configuration of its own, known_hosts, and connections that are closed at the end."""

    def __init__(self, folder: Path, keys: Keys) -> None:
        folder.mkdir()
        self.folder = folder
        self.keys = keys
        self.config = folder / "config"
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text("")
        self._blocks: list[str] = []
        self._closing: list[Connector | SshShell] = []

    def host(self, name: str, server: Sshd, **settings: str) -> str:
        """Adds ``Host name``; its key becomes known, unless one of its address is already."""
        lines = {
            "HostName": "127.0.0.1", "Port": str(server.port), "User": "root", "IdentityFile": str(self.keys.user),
            "IdentitiesOnly": "yes", "IdentityAgent": "none", **settings,
        }  # fmt: skip
        self._blocks.append(f"Host {name}\n" + "".join(f"  {key} {value}\n" for key, value in lines.items()))
        place = f"[127.0.0.1]:{server.port} "
        if place not in self.known_hosts.read_text():
            with self.known_hosts.open("a") as file:
                file.write(f"{place}{public(server.host_keys[0])}\n")
        self.write()
        return name

    def write(self, before: str = "", after: str = "") -> None:
        """Writes the configuration."""
        common = f"UserKnownHostsFile {self.known_hosts}\nGlobalKnownHostsFile none\n"
        self.config.write_text(before + "".join(self._blocks) + after + "\nHost *\n  " + common.replace("\n", "\n  "))

    def options(self, **settings: object) -> SshOptions:
        """Options that use this configuration."""
        return SshOptions(file=self.config, **settings)  # type: ignore[arg-type]

    def shell(self, name: str, **settings: object) -> SshShell:
        """A shell on a host."""
        connector = Connector(self.options(**settings))
        shell = SshShell(name, connector)
        self._closing += [shell, connector]
        return shell

    def whoami(self, name: str, **settings: object) -> int:
        """Logs in and asks the far side's Python for its user id."""
        return int(PythonCaller(self.shell(name, **settings)).call(WHOAMI, {}).header["uid"])

    def openssh(self, name: str) -> bool:
        """Whether ssh itself gets in with the same configuration."""
        command = ["ssh", "-F", str(self.config), "-o", "BatchMode=yes", name, "true"]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30).returncode == 0

    def close(self) -> None:
        """Ends all connections."""
        for thing in self._closing:
            thing.close()


@pytest.fixture
def client(tmp_path: Path, keys: Keys) -> Iterator[Client]:
    """See :class:`Client`."""
    made = Client(tmp_path / "client", keys)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have an agent."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """``agent(key, …)``: the socket of an ssh-agent that holds these keys."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*keys: Path) -> Path:
        socket = tmp_path / f"agent{len(started)}"
        started.append(subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL))
        while not socket.exists():
            time.sleep(0.01)
        for key in keys:
            run("ssh-add", "-q", key, env={**os.environ, "SSH_AUTH_SOCK": str(socket)})
        return socket

    yield start
    for process in started:
        process.terminate()
        process.wait(10)


@dataclass(frozen=True)
class Account:
    """A user of this machine, made for one test."""

    name: str
    home: Path


@pytest.fixture
def account() -> Iterator[Callable[..., Account]]:
    """``account(shell)``: a new user. Needs root, as starting sshd for other users does."""
    made: list[str] = []

    def make(shell: str | Path = "/bin/sh") -> Account:
        name = f"sa{secrets.token_hex(5)}"
        # The folders of pytest are closed to other users.
        home = Path(tempfile.mkdtemp(prefix="specaudit-home-"))
        made.append(name)
        homes.append(home)
        for _ in range(100):
            done = subprocess.run(
                ["useradd", "-M", "-d", str(home), "-s", str(shell), "-p", "*", name], capture_output=True, text=True
            )
            if "cannot lock" not in done.stderr:
                break
            time.sleep(0.05)
        assert done.returncode == 0, done.stderr
        os.chmod(home, 0o755)
        shutil.chown(home, name)
        return Account(name, home)

    homes: list[Path] = []
    yield make
    for name in made:
        for _ in range(100):
            if "cannot lock" not in subprocess.run(["userdel", "-f", name], capture_output=True, text=True).stderr:
                break
            time.sleep(0.05)
    for home in homes:
        shutil.rmtree(home, ignore_errors=True)

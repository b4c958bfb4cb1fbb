"""A real OpenSSH server on a loopback port, and keys, for the tests of remote hosts."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def run(*command: str | Path, **settings: object) -> str:
    """Runs a program that has to succeed; returns its stdout."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **settings)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return str(done.stdout)


def keygen(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    """A new key pair ``path``, ``path.pub``."""
    bits = ("-b", "2048") if kind == "rsa" else ()
    run("ssh-keygen", "-q", "-t", kind, *bits, "-N", passphrase, "-C", path.name, "-f", path)
    return path


def public(key: Path) -> str:
    """``type base64`` of a key pair."""
    return " ".join(key.with_name(key.name + ".pub").read_text().split()[:2])


def fingerprint(key: Path) -> str:
    """``SHA256:…`` of a key pair, by OpenSSH itself."""
    return run("ssh-keygen", "-l", "-f", str(key) + ".pub").split()[1]


def free_port() -> int:
    """A loopback port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Sshd:
    """One server. ``settings`` are lines of sshd_config; the keys can be changed between starts."""

    folder: Path
    host_keys: list[Path]
    authorized: list[str] = field(default_factory=list)
    settings: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> Sshd:
        """Starts it and waits until it answers."""
        assert SSHD is not None, "the tests of remote hosts need an OpenSSH server: apt-get install openssh-server"
        self.folder.mkdir(parents=True, exist_ok=True)
        Path("/run/sshd").mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port()
        keys = self.folder / "authorized_keys"
        keys.write_text("".join(line + "\n" for line in self.authorized))
        # By a command of root's: other users cannot look into the folders of pytest.
        settings = {
            "Port": str(self.port),
            "ListenAddress": "127.0.0.1",
            "PidFile": "none",
            "UsePAM": "no",
            "StrictModes": "no",
            "PermitRootLogin": "yes",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "AuthorizedKeysFile": "none",
            "AuthorizedKeysCommand": f"/bin/cat {keys}",
            "AuthorizedKeysCommandUser": "root",
            "LogLevel": "DEBUG1",
            # bash, run by sshd at its first level, would read the .bashrc of whoever runs the tests.
            "SetEnv": "SHLVL=2",
            "MaxStartups": "100",
            **self.settings,
        }
        lines = [f"{key} {value}" for key, value in settings.items()] + [f"HostKey {key}" for key in self.host_keys]
        config = self.folder / "sshd_config"
        config.write_text("\n".join(lines) + "\n")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                # It ends with the tests, whatever ends them.
                ["setpriv", "--pdeathsig", "KILL", SSHD, "-D", "-e", "-f", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + 20
        while time.monotonic() < until:
            assert self.process.poll() is None, self.log.read_text()
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as probe:
                    if probe.recv(4) == b"SSH-":
                        return self
            except OSError:
                time.sleep(0.02)
        raise AssertionError(self.log.read_text())

    @property
    def log(self) -> Path:
        """What it says."""
        return self.folder / "sshd.log"

    def sessions(self) -> list[int]:
        """Process ids of the children that serve connections."""
        assert self.process is not None
        return [int(pid) for pid in run_quietly("pgrep", "-P", str(self.process.pid)).split()]

    def kill_sessions(self) -> None:
        """Ends every connection at once, as a crash would; the sessions' own children first lose their server."""
        for pid in self.sessions():
            for child in run_quietly("pgrep", "-P", str(pid)).split():
                if "sshd" in Path(f"/proc/{child}/comm").read_text():
                    os.kill(int(child), signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Stops it, its connections, and what they run."""
        if self.process is None:
            return
        for pid in [*descendants(self.process.pid), self.process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(10)
        self.process = None


def run_quietly(*command: str) -> str:
    """stdout of a program that may fail."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    found = [int(child) for child in run_quietly("pgrep", "-P", str(pid)).split()]
    return [deeper for child in found for deeper in descendants(child)] + found

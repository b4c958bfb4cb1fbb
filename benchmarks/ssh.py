"""Times scans over SSH: one machine and twenty, cold and warm, through a line that delays each direction by 25 ms.

    python benchmarks/ssh.py [--release 0.33.0] [--hosts 20] [--repeat 3] [--delay 25]

Starts a real OpenSSH server on loopback and one forwarder per machine before it; installs the ``.py`` files of a real
release into an environment. Cold means an empty cache. Prints a Markdown table: wall time (median), and per machine bytes
in both directions and round trips (times that the direction changed to the machine, a lower bound of what was waited for).
Needs sshd (apt-get install openssh-server) and root.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from specaudit.cache import folder
from specaudit.hosts.unpack import unpack
from tests.hosts.forwarder import Forwarder
from tests.hosts.machines import install_release, make_environment, site_of
from tests.hosts.sshd import Sshd, keygen, public


@dataclass
class Bench:
    """What all runs share."""

    config: Path
    python: Path
    forwarders: Sequence[Forwarder]
    scratch: Path

    def scan(self, targets: Sequence[str], cache: Path) -> float:
        """Seconds of one ``specaudit scan`` in a process of its own."""
        command = [sys.executable, "-m", "specaudit", "scan", *targets, "--python", str(self.python), "--brief", "-q"]
        if targets[0] != "@local":
            command += ["--ssh-config", str(self.config), "--jobs", str(len(targets))]
        began = time.perf_counter()
        done = subprocess.run(
            command, env={**os.environ, "XDG_CACHE_HOME": str(cache)}, capture_output=True, text=True, check=False
        )
        taken = time.perf_counter() - began
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return taken

    def measure(self, targets: Sequence[str], repeat: int, warm: bool) -> tuple[float, float, float, float]:
        """Median seconds, and per machine kB sent, kB received and round trips of the last run."""
        times = []
        cache = self.fresh()
        if warm:
            self.scan(targets, cache)
        for _ in range(repeat):
            for forwarder in self.forwarders:
                forwarder.reset()
            times.append(self.scan(targets, cache))
            if not warm:
                cache = self.fresh()
        used = self.forwarders[: len(targets)]
        sent, received, turns = (
            sum(getattr(one, name) for one in used) / len(used) for name in ("sent", "received", "turns")
        )
        return statistics.median(times), sent / 1000, received / 1000, turns

    def fresh(self) -> Path:
        """An empty cache."""
        return Path(tempfile.mkdtemp(dir=self.scratch))


def main() -> None:
    """See the module."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--release", default="0.33.0")
    options.add_argument("--hosts", type=int, default=20)
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--delay", type=float, default=25.0, help="milliseconds, each direction")
    said = options.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="specaudit-ssh-"))
    release = unpack(f"vllm=={said.release}", folder() / "releases")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        python = make_environment(scratch / "venv", {}, "1", "other")
        install_release(site_of(scratch / "venv"), release)
        host_key, user_key = keygen(scratch / "host"), keygen(scratch / "user")
        server = Sshd(scratch / "sshd", [host_key], [public(user_key)], {"LogLevel": "ERROR"}).start()
        stack.callback(server.stop)
        forwarders = [stack.enter_context(Forwarder(server.port, said.delay / 1000)) for _ in range(said.hosts)]
        names = [f"gpu{number + 1}" for number in range(said.hosts)]
        known = scratch / "known_hosts"
        known.write_text(f"* {public(host_key)}\n")
        config = scratch / "config"
        config.write_text(
            "".join(f"Host {n}\n  Port {f.port}\n" for n, f in zip(names, forwarders, strict=True))
            + f"Host *\n  HostName 127.0.0.1\n  User root\n  IdentityFile {user_key}\n  IdentitiesOnly yes\n"
            f"  IdentityAgent none\n  UserKnownHostsFile {known}\n  GlobalKnownHostsFile none\n"
        )
        bench = Bench(config, python, forwarders, scratch)
        report(bench, names, said)


def report(bench: Bench, names: Sequence[str], said: argparse.Namespace) -> None:
    """Measures and prints."""
    print(f"vLLM {said.release}, {said.delay:g} ms each way, median of {said.repeat}, {os.cpu_count()} CPUs\n")
    print("| scan | seconds | kB up | kB down | round trips |")
    print("|---|---:|---:|---:|---:|")
    found = {}
    for label, targets, warm in (
        ("@local, cold", ["@local"], False),
        ("1 machine, cold", names[:1], False),
        (f"{len(names)} machines, cold", names, False),
        ("@local, warm", ["@local"], True),
        ("1 machine, warm", names[:1], True),
        (f"{len(names)} machines, warm", names, True),
    ):
        seconds, sent, received, turns = bench.measure(targets, said.repeat, warm)
        found[label] = seconds
        wire = "| - | - | - |" if targets == ["@local"] else f"| {sent:.1f} | {received:.1f} | {turns:.0f} |"
        print(f"| {label} | {seconds:.2f} {wire}", flush=True)
    seconds = list(found.values())
    print(f"\nOne cold machine: {seconds[1] - seconds[0]:+.2f} s beside the local scan (bar: +3.0 s).")
    print(f"{len(names)} warm machines: {seconds[5] / seconds[4]:.2f} times one (bar: 4).")


if __name__ == "__main__":
    main()

"""Times scans over SSH: one machine and twenty, cold and warm, through a line that delays each direction by 25 ms.

    python benchmarks/ssh.py [--release 0.33.0] [--hosts 20] [--repeat 3] [--delay 25]

Starts a real OpenSSH server on loopback and one forwarder per machine before it; installs the ``.py`` files of a real
release into an environment. Cold means an empty cache. Prints a Markdown table: wall time (median), and per machine
bytes in both directions and round trips (times that the direction changed to the machine, a lower bound of what was
waited for). Needs sshd (apt-get install openssh-server) and root.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent))

from specaudit.cache import folder
from specaudit.hosts.unpack import unpack
from tests.hosts.forwarder import Forwarder
from tests.hosts.machines import install_release, make_environment, site_of
from tests.hosts.sshd import Sshd, keygen, public


@dataclass
class Run:
    """Seconds of a scan; bytes to and from a machine and changes of direction, on average over its machines."""

    seconds: float
    sent: float
    received: float
    turns: float


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

    def once(self, targets: Sequence[str], cache: Path) -> Run:
        """One scan, and what went over the wire for each of its machines."""
        for forwarder in self.forwarders:
            forwarder.reset()
        seconds = self.scan(targets, cache)
        used = self.forwarders[: len(targets)]
        return Run(seconds, *(sum(getattr(f, n) for f in used) / len(used) for n in ("sent", "received", "turns")))

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
    """Measures in rounds, so that a machine that is busy for a while does not fall upon one case, and prints."""
    cases = {
        "@local, cold": (["@local"], False),
        "1 machine, cold": (names[:1], False),
        f"{len(names)} machines, cold": (names, False),
        "@local, warm": (["@local"], True),
        "1 machine, warm": (names[:1], True),
        f"{len(names)} machines, warm": (names, True),
    }
    warm = bench.fresh()
    bench.scan(names, warm)
    bench.scan(["@local"], warm)
    runs: dict[str, list[Run]] = {label: [] for label in cases}
    for _ in range(said.repeat):
        for label, (targets, kept) in cases.items():
            runs[label].append(bench.once(targets, warm if kept else bench.fresh()))
    print(f"vLLM {said.release}, {said.delay:g} ms each way, median of {said.repeat}, {os.cpu_count()} CPUs\n")
    print("| scan | seconds | fastest | kB up | kB down | round trips |")
    print("|---|---:|---:|---:|---:|---:|")
    for label, found in runs.items():
        last = found[-1]
        times = [run.seconds for run in found]
        wire = f"| {last.sent / 1000:.1f} | {last.received / 1000:.1f} | {last.turns:.0f} |"
        print(f"| {label} | {median(times):.2f} | {min(times):.2f} {'| - | - | - |' if '@' in label else wire}")
    seconds = [[run.seconds for run in found] for found in runs.values()]
    more = median(one - local for local, one in zip(seconds[0], seconds[1], strict=True))
    ratio = median(all_ / one for one, all_ in zip(seconds[4], seconds[5], strict=True))
    print(f"\nOne cold machine: {more:+.2f} s beside the local scan of the same round (bar: +3.0 s).")
    print(f"{len(names)} warm machines: {ratio:.2f} times one of the same round (bar: 4).")


if __name__ == "__main__":
    main()

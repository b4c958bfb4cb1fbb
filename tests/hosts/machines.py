"""A machine with engines on it: environments in a folder, server processes, a GPU driver that answers."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from specaudit.hosts.remote import Looking


def make_environment(prefix: Path, files: Mapping[str, str], version: str, engine: str = "vllm") -> Path:
    """A virtual environment with an engine installed as pip would; returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    install(site_of(prefix), files, version, engine)
    return prefix / "bin" / "python"


def site_of(prefix: Path) -> Path:
    """The site-packages of an environment."""
    return next(prefix.glob("lib/python3*/site-packages"))


def install(site: Path, files: Mapping[str, str], version: str, engine: str = "vllm") -> None:
    """Writes files, metadata and RECORD."""
    info = site / f"{engine}-{version}.dist-info"
    info.mkdir(parents=True)
    rows = []
    for path, text in {f"{engine}/__init__.py": "", **files}.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        rows.append(f"{path},sha256={digest},{len(text.encode())}")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {engine}\nVersion: {version}\n")
    (info / "RECORD").write_text("\n".join(rows) + "\n")


def install_release(site: Path, release: Path) -> None:
    """Copies an unpacked release (package and metadata) into a site-packages."""
    for entry in release.iterdir():
        if entry.is_dir():
            shutil.copytree(entry, site / entry.name, symlinks=True)


SERVER = """\
import signal, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        body = open(sys.argv[0] + ".metrics", "rb").read()
        self.send_response(200 if self.path == "/metrics" else 404)
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass

port = int(sys.argv[sys.argv.index("--port") + 1])
ThreadingHTTPServer(("127.0.0.1", port), Page).serve_forever()
"""


def start_server(
    python: Path, arguments: list[str], env: Mapping[str, str], port: int, metrics: str = ""
) -> subprocess.Popen[bytes]:
    """A process that looks like ``vllm serve``: a script of that name in the environment, run by its shebang."""
    script = python.parent / "vllm"
    script.write_text(f"#!{python}\n{SERVER}")
    script.chmod(0o755)
    Path(f"{script}.metrics").write_text(metrics)
    process = subprocess.Popen(
        [str(script), "serve", "some/model", "--port", str(port), *arguments],
        env={"PATH": os.environ["PATH"], **env},
        stdin=subprocess.DEVNULL,
    )
    until = time.monotonic() + 20
    while "serve" not in Path(f"/proc/{process.pid}/cmdline").read_text() or not listening(port):
        assert time.monotonic() < until
        assert process.poll() is None
        time.sleep(0.02)
    return process


def listening(port: int) -> bool:
    """Whether somebody listens on a loopback port."""
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def looking(folder: Path, *environments: Path, pids: Iterable[int] = ()) -> Looking:
    """Looks at these environments and processes alone, whatever else this machine has; its GPUs are two."""
    proc = folder / "proc-of-the-machine"
    proc.mkdir(exist_ok=True)
    for name in ("self", "1", *map(str, pids)):
        if not (proc / name).exists():
            (proc / name).symlink_to(Path("/proc", name))
    smi = folder / "nvidia-smi"
    if not smi.exists():
        smi.write_text(
            '#!/bin/sh\n[ "$1" = --query-gpu=name,compute_cap,driver_version,memory.total ] || exit 3\n'
            "echo 'NVIDIA H200, 9.0, 570.124.06, 143771'\necho 'NVIDIA H200, 9.0, 570.124.06, 143771'\n"
        )
        smi.chmod(0o755)
    return Looking(proc=str(proc), usual=tuple(map(str, environments)), smi=str(smi))

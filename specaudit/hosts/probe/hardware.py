"""GPUs of this host, and what a local engine server counts. Runs on Python 3.8 and newer."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from typing import Any

#: ``nvidia-smi`` can hang on a broken driver.
SMI_SECONDS = 15.0
#: For the pages of all servers together.
METRICS_SECONDS = 5.0
#: A metrics page of a busy server is some 200 kB.
MAX_METRICS = 8 << 20
#: Rows of nvidia-smi that are read; a machine has 16 GPUs at most, each cut into 7 parts.
MAX_GPUS = 256
#: A machine without NVIDIA GPUs.
NO_SMI = "no nvidia-smi"
_FIELDS = "name,compute_cap,driver_version,memory.total"
_PREFIXES = ("vllm:spec_decode", "sglang:spec_")


def gpus(smi: str = "") -> tuple[list[list[str]], str]:
    """Rows [name, compute capability, driver, MiB] by ``nvidia-smi``, and why there are none."""
    program = smi or shutil.which("nvidia-smi") or "/usr/bin/nvidia-smi"
    if not os.path.exists(program):
        return [], NO_SMI
    try:
        process = subprocess.Popen(
            [program, "--query-gpu=" + _FIELDS, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        return [], f"nvidia-smi cannot be started: {error.strerror}"
    try:
        out, err = process.communicate(timeout=SMI_SECONDS)
    except subprocess.TimeoutExpired:
        _abandon(process)
        return [], f"nvidia-smi did not answer within {SMI_SECONDS:g} s"
    if process.returncode:
        lines = (out + err).decode("utf-8", "replace").strip().splitlines()
        return [], f"nvidia-smi failed with exit code {process.returncode}: {lines[0] if lines else 'no message'}"
    lines = out.decode("utf-8", "replace").strip().splitlines()
    # From the right: what has commas is the name.
    rows = [[part.strip() for part in line.rsplit(",", 3)] for line in lines[:MAX_GPUS]]
    if any(len(row) != 4 for row in rows):
        return [], f"nvidia-smi printed what is no table: {lines[0][:200]}"
    return rows, ""


def _abandon(process: subprocess.Popen[bytes]) -> None:
    """Ends a process, and leaves it when it does not end: a driver that hangs holds even killed ones."""
    process.kill()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    try:
        process.wait(1)
    except subprocess.TimeoutExpired:
        return


def metrics(servers: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Per server, the lines about speculative decoding on its ``/metrics``, and why there are none.

    All are asked at once, and whatever they do (nothing, one byte a second), it takes :data:`METRICS_SECONDS`.
    """
    found = [("", f"{_page_of(server)} did not answer within {METRICS_SECONDS:g} s") for server in servers]

    def ask(number: int) -> None:
        found[number] = _page(servers[number])

    until = time.monotonic() + METRICS_SECONDS
    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(len(servers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return list(found)


def _page_of(server: dict[str, Any]) -> str:
    return "/metrics of {host}:{port}".format(**server["address"])


def _page(server: dict[str, Any]) -> tuple[str, str]:
    import http.client  # takes as long as all the rest of the probe

    if not server["own_network"]:
        return "", "the server has a network of its own; scan it with --via"
    connection = _connection(server["address"])
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        data = answer.read(MAX_METRICS)
    # ValueError, OverflowError: what its arguments call a host or a port is none.
    except (OSError, ValueError, OverflowError, http.client.HTTPException) as error:
        return "", f"{_page_of(server)} cannot be read: {error or type(error).__name__}"
    finally:
        connection.close()
    if answer.status != 200:
        return "", f"{_page_of(server)} answered {answer.status}"
    lines = data.decode("utf-8", "replace").splitlines()
    if len(data) == MAX_METRICS:
        lines.pop()  # half a number is another number
    lines = [line for line in lines if line.startswith(_PREFIXES)]
    return "\n".join(lines), "" if lines else f"{_page_of(server)} counts no speculative decoding"


def _connection(address: dict[str, Any]) -> Any:
    import http.client
    import ssl

    if not address["tls"]:
        return http.client.HTTPConnection(address["host"], address["port"], timeout=METRICS_SECONDS)
    # A loopback connection to a process that /proc has shown: its certificate has nothing to add.
    context = ssl._create_unverified_context()
    return http.client.HTTPSConnection(address["host"], address["port"], timeout=METRICS_SECONDS, context=context)

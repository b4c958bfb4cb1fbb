"""GPUs of this host, and what a local engine server counts. Runs on Python 3.8 and newer."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

#: ``nvidia-smi`` can hang on a broken driver.
SMI_SECONDS = 15.0
METRICS_SECONDS = 5.0
#: A metrics page of a busy server is some 200 kB.
MAX_METRICS = 8 << 20
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
        done = subprocess.run(
            [program, "--query-gpu=" + _FIELDS, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SMI_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return [], f"nvidia-smi did not answer within {SMI_SECONDS:g} s"
    except OSError as error:
        return [], f"nvidia-smi cannot be started: {error.strerror}"
    if done.returncode:
        lines = (done.stdout + done.stderr).decode("utf-8", "replace").strip().splitlines()
        return [], f"nvidia-smi failed with exit code {done.returncode}: {lines[0] if lines else 'no message'}"
    rows = [[part.strip() for part in line.split(",")] for line in done.stdout.decode("utf-8", "replace").splitlines()]
    return [row for row in rows if len(row) == 4], ""


def metrics(server: dict[str, Any]) -> tuple[str, str]:
    """The lines about speculative decoding on a local server's ``/metrics``, and why there are none."""
    import http.client  # takes as long as all the rest of the probe
    import ssl

    if not server["own_network"]:
        return "", "the server has a network of its own; scan it with --via"
    address = server["address"]
    connection: http.client.HTTPConnection
    if address["tls"]:
        # A loopback connection to a process that /proc has shown: its certificate has nothing to add.
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(
            address["host"], address["port"], timeout=METRICS_SECONDS, context=context
        )
    else:
        connection = http.client.HTTPConnection(address["host"], address["port"], timeout=METRICS_SECONDS)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read(MAX_METRICS).decode("utf-8", "replace")
        if answer.status != 200:
            return "", f"/metrics answered {answer.status}"
    except (OSError, http.client.HTTPException) as error:
        return "", f"/metrics of {address['host']}:{address['port']} cannot be read: {error or type(error).__name__}"
    finally:
        connection.close()
    lines = [line for line in text.splitlines() if line.startswith(_PREFIXES)]
    return "\n".join(lines), "" if lines else "/metrics counts no speculative decoding"

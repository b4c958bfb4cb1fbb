"""Sessions against a real OpenSSH server: logins, jumps, host keys, and everything that goes wrong on the way."""

from __future__ import annotations

from collections.abc import Callable

from specaudit.hosts.machine import PythonCaller
from tests.hosts.conftest import Client
from tests.hosts.sshd import Sshd

SCRIPT = "import os, sys\ndef main(request, blobs):\n    return {'user': os.getuid(), 'argv': sys.argv}, blobs\n"


def test_a_key_logs_in(client: Client, start_sshd: Callable[..., Sshd]) -> None:
    caller = PythonCaller(client.shell(client.host("gpu1", start_sshd())))
    answer = caller.call(SCRIPT, {}, blobs={"data": b"\0\xff" * 100000})
    assert answer.header == {"user": 0, "argv": ["-"]}
    assert answer.blobs == {"data": b"\0\xff" * 100000}

"""The frame protocol: what it carries, and what it does not believe."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specaudit.errors import DeadlineError, IncompleteError, IntegrityError, SpecauditError, UnreachableError
from specaudit.hosts import far_side, frame
from specaudit.hosts.fake import FakeShell, Fault
from specaudit.hosts.machine import PythonCaller
from specaudit.hosts.shell import Ended, LocalShell, Sink

ECHO = "def main(request, blobs):\n    return request, blobs\n"


class Liar:
    """A shell whose far side makes its answers up: ``make(marker)`` is all that it sends."""

    label = "liar"
    notes: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    prefix: tuple[str, ...] = ()

    def __init__(self, make: Callable[[bytes], bytes]) -> None:
        self._make = make

    def run(self, command: Sequence[str], stdin: bytes, sink: Sink, deadline: float) -> Ended:
        """Ignores what it was sent, but for the nonce."""
        nonce = stdin.rpartition(b'serve("')[2].partition(b'"')[0].decode()
        data = self._make(far_side.marker(nonce))
        for start in range(0, len(data), 1000):
            if sink(data[start : start + 1000]):
                break
        return Ended(0, "")

    def close(self) -> None:
        """Nothing."""


def framed(
    marker: bytes, raw: bytes, *, size: int | None = None, digest: bytes | None = None, pack: bool = True
) -> bytes:
    body = zlib.compress(raw) if pack else raw
    announced = len(body) if size is None else size
    return marker + announced.to_bytes(8, "big") + body + (digest or hashlib.sha256(body).digest())


def head(value: object, rest: bytes = b"") -> bytes:
    text = json.dumps(value).encode()
    return len(text).to_bytes(4, "big") + text + rest


LIES: dict[str, tuple[Callable[[bytes], bytes], type[SpecauditError], str]] = {
    "no zlib": (lambda m: framed(m, b"plain", pack=False), IntegrityError, "malformed"),
    "other bytes": (lambda m: framed(m, b"x", digest=b"0" * 32), IntegrityError, "do not have the hash"),
    "endless": (lambda m: framed(m, b"x", size=1 << 60), UnreachableError, "announced an answer of"),
    "cut": (lambda m: framed(m, b"x", size=500), UnreachableError, "in the middle of its answer"),
    "bomb": (lambda m: framed(m, b"\0" * (4 << 20)), IntegrityError, "unpacks to more than"),
    "empty": (lambda m: framed(m, b""), IntegrityError, "malformed"),
    "no header": (lambda m: framed(m, head({})), IntegrityError, "malformed"),
    "header cut": (lambda m: framed(m, b"\xff\xff\xff\xff"), IntegrityError, "malformed"),
    "not an object": (lambda m: framed(m, head({"header": {"answer": []}, "blobs": []})), IntegrityError, "malformed"),
    "negative": (
        lambda m: framed(m, head({"header": {"answer": {}}, "blobs": [["a", -1], ["b", 1]]})),
        IntegrityError,
        "malformed",
    ),
    "blob missing": (
        lambda m: framed(m, head({"header": {"answer": {}}, "blobs": [["a", 1]]})),
        IntegrityError,
        "fill",
    ),
    "blob twice": (
        lambda m: framed(m, head({"header": {"answer": {}}, "blobs": [["a", 1], ["a", 1]]}, b"xy")),
        IntegrityError,
        "fill",
    ),
    "too deep": (
        lambda m: framed(m, (100_000).to_bytes(4, "big") + b"[" * 100_000),
        IntegrityError,
        "malformed",
    ),
    "trailing": (lambda m: framed(m, head({"header": {"answer": {}}, "blobs": []}, b"x")), IntegrityError, "fill"),
    "silent": (lambda m: b"", IncompleteError, "exit code 0 and no answer"),
    "another nonce": (lambda m: framed(far_side.marker("0" * 32), b"x"), IncompleteError, "no answer"),
}


@pytest.mark.parametrize("lie", LIES)
def test_answers_that_lie(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "MAX_RAW", 1 << 20)
    make, kind, words = LIES[lie]
    with pytest.raises(kind, match=words):
        PythonCaller(Liar(make)).call(ECHO, {})


@settings(max_examples=200, deadline=None)
@given(
    header=st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.floats(allow_nan=False))),
    blobs=st.dictionaries(st.text(), st.binary(max_size=300), max_size=5),
    noise=st.binary(max_size=300),
    step=st.integers(1, 200),
)
def test_every_answer_survives_noise_and_any_cutting(
    header: dict[str, object], blobs: dict[str, bytes], noise: bytes, step: int
) -> None:
    data = noise + framed(far_side.marker("ab" * 16), far_side.pack({"answer": header}, blobs)) + b"trailing noise"
    reader = frame.AnswerReader("host", "ab" * 16)
    for start in range(0, len(data), step):
        if reader.feed(data[start : start + step]):
            break
    answer = reader.answer()
    assert answer.header == header
    assert answer.blobs == blobs


@given(st.binary(max_size=200))
def test_unpack_raises_nothing_but_value_error(raw: bytes) -> None:
    try:
        header, blobs = far_side.unpack(raw)
    except ValueError:
        return
    assert far_side.unpack(far_side.pack(header, blobs)) == (header, blobs)


def test_a_script_prints_and_its_children_print(capfd: pytest.CaptureFixture[str]) -> None:
    script = "import os\ndef main(r, b):\n    print('noise')\n    os.system('echo more')\n    return {'a': 1}, {}\n"
    assert PythonCaller(LocalShell()).call(script, {}).header == {"a": 1}
    assert capfd.readouterr().out == ""


def test_a_request_that_is_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "MAX_REQUEST", 1000)
    with pytest.raises(IntegrityError, match="is larger than"):
        PythonCaller(LocalShell()).call(ECHO, {}, blobs={"a": os.urandom(2000)})


@pytest.mark.parametrize("fault", ["noise", "stderr"])
def test_the_fake_host_is_noisy_and_answers(fault: Fault) -> None:
    shell = FakeShell("gpu1", {fault})
    blobs = {"data": os.urandom(200_000)}
    assert PythonCaller(shell).call(ECHO, {"a": 1}, blobs=blobs).blobs == blobs
    assert shell.traffic.calls == 1
    assert shell.traffic.received > 200_000


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("unreachable", UnreachableError),
        ("cut", UnreachableError),
        ("hang", DeadlineError),
        ("no-python", UnreachableError),
        ("garbled", IntegrityError),
    ],
)
def test_the_fake_host_fails_as_hosts_do(fault: Fault, kind: type[SpecauditError]) -> None:
    with pytest.raises(kind, match="gpu1") as caught:
        PythonCaller(FakeShell("gpu1", {fault})).call(ECHO, {}, blobs={"data": os.urandom(200_000)}, deadline=5)
    assert caught.value.hint


def test_a_local_command_that_cannot_be_started() -> None:
    with pytest.raises(UnreachableError, match="no-such-program cannot be started"):
        LocalShell().run(["no-such-program"], b"", lambda chunk: False, 5)


def test_a_local_command_that_leaves_a_child_with_its_stderr_is_not_waited_for() -> None:
    ended = LocalShell().run(["sh", "-c", "sleep 20 >/dev/null & echo done"], b"", lambda chunk: False, 10)
    assert ended.status == 0

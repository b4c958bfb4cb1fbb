"""What any user of a machine may leave in the probe's way: odd processes, files, pages, drivers; and lying answers."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specaudit.cache import Cache
from specaudit.errors import AnswerError, Exit
from specaudit.hosts.base import Answer
from specaudit.hosts.fake import FakeShell
from specaudit.hosts.machines import Machines
from specaudit.hosts.metrics import read_metrics
from specaudit.hosts.probe import configfile, hardware, installed, processes, reading, redact, survey
from specaudit.hosts.remote import Looking, RemoteHost
from specaudit.scan import Options, Outcome, scan_all
from specaudit.targets import parse
from tests.hosts.machines import looking, make_environment, site_of
from tests.hosts.test_probe import ENGINES, SOURCE

VERIFIER = """
import triton
import triton.language as tl


@triton.jit
def accept_kernel(Out, Drafts, Targets, count):
    rejected = False
    for at in range(count):
        if not rejected:
            draft = tl.load(Drafts + at)
            target = tl.load(Targets + at)
            tl.store(Out + at, target)
            if draft != target:
                rejected = True


def accept(out, drafts, targets):
    accept_kernel[(1,)](out, drafts, targets, len(drafts))
"""
SERVE = ["/usr/bin/python3", "/usr/local/bin/vllm", "serve", "m"]


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with a vLLM in which there is something to audit; its interpreter."""
    source = {**SOURCE, "vllm/v1/sample/rejection_sampler.py": VERIFIER}
    return make_environment(tmp_path_factory.mktemp("machine") / "venv", source, "0.30.0")


def process(folder: Path, argv: list[str], environ: bytes = b"", pid: int = 77) -> Looking:
    """A look at a ``/proc`` with one more process."""
    own = folder / "proc" / str(pid)
    (own / "ns").mkdir(parents=True)
    (folder / "proc" / "self" / "ns").mkdir(parents=True, exist_ok=True)
    (folder / "proc" / "1").mkdir(exist_ok=True)
    (own / "cmdline").write_bytes(b"\0".join(word.encode("utf-8", "surrogateescape") for word in argv) + b"\0")
    (own / "environ").write_bytes(environ)
    (own / "stat").write_text(f"{pid} (python3) S 1 1 1")
    return Looking(proc=str(folder / "proc"), usual=(), smi="/bin/true")


ODD = {
    "no digit": ["--port", "²"],
    "no port": ["--port", "99999"],
    "endless port": ["--port", "9" * 5000],
    "no name": ["--host", "a..b"],
    "two words": ["--host", "a b"],
    "escapes": ["--host", "\x1b[2J"],
    "no text": ["--host", "\udcff\udcfe"],
    "endless name": ["--host", "x" * 300],
    "no file": ["--config", "\x1b"],
    "a device": ["--config", "/dev/zero"],
    "nothing": ["--config"],
    "deep": ["--speculative-config", "{" * 5000],
    "long word": ["--x=" + "y" * 300_000],
    "long chain": ["--x=" + "a=" * 100_000],
    "long dots": ["--x=" + "a." * 100_000],
    "long quotes": ["--key=" + "\\" * 100_000 + "'"],
    "surrogates": ["--speculative-config", '{"method": "\\udc80", "\\udc80": 1}'],
}


def test_no_command_line_of_any_user_spoils_a_scan(tmp_path: Path, venv: Path) -> None:
    environ = b"VLLM_X=\xff\xfe\0VLLM_Y\0=z\0PYTHONPATH=\0VIRTUAL_ENV=\xff\0PATH=\0"
    pids = dict(enumerate(ODD, 100))
    for pid, name in pids.items():
        look = process(tmp_path, [*SERVE, *ODD[name]], environ, pid)
    (found,) = scanned(tmp_path, venv, look)
    assert found.error is None
    assert found.scan.errors == ()
    assert {server.pid for server in found.scan.servers} == set(pids)
    assert all(word.isprintable() for server in found.scan.servers for word in server.argv)


class Forging(Machines):
    """Machines whose answers are what ``forge`` makes of them."""

    forge: dict[str, Callable[[Answer], Answer]]
    truth: dict[str, Answer] | None = None

    @contextlib.contextmanager
    def opened(self, *arguments: Any) -> Iterator[RemoteHost]:  # type: ignore[override]
        with Machines.opened(self, *arguments) as host:
            real = host._caller.call

            def call(script: str, request: dict[str, Any], **rest: Any) -> Answer:
                known = {} if self.truth is None else self.truth
                answer = known[request["do"]] = known.get(request["do"]) or real(script, request, **rest)
                return self.forge.get(request["do"], lambda true: true)(answer)

            host._caller.call = call  # type: ignore[method-assign, assignment]
            yield host


def scanned(
    folder: Path,
    venv: Path,
    look: Looking | None = None,
    forge: dict[str, Callable[[Answer], Answer]] | None = None,
    truth: dict[str, Answer] | None = None,
) -> list[Outcome]:
    """A whole scan of one machine, encoded once as well; its answers may be forged, and true ones be kept."""
    from specaudit import document

    machines = Forging(connect=lambda name, _: FakeShell(name), looking=look or looking(folder), metrics=True)
    machines.forge, machines.truth = dict(forge or {}), truth
    with Cache(folder / "cache") as cache:
        options = Options(machines=machines)
        outcomes = list(scan_all([parse("gpu1", python=str(venv))], options, cache, lambda _: None, lambda _: False))
    document.encode(document.of_scans([one.scan for one in outcomes]))
    return outcomes


def head(**changes: object) -> Callable[[Answer], Answer]:
    """The header with other values."""
    return lambda answer: Answer({**answer.header, **changes}, answer.blobs)


def first(**changes: object) -> Callable[[Answer], Answer]:
    """The first installation with other values."""

    def forge(answer: Answer) -> Answer:
        header = json.loads(json.dumps(answer.header))
        header["installations"][0].update(changes)
        return Answer(header, answer.blobs)

    return forge


def sizes(size: str) -> Callable[[Answer], Answer]:
    """The list of files with another size for each."""
    return lambda answer: Answer(
        answer.header, {**answer.blobs, "files": re.sub(rb"(?m)^\d+", size.encode(), answer.blobs["files"])}
    )


def runs(**changes: object) -> Callable[[Answer], Answer]:
    """A server."""
    one = {
        "pid": 1, "engine": "vllm", "argv": ["vllm"], "config": [], "env": {}, "python": "", "mount": "",
        "container": "", "package": "", "metrics": "", "metrics_why": "",
    }  # fmt: skip
    return head(servers=[{**one, **changes}])


FORGED: dict[str, tuple[str, Callable[[Answer], Answer], Exit]] = {
    "engine": ("survey", first(engine="evil"), Exit.INCOMPLETE),
    "engine with a path": ("survey", first(engine="../.."), Exit.INCOMPLETE),
    "source": ("survey", first(source="\x1b[2J"), Exit.INCOMPLETE),
    "version": ("survey", first(version="\udc80\x1b"), Exit.CLEAN),
    "root": ("survey", first(root="/x\udc80"), Exit.CLEAN),
    "digest": ("survey", first(digest="../../etc", complete=True), Exit.INCOMPLETE),
    "signature": ("survey", first(libraries=[["/x", "\udc80"]]), Exit.INCOMPLETE),
    "pid": ("survey", runs(pid=10**30), Exit.INCOMPLETE),
    "negative pid": ("survey", runs(pid=-1), Exit.INCOMPLETE),
    "engine of a server": ("survey", runs(engine="evil"), Exit.INCOMPLETE),
    "configuration": ("survey", runs(argv=["vllm", "-sc", '{"method": "\\udc80"}']), Exit.CLEAN),
    "deep configuration": ("survey", runs(argv=["vllm", "-sc", '{"a":' * 100_000]), Exit.CLEAN),
    "memory": ("survey", head(gpus=[["a", "b", "c", "²"]]), Exit.CLEAN),
    "much memory": ("survey", head(gpus=[["a", "b", "c", "9" * 5000]]), Exit.CLEAN),
    "position": ("survey", runs(metrics='vllm:spec_decode_num_accepted_tokens_per_pos{position="²"} 1'), Exit.CLEAN),
    "far position": (
        "survey",
        runs(metrics='vllm:spec_decode_num_accepted_tokens_per_pos{position="' + "9" * 5000 + '"} 1'),
        Exit.CLEAN,
    ),
    "size": ("manifest", sizes("9" * 30), Exit.INCOMPLETE),
    "long size": ("manifest", sizes("9" * 5000), Exit.INCOMPLETE),
    "size with underscores": ("manifest", sizes("1_0"), Exit.INCOMPLETE),
    "no lists": ("manifest", lambda answer: Answer(answer.header), Exit.INCOMPLETE),
    "no text": ("manifest", lambda answer: Answer(answer.header, {**answer.blobs, "files": b"\xff"}), Exit.INCOMPLETE),
    "operators": ("manifest", head(ops={"/x": ["a\nb", "\udc80"]}, unread={"\udc80": "\x1b"}), Exit.CLEAN),
    "record": ("manifest", head(record={"vllm/a.py\udc80": "zz", "../x.py": "0" * 64}), Exit.CLEAN),
    "nothing sent": ("contents", lambda answer: Answer({}), Exit.INCOMPLETE),
}


@pytest.fixture(scope="module")
def truth() -> dict[str, Answer]:
    """What the machine of these tests really answers; asked once."""
    return {}


@pytest.mark.parametrize("name", FORGED)
def test_lying_machines_cost_themselves_alone(tmp_path: Path, venv: Path, truth: dict[str, Answer], name: str) -> None:
    what, forge, code = FORGED[name]
    (found,) = scanned(tmp_path, venv, forge={what: forge}, truth=truth)
    assert found.code is code
    assert not any("fault of specaudit" in failure.error for failure in found.scan.errors)
    assert all(failure.error.isprintable() for failure in found.scan.errors)


def test_a_machine_that_sends_the_same_again_and_again_is_left(
    tmp_path: Path, venv: Path, truth: dict[str, Answer]
) -> None:
    calls = []

    def again(answer: Answer) -> Answer:
        calls.append(answer)
        return Answer({}, {"vllm/__init__.py": b""})

    (found,) = scanned(tmp_path, venv, forge={"contents": again}, truth=truth)
    assert len(calls) <= 2
    assert found.code is Exit.INCOMPLETE


@pytest.mark.parametrize(
    "forge",
    [head(python="\x1b[2J", installations=[]), runs(container="\x1b[2J")],
    ids=["interpreter", "container"],
)
def test_no_machine_writes_on_the_terminal(tmp_path: Path, venv: Path, forge: Callable[[Answer], Answer]) -> None:
    def empty(answer: Answer) -> Answer:
        return Answer({**forge(answer).header, "installations": []})

    (found,) = scanned(tmp_path, venv, forge={"survey": empty})
    assert found.error is not None
    assert "\x1b" not in str(found.error)


def test_a_failing_script_does_not_write_on_the_terminal() -> None:
    from specaudit.errors import IncompleteError
    from specaudit.hosts.machine import PythonCaller

    with pytest.raises(IncompleteError) as caught:
        PythonCaller(FakeShell("gpu1")).call("def main(r, b): raise KeyError('\\x1b[2J') from None", {})
    assert "\x1b" not in str(caught.value)
    with pytest.raises(IncompleteError) as caught:
        PythonCaller(FakeShell("gpu1")).call("class E(Exception):\n  pass\ndef main(r, b): raise E('\\x1b[2J')", {})
    assert "\x1b" not in str(caught.value)


def test_the_code_of_an_answer_that_makes_no_sense() -> None:
    assert AnswerError("", "").code is Exit.INCOMPLETE


# Files.

EMPTY = "vllm/__init__.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n"


@pytest.mark.parametrize(
    "text", ["a\rb,sha256=x,1\n", '"' + "x" * 300_000 + '",y,1\n', "\xff\xfe,\0\n", "x,sha256=\xc3\xa9,1\n", "x\n,\n"]
)
def test_a_broken_line_of_record_costs_itself_alone(text: str) -> None:
    assert list(installed.parse_record((text + EMPTY).encode("latin-1"))) == ["vllm/__init__.py"]


def test_a_quote_that_is_not_closed_in_record(tmp_path: Path) -> None:
    assert list(installed.parse_record((EMPTY + '"x,sha256=a,1\n').encode())) == ["vllm/__init__.py"]


@pytest.mark.parametrize("name", ["RECORD", "METADATA", "direct_url.json", "top_level.txt"])
def test_a_pipe_in_place_of_metadata_is_not_waited_for(tmp_path: Path, name: str) -> None:
    python = make_environment(tmp_path / "venv", SOURCE, "0.30.0")
    info = site_of(tmp_path / "venv") / "vllm-0.30.0.dist-info"
    (info / name).unlink(missing_ok=True)
    os.mkfifo(info / name)
    host = RemoteHost(FakeShell("gpu1"), python=str(python), looking=looking(tmp_path), deadline=10)
    assert [found.version for found in host.installations(ENGINES)] == ["0.30.0"]


@pytest.mark.parametrize("name", ["pyvenv.cfg", "lib/x.pth"])
def test_a_pipe_in_an_environment_is_not_waited_for(tmp_path: Path, name: str) -> None:
    make_environment(tmp_path / "venv", SOURCE, "0.30.0")
    place = site_of(tmp_path / "venv") / "x.pth" if name.endswith("pth") else tmp_path / "venv" / name
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    host = RemoteHost(FakeShell("gpu1"), looking=looking(tmp_path, tmp_path / "venv"), deadline=10)
    assert [found.version for found in host.installations(ENGINES)] == ["0.30.0"]


def test_a_link_to_a_secret_is_not_followed(tmp_path: Path) -> None:
    """Links between sources are (uv and Nix install by them); by sudo, ``x.py -> /etc/shadow`` would be read."""
    python = make_environment(tmp_path / "venv", SOURCE, "0.30.0")
    package = site_of(tmp_path / "venv") / "vllm"
    (tmp_path / "secret").write_text("root:hash\n")
    (tmp_path / "store.py").write_text("STORE = 1\n")
    (package / "leak.py").symlink_to(tmp_path / "secret")
    (package / "hop.py").symlink_to(package / "leak.py")
    (package / "linked.py").symlink_to(tmp_path / "store.py")
    host = RemoteHost(FakeShell("gpu1"), python=str(python), looking=looking(tmp_path))
    (found,) = host.installations(ENGINES)
    listed = host.manifest(found)
    assert {failure.path: failure.error for failure in listed.errors} == dict.fromkeys(
        ("vllm/leak.py", "vllm/hop.py"), "symbolic link to what is no .py file"
    )
    assert "vllm/linked.py" in {entry.path for entry in listed.files}
    assert survey.contents(found.root, ["vllm/leak.py", "vllm/linked.py", "vllm/../../secret"]) == {
        "vllm/linked.py": b"STORE = 1\n"
    }


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert configfile.arguments(["--config", "pipe"], str(tmp_path), "") == []
    for place in (str(tmp_path / "pipe"), "/dev/zero", str(tmp_path), "/absent", "a\0b"):
        assert reading.text(place) == ""
        with pytest.raises(OSError, match=r".*"):
            reading.small(place, 10)
    (tmp_path / "file").write_bytes(b"0123456789\xff")
    assert reading.small(str(tmp_path / "file"), 4) == b"0123"
    assert reading.text(str(tmp_path / "file")).endswith("9\N{REPLACEMENT CHARACTER}")


# Drivers.


def driver(folder: Path, script: str) -> str:
    file = folder / "nvidia-smi"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


@pytest.mark.parametrize(
    ("script", "rows", "why"),
    [
        ("echo 'NVIDIA, Inc. H100, 9.0, 550.1, 81559'", [["NVIDIA, Inc. H100", "9.0", "550.1", "81559"]], ""),
        ("echo 'H200, 9.0, 570, [N/A]'", [["H200", "9.0", "570", "[N/A]"]], ""),
        ("true", [], ""),
        ("echo garbage", [], "nvidia-smi printed what is no table: garbage"),
        ("echo 'a, b, c, d'; echo oops", [], "nvidia-smi printed what is no table: a, b, c, d"),
        ("exec sleep 30", [], "nvidia-smi did not answer within 0.5 s"),
        ("sleep 30 & echo 'a, b, c, d'", [], "nvidia-smi did not answer within 0.5 s"),
    ],
)
def test_what_a_driver_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, rows: list[list[str]], why: str
) -> None:
    monkeypatch.setattr(hardware, "SMI_SECONDS", 0.5 if "sleep" in script else 20)
    began = time.monotonic()
    assert hardware.gpus(driver(tmp_path, script)) == (rows, why)
    assert time.monotonic() - began < 10


# Pages.


def drip(stream: socket.socket) -> None:
    stream.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        stream.sendall(b"x")
        time.sleep(0.2)


def drip_headers(stream: socket.socket) -> None:
    stream.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        stream.sendall(b"a: b\r\n")
        time.sleep(0.2)


def long(stream: socket.socket) -> None:
    """The limit falls into the middle of a number."""
    last = b"vllm:spec_decode_num_drafts_total 1234567\n"
    stream.sendall(b"HTTP/1.1 200 OK\r\n\r\nvllm:spec_decode_num_drafts_total 5\n")
    stream.sendall(b"#" * (hardware.MAX_METRICS - 36 - len(last) + 4) + b"\n" + last * 2)


def says(text: bytes) -> Callable[[socket.socket], None]:
    return lambda stream: stream.sendall(text)


PAGES: dict[str, tuple[Callable[[socket.socket], None], str, str]] = {
    "hangs": (lambda stream: time.sleep(4), "", "did not answer within|timed out"),
    "drips": (drip, "", "did not answer within"),
    "drips headers": (drip_headers, "", "did not answer within"),
    "redirects": (says(b"HTTP/1.1 307 T\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"), "", "307"),
    "fails": (says(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"), "", "answered 500"),
    "long": (long, "vllm:spec_decode_num_drafts_total 5", ""),
    "binary": (says(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(range(256))), "", "counts no speculative decoding"),
    "no http": (says(b"\xff\xfe\r\n\r\n"), "", "cannot be read"),
    "bad chunk": (says(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), "", "cannot be read"),
    "many headers": (says(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 5000 + b"\r\n"), "", "cannot be read"),
}


@pytest.fixture
def page() -> Iterator[Callable[[Callable[[socket.socket], None]], int]]:
    """``page(talk)``: a server on loopback; its port."""
    closing: list[socket.socket] = []

    def start(talk: Callable[[socket.socket], None]) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        closing.append(listener)

        def one(stream: socket.socket) -> None:
            with stream, contextlib.suppress(OSError):
                stream.recv(9999)
                talk(stream)

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        return int(listener.getsockname()[1])

    yield start
    for listener in closing:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_pages_that_misbehave_cost_themselves_alone(
    tmp_path: Path, page: Callable[[Callable[[socket.socket], None]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once: the slow ones together take no longer than one."""
    monkeypatch.setattr(hardware, "METRICS_SECONDS", 1.5)
    pids = {}
    for pid, (name, (talk, _, _)) in enumerate(PAGES.items(), 70):
        look = process(tmp_path, [*SERVE, "--port", str(page(talk))], pid=pid)
        pids[pid] = name
    began = time.monotonic()
    found = {pids[one["pid"]]: (one["metrics"], one["metrics_why"]) for one in survey.servers(look.proc, True)[0]}
    assert time.monotonic() - began < hardware.METRICS_SECONDS + 10
    for name, (_, lines, why) in PAGES.items():
        assert found[name][0] == lines
        assert re.search(why, found[name][1]), (name, found[name])
        assert bool(found[name][1]) == bool(why)


@pytest.mark.parametrize("value", ["1e999", "nan", "-3", "0x1", "1_0 2 3"])
def test_counters_that_count_nothing(value: str) -> None:
    assert read_metrics(f"vllm:spec_decode_num_drafts_total {value}\n") == {}


# Processes of others.


def container_of(folder: Path, pid: int = 77) -> None:
    (folder / "proc" / str(pid) / "cgroup").write_text("0::/system.slice/docker-" + "ab" * 32 + ".scope\n")


def test_a_container_that_is_closed_to_us_is_not_taken_for_the_machine(tmp_path: Path, venv: Path) -> None:
    """Its namespaces cannot be read, and its interpreter has the path of one of ours."""
    look = process(tmp_path, [str(venv), str(venv.with_name("vllm")), "serve", "m", "-sc", '{"method": "mtp"}'])
    container_of(tmp_path)
    (found,) = scanned(tmp_path, venv, look)
    assert found.scan.servers == ()
    (told,) = [item.why for item in found.scan.not_looked if item.what == "process 77"]
    assert told == 'it runs vllm in a container: --via "docker exec -i abababababab", or --sudo'


def test_a_neighbour_in_our_own_container_is_no_stranger(tmp_path: Path, venv: Path) -> None:
    look = process(tmp_path, [str(venv), str(venv.with_name("vllm")), "serve", "m"])
    container_of(tmp_path)
    (tmp_path / "proc" / "self" / "cgroup").write_bytes((tmp_path / "proc" / "77" / "cgroup").read_bytes())
    (found,) = scanned(tmp_path, venv, look)
    assert [server.pid for server in found.scan.servers] == [77]


def test_variables_that_cannot_be_read_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = process(tmp_path, SERVE, b"VLLM_USE_V1=1\0")
    assert processes.servers(look.proc)[0]["unseen"] == ""
    own = Path(look.proc, "77", "environ")
    real = open

    def closed(file: str, *arguments: Any) -> Any:
        if file == str(own):
            raise PermissionError(13, "Permission denied")
        return real(file, *arguments)

    monkeypatch.setattr("builtins.open", closed)
    (server,) = processes.servers(look.proc)
    assert (server["env"], server["unseen"]) == ({}, processes._UNSEEN)


@pytest.mark.parametrize(("left", "why"), [("1", "is not mounted there"), ("self", "hides processes of other users")])
def test_processes_that_cannot_be_seen_are_told(tmp_path: Path, venv: Path, left: str, why: str) -> None:
    look = looking(tmp_path)
    for entry in Path(look.proc).iterdir():
        if entry.name != left:
            entry.unlink()
    (found,) = scanned(tmp_path, venv, look)
    assert [why in item.why for item in found.scan.not_looked if item.what == "running servers"] == [True]
    (seen,) = scanned(tmp_path, venv, looking(tmp_path))
    assert "running servers" not in {item.what for item in seen.scan.not_looked}


def test_more_servers_than_are_listed_are_told(tmp_path: Path) -> None:
    for pid in range(100, 100 + processes.MAX_SERVERS + 1):
        look = process(tmp_path, SERVE, pid=pid)
    assert len(processes.servers(look.proc)) == processes.MAX_SERVERS
    assert "there may be more" in processes.hidden(look.proc, processes.MAX_SERVERS)
    assert processes.hidden(look.proc, processes.MAX_SERVERS - 1) == ""


def test_libraries_in_the_memory_of_a_process() -> None:
    head = "7f0000000000-7f0000001000 r-xp 00000000 fe:00 123                  "
    paths = [
        "/opt/venv/lib/python3.12/site-packages/vllm/_C.abi3.so",
        "/opt/my env/site-packages/sgl_kernel/sm90/common_ops.abi3.so",
        "/srv/vllm/vllm/_moe_C.abi3.so",
        "/a/vllm/x.so (deleted)",
        "/a/vllm/x.so.1",
        "/vllm/x.so",
        "/a/xvllm/x.so",
        "/" + "vllm/" * 800 + "x.so",
        "[stack]",
        "",
    ]
    assert processes.mapped("\n".join(head + path for path in paths)) == {
        "/opt/venv/lib/python3.12/site-packages": "vllm",
        "/opt/my env/site-packages": "sglang",
        "/srv/vllm": "vllm",
        "/" + "vllm/" * 798 + "vllm": "vllm",
    }


def test_a_server_whose_variables_are_not_known_is_said_to_be(tmp_path: Path, venv: Path) -> None:
    def forge(answer: Answer) -> Answer:
        header = json.loads(json.dumps(answer.header))
        header["servers"][0]["unseen"] = processes._UNSEEN
        return Answer(header)

    (found,) = scanned(tmp_path, venv, process(tmp_path, SERVE), {"survey": forge})
    told = {item.what: item.why for item in found.scan.not_looked}
    assert told["variables of process 77"] == processes._UNSEEN
    assert "the installation of process 77" in told


# Secrets.


@pytest.mark.parametrize(
    "word",
    [
        '{"password": "VALUE', '{\\"password\\": \\"VALUE\\"}',
        '{"a": "{\\"b\\": \\"{\\\\\\"token\\\\\\": \\\\\\"VALUE\\\\\\"}\\"}"}',
        "{'api_key': 'VALUE", '{"tokens": ["VALUE"]}', '{"api_keys": ["VALUE", "b"', '{"auth": {"user": "VALUE"',
        "--password\tVALUE", "--password\nVALUE", "PGPASSWORD=VALUE", "x.password=VALUE", "3password=VALUE",
        "a:b:key=VALUE",
        "--openai-api-key:VALUE", "{password: VALUE}", "s3://user:VALUE@bucket", "key=\\VALUE", 'key="VALUE\\',
    ],
)  # fmt: skip
def test_secrets_in_broken_dress_are_hidden_too(word: str) -> None:
    secret = "Zq7-no-one-may-see_this"
    said = word.replace("VALUE", secret)
    for argv in (["vllm", said], ["vllm", "--foo", said], ["vllm", "--foo=" + said]):
        assert secret not in " ".join(redact.arguments(argv))
    assert secret not in redact.named("VLLM_X", said)


def test_a_header_that_a_shell_took_apart() -> None:
    words = ["serve", "--header", "Authorization:", "Bearer", "VALUE", "{api_key:", "VALUE}", "--port", "1"]
    shown = redact.arguments(words)
    assert "VALUE" not in " ".join(shown)
    assert shown[-2:] == ["--port", "1"]


@pytest.mark.parametrize(
    "word",
    [
        "--eos-token-id=7", "--skip-tokenizer-init", "--max-token-len=9", "--detokenizer=fast", "a=b=c",
        "--served-model-name=keys/monkey", "--x={'a': 1}",
    ],
)  # fmt: skip
def test_names_that_only_look_secret_stay(word: str) -> None:
    assert redact.arguments(["vllm", word]) == ["vllm", word]


@pytest.mark.parametrize(
    "unit", ["y", "a=", "a.", "eyJ-", "eyJaaaaaaaa.", "--a ", "://a", "hf-", '\\"', "key=", "a b", "Basic "]
)
def test_time_for_secrets_is_in_proportion(unit: str) -> None:
    """The limit keeps it short in any case; without it a quadratic search would take hours here."""
    length = len(unit * 100_000)
    began = time.monotonic()
    assert len(redact.arguments(["vllm", "--x=" + unit * 100_000])[1]) < length
    assert time.monotonic() - began < 5

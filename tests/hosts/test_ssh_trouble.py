"""What goes wrong on the way to a host and on it, over real SSH: one clear error, in time, and nothing is left."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from specaudit.errors import DeadlineError, Exit, IncompleteError, TargetError, UnreachableError
from specaudit.hosts.machine import PythonCaller
from specaudit.hosts.shell import Ended, Sink
from specaudit.hosts.ssh.config import Timeouts
from tests.hosts.conftest import WHOAMI, Account, Client
from tests.hosts.sshd import Sshd, run

Server = Callable[..., Sshd]
Accounts = Callable[..., Account]

BIG = "def main(request, blobs):\n    import os\n    return {}, {'big': os.urandom(request['size'])}\n"
# Its child shows in the list of processes.
SLEEP = """
def main(request, blobs):
    import subprocess, sys
    subprocess.run([sys.executable, "-c", "import time; time.sleep(300)  # sleep-for-ever"])
    return {}, {}
"""


def shell_script(folder: Path, name: str, text: str) -> Path:
    """A login shell for an account, where every user can run it."""
    file = folder / name
    file.write_text(text)
    file.chmod(0o755)
    return file


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that all users may read."""
    folder = Path("/tmp") / f"specaudit-test-{os.getpid()}-{time.monotonic_ns()}"
    folder.mkdir(mode=0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_login_shell_that_prints_100_kb(
    client: Client, start_sshd: Server, account: Accounts, public_folder: Path
) -> None:
    loop = "i=0; while [ $i -lt 2200 ]; do echo 'Welcome to this machine; please read the rules.'; i=$((i+1)); done"
    shell = shell_script(public_folder, "noisy", f'#!/bin/sh\n{loop}\nexec /bin/sh "$@"\n')
    user = account(shell)
    client.host("gpu1", start_sshd(), User=user.name)
    noise = bytearray()

    def keep(chunk: bytes) -> bool:
        noise.extend(chunk)
        return False

    client.shell("gpu1").run(["true"], b"", keep, 20)
    assert len(noise) > 100_000
    assert client.whoami("gpu1") == int(run("id", "-u", user.name))


def test_a_login_shell_that_is_no_bourne_shell(client: Client, start_sshd: Server, account: Accounts) -> None:
    assert Path("/bin/csh").exists(), "apt-get install csh"
    user = account("/bin/csh")
    client.host("gpu1", start_sshd(), User=user.name)
    assert client.whoami("gpu1") == int(run("id", "-u", user.name))


def test_2_mb_on_stderr(client: Client, start_sshd: Server) -> None:
    script = "import os\ndef main(request, blobs):\n    os.write(2, b'x' * 2000000)\n    return {'ok': 1}, blobs\n"
    blobs = {"b": os.urandom(3_000_000)}
    answer = PythonCaller(client.shell(client.host("gpu1", start_sshd()))).call(script, {}, blobs=blobs)
    assert answer.header == {"ok": 1}
    assert answer.blobs == blobs


def test_stderr_without_end_is_given_up(client: Client, start_sshd: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specaudit.hosts.shell.MAX_STDERR", 1 << 20)
    script = "import os\ndef main(request, blobs):\n    while True: os.write(2, b'x' * 100000)\n"
    with pytest.raises(UnreachableError, match="wrote more than 1 MiB to stderr"):
        PythonCaller(client.shell(client.host("gpu1", start_sshd()))).call(script, {}, deadline=30)


def test_noise_without_end_is_given_up(client: Client, start_sshd: Server) -> None:
    caller = PythonCaller(client.shell(client.host("gpu1", start_sshd(ForceCommand="yes"))))
    with pytest.raises(UnreachableError, match="more than 16 MiB and no answer"):
        caller.call(WHOAMI, {}, deadline=60)


def test_a_command_that_hangs_is_stopped_and_leaves_nothing(client: Client, start_sshd: Server) -> None:
    caller = PythonCaller(client.shell(client.host("gpu1", start_sshd())))
    began = time.monotonic()
    with pytest.raises(DeadlineError, match=r"gpu1 did not answer within 0\.77 s") as caught:
        caller.call(SLEEP, {}, deadline=0.77)
    assert time.monotonic() - began < 20
    assert caught.value.code is Exit.INCOMPLETE
    assert caller.call(WHOAMI, {}).header["uid"] == 0, "the connection is still good"
    for _ in range(200):
        if "sleep-for-ever" not in running():
            break
        time.sleep(0.1)
    assert "sleep-for-ever" not in running()


def running() -> str:
    """Command lines of this machine."""
    return subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_the_far_side_ends_itself_when_nobody_is_left(client: Client, start_sshd: Server) -> None:
    """Without a ``timeout`` program, or behind docker exec, the kernel's alarm is what ends a stuck script."""
    caller = PythonCaller(client.shell(client.host("gpu1", start_sshd())))
    script = "import signal\ndef main(request, blobs):\n    return {'left': signal.alarm(0)}, {}\n"
    assert 28 <= caller.call(script, {}, deadline=28).header["left"] <= 30


def test_a_server_that_dies_in_the_middle_of_a_transfer(client: Client, start_sshd: Server) -> None:
    server = start_sshd()
    shell = client.shell(client.host("gpu1", server))
    received = 0

    def sink(chunk: bytes) -> bool:
        nonlocal received
        received += len(chunk)
        if received > 100_000:
            server.stop()
        return False

    began = time.monotonic()
    with pytest.raises(UnreachableError, match=r"gpu1 (broke|ended) the connection"):
        shell.run([sys.executable, "-c", "import os\nwhile True: os.write(1, b'x' * 65536)"], b"", sink, 60)
    assert time.monotonic() - began < 30


def test_an_answer_that_is_cut_is_no_answer(client: Client, start_sshd: Server) -> None:
    server = start_sshd()
    shell = client.shell(client.host("gpu1", server))

    class Dying:
        label = "gpu1"
        notes: tuple[str, ...] = ()
        unread: tuple[str, ...] = ()
        prefix: tuple[str, ...] = ()
        close = shell.close

        def run(self, command: Sequence[str], stdin: bytes, sink: Sink, deadline: float) -> Ended:
            def watched(chunk: bytes) -> bool:
                server.stop()
                return sink(chunk)

            return shell.run(command, stdin, watched, deadline)

    with pytest.raises(UnreachableError, match=r"gpu1 (broke|ended) the connection"):
        PythonCaller(Dying()).call(BIG, {"size": 40_000_000}, deadline=40)


def test_a_far_side_without_python3(client: Client, start_sshd: Server, public_folder: Path) -> None:
    """Its own file system root holds a shell and nothing else."""
    root = public_folder / "root"
    (root / "bin").mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox, "apt-get install busybox-static"
    shutil.copy(busybox, root / "bin" / "busybox")
    for name in ("sh", "timeout", "true"):
        (root / "bin" / name).symlink_to("busybox")
    client.host("gpu1", start_sshd(ForceCommand=f'chroot {root} /bin/sh -c "$SSH_ORIGINAL_COMMAND"'))
    with pytest.raises(UnreachableError, match=r"^gpu1 has no python3\. Name the engine's interpreter"):
        client.whoami("gpu1")


def test_a_python_that_is_not_there_or_too_old(
    client: Client, start_sshd: Server, public_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.host("gpu1", start_sshd())
    with pytest.raises(TargetError, match="gpu1 has no /opt/none/bin/python"):
        PythonCaller(client.shell("gpu1"), "/opt/none/bin/python").call(WHOAMI, {})
    pyenv = Path.home() / ".pyenv" / "versions"
    for python in pyenv.glob("3.[67].*/bin/python3"):
        with pytest.raises(UnreachableError, match=rf"needs Python 3\.8 or newer on the host; {python} is 3\.[67]\."):
            PythonCaller(client.shell("gpu1"), str(python)).call(WHOAMI, {})
    old = shell_script(public_folder, "python3", "#!/bin/sh\nexit 1\n")
    monkeypatch.setattr("specaudit.hosts.machine.INTERPRETERS", (str(old), "/opt/none/python3"))
    with pytest.raises(UnreachableError, match=rf"no Python 3\.8 or newer among {old}"):
        client.whoami("gpu1")


def test_a_home_of_the_interpreter_is_expanded_there(client: Client, start_sshd: Server, account: Accounts) -> None:
    user = account()
    (user.home / "my env").mkdir()
    (user.home / "my env" / "python").symlink_to("/usr/bin/python3")
    client.host("gpu1", start_sshd(), User=user.name)
    assert PythonCaller(client.shell("gpu1"), "~/my env/python").call(WHOAMI, {}).header["uid"] > 0


def test_a_read_only_home_stays_as_it_is(client: Client, start_sshd: Server, account: Accounts) -> None:
    user = account()
    shutil.chown(user.home, "root")
    client.host("gpu1", start_sshd(), User=user.name)
    script = "import os\ndef main(request, blobs):\n    return {'home': os.access(os.environ['HOME'], os.W_OK)}, {}\n"
    assert PythonCaller(client.shell("gpu1")).call(script, {}).header == {"home": False}
    assert list(user.home.iterdir()) == []


def test_a_login_that_runs_nothing(client: Client, start_sshd: Server, account: Accounts) -> None:
    user = account("/usr/sbin/nologin")
    client.host("gpu1", start_sshd(), User=user.name)
    with pytest.raises(IncompleteError, match=r"exit code 1 and no answer\. It said: This account is currently not"):
        client.whoami("gpu1")


@pytest.mark.parametrize(
    ("shell", "words"),
    [("/bin/false", "exit code 1 and no answer"), ("/bin/true", "exit code 0 and"), ("/bin/rbash", "exec: restricted")],
)
def test_login_shells_that_run_no_command(
    client: Client, start_sshd: Server, account: Accounts, shell: str, words: str
) -> None:
    client.host("gpu1", start_sshd(), User=account(shell).name)
    with pytest.raises(IncompleteError, match=words) as caught:
        client.whoami("gpu1")
    assert caught.value.hint == "Try by hand on gpu1: python3 -V."


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo 'no modules today' >&2; exit 1", "exit code 1 and no answer.*no modules today"),
        ("echo hello", "exit code 0 and no answer"),
        ("kill -9 $$", "gpu1 ended the command by a signal, with no answer"),
        ("exit 137", r"by a signal \(exit code 137\)"),
        ("echo Traceback '(most recent call last):' >&2; echo Last >&2; exit 1", "It said: Last Try by hand"),
    ],
)
def test_an_interpreter_that_is_none(
    client: Client, start_sshd: Server, public_folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    """Named, it is an error that quotes it; looked for, it is passed over unless it claims to be one."""
    python = shell_script(public_folder, "python3", f"#!/bin/sh\n{text}\n")
    client.host("gpu1", start_sshd())
    with pytest.raises(IncompleteError, match=f"(?s){words}") as caught:
        PythonCaller(client.shell("gpu1"), str(python)).call(WHOAMI, {})
    assert f"Try by hand on gpu1: {python} -V" in caught.value.hint
    monkeypatch.setattr("specaudit.hosts.machine.INTERPRETERS", (str(python), sys.executable))
    if "exit code 0" not in words:
        assert client.whoami("gpu1") == 0


@pytest.mark.parametrize("limit", ["-f 0", "-t 5", "-s 256", "-v 100000"])
def test_an_account_with_limits(
    client: Client, start_sshd: Server, account: Accounts, public_folder: Path, limit: str
) -> None:
    shell = shell_script(public_folder, "limited", f'#!/bin/bash\nulimit {limit}\nexec /bin/bash "$@"\n')
    client.host("gpu1", start_sshd(), User=account(shell).name)
    assert client.whoami("gpu1") > 0


@pytest.mark.parametrize(
    "line",
    [
        "printf '\\033[2J\\377\\376\\0binary\\007'",
        "head -c 300000 /dev/urandom",
        "printf -- '--specaudit:'",
        "trap 'echo bye' EXIT",
    ],
)
def test_a_login_script_that_prints_anything(client: Client, start_sshd: Server, account: Accounts, line: str) -> None:
    user = account("/bin/bash")
    (user.home / ".bashrc").write_text(line + "\n")
    client.host("gpu1", start_sshd(SetEnv="SHLVL=0"), User=user.name)
    noise = bytearray()

    def keep(chunk: bytes) -> bool:
        noise.extend(chunk)
        return False

    client.shell("gpu1").run(["true"], b"", keep, 20)
    assert noise or "trap" in line, "the script was not read"
    assert client.whoami("gpu1") == int(run("id", "-u", user.name))


def test_a_script_that_raises_is_told_with_its_line(client: Client, start_sshd: Server) -> None:
    with pytest.raises(IncompleteError, match="KeyError: 'absent'"):
        PythonCaller(client.shell(client.host("gpu1", start_sshd()))).call("def main(r, b): r['absent']", {})


def test_nobody_listens(client: Client, start_sshd: Server) -> None:
    server = start_sshd()
    client.host("gpu1", server)
    server.stop()
    with pytest.raises(UnreachableError, match=rf"gpu1 \(127\.0\.0\.1 port {server.port}\) refuses the connection"):
        client.whoami("gpu1")


def test_a_name_without_an_address(client: Client, start_sshd: Server) -> None:
    client.host("gpu1", start_sshd(), HostName="no-such-host.invalid")
    with pytest.raises(UnreachableError, match="has no address"):
        client.whoami("gpu1")


@pytest.mark.parametrize(
    ("greeting", "timeouts", "words"),
    [
        (b"", Timeouts(banner=0.7, handshake=60), "banner"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Timeouts(banner=60, handshake=0.7), ""),
    ],
)
def test_a_server_that_says_nothing_more(
    client: Client, start_sshd: Server, greeting: bytes, timeouts: Timeouts, words: str
) -> None:
    """Port forwarders accept connections and then wait for a machine that is off."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = start_sshd()
        client.host("gpu1", server, Port=str(listener.getsockname()[1]))
        held = []

        def accept() -> None:
            stream, _ = listener.accept()
            stream.sendall(greeting)
            held.append(stream)

        thread = threading.Thread(target=accept)
        thread.start()
        began = time.monotonic()
        with pytest.raises(UnreachableError, match=f"ended the connection before the login.*{words}"):
            client.whoami("gpu1", timeouts=timeouts)
        assert time.monotonic() - began < 10
        thread.join()
        held[0].close()


@pytest.mark.parametrize(("configured", "ours"), [("1", 60.0), ("none", 1.0)])
def test_a_host_that_drops_packets(client: Client, start_sshd: Server, configured: str, ours: float) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fill = [socket.socket() for _ in range(4)]
        for stream in fill:
            stream.setblocking(False)
            stream.connect_ex(address)
        client.host("gpu1", start_sshd(), Port=str(address[1]), ConnectTimeout=configured)
        began = time.monotonic()
        with pytest.raises(UnreachableError, match="does not answer"):
            client.whoami("gpu1", timeouts=Timeouts(tcp=ours))
        assert time.monotonic() - began < 15
        for stream in fill:
            stream.close()


def test_a_login_that_takes_too_long(client: Client, start_sshd: Server) -> None:
    client.host("gpu1", start_sshd(AuthorizedKeysCommand="/bin/sleep 30"))
    began = time.monotonic()
    with pytest.raises(UnreachableError, match=r"gpu1 does not let root in: .*Authentication timeout"):
        client.whoami("gpu1", timeouts=Timeouts(auth=1.0))
    assert time.monotonic() - began < 15


def test_a_server_with_no_room_for_a_session(client: Client, start_sshd: Server) -> None:
    with pytest.raises(UnreachableError, match="opens no session"):
        client.whoami(client.host("gpu1", start_sshd(MaxSessions="0")))

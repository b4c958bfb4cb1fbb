"""The resolved SSH configuration: against ``ssh -G`` itself, and without an ``ssh`` program."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from specaudit.errors import ConfigurationError, UnreachableError
from specaudit.hosts.remote import RemoteHost
from specaudit.hosts.ssh.config import SshOptions, resolve, split
from specaudit.hosts.ssh.host_keys import effective_policy
from tests.hosts.conftest import Client
from tests.hosts.machines import looking, make_environment
from tests.hosts.sshd import Sshd


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config"


@pytest.fixture
def no_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without OpenSSH."""
    real = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "ssh" else real(name))


def test_values_that_ssh_leaves_to_others_are_expanded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", "/keys")
    file.write_text(
        "Host gpu*\n  HostName %h.example.com\n  User bob\n  Port 2200\n  IdentityFile ${KEYS}/%r@%h:%p-%n%%\n"
        "  IdentityFile ~/%u-%i-%d-%L-%l\n  ProxyCommand nc %h %p %r %n\n  HostKeyAlias alias\n  CertificateFile %k\n"
        "  UserKnownHostsFile ~/a ~/b\n"
    )
    found = resolve("gpu1", SshOptions(file))
    home, name = pwd.getpwuid(os.getuid()).pw_dir, socket.gethostname()
    assert (found.host, found.user, found.port, found.alias) == ("gpu1.example.com", "bob", 2200, "gpu1")
    assert found.paths("identityfile") == [
        "/keys/bob@gpu1.example.com:2200-gpu1%",
        f"{home}/{pwd.getpwuid(os.getuid()).pw_name}-{os.getuid()}-{home}-{name.partition('.')[0]}-{name}",
    ]
    assert found.expand(found.first("proxycommand")) == "nc gpu1.example.com 2200 bob gpu1"
    assert found.paths("certificatefile") == ["alias"]
    assert found.words("userknownhostsfile") == [f"{home}/a", f"{home}/b"]
    assert found.host_key_name == "alias"


@pytest.mark.parametrize(
    ("text", "user", "host", "port"),
    [
        ("gpu1", "", "gpu1", None),
        ("me@gpu1", "me", "gpu1", None),
        ("me@gpu1:2222", "me", "gpu1", 2222),
        ("ssh://me@gpu1:2222/", "me", "gpu1", 2222),
        ("[fe80::1]:22", "", "fe80::1", 22),
        ("me@fe80::1", "me", "fe80::1", None),
        ("me@corp@gpu1", "me@corp", "gpu1", None),
        ("CORP\\me@gpu1", "CORP\\me", "gpu1", None),
        ("[gpu1]", "", "gpu1", None),
        ("me@[fe80::1%eth0]", "me", "fe80::1%eth0", None),
        ("ssh://me%40corp@gpu1", "me@corp", "gpu1", None),
        ("ssh://[::1]:22", "", "::1", 22),
    ],
)
def test_destinations_are_taken_apart(text: str, user: str, host: str, port: int | None) -> None:
    assert split(text) == (user, host, port)


def test_options_and_ports_of_the_destination_come_first(file: Path) -> None:
    file.write_text("Host gpu1\n  User a\n  Port 1\n")
    found = resolve("me@gpu1:2222", SshOptions(file, ("StrictHostKeyChecking=no",)))
    assert (found.user, found.host, found.port, found.policy) == ("me", "gpu1", 2222, "no")
    assert found.host_key_name == "[gpu1]:2222"


@pytest.mark.parametrize(
    ("text", "policy"),
    [("", "ask"), ("yes", "yes"), ("no", "no"), ("off", "no"), ("accept-new", "accept-new"), ("ask", "ask")],
)
def test_policies_are_those_of_openssh(file: Path, text: str, policy: str) -> None:
    file.write_text(f"StrictHostKeyChecking {text}\n" if text else "")
    options = SshOptions(file, ask=lambda question: True)
    assert effective_policy(resolve("gpu1", options), options) == policy
    alone = SshOptions(file)
    assert effective_policy(resolve("gpu1", alone), alone) == ("yes" if policy == "ask" else policy)


@pytest.mark.parametrize("text", ["Host x\n  NoSuchOption 1\n", "Port many\n"])
def test_a_configuration_that_ssh_refuses_is_its_error(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigurationError, match="ssh refuses its configuration for gpu1") as caught:
        resolve("gpu1", SshOptions(file, ("Port=22",)))
    assert caught.value.hint == f"Try: ssh -G -F {file} -o Port=22 gpu1"
    again = subprocess.run(caught.value.hint.removeprefix("Try: "), shell=True, capture_output=True, text=True)
    assert " ".join(again.stderr.split()) in caught.value.message


@pytest.mark.parametrize(
    "text", ["", "-oProxyCommand=touch /tmp/x", "a b", "gpu1\n", "me@", "me@-x", "ssh://-l%20x@gpu1", "ssh://me@"]
)
def test_what_is_no_destination_never_reaches_ssh(text: str) -> None:
    with pytest.raises(ConfigurationError, match="no SSH destination"):
        resolve(text, SshOptions())


@pytest.mark.parametrize(
    ("value", "files"),
    [
        ('"/a b/c" /d', ["/a b/c", "/d"]),
        ("/a /b", ["/a", "/b"]),
        ("a b", ["a", "b"]),
        ('"${KEYS}/a  b"', ["/keys/a b"]),
        ("none", []),
    ],
)
def test_files_whose_names_have_spaces(
    file: Path, monkeypatch: pytest.MonkeyPatch, value: str, files: list[str]
) -> None:
    monkeypatch.setenv("KEYS", "/keys")
    file.write_text(f"UserKnownHostsFile {value}\n")
    assert resolve("gpu1", SshOptions(file)).words("userknownhostsfile") == files


@pytest.mark.parametrize(
    "form",
    ["127.0.0.1", "[127.0.0.1]", "root@[127.0.0.1]", "ssh://127.0.0.1", "ssh://r%6fot@127.0.0.1", "root@127.0.0.1"],
)
@pytest.mark.parametrize("port", [False, True])
def test_every_way_to_write_a_destination_reaches_it(
    client: Client, start_sshd: Callable[..., Sshd], form: str, port: bool
) -> None:
    server = start_sshd()
    client.host("127.0.0.1", server)
    assert client.whoami(f"{form}:{server.port}" if port else form) == 0


def test_a_way_that_is_switched_off_for_one_host(client: Client, start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd()
    client.host("direct", server, ProxyJump="none")
    client.host("plain", server, ProxyCommand="none")
    client.host("far", server)
    client.write(after="Host direct plain far\n  ProxyJump nowhere.invalid\n")
    for name in ("direct", "plain"):
        assert client.openssh(name)
        assert client.whoami(name) == 0
    with pytest.raises(UnreachableError, match=r"nowhere\.invalid .*has no address"):
        client.whoami("far")


def test_a_proxy_that_would_pass_a_socket_is_refused(client: Client, start_sshd: Callable[..., Sshd]) -> None:
    client.host("gpu1", start_sshd(), ProxyUseFdpass="yes", ProxyCommand="sleep 60")
    with pytest.raises(ConfigurationError, match="ProxyUseFdpass of gpu1 is not supported"):
        client.whoami("gpu1")


def test_what_concerns_other_uses_of_ssh_is_left_alone(
    client: Client, start_sshd: Callable[..., Sshd], tmp_path: Path
) -> None:
    client.host(
        "gpu1", start_sshd(), RemoteCommand="false", RequestTTY="force", LocalForward="1 localhost:1",
        ForwardAgent="yes", ControlMaster="auto", ControlPath=f"{tmp_path}/control-%C", PermitLocalCommand="yes",
        LocalCommand=f"touch {tmp_path}/local", UpdateHostKeys="yes", Compression="yes", LogLevel="DEBUG3",
    )  # fmt: skip
    assert client.whoami("gpu1") == 0
    assert list(tmp_path.glob("[cl]o[nc]*")) == []


def test_only_what_the_user_narrowed_is_narrow(file: Path) -> None:
    file.write_text("Host a\n  Ciphers aes256-ctr\n")
    assert resolve("a", SshOptions(file)).restricted == {"ciphers": ("aes256-ctr",)}
    assert resolve("b", SshOptions(file)).restricted == {}


@pytest.mark.usefixtures("no_ssh")
def test_without_an_ssh_program_match_fails_closed(file: Path, tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Host gpu1\n  Port 9\n")
    file.write_text(
        f'Include {tmp_path}/more\nMatch tagged never\n  User wrong\nMatch exec "true"\n  User wrong\n'
        "Match host gpu1\n  Port 2222\nHost gpu1\n  HostName 10.0.0.1\n  User right\n"
        "  IdentityFile ~/a\n  IdentityFile ~/b\n"
    )
    found = resolve("gpu1", SshOptions(file, ("HostKeyAlias=x",)))
    home = pwd.getpwuid(os.getuid()).pw_dir
    assert (found.host, found.user, found.port) == ("10.0.0.1", "right", 2222)
    assert found.paths("identityfile") == [f"{home}/a", f"{home}/b"]
    assert found.first("hostkeyalias") == "x"
    assert "Include" in found.notes[0]
    assert resolve("me@gpu1:7", SshOptions(file)).port == 7


@pytest.mark.usefixtures("no_ssh")
def test_without_an_ssh_program_a_machine_is_reached_and_the_scan_says_so(
    client: Client, start_sshd: Callable[..., Sshd], tmp_path: Path
) -> None:
    client.host("gpu1", start_sshd())
    python = make_environment(tmp_path / "venv", {"vllm/a.py": "A = 1\n"}, "0.30.0")
    host = RemoteHost(client.shell("gpu1"), python=str(python), looking=looking(tmp_path))
    (found,) = host.installations(("vllm",))
    told = [item.why for item in host.manifest(found).not_looked if item.what == "the ssh configuration"]
    assert len(told) == 1
    assert "Include" in told[0]

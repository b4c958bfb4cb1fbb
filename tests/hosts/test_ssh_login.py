"""Getting in, against a real OpenSSH server: keys, agents, certificates, jump hosts, proxy commands."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from specaudit.errors import ConfigurationError, UnreachableError
from specaudit.hosts.machine import PythonCaller
from specaudit.hosts.ssh.connection import Connector
from specaudit.hosts.ssh.shell import SshShell
from tests.hosts.conftest import WHOAMI, Account, Client, Keys
from tests.hosts.sshd import Sshd, keygen, public, run

Server = Callable[..., Sshd]

ECHO = "import sys\ndef main(request, blobs):\n    return {'argv': sys.argv, 'request': request}, blobs\n"


def test_a_key_logs_in_and_bytes_come_back_as_they_went(client: Client, start_sshd: Server) -> None:
    caller = PythonCaller(client.shell(client.host("gpu1", start_sshd())))
    blobs = {"noise": os.urandom(300_000), "empty": b"", "text": "ä\n".encode()}
    answer = caller.call(ECHO, {"a": [1, None, "ü"]}, blobs=blobs)
    assert answer.header == {"argv": ["-"], "request": {"a": [1, None, "ü"]}}
    assert answer.blobs == blobs


@pytest.mark.parametrize("kind", ["rsa", "ecdsa", "ed25519"])
def test_every_type_of_key(client: Client, start_sshd: Server, tmp_path: Path, kind: str) -> None:
    key = keygen(tmp_path / "id", kind)
    client.host("gpu1", start_sshd(authorized=[public(key)]), IdentityFile=str(key))
    assert client.whoami("gpu1") == 0


def test_the_user_of_the_configuration_is_used(
    client: Client, start_sshd: Server, account: Callable[..., Account]
) -> None:
    user = account()
    client.host("gpu1", start_sshd(), User=user.name)
    assert client.whoami("gpu1") == int(run("id", "-u", user.name))
    assert client.whoami("root@gpu1") == 0


def test_an_agent_signs(client: Client, keys: Keys, start_sshd: Server, agent: Callable[..., Path]) -> None:
    socket = agent(keys.other_user, keys.user)
    client.host(
        "gpu1", start_sshd(), IdentityFile=str(client.folder / "absent"), IdentitiesOnly="no", IdentityAgent=str(socket)
    )
    assert client.whoami("gpu1") == 0


def test_ssh_auth_sock_is_the_default_agent(
    client: Client, keys: Keys, start_sshd: Server, agent: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent(keys.user)))
    client.host(
        "gpu1",
        start_sshd(),
        IdentityFile=str(client.folder / "absent"),
        IdentitiesOnly="no",
        IdentityAgent="SSH_AUTH_SOCK",
    )
    assert client.whoami("gpu1") == 0


def test_identities_only_keeps_a_full_agent_from_spending_the_tries(
    client: Client, keys: Keys, start_sshd: Server, agent: Callable[..., Path], tmp_path: Path
) -> None:
    others = [keygen(tmp_path / f"other{number}") for number in range(4)]
    server = start_sshd(MaxAuthTries="3")
    settings = {"IdentityAgent": str(agent(*others)), "IdentityFile": str(keys.user)}
    client.host("narrow", server, IdentitiesOnly="yes", **settings)
    client.host("wide", server, IdentitiesOnly="no", **settings)
    assert client.whoami("narrow") == 0
    assert not client.openssh("wide")
    with pytest.raises(UnreachableError, match="ended the connection") as caught:
        client.whoami("wide")
    assert "agent key other0" in str(caught.value)


def test_keys_are_offered_in_the_order_of_openssh(
    client: Client, keys: Keys, start_sshd: Server, agent: Callable[..., Path], tmp_path: Path
) -> None:
    named, stray, file = (keygen(tmp_path / name) for name in ("named", "stray", "file"))
    server = start_sshd(authorized=[])
    socket = agent(stray, named)
    client.host(
        "gpu1", server, IdentitiesOnly="no", IdentityAgent=str(socket), IdentityFile=f"{named}\n  IdentityFile {file}"
    )

    def offered() -> list[str]:
        prints = {run("ssh-keygen", "-lf", key).split()[1]: key.name for key in (named, stray, file)}
        lines = server.log.read_text().splitlines()
        return [name for line in lines for sha, name in prints.items() if sha in line and "Failed publickey" in line]

    assert not client.openssh("gpu1")
    theirs = offered()
    with pytest.raises(UnreachableError):
        client.whoami("gpu1")
    assert theirs == ["named", "stray", "file"]
    assert offered() == theirs * 2


def test_an_agent_that_refuses_to_sign_does_not_end_the_login(
    client: Client, keys: Keys, start_sshd: Server, agent: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_ASKPASS", "/bin/false")
    monkeypatch.setenv("SSH_ASKPASS_REQUIRE", "force")
    socket = agent()
    run("ssh-add", "-q", "-c", keys.other_user, env={**os.environ, "SSH_AUTH_SOCK": str(socket)})
    client.host("gpu1", start_sshd(), IdentityAgent=str(socket), IdentitiesOnly="no")
    assert client.whoami("gpu1") == 0


def test_a_server_that_wants_two_keys_gets_two(client: Client, keys: Keys, start_sshd: Server) -> None:
    authorized = [public(keys.user), public(keys.other_user)]
    server = start_sshd(authorized=authorized, AuthenticationMethods="publickey,publickey")
    client.host("gpu1", server, IdentityFile=f"{keys.user}\n  IdentityFile {keys.other_user}")
    assert client.openssh("gpu1")
    assert client.whoami("gpu1") == 0


def test_a_public_key_file_selects_the_agent_key(
    client: Client, keys: Keys, start_sshd: Server, agent: Callable[..., Path]
) -> None:
    socket = agent(keys.other_user, keys.user)
    client.host("gpu1", start_sshd(MaxAuthTries="1"), IdentityFile=f"{keys.user}.pub", IdentityAgent=str(socket))
    assert client.whoami("gpu1") == 0


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
@pytest.mark.parametrize("where", ["beside", "CertificateFile", "agent"])
def test_a_user_certificate_logs_in(
    client: Client, keys: Keys, start_sshd: Server, agent: Callable[..., Path], tmp_path: Path, where: str, kind: str
) -> None:
    key = keygen(tmp_path / "id", kind)
    run("ssh-keygen", "-q", "-s", keys.authority, "-I", "someone", "-n", "root", "-V", "+1h", str(key) + ".pub")
    certificate = tmp_path / "id-cert.pub"
    server = start_sshd(authorized=[], TrustedUserCAKeys=str(keys.authority) + ".pub")
    settings = {"IdentityFile": str(key)}
    if where == "CertificateFile":
        elsewhere = tmp_path / "elsewhere.pub"
        certificate.rename(elsewhere)
        settings["CertificateFile"] = str(elsewhere)
    if where == "agent":  # ssh-add takes the certificate along; no file is left
        settings |= {"IdentityAgent": str(agent(key)), "IdentityFile": str(tmp_path / "absent"), "IdentitiesOnly": "no"}
    client.host("gpu1", server, **settings)
    assert client.openssh("gpu1")
    assert client.whoami("gpu1") == 0


def test_the_wrong_key_is_named(client: Client, keys: Keys, start_sshd: Server) -> None:
    client.host("gpu1", start_sshd(), IdentityFile=str(keys.other_user))
    with pytest.raises(UnreachableError) as caught:
        client.whoami("gpu1")
    assert f"gpu1 does not let root in: it takes publickey. Offered: {keys.other_user} (ssh-ed25519)." in str(
        caught.value
    )
    by_hand = caught.value.hint.partition("`")[2].partition("`")[0]
    assert by_hand == f"ssh -o BatchMode=yes -F {client.config} gpu1 true"
    assert caught.value.hint == f"Make `{by_hand}` work: ssh-add a key, or name one with IdentityFile."
    mended = run("sh", "-c", by_hand.replace(" gpu1", f" -o IdentityFile={keys.user} gpu1"))
    assert mended == "", "it asks the right host"


def test_options_of_one_host_stand_in_the_command_to_try(client: Client, keys: Keys, start_sshd: Server) -> None:
    client.host("gpu1", start_sshd(), IdentityFile=str(keys.other_user))
    connector = Connector(client.options())
    with pytest.raises(UnreachableError) as caught:
        connector.connect("root@gpu1", ("User=root", "LocalCommand=echo hi"))
    connector.close()
    assert (
        f"`ssh -o BatchMode=yes -F {client.config} -o User=root -o 'LocalCommand=echo hi' root@gpu1 true`"
        in caught.value.hint
    )


def test_a_key_with_a_passphrase_is_asked_for_or_named(client: Client, start_sshd: Server, tmp_path: Path) -> None:
    key = keygen(tmp_path / "locked", passphrase="open sesame")
    client.host("gpu1", start_sshd(authorized=[public(key)]), IdentityFile=str(key))
    with pytest.raises(UnreachableError, match="has a passphrase; load it with ssh-add"):
        client.whoami("gpu1")
    asked = []

    def secret(prompt: str) -> str:
        asked.append(prompt)
        return "open sesame"

    assert client.whoami("gpu1", secret=secret) == 0
    assert asked == [f"Passphrase of {key}: "]


def test_a_jump_host_is_shared_by_the_hosts_behind_it(client: Client, start_sshd: Server) -> None:
    jump, far = start_sshd(), start_sshd()
    client.host("jump", jump)
    client.host("far1", far, ProxyJump="jump")
    client.host("far2", far, ProxyJump="jump")
    connector = Connector(client.options())
    shells = [SshShell(name, connector) for name in ("far1", "far2")]
    try:
        assert [PythonCaller(shell).call(WHOAMI, {}).header["uid"] for shell in shells] == [0, 0]
        assert jump.log.read_text().count("Accepted publickey") == 1
        assert far.log.read_text().count("Accepted publickey") == 2
    finally:
        for shell in shells:
            shell.close()
        connector.close()


def test_a_chain_of_jumps_goes_by_every_hop(client: Client, keys: Keys, start_sshd: Server) -> None:
    first, second, far = start_sshd(), start_sshd(), start_sshd()
    client.host("first", first)
    client.host("second", second)
    # The second hop by user@host:port, as ProxyJump allows; its block is found by address then.
    client.host("far", far, ProxyJump=f"first,root@127.0.0.1:{second.port}")
    client.write(after=f"Host 127.0.0.1\n  IdentityFile {keys.user}\n")
    assert client.whoami("far") == 0
    assert [s.log.read_text().count("Accepted publickey") for s in (first, second, far)] == [1, 1, 1]


def test_a_jump_hosts_own_jump_is_obeyed(client: Client, start_sshd: Server) -> None:
    outer, inner, far = start_sshd(), start_sshd(), start_sshd()
    client.host("outer", outer)
    client.host("inner", inner, ProxyJump="outer")
    client.host("far", far, ProxyJump="inner")
    assert client.whoami("far") == 0
    assert outer.log.read_text().count("Accepted publickey") == 1


def test_jumps_in_a_circle_end(client: Client, start_sshd: Server) -> None:
    server = start_sshd()
    client.host("a", server, ProxyJump="b")
    client.host("b", server, ProxyJump="a")
    with pytest.raises(ConfigurationError, match="is a circle: a -> b -> a"):
        client.whoami("a")


def test_a_jump_host_that_may_not_forward_is_named(client: Client, start_sshd: Server) -> None:
    client.host("jump", start_sshd(AllowTcpForwarding="no"))
    client.host("far", start_sshd(), ProxyJump="jump")
    with pytest.raises(UnreachableError, match=r"jump host jump does not connect to 127\.0\.0\.1 port"):
        client.whoami("far")


def test_a_proxy_command_is_run_by_a_shell(client: Client, start_sshd: Server) -> None:
    jump, far = start_sshd(), start_sshd()
    client.host("jump", jump)
    client.host("far", far, ProxyCommand=f"ssh -F {shlex.quote(str(client.config))} -W '%h:%p' \"jump\" 2>/dev/null")
    shell = client.shell("far")
    assert PythonCaller(shell).call(WHOAMI, {}).header["uid"] == 0
    assert jump.log.read_text().count("Accepted publickey") == 1
    proxy = shell._connection.proxy  # type: ignore[union-attr]
    shell.close()
    assert proxy is not None
    assert proxy.returncode is not None, "a zombie is left"


def test_a_proxy_command_that_fails_is_an_error(client: Client, start_sshd: Server) -> None:
    client.host("gpu1", start_sshd(), ProxyCommand="false")
    with pytest.raises(UnreachableError, match="ended the connection before the login"):
        client.whoami("gpu1")


def test_include_and_match_mean_what_they_mean_to_ssh(client: Client, keys: Keys, start_sshd: Server) -> None:
    server = start_sshd()
    client.host("real", server)
    included = client.folder / "more"
    included.write_text(f"Host short\n  HostName 127.0.0.1\n  Port {server.port}\n")
    client.write(
        before=f"Include {included}\n"
        f'Match originalhost short exec "test -e {included}"\n  User root\n  IdentityFile {keys.user}\n'
        'Match originalhost short exec "false"\n  Port 1\n'
        "Match tagged never\n  Port 2\n"
    )
    if client.openssh("short"):  # `tagged` is of OpenSSH 9.4
        assert client.whoami("short") == 0
    client.write(
        before=f"Include {included}\n"
        f'Match originalhost short exec "test -e {included}"\n  User root\n  IdentityFile {keys.user}\n'
        'Match originalhost short exec "false"\n  Port 1\n'
    )
    assert client.openssh("short")
    assert client.whoami("short") == 0


def test_algorithms_that_the_configuration_allows_are_the_only_ones_used(client: Client, start_sshd: Server) -> None:
    server = start_sshd()
    client.host("gpu1", server, Ciphers="aes256-gcm@openssh.com", KexAlgorithms="curve25519-sha256")
    assert client.whoami("gpu1") == 0
    assert "cipher: aes256-gcm@openssh.com" in server.log.read_text()
    assert "kex: algorithm: curve25519-sha256" in server.log.read_text()


def test_a_configuration_that_paramiko_cannot_meet_is_said(client: Client, start_sshd: Server) -> None:
    client.host("gpu1", start_sshd(), Ciphers="chacha20-poly1305@openssh.com")
    with pytest.raises(ConfigurationError, match="None of the ciphers"):
        client.whoami("gpu1")


def test_keepalives_are_sent(client: Client, start_sshd: Server) -> None:
    server = start_sshd()
    client.host("gpu1", server, ServerAliveInterval="1")
    wait = "import time\ndef main(request, blobs):\n    time.sleep(2.5)\n    return {}, {}\n"
    PythonCaller(client.shell("gpu1")).call(wait, {})
    # sshd speaks of the keep-alives of TCP as well; these are paramiko's own.
    assert server.log.read_text().count("rtype keepalive@lag.net") >= 1


def test_a_dead_connection_is_made_again(client: Client, start_sshd: Server) -> None:
    server = start_sshd()
    caller = PythonCaller(client.shell(client.host("gpu1", server)))
    caller.call(WHOAMI, {})
    server.stop()
    server.start()
    assert caller.call(WHOAMI, {}).header["uid"] == 0

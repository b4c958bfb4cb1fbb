"""Host keys, against a real OpenSSH server; where OpenSSH's own client has an opinion, ours is the same."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from specaudit.errors import HostKeyError, UnreachableError
from specaudit.hosts.ssh import known_hosts
from tests.hosts.conftest import Client, Keys
from tests.hosts.sshd import Sshd, fingerprint, public, run

Server = Callable[..., Sshd]


def lines(client: Client, *texts: str) -> None:
    client.known_hosts.write_text("".join(text + "\n" for text in texts))


def refusal(client: Client, name: str = "gpu1", **settings: object) -> HostKeyError:
    with pytest.raises(HostKeyError) as caught:
        client.whoami(name, **settings)
    return caught.value


@pytest.fixture
def port(client: Client, start_sshd: Server) -> int:
    """The port of a server that is called gpu1, and that known_hosts do not mention."""
    server = start_sshd()
    client.host("gpu1", server)
    lines(client)
    return server.port


def test_an_unknown_host_is_refused_where_nobody_can_be_asked(client: Client, keys: Keys, port: int) -> None:
    error = refusal(client)
    assert error.message == (
        f"The host key of gpu1 ([127.0.0.1]:{port}) is not known: ssh-ed25519 {fingerprint(keys.host)}."
    )
    assert "--host-keys accept-new" in error.hint
    assert client.known_hosts.read_text() == ""


@pytest.mark.parametrize("answer", [True, False])
def test_ask_shows_the_fingerprint_and_remembers_a_yes(client: Client, keys: Keys, port: int, answer: bool) -> None:
    questions = []

    def ask(question: str) -> bool:
        questions.append(question)
        return answer

    if answer:
        assert client.whoami("gpu1", ask=ask) == 0
        assert client.openssh("gpu1"), "ssh does not find what was added"
        assert client.whoami("gpu1", ask=ask) == 0
    else:
        refusal(client, ask=ask)
        assert client.known_hosts.read_text() == ""
    assert len(questions) == 1
    assert fingerprint(keys.host) in questions[0]


@pytest.mark.parametrize("policy", ["accept-new", "no"])
def test_accept_new_adds_a_line_that_ssh_finds(client: Client, keys: Keys, port: int, policy: str) -> None:
    shell = client.shell("gpu1", policy=policy)
    shell.run(["true"], b"", lambda chunk: False, 20)
    assert shell.notes == (f"The host key of gpu1, {fingerprint(keys.host)}, was added to {client.known_hosts}.",)
    assert client.known_hosts.read_text() == f"[127.0.0.1]:{port} {public(keys.host)}\n"
    assert client.openssh("gpu1")


def test_the_policy_of_the_configuration_counts(client: Client, start_sshd: Server) -> None:
    client.host("gpu1", start_sshd(), StrictHostKeyChecking="accept-new", HashKnownHosts="yes")
    lines(client, "# no newline at the end of this file")
    client.known_hosts.write_text(client.known_hosts.read_text().rstrip())
    assert client.whoami("gpu1") == 0
    comment, added = client.known_hosts.read_text().splitlines()
    assert comment.startswith("#")
    assert added.startswith("|1|")
    assert client.openssh("gpu1")


def test_known_hosts_that_cannot_be_written_do_not_stop_a_scan(
    client: Client, start_sshd: Server, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    client.host("gpu1", start_sshd(), UserKnownHostsFile=f"{tmp_path}/file/known_hosts")
    shell = client.shell("gpu1", policy="accept-new")
    shell.run(["true"], b"", lambda chunk: False, 20)
    assert "accepted, but not added" in shell.notes[0]


@pytest.mark.parametrize("policy", ["yes", "ask", "accept-new"])
def test_a_changed_key_shows_both_fingerprints_and_the_line(client: Client, keys: Keys, port: int, policy: str) -> None:
    lines(client, "# a comment", f"[127.0.0.1]:{port} {public(keys.other_host)}")
    assert not client.openssh("gpu1")
    error = refusal(client, policy=policy, ask=lambda question: True)
    assert error.message == (
        f"The host key of gpu1 ([127.0.0.1]:{port}) has changed: ssh-ed25519 {fingerprint(keys.host)} in place of "
        f"{fingerprint(keys.other_host)}, which is at {client.known_hosts}:2."
    )
    assert f"ssh-keygen -R '[127.0.0.1]:{port}' -f {client.known_hosts}" in error.hint


def test_a_changed_key_passes_with_a_note_when_checking_is_off(client: Client, keys: Keys, port: int) -> None:
    text = f"[127.0.0.1]:{port} {public(keys.other_host)}"
    lines(client, text)
    shell = client.shell("gpu1", policy="no")
    shell.run(["true"], b"", lambda chunk: False, 20)
    assert "has changed" in shell.notes[0]
    assert client.known_hosts.read_text() == text + "\n"


def test_a_key_of_a_known_type_is_asked_for(client: Client, keys: Keys, start_sshd: Server) -> None:
    server = start_sshd(host_keys=[keys.host, keys.host_rsa])
    client.host("gpu1", server)
    lines(client, f"[127.0.0.1]:{server.port} {public(keys.host_rsa)}")
    assert client.whoami("gpu1") == 0


def test_a_host_known_by_another_type_only_is_no_attack(client: Client, keys: Keys, port: int) -> None:
    lines(client, f"[127.0.0.1]:{port} {public(keys.host_rsa)}")
    error = refusal(client)
    assert "is not known" in error.message
    assert f"ssh-rsa {fingerprint(keys.host_rsa)} at {client.known_hosts}:1" in error.message


# Every line is judged by ssh as well; {port}, {key}, {other}, {hashed}, {hashed_bare} are filled in.
LINES = {
    "plain": "[127.0.0.1]:{port} {key}",
    "of another port": "[127.0.0.1]:1 {key}",
    "without the port": "127.0.0.1 {key}",
    "another key without the port": "127.0.0.1 {other}",
    "both": "[127.0.0.1]:{port} {other}\n[127.0.0.1]:{port} {key}",
    "hashed": "{hashed} {key}",
    "hashed without the port": "{hashed_bare} {key}",
    "hashed, another key": "{hashed} {other}",
    "star": "* {key}",
    "wildcard": "[127.0.?.*]:{port} {key}",
    "wildcard of a port": "[127.0.0.1]:* {key}",
    "wildcard elsewhere": "[10.*]:{port} {key}",
    "brackets are no set": "[12]7.0.0.1 {key}",
    "negated": "*,![127.0.0.1]:{port} {key}",
    "negated elsewhere": "*,!10.* {key}",
    "negated first": "!127.0.0.1,* {key}",
    "list": "gpu9,[127.0.0.1]:{port},other {key} with a comment",
    "revoked": "@revoked * {key}\n[127.0.0.1]:{port} {key}",
    "revoked for others": "@revoked 10.* {key}\n[127.0.0.1]:{port} {key}",
    "revoked other key": "@revoked * {other}\n[127.0.0.1]:{port} {key}",
    "authority as a plain key": "@cert-authority * {key}",
    "lines that are no lines": "@unknown * {key}\nno\n* ssh-ed25519 AAAA\n* ssh-dss !!!\n[127.0.0.1]:{port} {key}",
    "type and key differ": "[127.0.0.1]:{port} ssh-rsa {blob}",
    "indented": "   [127.0.0.1]:{port}\t{key}",
}


@pytest.mark.parametrize("name", LINES)
def test_known_hosts_mean_what_they_mean_to_ssh(client: Client, keys: Keys, port: int, name: str) -> None:
    values = {
        "port": port,
        "key": public(keys.host),
        "blob": public(keys.host).split()[1],
        "other": public(keys.other_host),
        "hashed": known_hosts.hashed(f"[127.0.0.1]:{port}"),
        "hashed_bare": known_hosts.hashed("127.0.0.1"),
    }
    lines(client, LINES[name].format(**values))
    expected = client.openssh("gpu1")
    if expected:
        assert client.whoami("gpu1") == 0
    else:
        refusal(client)
    assert expected == (name not in REFUSED)


#: Those of the lines above that ssh 9.2 does not let in, written down so that a change shows.
REFUSED = {
    "of another port",
    "another key without the port",
    "hashed, another key",
    "wildcard elsewhere",
    "brackets are no set",
    "revoked",
    "authority as a plain key",
    "type and key differ",
}


def test_a_revoked_key_is_refused_whatever_the_policy(client: Client, keys: Keys, port: int) -> None:
    lines(client, f"[127.0.0.1]:{port} {public(keys.host)}", f"@revoked * {public(keys.host)}")
    error = refusal(client, policy="no")
    assert f"is revoked: ssh-ed25519 {fingerprint(keys.host)} is marked so at {client.known_hosts}:2" in error.message


@pytest.mark.parametrize("binary", [False, True])
def test_revoked_host_keys_of_the_configuration(
    client: Client, keys: Keys, start_sshd: Server, tmp_path: Path, binary: bool
) -> None:
    revoked = tmp_path / "revoked"
    server = start_sshd()
    client.host("gpu1", server, RevokedHostKeys=str(revoked))
    for key, passes in ((keys.other_host, True), (keys.host, False)):
        if binary:
            run("ssh-keygen", "-q", "-k", "-f", revoked, str(key) + ".pub")
        else:
            revoked.write_text(public(key) + "\n")
        assert client.openssh("gpu1") == passes
        if passes:
            assert client.whoami("gpu1") == 0
        else:
            assert "fails RevokedHostKeys" in refusal(client).message
    revoked.unlink()
    assert not client.openssh("gpu1")
    refusal(client)


def test_host_key_alias_is_the_name_that_is_looked_up(client: Client, keys: Keys, start_sshd: Server) -> None:
    client.host("gpu1", start_sshd(), HostKeyAlias="cluster")
    lines(client, f"cluster {public(keys.host)}")
    assert client.openssh("gpu1")
    assert client.whoami("gpu1") == 0
    lines(client, f"cluster {public(keys.other_host)}")
    assert "gpu1 (cluster) has changed" in refusal(client).message


def test_the_systems_file_counts(client: Client, keys: Keys, start_sshd: Server, tmp_path: Path) -> None:
    server = start_sshd()
    system = tmp_path / "system"
    system.write_text(f"[127.0.0.1]:{server.port} {public(keys.host)}\n")
    client.host("gpu1", server, GlobalKnownHostsFile=str(system))
    lines(client)
    assert client.whoami("gpu1") == 0


def test_a_command_that_prints_known_hosts_is_asked(
    client: Client, keys: Keys, start_sshd: Server, tmp_path: Path
) -> None:
    printed, seen = tmp_path / "printed", tmp_path / "seen"
    # ssh wants it where only root may write.
    program = f"/bin/sh -c 'echo \"$@\" >> {seen}; exec cat {printed}' sh"
    server = start_sshd()
    client.host("gpu1", server, KnownHostsCommand=f'{program} %I %H %t "%f"')
    lines(client)
    printed.write_text(f"[127.0.0.1]:{server.port} {public(keys.host)}\n")
    assert client.openssh("gpu1")
    theirs = seen.read_text().splitlines()
    seen.unlink()
    assert client.whoami("gpu1") == 0
    assert seen.read_text().splitlines() == theirs
    assert theirs[-1] == f"HOSTNAME [127.0.0.1]:{server.port} ssh-ed25519 {fingerprint(keys.host)}"
    printed.write_text(f"[127.0.0.1]:{server.port} {public(keys.other_host)}\n")
    assert not client.openssh("gpu1")
    assert "which is at KnownHostsCommand:1" in refusal(client).message
    printed.unlink()
    assert not client.openssh("gpu1")
    assert "KnownHostsCommand for gpu1 failed: exit code 1: cat:" in refusal(client).message


@pytest.mark.parametrize("other", ["", "HostKeyAlias", "ProxyCommand", "elsewhere"])
def test_localhost_may_be_many_hosts(client: Client, keys: Keys, start_sshd: Server, other: str) -> None:
    settings = {"NoHostAuthenticationForLocalhost": "no" if other == "elsewhere" else "yes"}
    settings |= {"HostKeyAlias": "cluster"} if other == "HostKeyAlias" else {}
    server = start_sshd()
    if other == "ProxyCommand":  # what a proxy calls localhost need not be ours
        settings["ProxyCommand"] = "false"
    client.host("gpu1", server, **settings)
    lines(client, f"[127.0.0.1]:{server.port} {public(keys.other_host)}", f"cluster {public(keys.other_host)}")
    assert client.openssh("gpu1") == (not other)
    if other:
        with pytest.raises(UnreachableError):
            client.whoami("gpu1")
    else:
        assert client.whoami("gpu1") == 0


#: name -> (arguments to ssh-keygen, whether it is good for 127.0.0.1)
CERTIFICATES = {
    "good": (("-h", "-n", "127.0.0.1", "-V", "+1h"), True),
    "for every host": (("-h", "-V", "+1h"), True),
    "for one of several": (("-h", "-n", "gpu1,127.0.0.1", "-V", "+1h"), True),
    "for a pattern": (("-h", "-n", "127.*", "-V", "+1h"), False),
    "for another host": (("-h", "-n", "gpu9", "-V", "+1h"), False),
    "expired": (("-h", "-n", "127.0.0.1", "-V", "20200101:20210101"), False),
    "not yet valid": (("-h", "-n", "127.0.0.1", "-V", "20990101:20991231"), False),
    "of a user": (("-n", "127.0.0.1", "-V", "+1h"), False),
}


@pytest.mark.parametrize("name", CERTIFICATES)
@pytest.mark.parametrize("kind", ["host", "host_rsa"])
def test_host_certificates_are_judged_as_ssh_judges_them(
    client: Client, keys: Keys, start_sshd: Server, tmp_path: Path, name: str, kind: str
) -> None:
    arguments, good = CERTIFICATES[name]
    key: Path = tmp_path / "hostkey"
    original: Path = getattr(keys, kind)
    for suffix in ("", ".pub"):
        (tmp_path / f"hostkey{suffix}").write_bytes(original.with_name(original.name + suffix).read_bytes())
    key.chmod(0o600)
    run("ssh-keygen", "-q", "-s", keys.authority, "-I", "id", *arguments, str(key) + ".pub")
    server = start_sshd(host_keys=[key], HostCertificate=str(tmp_path / "hostkey-cert.pub"))
    client.host("gpu1", server)
    lines(client, f"@cert-authority 127.0.0.1 {public(keys.authority)}")
    assert client.openssh("gpu1") == good
    if good:
        assert client.whoami("gpu1") == 0
    else:
        refusal(client)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("@cert-authority * {other}\n[127.0.0.1]:{port} {key}", True),
        ("@cert-authority * {other}", False),
        ("@cert-authority 10.* {ca}", False),
        ("@cert-authority [127.0.0.1]:{port} {ca}", True),
        ("@cert-authority * {ca}\n@revoked * {ca}", False),
        ("@cert-authority * {ca}\n@revoked * {key}", False),
        ("@cert-authority * {ca}\n[127.0.0.1]:{port} {other}", True),
        ("[127.0.0.1]:{port} {key}", True),
    ],
)
def test_authorities_and_plain_lines_together(
    client: Client, keys: Keys, start_sshd: Server, tmp_path: Path, text: str, good: bool
) -> None:
    for suffix in ("", ".pub"):
        (tmp_path / f"hostkey{suffix}").write_bytes(keys.host.with_name(keys.host.name + suffix).read_bytes())
    key = tmp_path / "hostkey"
    key.chmod(0o600)
    run("ssh-keygen", "-q", "-s", keys.authority, "-I", "id", "-h", "-n", "127.0.0.1", str(key) + ".pub")
    server = start_sshd(host_keys=[key], HostCertificate=str(tmp_path / "hostkey-cert.pub"))
    client.host("gpu1", server)
    values = {"ca": keys.authority, "key": keys.host, "other": keys.other_host}
    lines(client, text.format(port=server.port, **{name: public(path) for name, path in values.items()}))
    assert client.openssh("gpu1") == good
    if good:
        assert client.whoami("gpu1") == 0
    else:
        refusal(client)


def test_jump_hosts_are_checked_too(client: Client, keys: Keys, start_sshd: Server) -> None:
    jump = start_sshd(host_keys=[keys.other_host])
    client.host("jump", jump)
    client.host("far", start_sshd(), ProxyJump="jump")
    lines(client, f"* {public(keys.host)}")
    assert "The host key of jump" in refusal(client, "far").message


def test_fingerprints_are_those_of_ssh_keygen(keys: Keys) -> None:
    for key in (keys.host, keys.host_rsa):
        assert known_hosts.fingerprint(base64.b64decode(public(key).split()[1])) == fingerprint(key)

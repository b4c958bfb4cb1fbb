"""Key files in every state, against a real OpenSSH server; ``ssh`` with the same configuration has the same opinion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specaudit.errors import UnreachableError
from tests.hosts.conftest import Client, Keys
from tests.hosts.sshd import Sshd, keygen, public, run

Server = Callable[..., Sshd]


def refusal(client: Client, name: str = "gpu1", **settings: object) -> str:
    with pytest.raises(UnreachableError) as caught:
        client.whoami(name, **settings)
    return str(caught.value)


@pytest.mark.parametrize("form", ["PEM", "PKCS8"])
@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_older_forms_of_key_files(client: Client, start_sshd: Server, tmp_path: Path, kind: str, form: str) -> None:
    key = keygen(tmp_path / "id", kind)
    client.host("gpu1", start_sshd(authorized=[public(key)]), IdentityFile=str(key))
    run("ssh-keygen", "-q", "-p", "-m", form, "-P", "", "-N", "", "-f", key)
    (tmp_path / "id.pub").unlink()
    assert client.openssh("gpu1")
    assert client.whoami("gpu1") == 0


def test_a_locked_file_names_its_key_in_the_agent(
    client: Client, start_sshd: Server, agent: Callable[..., Path], tmp_path: Path
) -> None:
    """Loaded by ssh-add, no ``.pub`` beside it: the public half stands in the private file."""
    key = keygen(tmp_path / "id")
    server = start_sshd(authorized=[public(key)])
    client.host("gpu1", server, IdentityFile=str(key), IdentityAgent=str(agent(key)), IdentitiesOnly="yes")
    run("ssh-keygen", "-q", "-p", "-P", "", "-N", "open sesame", "-f", key)
    (tmp_path / "id.pub").unlink()
    assert client.openssh("gpu1")
    assert client.whoami("gpu1") == 0


def test_a_file_that_others_may_read_is_not_used(client: Client, start_sshd: Server, tmp_path: Path) -> None:
    key = keygen(tmp_path / "id")
    key.chmod(0o644)
    client.host("gpu1", start_sshd(authorized=[public(key)]), IdentityFile=str(key))
    assert not client.openssh("gpu1")
    assert f"{key} cannot be used: others may read it (mode 0644); chmod 600 it" in refusal(client)


@pytest.mark.parametrize("certificate", ["garbage\n", "of another key"])
def test_a_bad_certificate_does_not_take_the_key_along(
    client: Client, keys: Keys, start_sshd: Server, tmp_path: Path, certificate: str
) -> None:
    key = keygen(tmp_path / "id")
    if certificate == "of another key":
        other = keygen(tmp_path / "other")
        run("ssh-keygen", "-q", "-s", keys.authority, "-I", "x", "-n", "root", str(other) + ".pub")
        certificate = (tmp_path / "other-cert.pub").read_text()
    (tmp_path / "id-cert.pub").write_text(certificate)
    client.host("gpu1", start_sshd(authorized=[public(key)]), IdentityFile=str(key))
    assert client.openssh("gpu1")
    assert client.whoami("gpu1") == 0


DSA = "-----BEGIN DSA PRIVATE KEY-----\nAAAA\n-----END DSA PRIVATE KEY-----\n"
BROKEN = ["", "\0", DSA, DSA.replace("DSA", "OPENSSH"), DSA.replace("DSA", "RSA"), "PuTTY-User-Key-File-3: ssh-rsa\n"]


def test_files_that_are_no_keys_are_passed_over(client: Client, keys: Keys, start_sshd: Server, tmp_path: Path) -> None:
    files = [tmp_path / f"id{number}" for number in range(len(BROKEN))]
    for file, text in zip(files, BROKEN, strict=True):
        file.write_text(text)
        file.chmod(0o600)
        Path(f"{file}.pub").write_bytes(b"\xff\0 broken")
    (tmp_path / "folder").mkdir()
    every = [tmp_path / "folder", *files, keys.user]
    server = start_sshd()
    client.host("gpu1", server, IdentityFile="\n  IdentityFile ".join(map(str, every)))
    assert client.openssh("gpu1")
    assert client.whoami("gpu1") == 0
    client.host("gpu2", server, IdentityFile="\n  IdentityFile ".join(map(str, every[:-1])))
    told = refusal(client, "gpu2")
    assert all(f"{file} cannot be used: " in told for file in files)
    assert "it is a DSA key" in told


def test_a_wrong_passphrase_is_called_so(client: Client, start_sshd: Server, tmp_path: Path) -> None:
    key = keygen(tmp_path / "id", passphrase="open sesame")
    client.host("gpu1", start_sshd(authorized=[public(key)]), IdentityFile=str(key))
    assert f"{key} cannot be used: the passphrase is wrong" in refusal(client, secret=lambda prompt: "wrong")


def test_nobody_is_asked_in_batch_mode(client: Client, start_sshd: Server, tmp_path: Path) -> None:
    def asked(prompt: str) -> bool:
        raise AssertionError(prompt)

    server = start_sshd(authorized=[], PasswordAuthentication="yes")
    key = keygen(tmp_path / "id", passphrase="open sesame")
    client.host("gpu1", server, BatchMode="yes", IdentityFile=str(key))
    assert "has a passphrase" in refusal(client, secret=asked, ask=asked)
    client.known_hosts.write_text("")
    assert "is not known" in refusal(client, secret=asked, ask=asked)


def test_a_password_is_asked_for_where_the_configuration_allows_it(client: Client, start_sshd: Server) -> None:
    asked = []

    def secret(prompt: str) -> str:
        asked.append(prompt)
        return "wrong"

    server = start_sshd(authorized=[], PasswordAuthentication="yes")
    client.host("gpu1", server, PasswordAuthentication="no", KbdInteractiveAuthentication="no")
    client.host("gpu2", server)
    assert "a password" not in refusal(client, "gpu1", secret=secret)
    assert asked == []
    assert "a password" in refusal(client, "gpu2", secret=secret)
    assert asked == ["Password of root@127.0.0.1 (gpu2): "]

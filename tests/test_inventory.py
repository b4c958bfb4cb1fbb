"""Inventories: groups, options of a host, limits, and files that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from specaudit.advice import named
from specaudit.cli.machines import Said, meant
from specaudit.errors import ConfigurationError, UsageError
from specaudit.hosts.machines import HostOptions
from specaudit.inventory import load

TEXT = """
[defaults]
python = "/opt/venv/bin/python"

[groups.a100]
hosts = ["gpu1", "gpu2"]
sudo = true

[groups.h100]
hosts = ["gpu3", "gpu4", "gpu2"]
deadline = 30

[hosts.gpu2]
address = "root@10.0.0.2"
ssh = ["Port=2222"]
via = "docker exec -i vllm"

[hosts.gpu4]
venv = "/srv/venv/"

[hosts.lonely]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text(TEXT)
    return path


def names(file: Path, *chosen: str, limit: tuple[str, ...] = ()) -> list[str]:
    return [entry.name for entry in load(file).select(chosen, limit)]


def test_options_of_a_host_come_before_its_groups_and_those_before_the_defaults(file: Path) -> None:
    inventory = load(file)
    gpu1, gpu2 = inventory.entries["gpu1"], inventory.entries["gpu2"]
    assert (gpu1.python, gpu1.via, gpu1.options) == ("/opt/venv/bin/python", None, HostOptions(sudo=True))
    assert gpu2.groups == ("a100", "h100")
    assert gpu2.via == "docker exec -i vllm"
    assert gpu2.options == HostOptions("root@10.0.0.2", ("Port=2222",), True, 30.0)
    assert inventory.entries["gpu4"].python == "/srv/venv/bin/python"
    assert inventory.entries["lonely"].options == HostOptions()


def test_an_inventory_of_two_groups_is_limited(file: Path) -> None:
    assert names(file) == ["gpu1", "gpu2", "gpu3", "gpu4", "lonely"]
    assert names(file, limit=("a100",)) == ["gpu1", "gpu2"]
    assert names(file, limit=("h100,!a100",)) == ["gpu3", "gpu4"]
    assert names(file, limit=("!h100", "!lonely")) == ["gpu1"]
    assert names(file, limit=("gpu[34]",)) == ["gpu3", "gpu4"]
    assert names(file, "a100", limit=("h100",)) == ["gpu2"]
    assert names(file, "gpu3", "a100") == ["gpu1", "gpu2", "gpu3"]


@pytest.mark.parametrize(
    "limit", [("gpu9",), ("!gpu9",), ("a100,!gpu1,!gpu2",), ("",), ("a100,",), ("!",), ("a100", " ")]
)
def test_a_limit_that_means_nothing_is_an_error(file: Path, limit: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match=r"fleet\.toml|empty name"):
        names(file, limit=limit)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[groups.a]\nhosts = ['x']\npyton = 1\n", r"\[groups\.a\]: .* unknown field `pyton`"),
        ("[groups.a]\nhosts = 'x'\n", r"\[groups\.a\]: hosts: Expected `array`"),
        ("[groups.a]\nhosts = ['x', 3]\n", r"\[groups\.a\]: hosts\[1\]: Expected `str`"),
        ("[groups]\na = 1\n", r"\[groups\.a\]: Expected `object`"),
        ("hosts = ['x']\n", "hosts: Expected `object`"),
        ("[hosts.x]\n[hosts.y]\nsudo = 'yes'\n", r"\[hosts\.y\]: sudo: Expected `bool"),
        ("[hosts.'a.b']\nsudo = 'yes'\n", r"""\[hosts\."a\.b"\]: sudo: """),
        ("[hosts.gpu1.example.com]\n", r"\[hosts\.gpu1\]: .*`example`"),
        ("[defaults]\nhost = 'x'\n[hosts.x]\n", r"\[defaults\]: .*`host`"),
        ("[host.x]\n", r"\[host\]: there is no such table"),
        ("[hosts", "is no TOML"),
        ("[hosts.x]\nsudo = true\n[hosts.y] # second\nsudo = yes\n", r"line 4, .*, below \[hosts\.y\]"),
        ("", "names no machine"),
        ("[groups.a]\nhosts = []\n", "names no machine"),
        ("[hosts.x]\npython = 'a'\nvenv = 'b'\n", r"\[hosts\.x\]: it has both python and venv"),
        (
            "[groups.a]\nhosts = ['x']\npython = '1'\n[groups.b]\nhosts = ['x']\npython = '2'\n",
            r"x has python from \[groups\.b\], and another one from \[groups\.a\]",
        ),
        (
            "[groups.a]\nhosts = ['x']\npython = '1'\n[groups.b]\nhosts = ['x']\nvenv = '2'\n",
            r"x has venv from \[groups\.b\], and another one from \[groups\.a\]",
        ),
        ("[hosts.'dir:x']\n", r"""\[hosts\."dir:x"\]: 'dir:x' is no machine"""),
        ("[groups.a]\nhosts = ['x', 'dir:x']\n", r"\[groups\.a\]: 'dir:x' is no machine"),
        ("[hosts.x]\naddress = '-oProxyCommand=x'\n", r"\[hosts\.x\]: .* is no machine"),
        ("[hosts.x]\nvia = 'docker exec x'\n", r"fleet\.toml: \[hosts\.x\]: .* does not pass stdin on"),
        ("[hosts.x]\nvia = ''\n", r"\[hosts\.x\]: via is empty"),
        ("[groups.a]\nhosts = ['x']\npython = ''\n", r"\[groups\.a\]: python is empty"),
        ("[defaults]\nvenv = ''\n[hosts.x]\n", r"\[defaults\]: venv is empty"),
        ("[hosts.x]\nssh = ['Port=1', '']\n", r"\[hosts\.x\]: ssh is empty"),
        ("[hosts.x]\ndeadline = -5\n", r"\[hosts\.x\]: the deadline is -5 s"),
        ("[defaults]\ndeadline = nan\n[hosts.x]\n", r"\[defaults\]: the deadline is nan s"),
        ("[hosts.x]\ndeadline = inf\n", r"\[hosts\.x\]: the deadline is inf s"),
        ("[groups.a]\nhosts = ['x']\n[groups.all]\nhosts = ['a']\n", r"\[groups\.all\]: it holds a, which is a group"),
        ("[groups.a]\nhosts = ['b']\n[groups.b]\nhosts = ['a']\n", r"\[groups\.a\]: it holds b, which is a group"),
        ("[groups.a]\nhosts = ['x']\n[groups.a]\nhosts = ['y']\n", r"is no TOML: .*groups.*line 3"),
        ("[hosts.x]\n[hosts.x]\n", "is no TOML"),
        ("a = " + "[" * 5000, "nested too deeply"),
    ],
)
def test_an_inventory_that_is_wrong_is_one_clear_error(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=problem) as caught:
        load(file)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("[hosts.x]\npyton = 1\n", "Did you mean python?"),
        ("[hosts.gpu1.example.com]\n", """A name with dots stands in quotes: [hosts."gpu1.example.com"]."""),
        ("[hosts.x]\nsudo = 'yes'\n", "Options are address, ssh, python, venv, via, sudo, deadline."),
    ],
)
def test_what_may_have_been_meant_is_said(tmp_path: Path, text: str, hint: str) -> None:
    (tmp_path / "fleet.toml").write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path / "fleet.toml")
    assert caught.value.hint == hint


def test_a_hosts_own_environment_comes_before_those_of_its_groups(tmp_path: Path) -> None:
    groups = "[groups.a]\nhosts = ['x']\npython = '1'\n[groups.b]\nhosts = ['x']\npython = '2'\n"
    (tmp_path / "fleet.toml").write_text(f"{groups}[hosts.x]\nvenv = '/v'\n")
    assert load(tmp_path / "fleet.toml").entries["x"].python == "/v/bin/python"


def test_an_inventory_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="is not UTF-8"):
        load(tmp_path / "binary.toml")


def test_a_mark_of_byte_order_and_hosts_named_twice(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text("[groups.a]\nhosts = ['x', 'x', 'y']\n[groups.x]\nhosts = ['x']\n", encoding="utf-8-sig")
    assert names(file) == ["x", "y"]
    assert names(file, "x", "a", "x") == ["x", "y"]
    assert names(file, limit=(" a , !y",)) == ["x"]


def test_the_command_line_comes_before_the_inventory(file: Path) -> None:
    said = Said(python="/usr/bin/python3", deadline=5, ssh_option=["User=me"])
    targets, machines = meant([], said, inventory=file, limit=["a100"])
    assert [(t.spec, t.host, t.python, t.via) for t in targets] == [
        ("gpu1", "gpu1", "/usr/bin/python3", None),
        ("gpu2", "gpu2", "/usr/bin/python3", "docker exec -i vllm"),
    ]
    assert machines.per_host["gpu2"] == HostOptions("root@10.0.0.2", ("User=me", "Port=2222"), True, 5)


def test_targets_that_are_no_names_of_the_inventory_stay_targets(file: Path) -> None:
    targets, _ = meant(["h100", "elsewhere", "vllm==0.33.0"], Said(), inventory=file)
    assert [target.spec for target in targets] == ["gpu2", "gpu3", "gpu4", "elsewhere", "vllm==0.33.0"]


def test_a_target_that_is_named_twice_is_scanned_once(file: Path) -> None:
    assert [target.spec for target in meant(["gpu9", "gpu9", "dir:/x"], Said())[0]] == ["gpu9", "dir:/x"]
    assert [target.spec for target in meant(["gpu1", "a100"], Said(), inventory=file)[0]] == ["gpu1", "gpu2"]


def test_a_limit_with_nothing_to_narrow(file: Path) -> None:
    with pytest.raises(UsageError, match=r"--limit narrows .*fleet\.toml, of which nothing is meant"):
        meant(["elsewhere"], Said(), inventory=file, limit=["a100"])


def test_options_that_do_not_go_together() -> None:
    for said, problem in (
        (Said(python="a", venv="b"), "--python and --venv"),
        (Said(host_keys="maybe"), "is no policy"),
        (Said(ssh_config=Path("/absent")), "is no file"),
        (Said(via=""), "--via is empty"),
        (Said(deadline=float("nan")), "--deadline nan is no time"),
        (Said(deadline=float("inf")), "--deadline inf is no time"),
        (Said(deadline=1e9), "is no time to wait"),
    ):
        with pytest.raises(UsageError, match=problem):
            meant(["gpu1"], said)
    with pytest.raises(UsageError, match="--limit goes with --inventory"):
        meant(["gpu1"], Said(), limit=["a"])


def test_a_machine_of_an_inventory_is_named_with_its_options_written_out(file: Path) -> None:
    targets, machines = meant([], Said(ssh_config=file, ssh_option=["User=me and you"]), inventory=file)
    spelled = {target.spec: named(target, machines, "vllm") for target in targets}
    assert spelled["gpu2"] == (
        f"root@10.0.0.2 --sudo -F {file} -o 'User=me and you' -o Port=2222 --deadline 30 "
        "--python /opt/venv/bin/python --via 'docker exec -i vllm' --engine vllm"
    )
    assert spelled["gpu4"] == (
        f"gpu4 -F {file} -o 'User=me and you' --deadline 30 --python /srv/venv/bin/python --engine vllm"
    )
    (again,), reached = meant(
        ["root@10.0.0.2"],
        Said(python=targets[1].python, via=targets[1].via, sudo=True, ssh_option=["Port=2222"], host_keys="yes"),
    )
    assert named(again, reached).startswith("root@10.0.0.2 --sudo -o Port=2222 --host-keys yes --python ")


@pytest.mark.parametrize(
    ("text", "told"),
    [(f"[defaults]\ndeadline = {'1' * 5000}\n", "a number of thousands of digits"), (None, "it has more than 16 MiB")],
)
def test_a_file_without_measure_is_refused(tmp_path: Path, text: str | None, told: str) -> None:
    file = tmp_path / "fleet.toml"
    if text is None:
        file = Path("/dev/zero")
    else:
        file.write_text(text)
    with pytest.raises(ConfigurationError, match=told):
        load(file)

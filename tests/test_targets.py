"""What may be named as a target."""

from __future__ import annotations

from pathlib import Path

import pytest

from specaudit.errors import Exit, TargetError
from specaudit.targets import Kind, kind_of, meant, parse


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("@local", Kind.LOCAL),
        ("dir:/opt/venv/lib/python3.12/site-packages", Kind.FOLDER),
        ("dir:a b=c", Kind.FOLDER),
        ("wheel:vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl", Kind.WHEEL),
        ("vllm==0.33.0", Kind.RELEASE),
        ("vllm==0.20.1rc1+cu130", Kind.RELEASE),
        ("vllm[audio, flashinfer]==0.33", Kind.RELEASE),
        ("gpu1", Kind.MACHINE),
        ("root@gpu-1.lab.example", Kind.MACHINE),
        ("ssh://ann@gpu1:2222", Kind.MACHINE),
        ("gpu1:2222", Kind.MACHINE),
        ("ann@[2001:db8::1]:22", Kind.MACHINE),
        ("2001:db8::1", Kind.MACHINE),
        ("ann@fe80::1%eth0", Kind.MACHINE),
        ("ann@corp@gpu1", Kind.MACHINE),
        ("CORP\\ann@gpu1", Kind.MACHINE),
        ("ssh://ann%40corp@gpu1", Kind.MACHINE),
    ],
)
def test_kinds_of_places(spec: str, kind: Kind) -> None:
    assert kind_of(spec) is kind


@pytest.mark.parametrize(
    "spec",
    [
        *("", "dir:", "wheel:", "vllm>=0.30", "vllm==", "==1.0", "vllm==0.*", "vllm==0.33.", "./vllm", "/opt/venv"),
        *("-oProxyCommand=x", "-v", "vllm.whl", "gpu1;reboot", "@gpu1", "root@-x", "a b", "$(id)", "-l@gpu1"),
        *("a:b@gpu1", "vllm==latest", "vllm==0..1", "vllm==a", "vllm=>1", "vllm[==1.0"),
    ],
)
def test_what_names_no_place_is_refused_with_the_ways_to_write_one(spec: str) -> None:
    with pytest.raises(TargetError) as refused:
        parse(spec)
    assert refused.value.code is Exit.ERROR
    assert refused.value.hint


def test_names_of_releases_are_normalised() -> None:
    assert parse("VLLM == 0.33.0").spec == "vllm==0.33.0"
    assert parse("vLLM[audio] ==v0.33.0").spec == "vllm==v0.33.0"


def test_what_was_probably_meant_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkout").mkdir()
    (tmp_path / "some.whl").touch()
    with pytest.raises(TargetError, match=r"Write dir:\./checkout"):
        parse("./checkout")
    with pytest.raises(TargetError, match=r"Write wheel:some\.whl"):
        parse("some.whl")
    assert "vllm==VERSION" in meant("vllm")
    assert meant("gpu1") == ""


def test_a_machine_keeps_its_interpreter_and_its_way_in() -> None:
    target = parse("gpu1", python="/opt/venv/bin/python", via="docker exec -i vllm")
    assert (target.host, target.python, target.via) == ("gpu1", "/opt/venv/bin/python", "docker exec -i vllm")


@pytest.mark.parametrize("spec", ["dir:/x", "wheel:x.whl", "vllm==1.0"])
def test_options_that_do_not_go_with_a_place_are_refused(spec: str) -> None:
    with pytest.raises(TargetError, match="--python"):
        parse(spec, python="python3")
    with pytest.raises(TargetError, match="--via"):
        parse(spec, via="docker exec -i x")

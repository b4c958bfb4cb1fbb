"""A kernel that is launched again gets what Triton would hand it, and another variant where Triton would take one."""

from __future__ import annotations

from ddtree.test_compile import compiled

EXPECTED = {
    "walk": 0,
    "other-numbers": 0,
    "one": 1,
    "sixteen": 2,
    "none-given": 3,
    "other-type": 4,
    "not-aligned": 5,
    "other-warps": 6,
    "other-constant": 7,
    "fixed": 8,
    "fixed-again": 8,
    "sizes": 1,  # how many requests there are makes no variant
    "in-a-plane": 9,
}


def test_what_is_launched_again_is_what_triton_launches() -> None:
    lines = [line.split() for line in compiled("relaunch.py").splitlines()]
    assert {name: (int(variant), verdict) for name, variant, verdict in lines} == {
        name: (variant, "same") for name, variant in EXPECTED.items()
    }

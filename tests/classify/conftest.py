"""Releases, classified once and shared by the tests of one module after another."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest
from support import derived
from support.engines import index_of

from specaudit.classify.audit import Reading
from specaudit.engines import ENGINES
from specaudit.model import Audit

Read = Callable[[str], Reading]
Audited = Callable[[str], Audit]


@pytest.fixture(scope="session")
def read(release: Callable[[str], Path]) -> Read:
    """``read("0.33.0")``: how the configuration, the runners and the proposers of a release are read.

    Few are kept at a time: each holds the trees of every function that it looked into.
    """

    @lru_cache(maxsize=3)
    def get(spec: str) -> Reading:
        name = spec.partition("==")[0] if "==" in spec else "vllm"
        return Reading(index_of(release(spec), name, ENGINES[name].wants), ENGINES[name])

    return get


@pytest.fixture(scope="session")
def audited(release: Callable[[str], Path]) -> Audited:
    """``audited("0.33.0")``: everything that classification says."""

    @lru_cache(maxsize=6)
    def get(spec: str) -> Audit:
        name = spec.partition("==")[0] if "==" in spec else "vllm"
        return derived.audited(index_of(release(spec), name, ENGINES[name].wants).snapshot)

    return get

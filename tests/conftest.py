"""Real releases for every test that needs one, and what the tests of a run derive from them together."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from support.derived import derived, kept_in
from support.places import USERS_CACHE

from specaudit.cache import folder
from specaudit.hosts.unpack import unpack

Release = Callable[[str], Path]

# Trees of whole engines live from test to test: to look through them as often as by default takes a fifth of all time.
gc.set_threshold(50_000, 10, 10)


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The cache of a test run: empty when it begins, and shared by its workers."""
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(place / "cache-of-all")
    try:
        with kept_in(folder()):
            yield
    finally:
        del os.environ["XDG_CACHE_HOME"]
        if before is not None:
            os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(autouse=True)
def _shared() -> Iterator[None]:
    """What one test derived is there for the next one, in whichever worker it runs."""
    yield
    derived().flush()


@pytest.fixture(scope="session")
def release() -> Release:
    """``release("0.33.0")``, ``release("sglang==0.5.9")``: a folder that holds the package and its dist-info.

    All ``.py`` files of the wheel that pip would take, downloaded by specaudit's own range reader into the user's cache
    the first time (12 MB for the newest vLLM), and read from there afterwards. Treat it as read-only.
    """

    @cache
    def get(spec: str) -> Path:
        return unpack(spec if "==" in spec else f"vllm=={spec}", USERS_CACHE / "releases")

    return get

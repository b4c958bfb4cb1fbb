"""Real releases for every test that needs one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from specaudit.cache import folder
from specaudit.hosts.unpack import unpack

Release = Callable[[str], Path]


@pytest.fixture(scope="session")
def release() -> Release:
    """``release("0.33.0")``, ``release("sglang==0.5.9")``: a folder that holds the package and its dist-info.

    All ``.py`` files of the wheel that pip would take, downloaded by specaudit's own range reader into the user's cache
    the first time (12 MB for the newest vLLM), and read from there afterwards. Treat it as read-only.
    """

    releases = folder() / "releases"  # now: tests may set XDG_CACHE_HOME for themselves

    @cache
    def get(spec: str) -> Path:
        return unpack(spec if "==" in spec else f"vllm=={spec}", releases)

    return get

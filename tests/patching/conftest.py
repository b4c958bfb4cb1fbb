"""What the patching tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import trees

from specaudit.hosts.machine import PythonCaller
from specaudit.hosts.shell import LocalShell
from specaudit.patching.client import AgentClient
from tests.patching import tree


@pytest.fixture(scope="module", autouse=True)
def _trees() -> Iterator[None]:
    """Most files of a release are judged many times here, with other files changed."""
    with trees.kept():
        yield


def agent_of(root: Path, python: str | None = None, engine: str = "vllm") -> AgentClient:
    """The real agent, in a process of its own, for an engine on this machine."""
    return AgentClient(PythonCaller(LocalShell()), str(root), engine, python)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A small engine."""
    return tree.make(tmp_path)


@pytest.fixture
def agent(site: Path) -> AgentClient:
    """The agent for it."""
    return agent_of(site)


AgentOf = Callable[[Path], AgentClient]

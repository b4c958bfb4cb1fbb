"""The agent is killed at system calls: status tells the truth, no half-written file is importable, revert restores all.

``SPECAUDIT_CRASH_POINTS`` says at how many points (40 by default; ``make crash`` asks for 240); over SSH half as many.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specaudit.errors import SpecauditError
from specaudit.hosts.machine import PythonCaller
from specaudit.patching.client import AgentClient, Standing
from tests.hosts.conftest import Client, client, keys, start_sshd  # noqa: F401
from tests.hosts.sshd import Sshd
from tests.patching import tree
from tests.patching.conftest import agent_of
from tests.patching.crash import Point, Strace, spread

POINTS = int(os.environ.get("SPECAUDIT_CRASH_POINTS", "40"))
Connect = Callable[[Path, str | None], AgentClient]


@pytest.fixture
def bench() -> Iterator[Path]:
    """A folder in memory, where a sync costs nothing: it is the order of calls that is tested, not the disk."""
    shm = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="specaudit-", dir=shm if shm.is_dir() else None))
    yield folder
    shutil.rmtree(folder)


class Trial:
    """One engine, its first state, and the change that is interrupted."""

    def __init__(self, bench: Path, connect: Connect) -> None:
        self.place, self.connect = bench / "w", connect
        shutil.rmtree(self.place, ignore_errors=True)
        self.site = tree.make(self.place)
        self.before = tree.facts(self.place)
        self.application, self.blobs = tree.application(self.site)

    def agent(self, python: str | None = None) -> AgentClient:
        return self.connect(self.site, python)

    def apply(self, python: str | None = None) -> None:
        self.agent(python).apply([self.application], self.blobs)

    def check_truth(self) -> Standing:
        """What status says is what the files are, and every importable file is whole."""
        said = self.agent().status()
        changes = {c["path"]: c for c in self.application["changes"]}
        now = {path: tree.sha(f.read_bytes()) if (f := self.site / path).exists() else None for path in changes}
        assert all(now[path] in (c["before"], c["after"]) for path, c in changes.items())
        importable = {str(p.relative_to(self.site)) for p in self.site.rglob("*.py")}
        assert importable <= {p.removeprefix("site/") for p in self.before} | set(changes)
        assert {f.path: f.now for f in said.files}.items() <= now.items()
        original, changed = ({path: c[key] for path, c in changes.items()} for key in ("before", "after"))
        if said.state == "clean":
            assert now == original
        elif said.state == "patched":
            assert now == changed
            assert not said.drifted
        else:
            assert said.state == "interrupted"
        return said

    def check_restored(self) -> None:
        assert tree.facts(self.place) == self.before


def local(site: Path, python: str | None) -> AgentClient:
    return agent_of(site, python)


def kill(trial: Trial, strace: Strace, point: Point, operation: Callable[[str], object]) -> None:
    with strace.killing(point) as python, pytest.raises(SpecauditError):
        operation(python)
    assert "killed by SIGKILL" in strace.log.read_text(), point


def test_an_apply_that_is_killed_anywhere_can_be_reverted(bench: Path) -> None:
    strace = Strace(bench)
    points = strace.points(Trial(bench, local).apply, bench / "w")
    states = set()
    for point in spread(points, POINTS * 5 // 8):
        trial = Trial(bench, local)
        kill(trial, strace, point, trial.apply)
        states.add(trial.check_truth().state)
        trial.agent().revert()
        trial.check_restored()
    assert {"clean", "interrupted"} <= states
    print(f"{POINTS * 5 // 8} of {len(points)} points of an apply, states seen: {sorted(states)}")


def test_a_revert_that_is_killed_anywhere_can_be_reverted(bench: Path) -> None:
    strace = Strace(bench)
    trial = Trial(bench, local)
    trial.apply()
    points = strace.points(lambda python: trial.agent(python).revert(), bench / "w")
    states = set()
    for point in spread(points, POINTS - POINTS * 5 // 8):
        trial = Trial(bench, local)
        trial.apply()
        kill(trial, strace, point, lambda python, trial=trial: trial.agent(python).revert())
        states.add(trial.check_truth().state)
        trial.agent().revert()
        trial.check_restored()
    assert {"interrupted", "patched"} <= states
    print(f"{POINTS - POINTS * 5 // 8} of {len(points)} points of a revert, states seen: {sorted(states)}")


def test_ctrl_c_where_the_agent_runs_does_not_cut_a_change(bench: Path) -> None:
    strace, trial = Strace(bench), Trial(bench, local)
    renames = [p.number for p in strace.points(trial.apply, bench / "w") if p.name == "rename"]
    trial = Trial(bench, local)
    with strace.using(f"-e trace=rename -e inject=rename:signal=INT:when={renames[-2]}") as python:
        trial.apply(python)
    assert "SIGINT" in strace.log.read_text()
    assert trial.check_truth().state == "patched"


@pytest.fixture
def over_ssh(client: Client, start_sshd: Callable[..., Sshd]) -> Connect:  # noqa: F811
    """The same agent, at the other end of a real SSH connection."""
    shell = client.shell(client.host("gpu1", start_sshd()))
    return lambda site, python: AgentClient(PythonCaller(shell), str(site), "vllm", python)


def test_over_ssh_a_kill_anywhere_can_be_reverted(bench: Path, over_ssh: Connect) -> None:
    strace = Strace(bench)
    points = strace.points(Trial(bench, over_ssh).apply, bench / "w")
    states = set()
    for point in spread(points, POINTS // 2):
        trial = Trial(bench, over_ssh)
        kill(trial, strace, point, trial.apply)
        states.add(trial.check_truth().state)
        trial.agent().revert()
        trial.check_restored()
    assert {"clean", "interrupted"} <= states
    print(f"{POINTS // 2} of {len(points)} points of an apply over SSH, states seen: {sorted(states)}")


def test_an_interrupted_apply_must_be_undone_before_the_next(bench: Path) -> None:
    strace = Strace(bench)
    trial = Trial(bench, local)
    renames = [p for p in strace.points(trial.apply, bench / "w") if p.name == "rename"]
    trial = Trial(bench, local)
    kill(trial, strace, renames[-3], trial.apply)
    with pytest.raises(SpecauditError, match="interrupted"):
        trial.apply()
    trial.agent().revert()
    trial.apply()
    assert trial.check_truth().state == "patched"

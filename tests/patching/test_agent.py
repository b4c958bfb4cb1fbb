"""The agent alone: what it changes, what it refuses, and that it takes everything back."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import pytest

from specaudit.errors import IntegrityError, JournalError, PatchError
from specaudit.patching.agent_store import Store
from specaudit.patching.client import AGENT, AgentClient, FileState
from tests.patching import tree
from tests.patching.conftest import agent_of


def apply(agent: AgentClient, site: Path, recipe: str = "demo", only: tuple[str, ...] = ()) -> None:
    application, blobs = tree.application(site, recipe, only)
    agent.apply([application], blobs)


#: What the agent's folder holds once it is made.
BEGUN = {"lock", "journal.json", "blobs", "originals", "pyc"}


def test_apply_revert_apply_gives_identical_trees(site: Path, agent: AgentClient, tmp_path: Path) -> None:
    before = tree.facts(tmp_path)
    application, blobs = tree.application(site)
    agent.apply([application], blobs)
    first = tree.contents(tmp_path)
    assert first != {path: f[-1] for path, f in before.items() if f[0] != "folder" and "__pycache__" not in path}
    agent.revert()
    assert tree.facts(tmp_path) == before
    agent.apply([application], blobs)
    assert tree.contents(tmp_path) == first


def test_applying_twice_changes_nothing_and_says_so(site: Path, agent: AgentClient, tmp_path: Path) -> None:
    application, blobs = tree.application(site)
    agent.apply([application], blobs)
    once = tree.facts(tmp_path)
    with pytest.raises(PatchError, match="Already applied: demo"):
        agent.apply([application], blobs)
    assert tree.facts(tmp_path) == once


def test_files_that_others_share_keep_their_bytes(site: Path, agent: AgentClient, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    before = {path.name: path.read_bytes() for path in cache.iterdir()}
    apply(agent, site)
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == before
    assert not (site / tree.LINKED).is_symlink()
    assert (site / tree.SHARED).stat().st_nlink == 1


def test_mode_and_owner_are_kept(site: Path, agent: AgentClient) -> None:
    os.chown(site / tree.HOOK, 1234, 2345)
    apply(agent, site)
    facts = (site / tree.HOOK).stat()
    assert (facts.st_mode & 0o777, facts.st_uid, facts.st_gid) == (0o640, 1234, 2345)


def test_new_files_belong_to_their_folders_owner(site: Path, agent: AgentClient) -> None:
    for path in (site, site / "vllm", site / "vllm/a"):
        os.chown(path, 1234, 2345)
    apply(agent, site)
    for path in (tree.NEW, tree.NEW_DEEP, "vllm/tree", ".specaudit-vllm"):
        assert (site / path).stat().st_uid == 1234, path


def test_compiled_code_of_the_old_source_never_runs_again(site: Path, agent: AgentClient) -> None:
    def value() -> str:
        code = "import vllm.a.shared as m; print(m.value)"
        return subprocess.run([sys.executable, "-c", code], cwd=site, text=True, capture_output=True, check=True).stdout

    assert value() == "1\n"
    apply(agent, site)
    assert value() == "2\n"
    agent.revert()
    assert value() == "1\n"


def test_a_revert_leaves_no_compiled_file_of_the_change(site: Path, agent: AgentClient, tmp_path: Path) -> None:
    before = tree.facts(tmp_path)
    apply(agent, site)
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(site)], check=True)
    agent.revert()
    after = tree.facts(tmp_path)
    touched = ("added", "walk", "shared", "linked", "plain", "hook")
    assert {p for p in after if p.rpartition("/")[2].startswith(touched)} == {
        p for p in before if p.rpartition("/")[2].startswith(touched)
    }
    assert "site/vllm/tree" not in after


def test_revert_refuses_a_file_that_someone_changed_and_shows_how(
    site: Path, agent: AgentClient, tmp_path: Path
) -> None:
    apply(agent, site)
    (site / tree.PLAIN).write_text((site / tree.PLAIN).read_text() + "mine = True\n")
    now = tree.facts(tmp_path)
    with pytest.raises(PatchError, match=r"Changed by someone else since: vllm/a/plain\.py.*\n(.*\n)*\+mine = True"):
        agent.revert()
    assert tree.facts(tmp_path) == now
    assert [f.path for f in agent.status().drifted] == [tree.PLAIN]


def test_a_folder_that_holds_someone_elses_file_is_left(site: Path, agent: AgentClient) -> None:
    apply(agent, site)
    (site / "vllm/tree/theirs.py").write_text("theirs = 1\n")
    assert agent.revert()["left"] == ["vllm/tree"]
    assert [p.name for p in (site / "vllm/tree").iterdir()] == ["theirs.py"]


def test_recipes_revert_one_by_one(site: Path, agent: AgentClient, tmp_path: Path) -> None:
    before = tree.facts(tmp_path)
    apply(agent, site, "one", (tree.PLAIN, tree.NEW))
    alone = tree.contents(tmp_path / "site/vllm")
    apply(agent, site, "two", (tree.HOOK,))
    apply(agent, site, "three", (tree.SHARED, tree.PLAIN))
    with pytest.raises(PatchError, match=r"one cannot be taken back alone: three has since changed vllm/a/plain\.py"):
        agent.revert(["one"])
    with pytest.raises(PatchError, match="Not applied here: four"):
        agent.revert(["four"])
    agent.revert(["two"])
    assert agent.status().recipes == ("one", "three")
    agent.revert(["three"])
    assert tree.contents(tmp_path / "site/vllm") == alone
    assert not agent.status().drifted
    agent.revert(["one"])
    assert tree.facts(tmp_path) == before


def test_what_was_an_original_and_what_was_added_is_told_apart(site: Path, agent: AgentClient) -> None:
    apply(agent, site, "one", (tree.PLAIN, tree.NEW))
    apply(agent, site, "two", (tree.HOOK,))
    plain, standing = tree.sha((site / tree.PLAIN).read_bytes()), agent.status()
    assert {path: sha is None for path, sha in standing.goal(["one"]).items()} == {tree.PLAIN: False, tree.NEW: True}
    assert set(standing.goal()) == {tree.PLAIN, tree.NEW, tree.HOOK}
    assert [a["recipe"] for a in standing.going(["one"])] == ["one"]
    answer = agent.revert(["one"])
    assert (answer["restored"], answer["deleted"], answer["untouched"]) == ([tree.PLAIN], [tree.NEW], [])
    assert tree.sha((site / tree.PLAIN).read_bytes()) != plain


def test_files_that_an_interrupted_run_had_not_come_to_are_not_counted_as_restored(
    site: Path, agent: AgentClient
) -> None:
    before = (site / tree.PLAIN).read_bytes()
    apply(agent, site, "one", (tree.PLAIN, tree.NEW, tree.HOOK))
    journal = site / ".specaudit-vllm/journal.json"
    held = json.loads(journal.read_text())
    one = held["applied"].pop()
    goal = {change["path"]: change["before"] for change in one["changes"]}
    journal.write_text(json.dumps(held | {"pending": {"op": "apply", "application": one, "goal": goal}}))
    (site / tree.PLAIN).unlink()
    (site / tree.PLAIN).write_bytes(before)  # as it was before the run came to it
    (site / tree.NEW).unlink()
    answer = agent.revert()
    assert (answer["restored"], answer["deleted"]) == ([tree.HOOK], [])
    assert answer["untouched"] == sorted([tree.PLAIN, tree.NEW])
    assert agent.status().state == "clean"


def test_a_recipe_that_another_needs_is_not_taken_away(site: Path, agent: AgentClient) -> None:
    apply(agent, site, "base", (tree.PLAIN,))
    application, blobs = tree.application(site, "top", (tree.HOOK,))
    agent.apply([{**application, "requires": ["base"]}], blobs)
    with pytest.raises(PatchError, match="top needs it"):
        agent.revert(["base"])
    assert agent.revert(["base", "top"])["reverted"] == ["base", "top"]


def test_several_recipes_in_one_go_are_all_or_none(site: Path, agent: AgentClient, tmp_path: Path) -> None:
    before = tree.facts(tmp_path)
    one, blobs = tree.application(site, "one", (tree.PLAIN, tree.NEW))
    middle = blobs[one["changes"][1]["after"]]
    last = middle + b"# two\n"
    change = {"path": tree.PLAIN, "before": tree.sha(middle), "after": tree.sha(last)}
    two = {"recipe": "two", "version": "1", "changes": [change]}
    agent.apply([one, two], {**blobs, tree.sha(last): last})
    assert (site / tree.PLAIN).read_bytes() == last
    agent.revert(["two"])
    assert (site / tree.PLAIN).read_bytes() == middle
    agent.revert()
    assert tree.facts(tmp_path) == before


@pytest.mark.parametrize(
    "path", ["vllm/../../outside.py", "/etc/passwd", "other/x.py", "vllm", "vllm/a//x.py", "vllm/out/x.py"]
)
def test_a_path_that_leaves_the_engine_is_refused(site: Path, agent: AgentClient, tmp_path: Path, path: str) -> None:
    (tmp_path / "outside").mkdir()
    (site / "vllm/out").symlink_to(tmp_path / "outside")
    before = tree.facts(tmp_path)
    data = b"evil\n"
    change = {"path": path, "before": None, "after": tree.sha(data)}
    with pytest.raises(IntegrityError):
        agent.apply([{"recipe": "evil", "version": "1", "changes": [change]}], {tree.sha(data): data})
    assert tree.facts(tmp_path) == before


def test_a_file_changed_between_plan_and_apply_is_refused(site: Path, agent: AgentClient, tmp_path: Path) -> None:
    application, blobs = tree.application(site)
    (site / tree.PLAIN).write_text("value = 3\n")
    (site / tree.NEW).write_text("value = 3\n")
    before = tree.facts(tmp_path)
    with pytest.raises(PatchError, match=r"vllm/a/added\.py exists already"):
        agent.apply([application], blobs)
    (site / tree.NEW).unlink()
    with pytest.raises(PatchError, match=r"vllm/a/plain\.py has changed since the plan"):
        agent.apply([application], blobs)
    (site / tree.PLAIN).unlink()
    with pytest.raises(PatchError, match=r"vllm/a/plain\.py is gone"):
        agent.apply([application], blobs)
    assert set(before) - set(tree.facts(tmp_path)) == {f"site/{tree.NEW}", f"site/{tree.PLAIN}"}


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: path.symlink_to(path)])
def test_what_takes_the_place_of_a_file_is_seen_and_stays(
    site: Path, agent: AgentClient, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    application, blobs = tree.application(site)
    (site / tree.PLAIN).rename(tmp_path / "aside")
    make(site / tree.PLAIN)
    with pytest.raises(PatchError, match=r"vllm/a/plain\.py is no file any more"):
        agent.apply([application], blobs)
    (site / tree.PLAIN).rename(tmp_path / "other")
    (tmp_path / "aside").rename(site / tree.PLAIN)
    apply(agent, site)
    (site / tree.PLAIN).rename(tmp_path / "aside")
    (tmp_path / "other").rename(site / tree.PLAIN)
    assert [(f.path, f.word) for f in agent.status().drifted] == [(tree.PLAIN, "changed")]
    with pytest.raises(PatchError, match=r"(?s)Changed by someone else since.*vllm/a/plain\.py is no file any more"):
        agent.revert()
    assert agent.status().state == "patched"


def test_two_runs_at_once_one_is_refused(site: Path, tmp_path: Path) -> None:
    application, blobs = tree.application(site)
    outcomes: list[str] = []

    def run() -> None:
        try:
            agent_of(site).apply([application], blobs)
            outcomes.append("applied")
        except PatchError as refused:
            outcomes.append(refused.message)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("applied") == 1
    assert all("right now" in o or "Already applied" in o for o in outcomes if o != "applied")
    status = agent_of(site).status()
    assert status.state == "patched"
    assert not status.drifted


def test_the_agents_folder_may_be_made_by_another_run_meanwhile(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = os.mkdir

    def made_by_another(path: str) -> None:
        make(path)  # after we looked
        make(path)

    monkeypatch.setattr(os, "mkdir", made_by_another)
    store = Store(str(site), "vllm")
    with store.locked(create=True):
        assert {path.name for path in Path(store.folder).iterdir()} == BEGUN


@pytest.mark.parametrize("moment", ["before it is opened", "after it was opened", "with what lies beside it"])
def test_the_run_before_may_remove_the_agents_folder_meanwhile(
    site: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    store, before = Store(str(site), "vllm"), Store(str(site), "vllm")
    with before.locked(create=True):
        pass
    opened, pending = os.open, [moment]

    def open_(path: str, *how: int, **where: int) -> int:
        if not str(path).endswith("/lock") or not pending:
            return opened(path, *how, **where)
        pending.clear()
        if moment == "after it was opened":
            descriptor = opened(path, *how)
            before.remove()
            return descriptor
        if moment == "before it is opened":
            before.remove()
        else:  # all but the folder itself, which is not empty any more when its turn comes
            for name in ("blobs", "originals", "pyc"):
                (Path(store.folder) / name).rmdir()
        return opened(path, *how)

    monkeypatch.setattr(os, "open", open_)
    with store.locked(create=True):
        assert {path.name for path in Path(store.folder).iterdir()} == BEGUN
        assert before.busy()


def test_while_one_holds_the_lock_status_says_busy_and_apply_is_refused(site: Path, agent: AgentClient) -> None:
    import fcntl

    apply(agent, site, "one", (tree.PLAIN,))
    with (site / ".specaudit-vllm/lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert agent.status().state == "busy"
        with pytest.raises(PatchError, match="right now"):
            agent.revert()
    assert agent.status().state == "patched"


def test_a_symlinked_site_packages_is_changed_in_its_real_place(site: Path, tmp_path: Path) -> None:
    before = tree.facts(tmp_path)
    (tmp_path / "lib64").symlink_to(site, target_is_directory=True)
    apply(agent_of(tmp_path / "lib64"), site)
    assert (site / ".specaudit-vllm").is_dir()
    assert agent_of(site).status().recipes == ("demo",)
    agent_of(site).revert()
    (tmp_path / "lib64").unlink()
    assert tree.facts(tmp_path) == before


def test_a_package_that_is_a_symlink_is_changed_in_its_real_place(site: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "vllm").symlink_to(site / "vllm", target_is_directory=True)
    apply(agent_of(other), site)
    assert agent_of(site).status().recipes == ("demo",)
    assert not (other / ".specaudit-vllm").exists()


def test_another_machine_can_fetch_what_was_kept_and_revert(site: Path, agent: AgentClient, tmp_path: Path) -> None:
    before = tree.facts(tmp_path)
    application, blobs = tree.application(site)
    agent.apply([application], blobs)
    stranger = agent_of(site)  # knows nothing but the place
    journal, kept = stranger.fetch()
    assert blobs.items() <= kept.items()
    assert {c["before"] for c in application["changes"] if c["before"]} <= set(kept)
    assert [a["recipe"] for a in journal["applied"]] == ["demo"]
    stranger.revert()
    assert tree.facts(tmp_path) == before


def test_a_cache_edited_in_place_does_not_spoil_the_revert(site: Path, agent: AgentClient, tmp_path: Path) -> None:
    original = (site / tree.SHARED).read_bytes()
    apply(agent, site)
    (tmp_path / "cache/shared").write_bytes(b"broken by someone\n")
    agent.revert()
    assert (site / tree.SHARED).read_bytes() == original


def test_a_reinstalled_engine_is_told_apart_and_forgotten(site: Path, agent: AgentClient, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    shutil.copytree(site / "vllm", saved, symlinks=True)
    apply(agent, site)
    shutil.rmtree(site / "vllm")
    saved.rename(site / "vllm")
    status = agent.status()
    assert status.state == "patched"
    assert {f.word for f in status.drifted} == {"original", "absent"}  # absent: what the patch had added
    assert agent.forget() == {"forgotten": ["demo"], "left": []}
    assert agent.status().state == "clean"
    assert not (site / ".specaudit-vllm").exists()


@pytest.mark.parametrize(
    ("now", "original", "expected", "word"),
    [
        ("b", "a", "b", "patched"),
        ("a", "a", "b", "original"),
        ("c", "a", "b", "changed"),
        (None, "a", "b", "missing"),
        ("b", None, "b", "patched"),
        (None, None, "b", "absent"),
        ("c", None, "b", "changed"),
        ("a", "a", "a", "original"),
        ("c", "a", "a", "changed"),
        (None, None, None, "absent"),
    ],
)
def test_a_file_has_one_word(now: str | None, original: str | None, expected: str | None, word: str) -> None:
    assert FileState("vllm/a.py", now, original, expected).word == word


# --- what is not the agent's ----------------------------------------------------------------------------------------


def strangers(folder: Path) -> None:
    """Files of someone else, also where the agent keeps its own, and links that lead to them."""
    for name in ("a.txt", "lock.txt", "blobs/mine", "blobs/" + "a" * 63, "originals/mine.py", "pyc/mine.pyc", "more/b"):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text("theirs\n")
    (folder / "linked").symlink_to("more")


@pytest.mark.parametrize("operation", ["status", "apply", "revert", "forget"])
@pytest.mark.parametrize("name", ["", "/blobs", "/originals", "/lock", "/journal.json"])
def test_a_link_in_the_place_of_the_agents_own_is_never_followed(
    site: Path, agent: AgentClient, tmp_path: Path, name: str, operation: str
) -> None:
    if name:
        apply(agent, site, "one", (tree.PLAIN,))
    own, victim = Path(f"{site}/.specaudit-vllm{name}"), tmp_path / "victim"
    if own.is_dir():
        own.rename(victim)
        (victim / "a.txt").write_text("theirs\n")
    elif name:
        own.rename(victim)
    else:
        victim.mkdir()
        strangers(victim)
    own.symlink_to(victim)
    before = tree.facts(victim) if victim.is_dir() else victim.read_bytes()
    outside = tree.facts(site / "vllm")
    if operation == "status" and name not in ("", "/journal.json"):
        agent.status()
    elif operation == "forget" and name in ("/blobs", "/originals", "/journal.json"):
        assert agent.forget()["left"] == [f".specaudit-vllm{name}"]
        assert [path.name for path in own.parent.iterdir()] == [own.name]
    else:
        with pytest.raises(PatchError, match=r"is a symbolic link, where a .* of specaudit would lie") as refused:
            agent.revert() if operation == "revert" else (
                apply(agent, site, "two", (tree.HOOK,)) if operation == "apply" else getattr(agent, operation)()
            )
        assert refused.value.hint == "See what it is, move it away, then try again."
    assert own.is_symlink()
    assert before == (tree.facts(victim) if victim.is_dir() else victim.read_bytes())
    assert tree.facts(site / "vllm") == outside


@pytest.mark.parametrize("operation", ["revert", "forget", "apply, then revert"])
def test_files_of_someone_else_in_the_agents_folder_stay_and_are_told(
    site: Path, agent: AgentClient, operation: str
) -> None:
    folder = site / ".specaudit-vllm"
    strangers(folder)
    before = tree.facts(folder)
    assert not agent.status().leftovers
    if operation == "apply, then revert":
        apply(agent, site)
        assert agent.status().recipes == ("demo",)
        assert agent.fetch()[0]["applied"]
    left = agent.forget()["left"] if operation == "forget" else agent.revert()["left"]
    names = ["a.txt", "blobs/" + "a" * 63, "blobs/mine", "linked", "lock.txt", "more", "originals/mine.py"]
    assert left == [f".specaudit-vllm/{name}" for name in [*names, "pyc/mine.pyc"]]
    assert tree.facts(folder) == before
    assert (agent.status().state, agent.status().leftovers) == ("clean", False)


def test_a_file_in_the_place_of_the_agents_folder_is_refused(site: Path, agent: AgentClient) -> None:
    (site / ".specaudit-vllm").write_text("theirs\n")
    for operation in (agent.status, agent.revert, agent.forget, lambda: apply(agent, site)):
        with pytest.raises(PatchError, match="is a file, where a folder of specaudit would lie"):
            operation()
    assert (site / ".specaudit-vllm").read_text() == "theirs\n"


def test_a_scratch_file_that_is_a_link_is_not_written_through(site: Path, agent: AgentClient, tmp_path: Path) -> None:
    apply(agent, site, "one", (tree.PLAIN,))
    (tmp_path / "victim").write_text("theirs\n")
    apply(agent, site, "two", (tree.HOOK,))
    (site / ".specaudit-vllm/journal.json.new").symlink_to(tmp_path / "victim")
    agent.revert(["two"])
    assert agent.status().recipes == ("one",)
    assert (tmp_path / "victim").read_text() == "theirs\n"


# --- what cannot be read, and what is lost --------------------------------------------------------------------------

CHANGE = {"path": tree.PLAIN, "before": None, "after": None}
DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "text",
    [
        '{"format":1,"files":5}',
        '{"format":1,"applied":[5]}',
        '{"format":1,"folders":[null]}',
        '{"format":1,"folders":["vllm/../.."]}',
        '{"format":1,"pending":[]}',
        '{"format":1,"pending":{"op":"apply","goal":{"vllm/a":null}}}',
        '{"format":1,"files":{"vllm/../../victim":{"sha256":null,"pyc":[],"pycache":false}}}',
        '{"format":1,"files":{"vllm/a.py":{"sha256":null,"pyc":["../../victim.pyc"],"pycache":false}}}',
        '{"format":1,"files":{"vllm/\\ud800.py":{"sha256":null,"pyc":[],"pycache":false}}}',
        json.dumps({"format": 1, "applied": [{"recipe": "one", "version": "1", "changes": [CHANGE]}]}),
        DEEP,
        '{"format":1,"files":' + DEEP,
        "\x00",
    ],
)
def test_a_journal_that_makes_no_sense_is_one_error_and_can_be_dropped(
    site: Path, agent: AgentClient, tmp_path: Path, text: str
) -> None:
    before = tree.facts(tmp_path)
    (site / ".specaudit-vllm").mkdir()
    (site / ".specaudit-vllm/journal.json").write_text(text)
    for operation in (agent.status, agent.revert, agent.fetch, lambda: apply(agent, site)):
        with pytest.raises(JournalError, match=r"journal\.json cannot be read") as refused:
            operation()
        assert refused.value.hint.endswith("specaudit patch forget TARGET.")
    assert agent.forget() == {"forgotten": [], "left": []}
    assert tree.facts(tmp_path) == before


def test_without_its_journal_what_was_kept_is_not_thrown_away(site: Path, agent: AgentClient, tmp_path: Path) -> None:
    apply(agent, site)
    (site / ".specaudit-vllm/journal.json").unlink()
    before = tree.facts(tmp_path)
    for refused in (agent.status, agent.revert, lambda: apply(agent, site, "other")):
        with pytest.raises(JournalError, match=r"journal\.json is lost, and what was kept of earlier changes is still"):
            refused()
    found = tree.facts(tmp_path)
    assert found.items() >= before.items()
    assert set(found) - set(before) <= {"site/.specaudit-vllm/lock"}
    assert agent.forget() == {"forgotten": [], "left": []}
    assert agent.status().state == "clean"


def test_a_journal_whose_file_lies_elsewhere_now_is_an_error_of_the_journal(site: Path, agent: AgentClient) -> None:
    apply(agent, site)
    (site / "vllm/a").rename(site / "a")
    (site / "vllm/a").symlink_to("../a")
    for operation in (agent.status, agent.revert):
        with pytest.raises(JournalError, match="leads out of"):
            operation()
    assert agent.forget()["forgotten"] == ["demo"]


def test_a_revert_whose_originals_are_lost_changes_nothing(site: Path, agent: AgentClient, tmp_path: Path) -> None:
    apply(agent, site)
    for name in ("originals", "blobs"):
        shutil.rmtree(site / f".specaudit-vllm/{name}")
    before = tree.facts(site / "vllm")
    with pytest.raises(JournalError, match=r"has lost, or holds damaged, what was kept of vllm/a/linked\.py, ") as lost:
        agent.revert()
    assert "Reinstall the engine" in lost.value.hint
    assert tree.facts(site / "vllm") == before
    assert agent.status().state == "patched"


def test_a_folder_in_the_way_of_a_staged_file_changes_nothing(site: Path, agent: AgentClient, tmp_path: Path) -> None:
    (site / "vllm/.hook.py.specaudit-new").mkdir()
    before = tree.facts(tmp_path)
    with pytest.raises(PatchError, match=r"\.hook\.py\.specaudit-new\): File exists") as failed:
        apply(agent, site)
    assert failed.value.hint.startswith("Nothing is left half done; ")
    assert tree.facts(tmp_path) == before


def test_a_revert_that_fails_half_way_says_so(site: Path, agent: AgentClient, tmp_path: Path) -> None:
    before = tree.facts(tmp_path)
    apply(agent, site)
    subprocess.run(["chattr", "+i", str(site / tree.HOOK)], check=True)
    try:
        with pytest.raises(PatchError, match="not permitted") as failed:
            agent.revert()
        assert agent.status().state == "interrupted"
        assert failed.value.hint == (
            "Some files may be changed and others not: repair what is in the way, then undo it: "
            "specaudit patch revert TARGET."
        )
    finally:
        subprocess.run(["chattr", "-i", str(site / tree.HOOK)], check=True)
    assert not list(site.rglob("*.specaudit-new"))
    agent.revert()
    assert tree.facts(tmp_path) == before


# --- disks and permissions ------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 kB with an engine on it."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_changes_nothing(small_disk: Path) -> None:
    site = tree.make(small_disk)
    agent, (application, blobs) = agent_of(site), tree.application(site)
    failures = []
    for free_kb in (0, 8, 24, 40, 48, 56, 64, 72, 80, 96, 128, 160):
        with (small_disk / "filler").open("wb", buffering=0) as filler:
            free = os.statvfs(small_disk)
            filler.write(b"x" * max(0, free.f_bavail * free.f_bsize - free_kb * 1024))
        before = tree.facts(small_disk)
        try:
            agent.apply([application], blobs)
        except PatchError as failed:
            failures.append(failed.message)
        else:
            agent.revert()
            break
        finally:
            (small_disk / "filler").unlink()
        assert {**tree.facts(small_disk), "filler": before["filler"]} == before
        assert agent.status().state == "clean"
    assert len(failures) >= 4
    assert all("The disk is full" in message for message in failures)
    assert free_kb < 160  # in the end there was room


def test_a_file_size_limit_changes_nothing(site: Path, tmp_path: Path) -> None:
    limited = tmp_path / "python"
    limited.write_text(f'#!/bin/sh\nulimit -f 1\nexec {sys.executable} "$@"\n')
    limited.chmod(0o755)
    before = tree.facts(tmp_path)
    application, blobs = tree.application(site)
    data = b"#" * 4000 + b"\n"
    application["changes"][-1]["after"] = tree.sha(data)
    with pytest.raises(PatchError, match="file size limit"):
        agent_of(site, str(limited)).apply([application], {**blobs, tree.sha(data): data})
    assert tree.facts(tmp_path) == before


@pytest.fixture
def read_only(site: Path) -> Iterator[Path]:
    """The engine on a file system that is mounted read-only."""
    subprocess.run(["mount", "--bind", str(site), str(site)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(site)], check=True)
    yield site
    subprocess.run(["umount", str(site)], check=True)


def test_a_read_only_file_system_is_said(read_only: Path, tmp_path: Path) -> None:
    before = tree.facts(tmp_path)
    with pytest.raises(PatchError, match="read-only") as refused:
        apply(agent_of(read_only), read_only)
    assert "--emit" in refused.value.hint
    assert tree.facts(tmp_path) == before


def test_a_folder_that_turns_immutable_undoes_everything(site: Path, agent: AgentClient, tmp_path: Path) -> None:
    before = tree.facts(tmp_path)
    application, blobs = tree.application(site)
    subprocess.run(["chattr", "+i", str(site / tree.HOOK)], check=True)  # the last file to be replaced
    try:
        with pytest.raises(PatchError, match="not permitted"):
            agent.apply([application], blobs)
        assert tree.facts(tmp_path) == before
        assert agent.status().state == "clean"
    finally:
        subprocess.run(["chattr", "-i", str(site / tree.HOOK)], check=True)


@dataclass(frozen=True)
class Open:
    """An engine in a folder that every user can look into (pytest closes its own), and an ordinary user's Python."""

    folder: Path
    site: Path
    nobody: str


@pytest.fixture
def open_place() -> Iterator[Open]:
    folder = Path(tempfile.mkdtemp(prefix="specaudit-test-"))
    folder.chmod(0o755)
    wrapper = folder / "nobody-python"
    python = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
    wrapper.write_text(f'#!/bin/sh\nexec setpriv --reuid 65534 --regid 65534 --clear-groups {python} "$@"\n')
    wrapper.chmod(0o755)
    yield Open(folder, tree.make(folder / "w"), str(wrapper))
    shutil.rmtree(folder)


def test_no_permission_is_said(open_place: Open) -> None:
    before = tree.facts(open_place.folder)
    with pytest.raises(PatchError, match="Permission was denied"):
        apply(agent_of(open_place.site, open_place.nobody), open_place.site)
    assert tree.facts(open_place.folder) == before


def test_a_journal_that_this_user_may_not_read_is_said(open_place: Open) -> None:
    apply(agent_of(open_place.site), open_place.site)
    (open_place.site / ".specaudit-vllm/journal.json").chmod(0o600)
    before, agent = tree.facts(open_place.folder), agent_of(open_place.site, open_place.nobody)
    for operation in (agent.status, agent.revert, agent.forget):
        with pytest.raises(PatchError, match=r"Permission was denied \(.*journal\.json\)") as denied:
            operation()
        assert denied.value.hint == "Run as the owner of the engine's files, or with --sudo."
    assert tree.facts(open_place.folder) == before


def test_an_owner_that_cannot_be_kept_is_refused(open_place: Open) -> None:
    for path in [open_place.site, *open_place.site.rglob("*")]:
        if path.is_dir():
            os.chown(path, 65534, 65534)
    before = tree.facts(open_place.folder)
    with pytest.raises(PatchError, match="belongs to user 0 and group 0"):
        apply(agent_of(open_place.site, open_place.nobody), open_place.site, only=(tree.PLAIN,))
    assert tree.facts(open_place.folder) == before


def test_what_root_applied_the_owner_of_the_engine_can_revert(open_place: Open) -> None:
    for path in [open_place.site, *open_place.site.rglob("*")]:
        os.chown(path, 65534, 65534, follow_symlinks=False)
    before = tree.facts(open_place.folder)
    apply(agent_of(open_place.site), open_place.site)
    agent_of(open_place.site, open_place.nobody).revert()
    assert tree.facts(open_place.folder) == before


# --- the script -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [module.rpartition(".")[2] + ".py" for module in AGENT])
def test_the_agent_is_python_3_8_and_stdlib_only(name: str) -> None:
    text = files("specaudit.patching").joinpath(name).read_text()
    module = ast.parse(text, feature_version=(3, 8))
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            assert {a.name for a in node.names} <= set(sys.stdlib_module_names)
        if isinstance(node, ast.ImportFrom):
            assert node.module in AGENT or (node.module or "").partition(".")[0] in sys.stdlib_module_names

"""Plan, apply, verify, journal and revert on a copy of a real release that shares every file with the original."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from support.derived import derived
from support.limits import file_limit

from specaudit.cache import Cache, folder
from specaudit.errors import Exit, PatchError, RecipeRefused, UsageError
from specaudit.model import Target
from specaudit.patching import fleet, importing
from specaudit.patching.diff import difference, dockerfile, patch
from specaudit.patching.journal import Journal, state_folder
from specaudit.patching.operations import carry_out, journal_of, prepare, take_back, verify
from specaudit.patching.place import Place, Surroundings, place
from specaudit.patching.plan import plan
from specaudit.patching.present import plan_lines, standing_lines, state_word
from specaudit.patching.recipes.base import Recipe
from specaudit.patching.recipes.registry import named, recipes
from specaudit.patching.workspace import Workspace
from specaudit.snapshot import of_folder
from tests.patching import tree

Release = Callable[[str], Path]
Copy = Callable[[str], Path]
LAYERS, SLOTS = "dflash-layer-ids", "lookahead-slots"
SCHEDULER = "vllm/v1/core/sched/scheduler.py"


@pytest.fixture(scope="session")
def cached(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """0.20.1 as a package manager's cache holds it."""
    folder = tmp_path_factory.mktemp("cached") / "vllm-0.20.1"
    subprocess.run(["cp", "-a", str(release("0.20.1")), str(folder)], check=True)
    return folder


@pytest.fixture
def copy(cached: Path, tmp_path: Path) -> Copy:
    """``copy("a")``: 0.20.1 in a folder of its own, every file a hard link to the cache, as uv installs it."""

    def make(name: str) -> Path:
        target = tmp_path / name / "site-packages"
        target.parent.mkdir()
        subprocess.run(["cp", "-al", str(cached), str(target)], check=True)
        return target

    return make


@pytest.fixture
def cache() -> Iterator[Cache]:
    with Cache(folder()) as made:
        yield made


@pytest.fixture
def opened(cache: Cache) -> Callable[[Path], Place]:
    """``opened(folder)``: the place ``dir:folder``."""

    def make(site: Path) -> Place:
        with place(Target(f"dir:{site}"), cache) as found:
            return found

    return make


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    return tmp_path / "journals"


def apply(where: Place, *names: str, journals: Path) -> tuple[str, ...]:
    return carry_out(where, prepare(where, named(names)).plan, journals)


def sources(site: Path) -> dict[str, str]:
    return {str(p.relative_to(site)): tree.sha(p.read_bytes()) for p in (site / "vllm").rglob("*.py")}


def test_apply_verify_revert_on_a_real_release(
    copy: Copy, opened: Callable[[Path], Place], journals: Path, cached: Path
) -> None:
    site = copy("a")
    before, shared = tree.facts(site), sources(cached)
    assert not apply(opened(site), LAYERS, SLOTS, journals=journals)
    found = verify(opened(site))
    assert found.problems == ()
    assert found.recipes == (LAYERS, SLOTS)
    assert len(found.repaired) == 4
    assert found.compiled == 4
    assert sources(cached) == shared
    changed = {path for path, sha in sources(site).items() if sha != shared[path]}
    facts = opened(site).snapshot().engine
    assert set(facts.patched) == changed
    assert not set(facts.modified) & changed
    take_back(opened(site), None, journals)
    assert tree.facts(site) == before


def test_a_later_scan_calls_the_difference_patched_and_a_foreign_one_modified(
    copy: Copy, cache: Cache, opened: Callable[[Path], Place], journals: Path
) -> None:
    site = copy("a")
    apply(opened(site), SLOTS, journals=journals)
    other = site / "vllm/config/cache.py"
    data = other.read_bytes()
    other.unlink()
    other.write_bytes(data + b"# someone\n")
    from specaudit.hosts.folder import FolderHost
    from specaudit.snapshot import take

    host = FolderHost("site", [str(site)])  # with RECORD, as @local and machines see it
    facts = take(host, Target("@local"), host.installations(("vllm",))[0], lambda path: True).engine
    assert facts.patched == (SCHEDULER,)
    assert facts.modified == ("vllm/config/cache.py",)
    (site / SCHEDULER).write_bytes((site / SCHEDULER).read_bytes() + b"# someone\n")
    facts = take(host, Target("@local"), host.installations(("vllm",))[0], lambda path: True).engine
    assert facts.patched == ()
    assert facts.modified == ("vllm/config/cache.py", SCHEDULER)


def test_the_journal_holds_originals_plan_and_what_was_written(
    copy: Copy, opened: Callable[[Path], Place], journals: Path
) -> None:
    site = copy("a")
    original = (site / SCHEDULER).read_bytes()
    where = opened(site)
    apply(where, SLOTS, journals=journals)
    patched = (site / SCHEDULER).read_bytes()
    journal = journal_of(where, journals)
    assert [e.subject for e in journal.entries()] == [f"applied: {SLOTS} 1", f"planned: {SLOTS} 1"]
    assert journal.contents("originals") == {SCHEDULER: original}
    assert journal.contents("files") == {SCHEDULER: patched}
    written = json.loads((journal.path / "plan.json").read_text())
    assert written["recipes"][0]["anchors"][0]["path"] == SCHEDULER
    shown = journal.show(journal.entries()[0].identity[:8])
    assert "+                self.num_lookahead_tokens = self.num_spec_tokens + 1\n" in shown
    take_back(where, None, journals)
    assert journal.entries()[0].subject == f"reverted: {SLOTS}"
    assert journal.contents("files") == {SCHEDULER: original}
    log = subprocess.run(["git", "-C", str(journal.path), "fsck", "--strict"], capture_output=True, text=True)
    assert log.returncode == 0, log.stderr
    with pytest.raises(UsageError, match="no entry 'beef'"):
        journal.show("beef")


def test_the_users_git_configuration_is_not_for_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "gitconfig"
    config.write_text("[commit]\n  gpgsign = true\n[core]\n  autocrlf = true\n  hooksPath = /nonexistent\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    journal = Journal("gpu1", "/site/.specaudit-vllm", "vllm", tmp_path / "j")
    journal.record("planned: x", files={"vllm/a.py": b"a\r\nb\n"})
    journal.record("applied: x", files={"vllm/a.py": b"a\r\nc\n", "vllm/b/c.py": b""})
    journal.record("reverted: x", files={"vllm/a.py": b"a\r\nb\n"})
    assert journal.contents("files") == {"vllm/a.py": b"a\r\nb\n"}
    assert len(journal.entries()) == 3
    assert (journal.path.stat().st_mode & 0o777) == 0o700
    with pytest.raises(PatchError, match="outside the engine"):
        journal.record("evil", files={"../../x": b""})


@pytest.mark.parametrize("damaged", [".git/refs/heads/journal", ".git/index", ".git/objects/*/*", ".git/HEAD"])
def test_a_history_that_a_power_cut_left_unreadable_is_put_aside(tmp_path: Path, damaged: str) -> None:
    journal = Journal("gpu1", "/site/.specaudit-vllm", "vllm", tmp_path / "j")
    assert journal.record("planned: x", files={"vllm/a.py": b"a"}) == ""
    for file in journal.path.glob(damaged):
        file.chmod(0o600)
        file.write_bytes(b"")
    with contextlib.suppress(PatchError):  # one clear error, or what is left of it
        journal.entries()
    said = journal.record("applied: x", files={"vllm/a.py": b"b"})
    assert "was put aside as" in said
    assert [entry.subject for entry in journal.entries()] == ["applied: x"]
    assert len(list((tmp_path / "j").glob("*-unreadable-*"))) == 1
    assert journal.contents("files") == {"vllm/a.py": b"b"}


def test_a_lock_that_a_killed_run_left_is_no_obstacle(tmp_path: Path) -> None:
    journal = Journal("gpu1", "/site/.specaudit-vllm", "vllm", tmp_path / "j")
    journal.record("planned: x", files={"vllm/a.py": b"a"})
    lock = journal.path / ".git/index.lock"
    lock.touch()
    with pytest.raises(PatchError, match="cannot be used"):  # somebody may be at work
        journal.record("applied: x", files={"vllm/a.py": b"b"})
    os.utime(lock, (0, 0))
    assert journal.record("applied: x", files={"vllm/a.py": b"b"}) == ""
    assert len(journal.entries()) == 2


def test_journals_that_are_written_at_the_same_time_leave_the_working_directory_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def moved(path: object) -> None:
        raise AssertionError(f"the whole process went to {path}")

    def record(number: int) -> Journal:
        journal = Journal(f"gpu{number}", "/site/.specaudit-vllm", "vllm", tmp_path / "j")
        for text in (b"a", b"b", b"a"):
            journal.record("applied: x", files={"vllm/a.py": text * (1 + number)})
        return journal

    monkeypatch.setattr(os, "chdir", moved)
    with ThreadPoolExecutor(8) as pool:
        for number, journal in enumerate(pool.map(record, range(8))):
            assert journal.contents("files") == {"vllm/a.py": b"a" * (1 + number)}
            assert len(journal.entries()) == 3
            fsck = subprocess.run(["git", "-C", str(journal.path), "fsck", "--strict"], capture_output=True, text=True)
            assert fsck.returncode == 0, fsck.stderr
            clean = subprocess.run(
                ["git", "-C", str(journal.path), "status", "--porcelain"], capture_output=True, text=True
            )
            assert clean.stdout == ""


def test_a_journal_that_cannot_be_kept_is_a_note_and_the_change_stands(
    copy: Copy, opened: Callable[[Path], Place], tmp_path: Path
) -> None:
    (tmp_path / "blocked").write_text("a file where a folder should be")
    where = opened(copy("a"))
    (note,) = apply(where, SLOTS, journals=tmp_path / "blocked")  # said once, though it was to be written twice
    assert "cannot be used" in note
    assert where.agent().status().recipes == (SLOTS,)


def test_a_journal_that_cannot_be_read_is_a_note_and_the_change_goes_on(
    copy: Copy, opened: Callable[[Path], Place], journals: Path
) -> None:
    where = opened(copy("a"))
    apply(where, SLOTS, journals=journals)
    kept = journal_of(where, journals).path / "originals" / SCHEDULER
    kept.unlink()
    kept.symlink_to("/proc/self/mem")  # opens, and cannot be read, as on a bad disk
    (note,) = apply(where, "gdn-state-index", journals=journals)
    assert note.startswith(f"The journal {kept.parents[5]} cannot be used: Input/output error.")
    answer, notes = take_back(where, None, journals)
    assert (list(answer["reverted"]), notes) == ([SLOTS, "gdn-state-index"], (note,))
    assert where.agent().status().state == "clean"


def test_an_account_without_a_home_has_no_journal_and_is_served(
    copy: Copy, opened: Callable[[Path], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", "nowhere")
    where = opened(copy("a"))
    said = carry_out(where, prepare(where, named([SLOTS])).plan)
    assert said == (
        "There is no place for a journal: this account has no home. Set XDG_STATE_HOME to a folder. "
        "A change or a revert does without.",
    )
    assert take_back(where)[1] == said


@pytest.mark.parametrize(
    ("said", "base"),
    [("", "/h/.local/state"), ("near", "/h/.local/state"), ("~no-such-user/x", "/h/.local/state"), ("~/s", "/h/s")],
)
def test_the_state_folder_is_absolute(monkeypatch: pytest.MonkeyPatch, said: str, base: str) -> None:
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setenv("XDG_STATE_HOME", said)
    assert state_folder() == Path(base, "specaudit")


FULL = "Free some space there, or set XDG_STATE_HOME to a folder on another disk. A change or a revert does without."


def test_a_journal_on_a_full_disk_says_so_and_what_helps(tmp_path: Path) -> None:
    journal = Journal("gpu1", "/site/.specaudit-vllm", "vllm", tmp_path / "j")
    journal.path.mkdir(parents=True)
    (journal.path / "install.json").symlink_to("/dev/full")
    with pytest.raises(PatchError) as told:
        journal.record("planned: x")
    assert told.value.message == f"The journal {journal.path} cannot be used: No space left on device."
    assert told.value.hint == FULL
    (journal.path / "install.json").unlink()
    assert journal.record("applied: x") == ""
    assert [entry.subject for entry in journal.entries()] == ["applied: x"]


@pytest.mark.parametrize(
    ("free", "said", "hint"),
    [(1 << 30, "git was ended by a signal (File size limit exceeded)", "git installed"), (4096, "No space left", FULL)],
)
def test_a_history_that_git_could_not_begin_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, said: str, hint: str
) -> None:
    """Git that runs out of space does not always say so, and leaves what would pass for a damaged history."""
    journal = Journal("gpu1", "/site/.specaudit-vllm", "vllm", tmp_path / "j")
    used = type(shutil.disk_usage("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: used(1 << 30, (1 << 30) - free, free))
    with file_limit(0), pytest.raises(PatchError) as told:
        journal.record("planned: x", files={"vllm/a.py": b"x"})
    assert told.value.message.startswith(f"The journal {journal.path} cannot be used: {said}")
    assert hint in told.value.hint
    assert list(journal.path.iterdir()) == []
    assert journal.record("applied: x", files={"vllm/a.py": b"x"}) == ""
    assert [entry.subject for entry in journal.entries()] == ["applied: x"]


def test_what_git_says_about_a_history_is_told_without_its_command_line(tmp_path: Path) -> None:
    journal = Journal("gpu1", "/site/.specaudit-vllm", "vllm", tmp_path / "j")
    journal.path.mkdir(parents=True)
    (journal.path / ".git").write_text("no repository")
    with pytest.raises(PatchError) as told:
        journal.record("planned: x")
    assert told.value.message.startswith(f"The journal {journal.path} cannot be used: invalid gitfile format")
    assert "Command" not in told.value.message


def test_another_user_of_another_machine_reverts(
    copy: Copy, opened: Callable[[Path], Place], journals: Path, tmp_path: Path
) -> None:
    site = copy("a")
    before = tree.facts(site)
    apply(opened(site), LAYERS, SLOTS, journals=journals)
    elsewhere = tmp_path / "another-home"
    with Cache(tmp_path / "another-cache") as empty, place(Target(f"dir:{site}"), empty) as where:
        assert journal_of(where, elsewhere).entries() == ()
        answer, notes = take_back(where, None, elsewhere)
        assert answer["reverted"] == [LAYERS, SLOTS]
        assert notes == ()
        assert [e.subject for e in journal_of(where, elsewhere).entries()] == [f"reverted: {LAYERS}, {SLOTS}"]
    assert tree.facts(site) == before


def test_planning_again_says_what_is_applied(copy: Copy, opened: Callable[[Path], Place], journals: Path) -> None:
    where = opened(copy("a"))
    apply(where, SLOTS, journals=journals)
    again = prepare(where, named([SLOTS])).plan
    assert (again.steps, again.already) == ((), (SLOTS,))
    both = prepare(where, named([LAYERS, SLOTS])).plan
    assert ([s.recipe for s in both.steps], both.already) == ([LAYERS], (SLOTS,))


def test_an_applied_recipe_of_another_version_must_be_reverted_first(
    copy: Copy, opened: Callable[[Path], Place], journals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = opened(copy("a"))
    apply(where, SLOTS, journals=journals)
    monkeypatch.setattr(type(recipes()[SLOTS]), "version", "2")
    with pytest.raises(RecipeRefused, match="version 1 is applied, this program has version 2") as refused:
        prepare(where, named([SLOTS]))
    assert "--recipe lookahead-slots" in refused.value.hint


def test_nothing_is_planned_on_drifted_files(copy: Copy, opened: Callable[[Path], Place], journals: Path) -> None:
    site = copy("a")
    apply(opened(site), SLOTS, journals=journals)
    (site / SCHEDULER).write_bytes((site / SCHEDULER).read_bytes() + b"# mine\n")
    with pytest.raises(PatchError, match=rf"patched files have changed since: {SCHEDULER} \(changed\)"):
        prepare(opened(site), named([LAYERS]))
    found = verify(opened(site))
    assert found.problems == (f"{SCHEDULER} is changed, not as it was patched",)
    standing = opened(site).agent().status()
    assert state_word(standing) == "drifted"
    assert any("changed" in text and SCHEDULER in text for text, _ in standing_lines("x", standing))


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_verify_says_what_took_the_place_of_a_file_and_does_not_wait_for_it(
    copy: Copy, opened: Callable[[Path], Place], journals: Path, make: Callable[[Path], None]
) -> None:
    site = copy("a")
    apply(opened(site), SLOTS, journals=journals)
    (site / SCHEDULER).unlink()
    make(site / SCHEDULER)
    found = verify(opened(site))
    assert found.problems[0] == f"{SCHEDULER} is changed, not as it was patched"
    assert not [problem for problem in found.problems if "compile" in problem]


def test_verify_says_what_does_not_compile_and_imports_when_asked(
    copy: Copy, opened: Callable[[Path], Place], journals: Path
) -> None:
    site = copy("a")
    apply(opened(site), SLOTS, journals=journals)
    found = verify(opened(site), imports=True)
    # Without the other requirements of the engine its modules cannot be imported: the reason is given.
    assert found.imported == 0
    assert any(f"{SCHEDULER[:-3].replace('/', '.')} cannot be imported" in problem for problem in found.problems)


def test_why_modules_cannot_be_imported_is_said_once_for_each_reason() -> None:
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    import torch\n'
    absent = f"{trace}ModuleNotFoundError: No module named 'torch'"
    tried = {"e.a": absent, "e.b": "", "e.c": f"{trace}ImportError: libcuda.so.1: no such file", "e.d": absent}
    python, where = "/usr/bin/python3", Target("gpu1", host="gpu1")
    assert importing.problems(tried, python) == (
        "e.a, e.d cannot be imported by /usr/bin/python3: ModuleNotFoundError: No module named 'torch'",
        "e.c cannot be imported by /usr/bin/python3: ImportError: libcuda.so.1: no such file",
    )
    many = dict.fromkeys(("e.a", "e.b", "e.c", "e.d"), "it was ended by signal 11 (Segmentation fault)")
    (one,) = importing.problems(many, python)
    assert one.startswith("e.a, e.b, e.c and 1 more module cannot be imported by /usr/bin/python3: it was ended by")
    assert importing.advice(tried, python, "/site", "e", where) == (
        "/usr/bin/python3 does not have torch. "
        "Name the interpreter that runs the engine (--python PATH or --venv DIR), or install there what is missing."
    )
    assert importing.advice({"e.b": ""}, python, "/site", "e", where) == ""
    told = importing.advice({"e.c": tried["e.c"]}, python, "/site", "e", where)
    assert told.startswith("See all of it there: cd / && /usr/bin/python3 -B -c ")
    assert "'\"'\"'/site'\"'\"'" in told
    absent = absent.replace("torch'", "e.gone'")  # the engine's own: no other interpreter would have it
    assert "See all of it" in importing.advice({"e.a": absent}, python, "/site", "e", where)


@pytest.fixture
def bare(copy: Copy) -> Path:
    """An engine whose package can be imported without its requirements."""
    site = copy("a")
    (site / "vllm/__init__.py").unlink()
    (site / "vllm/__init__.py").touch()
    return site


def imported(place: Place, names: list[str], seconds: float) -> dict[str, str]:
    request = {"paths": [], "modules": [f"vllm.{name}" for name in names], "seconds": seconds}
    found: dict[str, str] = place.call("specaudit.patching.checking", request)["imported"]
    return found


def test_what_ends_an_import_without_a_word_is_said(bare: Path, opened: Callable[[Path], Place]) -> None:
    noise = "import os, sys, signal, time; print('a warning', file=sys.stderr)\n"
    for name, code in (
        ("quits", "os._exit(7)"), ("dies", "os.abort()"), ("refuses", "sys.exit('no GPU')"), ("fine", ""),
        ("leaves", "import subprocess; subprocess.Popen(['sleep', '30'])"), ("hangs", "time.sleep(60)"), ("last", ""),
    ):  # fmt: skip
        (bare / f"vllm/{name}.py").write_text(noise + code)
    names = ["quits", "dies", "refuses", "fine", "leaves", "hangs", "last"]
    assert imported(opened(bare), names, 3.0) == {
        "vllm.quits": "it ended with exit status 7: a warning",
        "vllm.dies": "it was ended by signal 6 (Aborted): a warning",
        "vllm.refuses": "it ended with exit status 1: no GPU",
        "vllm.leaves": "",
        "vllm.fine": "",
        "vllm.hangs": "no answer within 3 s",
        "vllm.last": "",
    }


def test_modules_are_imported_by_one_process_until_one_fails(bare: Path, opened: Callable[[Path], Place]) -> None:
    """An engine's first import takes half a minute: not once for each of thirty modules."""
    log = bare / "seen"
    note = f"import os; open({str(log)!r}, 'a').write(f'{{__name__}} {{os.getpid()}}\\n')\n"
    for name, code in (("one", ""), ("two", ""), ("wrong", "raise LookupError('no such thing')"), ("three", "")):
        (bare / f"vllm/{name}.py").write_text(note + code)
    found = imported(opened(bare), ["one", "two", "wrong", "three"], 60.0)
    assert found.pop("vllm.wrong").endswith("LookupError: no such thing")
    assert set(found.values()) == {""}
    by_name = dict(line.split() for line in log.read_text().splitlines())
    assert by_name["vllm.one"] == by_name["vllm.two"] == by_name["vllm.wrong"] != by_name["vllm.three"]


class Feature(Recipe):
    """New files in new folders, a switch that needs another recipe, and a postcondition of its own."""

    name, version, summary, requires = "feature", "1", "adds something", (SLOTS,)

    def write(self, work: Workspace, present: frozenset[str]) -> None:
        assert present == frozenset()
        config = work.edit("vllm/config/vllm.py")
        config.add_import("SpeculativeConfig", "new", module="vllm.new.deep")
        for name in ("__init__", "kernels", "deep/__init__", "deep/new"):
            work.add(f"vllm/new/{name}.py", f'"""{name}"""\n'.encode())


class Broken(Feature):
    """Its postcondition does not hold."""

    name = "broken"

    def check(self, before: object, after: object) -> tuple[str, ...]:
        return ("the tree is not walked",)


def test_a_feature_brings_new_files_and_what_it_requires(
    copy: Copy, opened: Callable[[Path], Place], journals: Path
) -> None:
    site = copy("a")
    before = tree.facts(site)
    where = opened(site)
    known = {**recipes(), "feature": Feature()}
    made = plan(where.snapshot(), [Feature()], {}, known)
    assert [step.recipe for step in made.steps] == [SLOTS, "feature"]
    assert made.notes == (f"{SLOTS} is planned too: feature needs it",)
    assert [c.before is None for c in made.steps[1].changes] == [True] * 4 + [False]
    carry_out(where, made, journals)
    assert (site / "vllm/new/deep/new.py").read_text() == '"""deep/new"""\n'
    with pytest.raises(PatchError, match="feature needs it"):
        take_back(where, [SLOTS], journals)
    take_back(where, ["feature"], journals)
    assert not (site / "vllm/new").exists()
    take_back(where, None, journals)
    assert tree.facts(site) == before
    with pytest.raises(RecipeRefused, match="broken: the tree is not walked"):
        plan(where.snapshot(), [Broken()], {}, known)


@pytest.mark.parametrize("asked", [(SLOTS, "feature"), ("feature", SLOTS)])
def test_a_recipe_that_is_asked_for_and_required_counts_once(
    copy: Copy, opened: Callable[[Path], Place], asked: tuple[str, ...]
) -> None:
    snapshot = opened(copy("a")).snapshot()
    wanted = [{**recipes(), "feature": Feature()}[name] for name in asked]
    known = {**recipes(), "feature": Feature()}  # made anew, as the command does
    made = plan(snapshot, wanted, {}, known)
    assert ([step.recipe for step in made.steps], made.already, made.notes) == ([SLOTS, "feature"], (), ())
    again = plan(snapshot, wanted, {SLOTS: "1", "feature": "1"}, known)
    assert (again.steps, again.already, again.notes) == ((), (SLOTS, "feature"), ())


@pytest.mark.parametrize("gone", [False, True])
def test_a_file_that_another_run_changes_during_the_plan_is_to_be_planned_again(
    copy: Copy, opened: Callable[[Path], Place], monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    site = copy("a")
    recipe = Feature()
    write = recipe.write

    def overtaken(work: Workspace, present: frozenset[str]) -> None:
        file = site / "vllm/config/vllm.py"
        data = file.read_bytes()
        file.unlink()
        if not gone:
            file.write_bytes(data + b"# another run\n")
        work.edit("vllm/config/vllm.py")
        write(work, present)

    monkeypatch.setattr(recipe, "write", overtaken)
    with pytest.raises(
        PatchError, match=r"vllm/config/vllm\.py is gone or changed while it was being examined: (No such|its content)"
    ) as refused:
        prepare(opened(site), [recipe])
    assert (refused.value.code, refused.value.hint) == (
        Exit.ERROR, "Plan again: specaudit patch TARGET --recipe NAME.",
    )  # fmt: skip


class Elsewhere(Broken):
    """What it edits is not in this engine."""

    name, siblings = "elsewhere", ("feature", "broken-too", "repaired", "unknown")

    def write(self, work: Workspace, present: frozenset[str]) -> None:
        work.edit("vllm/config/vllm.py").definition("NoSuchClass")


class BrokenToo(Elsewhere):
    """Refused as well."""

    name, siblings = "broken-too", ("elsewhere",)


class Repaired(Feature):
    """It would fit, but has nothing to repair."""

    name, repairs = "repaired", ("removed-method-medusa",)


def test_a_refusal_names_the_siblings_that_fit(copy: Copy, opened: Callable[[Path], Place]) -> None:
    snapshot = opened(copy("a")).snapshot()
    made = (Elsewhere(), BrokenToo(), Feature(), Repaired())
    known = {**recipes(), **{recipe.name: recipe for recipe in made}}
    with pytest.raises(RecipeRefused, match=r"elsewhere: .* has no NoSuchClass") as refused:
        plan(snapshot, [Elsewhere()], {}, known)
    assert refused.value.hint == "Use --recipe feature instead, which fits this engine."
    with pytest.raises(RecipeRefused) as refused:
        plan(snapshot, [Elsewhere()], {"feature": "1"}, known)
    assert refused.value.hint == "feature, which fits this engine, is applied already."
    with pytest.raises(RecipeRefused) as refused:
        plan(snapshot, [BrokenToo()], {}, known)
    assert "another shape" in refused.value.hint


# --- patch files ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def every_change(release: Release) -> bytes:
    snapshot = of_folder(release("0.20.1"), "vllm", "0.20.1", derived())
    made = plan(snapshot, named([LAYERS, "v1-draft-probs", SLOTS, "hybrid-mamba-margin", "gdn-state-index"]))
    return patch(made)


@pytest.mark.parametrize("tool", [["git", "apply"], ["patch", "-p1", "--fuzz=0", "-s", "-i"]])
def test_a_patch_file_gives_the_bytes_that_apply_gives(
    copy: Copy, opened: Callable[[Path], Place], journals: Path, every_change: bytes, tmp_path: Path, tool: list[str]
) -> None:
    file = tmp_path / "all.patch"
    file.write_bytes(every_change)
    by_tool, by_us = copy("tool"), copy("us")
    for path in {line.split(" b/")[1] for line in file.read_text().splitlines() if line.startswith("diff --git")}:
        if (by_tool / path).exists():  # patch writes into hard links
            data = (by_tool / path).read_bytes()
            (by_tool / path).unlink()
            (by_tool / path).write_bytes(data)
    subprocess.run([*tool, str(file)], cwd=by_tool, check=True)
    names = (LAYERS, "v1-draft-probs", SLOTS, "hybrid-mamba-margin", "gdn-state-index")
    apply(opened(by_us), *names, journals=journals)
    assert sources(by_tool) == sources(by_us)
    assert not list(by_tool.rglob("*.orig")) + list(by_tool.rglob("*.rej"))


@pytest.mark.parametrize("tool", [["git", "apply"], ["patch", "-p1", "--fuzz=0", "-s", "-i"]])
def test_a_patch_file_of_odd_files_gives_the_same_bytes(tmp_path: Path, tool: list[str]) -> None:
    from specaudit.patching.model import Change

    odd = {
        "vllm/crlf.py": (b"a = 1\r\nb = 2\r\nc = 3\r\n", b"a = 1\r\nb = 20\r\nc = 3\r\n"),
        "vllm/bom.py": (b"\xef\xbb\xbfa = 1\n", b"\xef\xbb\xbfa = 2\n"),
        "vllm/no_newline.py": (b"a = 1\nb = 2", b"a = 1\nb = 3"),
        "vllm/gains_newline.py": (b"a = 1", b"a = 1\n"),
        "vllm/latin.py": (
            "# coding: latin-1\na = 'ä'\n".encode("latin-1"),
            "# coding: latin-1\na = 'ö'\n".encode("latin-1"),
        ),
        "vllm/minus.py": (b"- 1\n-- 2\n--- 3\nx\n", b"+ 1\n++ 2\n+++ 3\nx\n"),
        "vllm/new/deep.py": (None, b"a = 1\n"),
    }
    for path, (before, _) in odd.items():
        if before is not None:
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_bytes(before)
    file = tmp_path / "odd.patch"
    file.write_bytes(b"".join(difference(Change(path, before, after)) for path, (before, after) in odd.items()))
    subprocess.run([*tool, str(file)], cwd=tmp_path, check=True)
    assert {path: (tmp_path / path).read_bytes() for path in odd} == {path: after for path, (_, after) in odd.items()}


def test_the_dockerfile_line_works_as_a_shell_command(copy: Copy, release: Release, tmp_path: Path) -> None:
    site = copy("a")
    made = plan(of_folder(site, "vllm", "0.20.1", derived()), named([SLOTS]))
    lines = dockerfile("vllm", "x.patch", made.paths).splitlines()
    assert lines[0] == "COPY x.patch /tmp/x.patch"
    (tmp_path / "x.patch").write_bytes(patch(made))
    command = lines[1].removeprefix("RUN ").replace("/tmp/", f"{tmp_path}/")
    (site / "vllm/v1/core/sched/__pycache__").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(site)}
    subprocess.run(["sh", "-c", command], check=True, env=environment, cwd="/", capture_output=True)
    assert tree.sha((site / SCHEDULER).read_bytes()) == made.total[0].after_sha
    assert not (site / "vllm/v1/core/sched/__pycache__").exists()


@pytest.mark.parametrize(
    ("name", "source"),
    [("my patch.patch", "my patch.patch"), ("$HOME.patch", "\\$HOME.patch"), ("a[1]*.patch", "a[[]1][*].patch")],
)
def test_the_dockerfile_line_takes_any_name(name: str, source: str) -> None:
    copied, command = dockerfile("vllm", name, ["vllm/a/b.py"]).splitlines()
    assert json.loads(copied.removeprefix("COPY ")) == [source, "/tmp/specaudit.patch"]
    assert " < /tmp/specaudit.patch && " in command


def test_a_wheel_can_be_planned_on_but_not_changed(cache: Cache, release: Release) -> None:
    from specaudit.errors import TargetError

    with place(Target("vllm==0.20.1"), cache) as where:
        assert prepare(where, named([SLOTS])).plan.paths == (SCHEDULER,)
        with pytest.raises(TargetError, match="cannot be changed in place") as refused:
            where.agent()
    assert "--emit" in refused.value.hint


def test_a_commit_can_be_planned_on_but_is_not_taken_for_the_folder_beside_it(
    copy: Copy, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    from git import Actor, Repo

    from specaudit.errors import TargetError

    clone = copy("clone")
    with Repo.init(clone) as repo:
        repo.git.add(all=True)
        author = Actor("a", "a@example.com")
        repo.index.commit("engine", author=author, committer=author)
        repo.create_tag("v0.20.1")
    monkeypatch.chdir(copy("beside"))  # an engine lies here as well: it is not the one that was named
    with place(Target(f"git:{clone}@v0.20.1"), cache) as where:
        assert prepare(where, named([SLOTS])).plan.paths == (SCHEDULER,)
        with pytest.raises(TargetError, match="cannot be changed in place"):
            where.agent()


# --- who else is concerned ------------------------------------------------------------------------------------------


def test_a_plan_names_environments_that_share_a_file(
    copy: Copy, opened: Callable[[Path], Place], tmp_path: Path
) -> None:
    site = copy("project/.venv/lib/python3.12".replace("/", "-"))
    twin = tmp_path / "project/.venv/lib/python3.12/site-packages/vllm/v1/core/sched"
    twin.mkdir(parents=True)
    os.link(site / SCHEDULER, twin / "scheduler.py")
    alias = tmp_path / "other/.venv/lib/python3.12/site-packages"
    alias.parent.mkdir(parents=True)
    alias.symlink_to(site, target_is_directory=True)
    prepared = prepare(opened(site), named([SLOTS]))
    (shared,) = prepared.surroundings.shared
    assert shared.others == (str(twin / "scheduler.py"),)
    assert shared.unknown == (site / SCHEDULER).stat().st_nlink - 2  # the cache
    assert prepared.surroundings.aliases == (f"{alias}/vllm",)
    text = " ".join(word for line, _ in plan_lines("x", prepared) for word in line.split())
    assert f"{twin}/scheduler.py shares {SCHEDULER}: it keeps the old content" in text
    assert f"{alias}/vllm leads to the same folder: it changes too" in text
    assert "anchor vllm/v1/core/sched/scheduler.py:222" in text


def test_a_plan_keeps_to_80_columns_except_for_code_and_paths(copy: Copy, opened: Callable[[Path], Place]) -> None:
    prepared = prepare(opened(copy("a")), named([LAYERS]))
    server = "vllm serve " + 9 * "--an-option-of-it its-value " + "--speculative-config {\n'method': 'dflash'\n}"
    prepared = replace(prepared, surroundings=Surroundings(processes=((4321, server),)))
    lines = [line for line, _ in plan_lines("x", prepared, diffs=False)]
    assert not any("\n" in line for line in lines)
    assert [line for line in lines if len(line) > 80 and len(line.split()) > 1] == []
    assert "  anchor   vllm/config/speculative.py:284  hash_str =" in lines


def test_the_lib64_of_an_environment_is_nobody_else(
    copy: Copy, opened: Callable[[Path], Place], tmp_path: Path
) -> None:
    real = copy("a")
    site = tmp_path / "v/lib/python3.12/site-packages"
    site.parent.mkdir(parents=True)
    real.rename(site)
    (tmp_path / "v/lib64").symlink_to("lib")
    other = tmp_path / "w/lib/python3.12/site-packages"
    other.mkdir(parents=True)
    (other / "vllm").symlink_to(site / "vllm")
    (tmp_path / "w/lib64").symlink_to("lib")
    prepared = prepare(opened(site), named([SLOTS]))
    assert prepared.surroundings.aliases == (f"{other}/vllm",)


def test_a_plan_names_processes_that_have_loaded_the_engine(copy: Copy, opened: Callable[[Path], Place]) -> None:
    site = copy("a")
    library = site / "vllm/_C.abi3.so"
    library.write_bytes(b"\0" * 8192)
    code = "import mmap, sys; f = open(sys.argv[1]); m = mmap.mmap(f.fileno(), 0, prot=1); print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(["python3", "-c", code, str(library)], text=True, **pipes) as server:
        assert server.stdout is not None
        server.stdout.readline()
        found = prepare(opened(site), named([SLOTS])).surroundings.processes
        server.kill()
    assert [pid for pid, _ in found] == [server.pid]


# --- fleets ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def three(copy: Copy) -> dict[str, Path]:
    """Three hosts with the same engine."""
    return {name: copy(name) for name in ("gpu1", "gpu2", "gpu3")}


@pytest.fixture
def open_place(cache: Cache) -> fleet.Open:
    return lambda target: place(target, cache)


def targets(hosts: dict[str, Path]) -> list[Target]:
    return [Target(f"dir:{site}") for site in hosts.values()]


def test_a_fleet_is_changed_and_verified(three: dict[str, Path], open_place: fleet.Open, journals: Path) -> None:
    planned = fleet.plan_all(targets(three), named([SLOTS]), open_place)
    fleet.agree(planned)
    done = fleet.apply_all(planned, open_place, journals=journals)
    assert [result.code for result in done] == [Exit.CLEAN] * 3
    assert all(result.verification is not None and not result.verification.problems for result in done)
    assert len({tree.sha((site / SCHEDULER).read_bytes()) for site in three.values()}) == 1


def test_a_fleet_is_refused_when_one_host_differs(
    three: dict[str, Path], open_place: fleet.Open, journals: Path
) -> None:
    data = (three["gpu2"] / SCHEDULER).read_bytes()
    (three["gpu2"] / SCHEDULER).unlink()
    (three["gpu2"] / SCHEDULER).write_bytes(data + b"# edited here\n")
    planned = fleet.plan_all(targets(three), named([SLOTS]), open_place)
    with pytest.raises(
        PatchError,
        match=rf"the same engine, so none was changed: dir:.*gpu1.*gpu3.* / dir:.*gpu2.* \(differs in {SCHEDULER}\)",
    ):
        fleet.agree(planned)
    (three["gpu3"] / SCHEDULER).unlink()
    planned = fleet.plan_all(targets(three), named([SLOTS]), open_place)
    with pytest.raises(PatchError, match=r"1 of 3 hosts cannot be changed, so none was\. dir:.*gpu3"):
        fleet.agree(planned)
    done = fleet.apply_all(planned, open_place, journals=journals)  # --allow-partial
    assert [result.code for result in done] == [Exit.CLEAN, Exit.CLEAN, Exit.ERROR]


def test_a_host_that_differs_where_no_recipe_edits_is_refused_too(
    three: dict[str, Path], open_place: fleet.Open, journals: Path
) -> None:
    """The findings and the checks after a change rest on the whole engine."""
    for name in ("envs", "logger", "sequence", "version"):
        file = three["gpu2"] / f"vllm/{name}.py"
        data = file.read_bytes()
        file.unlink()  # a link to the cache
        file.write_bytes(data + b"#x\n")
    planned = fleet.plan_all(targets(three), named([SLOTS]), open_place)
    with pytest.raises(
        PatchError,
        match=r" / dir:\S*gpu2\S* \(differs in vllm/envs.py, vllm/logger.py, vllm/sequence.py and 1 more file\)\.",
    ):
        fleet.agree(planned)
    done = fleet.apply_all(planned, open_place, journals=journals)  # --allow-partial
    assert [result.code for result in done] == [Exit.CLEAN] * 3


def test_a_host_with_another_release_is_named_with_it(three: dict[str, Path], open_place: fleet.Open) -> None:
    facts = three["gpu3"] / "vllm-0.20.1.dist-info"
    facts.rename(facts.with_name("vllm-0.20.2.dist-info"))
    metadata = facts.with_name("vllm-0.20.2.dist-info") / "METADATA"
    text = metadata.read_text()
    metadata.unlink()
    metadata.write_text(text.replace("Version: 0.20.1", "Version: 0.20.2"))
    planned = fleet.plan_all(targets(three), named([SLOTS]), open_place)
    with pytest.raises(PatchError, match=r"gpu2\S* / dir:\S*gpu3\S* \(vllm 0\.20\.2\)\."):
        fleet.agree(planned)


def test_one_of_three_hosts_fails_and_is_taken_back(
    three: dict[str, Path], open_place: fleet.Open, journals: Path
) -> None:
    before = tree.facts(three["gpu2"])
    planned = fleet.plan_all(targets(three), named([LAYERS]), open_place)
    fleet.agree(planned)
    last = three["gpu2"] / "vllm/v1/worker/gpu_model_runner.py"
    subprocess.run(["cp", "--remove-destination", "-p", str(last.resolve()), f"{last}.copy"], check=True)
    os.replace(f"{last}.copy", last)  # a file of its own: attributes belong to the inode
    before = tree.facts(three["gpu2"])
    subprocess.run(["chattr", "+i", str(last)], check=True)
    try:
        done = fleet.apply_all(planned, open_place, journals=journals)
    finally:
        subprocess.run(["chattr", "-i", str(last)], check=True)
    assert [result.code for result in done] == [Exit.CLEAN, Exit.ERROR, Exit.CLEAN]
    assert done[1].error is not None
    assert "not permitted" in done[1].error.message
    assert tree.facts(three["gpu2"]) == before


def test_a_host_whose_change_has_not_the_effect_is_taken_back(
    three: dict[str, Path], open_place: fleet.Open, journals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree.facts(three["gpu2"])
    planned = fleet.plan_all(targets(three), named([SLOTS]), open_place)

    def spoiled(where: Place, imports: bool = False) -> object:
        found = verify(where, imports)
        if "gpu2" not in where.target.spec:
            return found
        return type(found)(found.recipes, ("it is still present",), (), 1, 0, found.python)

    monkeypatch.setattr(fleet, "verify", spoiled)
    done = fleet.apply_all(planned, open_place, journals=journals)
    assert [(result.code, result.reverted) for result in done] == [(0, False), (2, True), (0, False)]
    assert tree.facts(three["gpu2"]) == before


def test_two_names_of_one_engine_are_told_before_anything_is_changed(
    three: dict[str, Path], open_place: fleet.Open, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(three["gpu1"])
    before = tree.facts(three["gpu1"])
    planned = fleet.plan_all([*targets(three), Target(f"dir:{tmp_path / 'link'}")], named([SLOTS]), open_place)
    assert [p.code for p in planned] == [Exit.CLEAN, Exit.CLEAN, Exit.CLEAN, Exit.ERROR]
    with pytest.raises(PatchError, match=r"so none was\. dir:.*link leads to the same engine as dir:.*gpu1"):
        fleet.agree(planned)
    assert tree.facts(three["gpu1"]) == before


def test_of_two_runs_at_the_same_engine_none_takes_back_what_the_other_did(
    copy: Copy, open_place: fleet.Open, journals: Path, tmp_path: Path
) -> None:
    """As on a file system that two machines share, where nobody sees that both names are one."""
    site = copy("a")
    (tmp_path / "link").symlink_to(site)
    names = [Target(f"dir:{site}"), Target(f"dir:{tmp_path / 'link'}")]
    planned = [p for name in names for p in fleet.plan_all([name], named([SLOTS]), open_place)]
    done = [result for p in planned for result in fleet.apply_all([p], open_place, journals=journals)]
    assert [result.code for result in done] == [Exit.CLEAN, Exit.CLEAN]
    assert "Someone else has done it meanwhile." in done[1].notes[0]
    done = list(fleet.apply_all(planned, open_place, journals=journals))  # and at the same time
    assert not any(result.reverted for result in done)
    with open_place(names[0]) as where:
        assert where.agent().status().recipes == (SLOTS,)
        take_back(where, None, journals)
    done = list(fleet.apply_all(planned, open_place, journals=journals))
    assert not any(result.reverted for result in done)
    assert Exit.CLEAN in [result.code for result in done]
    with open_place(names[0]) as where:
        assert where.agent().status().recipes == (SLOTS,)
        assert not verify(where).problems

"""``specaudit patch`` as a user types it: what it prints where, what it asks, and how it exits."""

from __future__ import annotations

import functools
import json
import os
import platform
import pty
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import trees

from specaudit.cli import run
from specaudit.errors import Exit
from tests.hosts.machines import make_environment, site_of

SCHEDULER = "vllm/v1/core/sched/scheduler.py"


@pytest.fixture(scope="module", autouse=True)
def _trees() -> Iterator[None]:
    """Most files of a release are judged many times here, with other files changed."""
    with trees.kept():
        yield


@pytest.fixture
def engine(release: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A target: 0.20.1 in a folder of its own; journals go to a folder of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    subprocess.run(["cp", "-al", str(release("0.20.1")), str(tmp_path / "site")], check=True)
    return f"dir:{tmp_path / 'site'}"


def test_without_a_terminal_the_plan_is_shown_and_nothing_changes(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path(engine[4:], SCHEDULER).read_bytes()
    assert run(["patch", engine, "--recipe", "lookahead-slots"]) == Exit.CLEAN
    out, err = capsys.readouterr()
    assert "repairs  dflash-lookahead-slot-missing  (present -> fixed)" in out
    assert f"diff --git a/{SCHEDULER} b/{SCHEDULER}" in out
    assert "nothing was changed; add --yes" in err
    assert Path(engine[4:], SCHEDULER).read_bytes() == before
    assert run(["patch", "status", engine]) == Exit.CLEAN
    assert capsys.readouterr().out == f"{engine}: clean\n"


def test_apply_status_verify_log_show_revert(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path(engine[4:], SCHEDULER).read_bytes()
    assert run(["patch", engine, "--recipe", "lookahead-slots", "--yes", "--no-diff"]) == Exit.CLEAN
    out, err = capsys.readouterr()
    assert "applied lookahead-slots 1: 1 file changed" in out
    assert "diff --git" not in out
    assert err == ""
    assert run(["patch", engine, "--recipe", "lookahead-slots", "--yes"]) == Exit.CLEAN
    assert "lookahead-slots is applied already\n  nothing is to be changed" in capsys.readouterr().out
    assert run(["patch", "status", engine]) == Exit.CLEAN
    assert f"{engine}: patched\n  lookahead-slots 1" in capsys.readouterr().out
    assert run(["patch", "verify", engine]) == Exit.CLEAN
    assert f"{engine}: verified" in capsys.readouterr().out
    assert run(["patch", "log", engine]) == Exit.CLEAN
    assert "applied: lookahead-slots 1" in capsys.readouterr().out
    assert run(["patch", "show", engine]) == Exit.CLEAN
    assert "+                # One query for the bonus token, one for each draft token." in capsys.readouterr().out
    assert run(["patch", "revert", engine]) == Exit.CLEAN
    assert "add --yes" in capsys.readouterr().err
    assert run(["patch", "revert", engine, "--yes", "--recipe", "lookahead-slot"]) == Exit.ERROR
    assert "There is no recipe 'lookahead-slot'.\n  try: Did you mean" in capsys.readouterr().err
    assert run(["patch", "revert", engine, "--yes"]) == Exit.CLEAN
    assert "lookahead-slots taken back, 1 file restored" in capsys.readouterr().out
    assert Path(engine[4:], SCHEDULER).read_bytes() == before
    assert run(["patch", "revert", engine, "--yes"]) == Exit.CLEAN
    assert "no change by specaudit stands there, nothing is to be taken back" in capsys.readouterr().out


def test_a_revert_shows_what_it_takes_back_and_counts_what_it_restores_and_deletes(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    package = Path(engine[4:], "vllm/specaudit_ddtree")
    assert run(["patch", engine, "--recipe", "ddtree-v1", "--recipe", "gdn-state-index", "--yes"]) == Exit.CLEAN
    added = {str(path.relative_to(engine[4:])) for path in package.rglob("*.py")}
    capsys.readouterr()
    assert run(["patch", "revert", engine, "--recipe", "ddtree-v1"]) == Exit.CLEAN
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"{engine}: patched, to be taken back"
    shown = {(line.split()[0], line.split()[1]) for line in lines if line.split()[0] in ("delete", "restore")}
    assert {path for word, path in shown if word == "delete"} == added
    edited = {path for word, path in shown if word == "restore"}
    assert "vllm/v1/worker/gpu_model_runner.py" in edited
    assert not any("/ops/" in path for path in edited)  # those of the other recipe
    assert "gdn-state-index" not in "".join(lines)
    assert run(["patch", "revert", engine, "--recipe", "ddtree-v1", "--yes"]) == Exit.CLEAN
    said = f"ddtree-v1 taken back, {len(edited)} files restored, {len(added)} files deleted"
    assert said in capsys.readouterr().out
    assert not package.exists()
    assert run(["patch", "revert", engine, "--yes", "--json"]) == Exit.CLEAN
    answer = json.loads(capsys.readouterr().out)
    assert any("/ops/" in path for path in answer["restored"])
    assert answer["deleted"] == []


def test_what_could_not_be_judged_is_said_before_anything_is_changed(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = Path(engine[4:], "vllm/v1/worker/gpu_model_runner.py")
    runner.unlink()  # a link to the release's own
    runner.write_text("def (:")
    assert run(["patch", engine, "--recipe", "dflash-layer-ids", "--dry-run", "--no-diff"]) == Exit.CLEAN
    said = " ".join(capsys.readouterr().out.split())
    assert "note dflash-target-layer-ids-off-by-one is not-found:" in said
    assert "is not in this engine, so nothing is repaired there." in said


def test_a_scan_says_that_a_change_was_interrupted(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(["patch", engine, "--recipe", "lookahead-slots", "--yes"])
    journal = Path(engine[4:], ".specaudit-vllm", "journal.json")
    held = json.loads(journal.read_text())
    capsys.readouterr()
    for pending, told in ((None, False), ({"op": "apply", "application": held["applied"].pop(), "goal": {}}, True)):
        journal.write_text(json.dumps(held | {"pending": pending}))
        expected = Exit.INCOMPLETE if told else Exit.CLEAN  # neither the old engine nor the new one: no gate passes
        assert run(["scan", engine, "--no-rules", "--brief", "--expect", "runner.dflash=v1"]) == expected
        said = " ".join(capsys.readouterr().out.split())
        assert ("but an interrupted change by specaudit patch: some files are the old ones" in said) == told
        assert ("undo it with specaudit patch revert" in said) == told
        assert run(["patch", "status", engine]) == (Exit.FINDINGS if told else Exit.CLEAN)
        assert ("  an apply was interrupted; take it back with revert\n" in capsys.readouterr().out) == told
        run(["patch", "revert", engine])  # which needs no such advice
        assert ("  an apply was interrupted\n" in capsys.readouterr().out) == told
    for broken in ("[]", "{", '{"applied": 3}'):
        journal.write_text(broken)
        assert run(["scan", engine, "--no-rules", "--brief"]) == Exit.CLEAN
        assert "interrupted" not in capsys.readouterr().out


def test_a_revert_of_what_does_not_stand_is_refused_before_it_is_shown(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["patch", engine, "--recipe", "lookahead-slots", "--yes", "--no-diff"]) == Exit.CLEAN
    capsys.readouterr()
    wanted = ["--recipe", "lookahead-slots", "--recipe", "dflash-layer-ids"]
    assert run(["patch", "revert", engine, *wanted]) == Exit.ERROR
    assert capsys.readouterr() == (
        "",
        f"error: {engine}: not applied here: dflash-layer-ids.\n  try: Leave it out; what stands: lookahead-slots.\n",
    )


def test_a_drifted_file_is_exit_1_and_a_refused_revert_exit_2_with_the_difference(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["patch", engine, "--recipe", "lookahead-slots", "--yes"])
    with Path(engine[4:], SCHEDULER).open("a") as file:
        file.write("mine = 1\n")
    capsys.readouterr()
    assert run(["patch", "status", engine]) == Exit.FINDINGS
    assert f"{engine}: drifted" in capsys.readouterr().out
    assert run(["patch", "verify", engine]) == Exit.FINDINGS
    said = " ".join(capsys.readouterr().out.split())  # paragraphs, wrapped
    assert f"{engine}: NOT as promised" in said
    assert said.endswith(
        f"problem {SCHEDULER} is changed, not as it was patched try Look at specaudit patch status {engine}."
    )
    assert run(["patch", "revert", engine, "--yes"]) == Exit.ERROR
    err = capsys.readouterr().err
    assert "+mine = 1" in err
    assert f"specaudit patch forget {engine}" in err
    assert run(["patch", "forget", engine, "--yes"]) == Exit.CLEAN
    assert capsys.readouterr().out == f"{engine}: the journal of lookahead-slots is dropped, files stay as they are\n"
    assert run(["patch", "status", engine]) == Exit.FINDINGS
    assert f"{engine}: foreign\n  foreign   {SCHEDULER}" in capsys.readouterr().out
    assert run(["patch", "verify", engine]) == Exit.CLEAN
    assert "clean" not in capsys.readouterr().out.replace(engine, "")
    assert run(["patch", "log", engine]) == Exit.CLEAN
    assert capsys.readouterr().out.splitlines()[0].endswith("  forgotten: lookahead-slots")


def test_a_hook_that_runs_this_program_lends_it_no_repository(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "theirs"
    subprocess.run(["git", "init", "-q", str(theirs)], check=True)
    before = sorted(theirs.rglob("*"))
    for name, value in {
        "GIT_DIR": theirs / ".git", "GIT_WORK_TREE": theirs, "GIT_INDEX_FILE": theirs / ".git/index",
        "GIT_OBJECT_DIRECTORY": theirs / ".git/objects", "GIT_DEFAULT_HASH": "sha256",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, str(value))
    assert run(["patch", engine, "--recipe", "lookahead-slots", "--yes", "--no-diff"]) == Exit.CLEAN
    assert "note:" not in capsys.readouterr().err
    assert run(["patch", "show", engine]) == Exit.CLEAN
    assert "applied: lookahead-slots 1" in capsys.readouterr().out
    assert sorted(theirs.rglob("*")) == before


def test_a_foreign_file_beside_a_recipe_is_exit_1_too(
    engine: str, release: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["patch", engine, "--recipe", "dflash-layer-ids", "--yes"])
    assert run(["patch", "status", engine]) == Exit.CLEAN
    file = Path(engine[4:], SCHEDULER)
    data = file.read_bytes()
    file.unlink()  # a link to the release's own
    file.write_bytes(data + b"mine = 1\n")
    capsys.readouterr()
    assert run(["patch", "status", engine]) == Exit.FINDINGS
    out = capsys.readouterr().out
    assert out.startswith(f"{engine}: patched\n")
    assert f"  foreign   {SCHEDULER}  (changed against its wheel, not by\n            specaudit)\n" in out


def test_relative_folders_are_changed_side_by_side(
    release: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    names = [f"dir:p{number}" for number in range(4)]
    for name in names:
        subprocess.run(["cp", "-al", str(release("0.20.1")), str(tmp_path / name[4:])], check=True)
    assert run(["patch", *names, "--recipe", "lookahead-slots", "--yes", "--no-diff"]) == Exit.CLEAN
    assert "note:" not in capsys.readouterr().err
    for name in names:
        assert run(["patch", "log", name]) == Exit.CLEAN
        assert [line.split("  ")[2] for line in capsys.readouterr().out.splitlines()] == [
            "applied: lookahead-slots 1", "planned: lookahead-slots 1",
        ]  # fmt: skip


def test_targets_of_which_one_differs_in_any_file_are_refused(
    engine: str, release: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    subprocess.run(["cp", "-al", str(release("0.20.1")), str(other)], check=True)
    file = other / "vllm/envs.py"  # which the recipe does not edit
    data = file.read_bytes()
    file.unlink()  # a link to the release's own
    file.write_bytes(data + b"#x\n")
    before = Path(engine[4:], SCHEDULER).read_bytes()
    command = ["patch", engine, f"dir:{other}", "--recipe", "lookahead-slots", "--yes", "--no-diff"]
    assert run(command) == Exit.ERROR
    assert capsys.readouterr().err == (
        "error: The hosts do not hold the same engine, so none was changed: "
        f"{engine} / dir:{other} (differs in vllm/envs.py).\n"
        "  try: Change each group alone, or all of them with --allow-partial.\n"
    )
    assert [(Path(site) / SCHEDULER).read_bytes() for site in (engine[4:], other)] == [before, before]
    assert run([*command, "--allow-partial"]) == Exit.CLEAN


@pytest.mark.parametrize(("key", "code", "said"), [
    ("\x03", Exit.INTERRUPTED, "The question was left"),
    ("\x04", Exit.INTERRUPTED, "The question was left"),
    ("n\n", Exit.CLEAN, "nothing was changed; add --yes"),
])  # fmt: skip
def test_a_question_that_is_left_is_no_success(engine: str, key: str, code: Exit, said: str) -> None:
    before = Path(engine[4:], SCHEDULER).read_bytes()
    command = [sys.executable, "-m", "specaudit", "patch", engine, "--recipe", "lookahead-slots", "--no-diff"]
    ended, text = answered(command, key)
    assert (ended, said in text) == (code, True), text
    assert Path(engine[4:], SCHEDULER).read_bytes() == before


@pytest.mark.parametrize("whom", ["the group", "the command alone"])
@pytest.mark.parametrize("wait", [0.0, 0.3])
def test_a_change_that_was_sent_is_not_cut_by_ctrl_c_and_is_told(engine: str, whom: str, wait: float) -> None:
    engine = f"dir:{Path(engine[4:]).rename(Path(engine[4:]).with_name('the site'))}"
    command = [sys.executable, "-m", "specaudit", "patch", engine, "--recipe", "ddtree-v1", "--no-diff", "--yes"]
    begin = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a worker of the tests ignores it
    run_ = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, process_group=0, preexec_fn=begin
    )
    while not Path(engine[4:], ".specaudit-vllm/journal.json").exists():
        assert run_.poll() is None
        time.sleep(0.002)
    time.sleep(wait)
    (os.killpg if whom == "the group" else os.kill)(run_.pid, signal.SIGINT)
    _, said = run_.communicate(timeout=60)
    assert run_.returncode == Exit.INTERRUPTED
    assert said == (
        f"error: Interrupted, after a change had been sent to {engine}: it may have been made.\n"
        f"  try: Look at specaudit patch status '{engine}'. Undo it: specaudit patch revert '{engine}'.\n"
    )
    assert not list(Path(engine[4:]).rglob("*.specaudit-new"))
    assert run(["patch", "status", engine]) == Exit.CLEAN
    assert run(["patch", "revert", engine, "--yes"]) == Exit.CLEAN


def answered(command: list[str], key: str) -> tuple[int, str]:
    """Exit code and all output of a program on a terminal that is given one key at its question."""
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a worker of the tests ignores it
        signal.alarm(120)
        os.execv(command[0], command)
    text = b""
    while True:
        ready, _, _ = select.select([terminal], [], [], 1.0)
        try:
            part = os.read(terminal, 4096) if ready else b""
        except OSError:  # it has ended
            break
        text += part
        if not ready and b"[y/N]" in text:  # again and again: what comes just before it reads may be lost
            os.write(terminal, key.encode())
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), text.decode()


def test_an_import_with_the_wrong_interpreter_is_one_clear_error(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["patch", "verify", engine, "--import"]) == Exit.CLEAN
    nothing = f"{engine}: no change by specaudit stands there, nothing is to be verified\n"
    assert capsys.readouterr().out.startswith(nothing)
    package = Path(engine[4:], "vllm/__init__.py")
    package.unlink()
    package.write_text("import nowhere_to_be_found\n")
    run(["patch", engine, "--recipe", "dflash-layer-ids", "--yes"])
    capsys.readouterr()
    assert run(["patch", "verify", engine, "--import"]) == Exit.FINDINGS
    said = " ".join(capsys.readouterr().out.split())  # paragraphs, wrapped
    python = f"{sys.executable} ({platform.python_version()})"
    assert said.endswith(
        "problem vllm.config.speculative, vllm.transformers_utils.configs.speculators.algos, "
        f"vllm.v1.worker.gpu_model_runner cannot be imported by {python}: "
        "ModuleNotFoundError: No module named 'nowhere_to_be_found' "
        f"try {sys.executable} does not have nowhere_to_be_found. "
        "A folder has no interpreter: name the engine's environment, as @local --python PATH or --venv DIR."
    )
    assert run(["patch", "revert", engine, "--yes"]) == Exit.CLEAN
    capsys.readouterr()
    assert run(["patch", engine, "--recipe", "dflash-layer-ids", "--yes", "--import"]) == Exit.ERROR
    error, hint = capsys.readouterr().err.splitlines()
    assert error.endswith("No module named 'nowhere_to_be_found'. Its change was taken back.")
    assert "does not have nowhere_to_be_found" in hint


def test_a_command_that_is_advised_can_be_typed_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    prefix = tmp_path / "my venv"
    make_environment(prefix, {"vllm/a.py": "A = 1\n"}, "0.20.1")
    journal = site_of(prefix) / ".specaudit-vllm/journal.json"
    journal.parent.mkdir()
    journal.write_text("broken")
    assert run(["patch", "status", "@local", "--venv", str(prefix), "--engine", "vllm"]) == Exit.ERROR
    advised = capsys.readouterr().err.strip().rpartition(": specaudit ")[2].rstrip(".")
    assert advised == f"patch forget @local --python '{prefix}/bin/python' --engine vllm"
    assert run([*shlex.split(advised), "--yes"]) == Exit.CLEAN
    assert "the journal of unknown changes is dropped" in capsys.readouterr().out


@pytest.mark.parametrize("more", [[], ["--yes"]])
def test_an_engine_without_a_change_has_nothing_to_forget(
    engine: str, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["patch", "forget", engine, *more]) == Exit.CLEAN
    assert capsys.readouterr() == (
        f"{engine}: no change by specaudit stands there, there is no journal to drop\n",
        "",
    )


@pytest.mark.parametrize("text", ["broken", "[]", '{"format": 99}'])
def test_a_journal_that_cannot_be_read_can_be_forgotten_as_its_error_says(
    engine: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["patch", engine, "--recipe", "lookahead-slots", "--yes"])
    journal = Path(engine[4:], ".specaudit-vllm/journal.json")
    journal.write_text(text)
    capsys.readouterr()
    assert run(["patch", "status", engine]) == Exit.ERROR
    assert f"specaudit patch forget {engine}" in capsys.readouterr().err
    assert run(["patch", "forget", engine]) == Exit.CLEAN
    assert "add --yes" in capsys.readouterr().err
    assert journal.exists()
    assert run(["patch", "forget", engine, "--yes"]) == Exit.CLEAN
    out, err = capsys.readouterr()
    assert out == f"{engine}: the journal of unknown changes is dropped, files stay as they are\n"
    assert str(journal) in err
    assert not journal.parent.exists()
    assert run(["patch", "forget", engine]) == Exit.CLEAN


def test_what_is_kept_of_an_engine_that_was_uninstalled_is_named(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["patch", engine, "--recipe", "lookahead-slots", "--yes"])
    shutil.rmtree(Path(engine[4:], "vllm"))
    capsys.readouterr()
    for command in ("status", "forget"):
        assert run(["patch", command, engine]) == Exit.ERROR
        assert capsys.readouterr().err.endswith(
            "  try: An engine that was patched there is gone; remove what was kept of it: "
            f"{engine[4:]}/.specaudit-vllm.\n"
        )
    shutil.rmtree(Path(engine[4:], ".specaudit-vllm"))
    assert run(["patch", "status", engine]) == Exit.ERROR
    assert capsys.readouterr().err.endswith("try: Name the folder that holds it.\n")


def test_json_is_alone_on_stdout(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["patch", engine, "--recipe", "lookahead-slots", "--dry-run", "--json"]) == Exit.CLEAN
    plan = json.loads(capsys.readouterr().out)
    assert plan["plan"]["schema"] == "specaudit/plan/1"
    assert [r["recipe"] for r in plan["plan"]["recipes"]] == ["lookahead-slots"]
    assert run(["patch", engine, "--recipe", "lookahead-slots", "--yes", "--json"]) == Exit.CLEAN
    done = json.loads(capsys.readouterr().out)
    assert done["applied"] is True
    assert done["verification"]["problems"] == []
    assert run(["patch", "status", engine, "--json"]) == Exit.CLEAN
    status = json.loads(capsys.readouterr().out)
    assert (status["state"], status["files"]) == ("patched", [{"path": SCHEDULER, "state": "patched"}])
    assert run(["patch", "revert", engine, "--json"]) == Exit.CLEAN  # nobody is there to agree
    assert json.loads(capsys.readouterr().out) == {"target": engine, "reverted": [], "restored": [], "deleted": []}
    assert run(["patch", "revert", engine, "--yes", "--json"]) == Exit.CLEAN
    assert json.loads(capsys.readouterr().out)["restored"] == [SCHEDULER]


@pytest.mark.parametrize("name", ["é ż 😀", os.fsdecode(b"no \xff text"), "two\nlines 100%"])
def test_an_engine_may_lie_in_a_folder_of_any_name(engine: str, name: str) -> None:
    site = Path(engine[4:]).rename(Path(engine[4:]).with_name(name))

    def said(*words: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "specaudit", "patch", *words, f"dir:{site}", "--json"]
        environment = {**os.environ, "PYTHONIOENCODING": "ascii"}  # JSON is UTF-8 whatever the locale is
        done = subprocess.run(command, capture_output=True, check=False, env=environment, timeout=600)
        assert (done.returncode, done.stderr) == (Exit.CLEAN, b"")
        found: dict[str, Any] = json.loads(done.stdout.decode())
        assert found["target"] == f"dir:{site}"
        return found

    assert said("apply", "--recipe", "lookahead-slots", "--yes")["applied"] is True
    assert said("status")["state"] == "patched"
    assert said("revert", "--yes")["restored"] == [SCHEDULER]
    (journal,) = (site.parent / "state/specaudit/journal").iterdir()
    assert json.loads((journal / "install.json").read_text())["place"] == f"dir:{site}"


def test_a_patch_file_is_written_with_its_dockerfile_line(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "slots.patch"
    assert run(["patch", engine, "--recipe", "lookahead-slots", "--emit", str(file)]) == Exit.CLEAN
    assert "COPY slots.patch /tmp/slots.patch\nRUN cd " in capsys.readouterr().out
    assert file.read_text().startswith("Made by specaudit for vllm 0.20.1: lookahead-slots 1\n")
    assert run(["patch", engine, "--recipe", "lookahead-slots", "--emit", str(tmp_path / "no/x")]) == Exit.ERROR
    out, err = capsys.readouterr()
    assert (out, "no/x cannot be written" in err) == ("", True)


def test_a_release_is_refused_and_nothing_is_said_of_taking_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["patch", "vllm==0.20.1", "--recipe", "lookahead-slots", "--no-diff", "--yes"]) == Exit.ERROR
    told = capsys.readouterr().err
    assert ("cannot be changed in place" in told, "taken back" in told) == (True, False)


def test_hosts_that_cannot_be_reached_are_exit_3_and_a_refusal_of_all_is_exit_2(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text("[groups.all]\nhosts = ['gpu1', 'gpu2']\n[defaults]\nssh = ['HostName=127.0.0.1', 'Port=1']\n")
    slots = ["--recipe", "lookahead-slots", "--no-diff"]
    everywhere = ["patch", "--inventory", str(fleet), *slots]
    assert run(everywhere) == Exit.INCOMPLETE
    told = capsys.readouterr().err
    assert "2 of 2 hosts cannot be changed, so none was. gpu1 (127.0.0.1 port 1) refuses the connection; " in told
    assert "others" not in told  # there are none to change
    assert run([*everywhere, "--allow-partial"]) == Exit.INCOMPLETE
    assert run(["patch", "--inventory", str(fleet), engine, "gpu1", *slots]) == Exit.INCOMPLETE
    capsys.readouterr()
    absent = [f"dir:{tmp_path}/one", f"dir:{tmp_path}/two"]
    assert run(["patch", *absent, *slots]) == Exit.ERROR
    assert "does not exist" in capsys.readouterr().err
    assert run(["patch", absent[0], engine, *slots]) == Exit.ERROR  # nothing was done, for what was written
    assert "change the others with --allow-partial" in capsys.readouterr().err
    assert run(["patch", absent[0], engine, *slots, "--allow-partial", "--yes"]) == Exit.INCOMPLETE
    out, err = capsys.readouterr()
    assert ("applied lookahead-slots" in out, err.count("does not exist")) == (True, 1)


@pytest.mark.parametrize("how", [["--dry-run"], [], ["--dry-run", "--json"]])
def test_what_is_wrong_with_one_of_several_hosts_is_told_where_nothing_is_applied_too(
    engine: str, how: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "e"
    empty.mkdir()
    command = ["patch", engine, f"dir:{empty}", "--recipe", "lookahead-slots", "--allow-partial", "--no-diff"]
    assert run([*command, *how]) == Exit.INCOMPLETE
    assert f"error: dir:{empty}" in capsys.readouterr().err


def test_a_host_that_is_patched_already_is_told_from_one_that_is_not(
    engine: str, release: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    subprocess.run(["cp", "-al", str(release("0.20.1")), str(other)], check=True)
    assert run(["patch", engine, "--recipe", "lookahead-slots", "--yes", "--no-diff"]) == Exit.CLEAN
    for first, second, said in (
        (engine, f"dir:{other}", "has no change by specaudit"),
        (f"dir:{other}", engine, "has lookahead-slots 1 by specaudit"),
    ):
        assert run(["patch", first, second, "--recipe", "lookahead-slots", "--yes", "--no-diff"]) == Exit.ERROR
        assert f"so none was changed: {first} / {second} ({said}).\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "asked", "instead"),
    [
        ("0.20.1", "ddtree", "Use --recipe ddtree-v1 instead, which fits this engine."),
        ("0.33.0", "ddtree-v1", "Use --recipe ddtree instead, which fits this engine."),
        ("0.28.0", "ddtree", "This release has another shape; the recipe was not written for it."),
    ],
)
def test_the_refusal_of_a_recipe_for_another_runner_names_the_one_for_this_runner(
    release: Callable[[str], Path], version: str, asked: str, instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["patch", f"dir:{release(version)}", "--recipe", asked]) == Exit.ERROR
    assert capsys.readouterr().err.endswith(f"\n  try: {instead}\n")


def test_what_cannot_be_done_says_what_to_do(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["patch", engine, "--recipe", "dflash-layer-id"]) == Exit.ERROR
    assert "Did you mean dflash-layer-ids" in capsys.readouterr().err
    assert run(["patch", "status", "dir:/nowhere"]) == Exit.ERROR
    assert "does not exist" in capsys.readouterr().err
    assert run(["patch", engine]) == Exit.ERROR
    assert "--recipe" in capsys.readouterr().err
    assert run(["patch", "recipes"]) == Exit.CLEAN
    said = capsys.readouterr().out
    assert "gdn-state-index 1\n" in said
    assert [line for line in said.splitlines() if len(line) > 80] == []


def test_a_folder_of_the_engine_that_is_a_link_elsewhere_is_left_alone(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(engine[4:], "vllm/v1/core")
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    before = Path(engine[4:], SCHEDULER).read_bytes()
    assert run(["patch", engine, "--recipe", "lookahead-slots", "--yes", "--no-diff"]) != Exit.CLEAN
    err = capsys.readouterr().err
    assert f"{SCHEDULER} leads out of" in err
    assert "A folder of the engine is a link to elsewhere" in err
    assert Path(engine[4:], SCHEDULER).read_bytes() == before

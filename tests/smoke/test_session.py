"""A smoke run on this machine with a stand-in for the engine: processes, results, crashes, hangs, lost connections."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from specaudit.cache import Cache
from specaudit.cli import run as program
from specaudit.errors import Exit, IncompleteError, UnreachableError, UsageError
from specaudit.model import Target
from specaudit.patching.place import Place, place
from specaudit.smoke import session
from specaudit.smoke.modes import arguments
from specaudit.smoke.results import Thresholds, numbers, verdict
from tests.smoke.engine import install

Opened = Callable[[], AbstractContextManager[Place]]
PROMPTS = ([1, 2, 3], [4, 5], [6])
HANGS = f"1234.{os.getpid()}"  # no other run of these tests looks for this one's


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(session, "WAIT", 1.0)
    monkeypatch.setattr(session, "PAUSE", 0.05)
    return install(tmp_path / "site")


@pytest.fixture
def opened(engine: Path, tmp_path: Path) -> Opened:
    @contextmanager
    def make() -> Iterator[Place]:
        with Cache(tmp_path / "cache/specaudit") as cache, place(Target(f"dir:{engine}"), cache) as found:
            yield found

    return make


def job(modes: tuple[str, ...] = ("none", "dflash"), behaviour: str = "", **more: object) -> session.Job:
    made = arguments(modes, "draft-model", 4, 16, None)
    environment = {"FAKE_ENGINE": behaviour, "FAKE_ENGINE_HANGS": HANGS}
    return session.Job(modes=made, target="target-model", prompts=PROMPTS, tokens=20, environment=environment, **more)  # type: ignore[arg-type]


def run(opened: Opened, what: session.Job) -> session.Look:
    with opened() as there:
        name = session.start(there, what)
    return session.follow(opened, name)


def processes(word: str) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "pid,stat,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if word in line and " Z" not in line and "ps -eo" not in line]


def test_two_modes_are_measured_and_compared(opened: Opened) -> None:
    seen = run(opened, job(batches=(1, 2), repeats=2))
    assert list(seen.results) == ["none", "dflash"]
    none_1, none_2, chain_1, chain_2 = numbers(seen.results)
    assert (none_1.batch, none_2.batch, chain_1.batch, chain_2.batch) == (1, 2, 1, 2)
    assert (none_1.drafts, none_1.acceptance_length, none_1.emitted) == (0, None, 2 * 3 * 20)
    # 19 tokens after the first: six steps of 3 and one of 1, by the rule of the stand-in.
    assert (chain_1.drafts, chain_1.drafted, chain_1.accepted) == (2 * 3 * 7, 2 * 3 * 7 * 4, 2 * 3 * 12)
    assert chain_1.acceptance_length == pytest.approx(1 + 12 / 7)
    assert chain_1.per_position == pytest.approx((6 / 7, 6 / 7, 0, 0))
    assert chain_1.step_ms is not None
    assert 0.4 < chain_1.step_ms < 50
    assert all(check.passed for check in verdict(seen.results, Thresholds()))
    failing = [check.name for check in verdict(seen.results, Thresholds(acceptance=3))]
    assert [c.name for c in verdict(seen.results, Thresholds(acceptance=3)) if not c.passed] == failing[2:4]
    assert seen.results["dflash"]["versions"]["vllm"] == "0.0.1"


def test_the_run_outlives_the_process_and_the_connection_that_started_it(opened: Opened) -> None:
    with opened() as there:
        name = session.start(there, job(behaviour="slow"))
    broken = iter((True, True, False))

    @contextmanager
    def flaky() -> Iterator[Place]:
        with opened() as there:
            if next(broken, False):
                raise UnreachableError("gpu1 does not answer.", "Try again.")
            yield there

    heard: list[str] = []
    seen = session.follow(flaky, name, heard.append)
    assert len(seen.results) == 2
    assert any("trying again" in text for text in heard)


def test_following_ends_with_the_name_of_the_run_when_the_host_stays_away(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "PATIENCE", 0.2)

    @contextmanager
    def gone() -> Iterator[Place]:
        raise UnreachableError("gpu1 does not answer.", "Try again.")
        yield

    with pytest.raises(UnreachableError, match="The run vllm-abcdef goes on there") as lost:
        session.follow(gone, "vllm-abcdef")
    assert lost.value.hint == "Look again later: specaudit smoke TARGET --attach vllm-abcdef."


def test_a_mode_that_crashes_is_that_modes_result(opened: Opened) -> None:
    seen = run(opened, job(behaviour="crash"))
    assert seen.results["dflash"]["error"].startswith("was ended by signal 6 (Aborted); its log says: starting ")
    assert seen.results["none"]["runs"]
    assert [c.passed for c in verdict(seen.results, Thresholds())] == [True, False]


def test_a_mode_that_hangs_is_ended_with_all_its_processes(opened: Opened) -> None:
    seen = run(opened, job(modes=("dflash",), behaviour="hang", limit=8.0))
    assert "did not end within" in seen.results["dflash"]["error"]
    assert not processes(f"sleep {HANGS}")


def test_stop_ends_everything_at_once(opened: Opened) -> None:
    with opened() as there:
        name = session.start(there, job(modes=("dflash",), behaviour="hang"))
        until = time.monotonic() + 60
        while not processes(f"sleep {HANGS}") and time.monotonic() < until:
            time.sleep(0.1)
        session.stop(there, name)
        seen = session.look(there, name)
        assert not seen.running
        session.drop(there, name)
        assert not Path(seen.folder).exists()
        with pytest.raises(UsageError, match="there is no run"):
            session.look(there, name)
    assert not processes(f"sleep {HANGS}")


def test_a_run_that_dies_without_a_result_shows_the_end_of_its_log(opened: Opened, tmp_path: Path) -> None:
    with opened() as there:
        name = session.start(there, job(behaviour="slow"))
        folder = tmp_path / "cache/specaudit/smoke" / name
        os.kill(json.loads((folder / "pid").read_text())[0], 9)
        time.sleep(0.5)
        for line in processes(str(folder)):
            os.kill(int(line.split()[0]), 9)
    with (folder / "log.txt").open("a") as log:
        log.write("RuntimeError: no more\n/x.py:1: UserWarning: 1 leaked object\n")
    with pytest.raises(IncompleteError, match=rf"The run {name} ended without a result; its log says: Runt.*: no more"):
        session.follow(opened, name)
    (folder / "log.txt").write_text("")
    with pytest.raises(IncompleteError, match="ended without a result; it wrote no log") as caught:
        session.follow(opened, name)
    assert caught.value.hint == f"Read {folder}/log.txt there."


def test_wrong_tokens_are_a_failure_with_position_and_gap(opened: Opened) -> None:
    seen = run(opened, job(behaviour="wrong"))
    checks = {c.name: c for c in verdict(seen.results, Thresholds(gap=0.01))}
    assert not checks["dflash is lossless"].passed
    assert verdict(seen.results, Thresholds(gap=0.06))[-1].passed  # the gap at position 5 is 0.05


def test_a_name_that_is_no_run_is_refused(opened: Opened) -> None:
    with opened() as there, pytest.raises(UsageError, match="no name of a run"):
        session.look(there, "../../etc")


# --- the command ----------------------------------------------------------------------------------------------------


def command(engine: Path, *more: str) -> list[str]:
    models = ["--target", "t", "--draft", "d", "--draft-tokens", "4", "--tokens", "20"]
    return ["smoke", f"dir:{engine}", *models, "--env", "FAKE_ENGINE=", *more]


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    file = tmp_path / "prompts.json"
    file.write_text(json.dumps(PROMPTS))
    return str(file)


def test_the_command_prints_a_table_and_a_verdict(
    engine: Path, prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = str(tmp_path / "first.json")
    assert program([*command(engine), "--prompts", prompts, "--output", first]) == Exit.CLEAN
    out, err = capsys.readouterr()
    said = " ".join(out.split())
    assert "dflash 1 21 84 36 60 2.714" in said
    assert "ok dflash is lossless: the reference's tokens for 3 of 3 prompts; 0 divergences" in said
    assert [line for line in out.splitlines() if len(line) > 80 and "dir:" not in line] == []
    assert "--attach vllm-" in err
    again = [*command(engine, "--env", "FAKE_ENGINE=rejects"), "--prompts", prompts, "--compare", first]
    assert program(again) == Exit.FINDINGS
    out = capsys.readouterr().out
    assert "dflash, batch 1, before -> now: acceptance length 2.714 -> 1.000" in out
    assert "FAIL  dflash accepts, batch 1: acceptance length 1.000" in out


def test_a_file_that_cannot_be_written_is_told_before_the_run(
    engine: Path, prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program([*command(engine), "--prompts", prompts, "--output", "/nope/x"]) == Exit.ERROR
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[0]) == ("", "error: /nope/x cannot be written: No such file or directory.")
    assert list((tmp_path / "cache/specaudit").glob("smoke/*")) == []


@pytest.mark.parametrize(("broken", "code"), [(False, Exit.ERROR), (True, Exit.INCOMPLETE)])
def test_a_file_that_cannot_be_written_any_more_hides_no_result(
    engine: Path,
    prompts: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    broken: bool,
    code: Exit,
) -> None:
    if broken:
        (engine / "vllm/__init__.py").write_text("import nowhere_to_be_found\n")
    folder = tmp_path / "results"
    folder.mkdir()
    follow = session.follow

    def vanishing(*given: object) -> session.Look:
        folder.rmdir()
        return follow(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(session, "follow", vanishing)
    assert program([*command(engine), "--prompts", prompts, "--output", str(folder / "x.json")]) == code
    out, err = capsys.readouterr()
    monkeypatch.setattr(session, "follow", follow)
    assert ("ok    dflash is lossless" in out) != broken
    assert "x.json cannot be written: No such file or directory." in err
    assert ("nothing could be measured" in err) == broken
    (again,) = [line for line in err.splitlines() if "the result is still there" in line]
    advised = shlex.split(again.partition(": specaudit ")[2].removesuffix("--output FILE"))
    assert program([*advised, "--json"]) == (code if broken else Exit.CLEAN)
    assert json.loads(capsys.readouterr().out)["schema"] == "specaudit/smoke/1"


def test_the_document_is_alone_on_stdout(engine: Path, prompts: str) -> None:
    engine = engine.rename(engine.with_name("é"))
    words = [sys.executable, "-m", "specaudit", *command(engine), "--prompts", prompts, "--json", "--quiet"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}  # it is UTF-8 whatever the locale is
    made = json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True, env=environment, timeout=300).stdout)
    assert made["target"] == f"dir:{engine}"
    assert made["schema"] == "specaudit/smoke/1"
    assert [mode["mode"] for mode in made["modes"]] == ["none", "dflash"]
    assert made["modes"][1]["equality"]["equal"] == 3
    assert all(check["passed"] for check in made["verdict"])


def logs(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache/specaudit/smoke").glob("*/log.txt"))


def test_an_interpreter_without_the_requirements_is_one_error_with_its_cause(
    engine: Path, prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (engine / "vllm/__init__.py").write_text("import nowhere_to_be_found\n")
    output = tmp_path / "out.json"
    assert program([*command(engine), "--prompts", prompts, "--output", str(output)]) == Exit.INCOMPLETE
    out, err = capsys.readouterr()
    _, error, hint = err.splitlines()
    assert out == ""
    assert error == (
        f"error: dir:{engine}: nothing could be measured with {sys.executable}: none, dflash ended with exit status 1; "
        "its log says: ModuleNotFoundError: No module named 'nowhere_to_be_found'."
    )
    (log,) = logs(tmp_path)  # kept, to be read
    assert hint == (
        "  try: A folder has no interpreter: name the engine's environment, as @local --python PATH or --venv DIR. "
        f"All that was said is in {log} there."
    )
    assert "No module named 'nowhere_to_be_found'" in json.loads(output.read_text())["modes"][0]["error"]


def test_a_toy_pair_that_cannot_be_trained_is_one_error_with_its_cause(
    engine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (engine / "torch.py").write_text("raise ImportError('libcuda.so.1: cannot open shared object file')\n")
    assert program(["smoke", f"dir:{engine}"]) == Exit.INCOMPLETE
    *_, error, hint = capsys.readouterr().err.splitlines()
    assert "training ended with exit status 1; its log says: ImportError: libcuda.so.1: cannot open" in error
    assert hint.startswith("  try: All that was said is in ")


def test_of_a_mode_that_fails_beside_others_the_cause_is_in_the_verdict(
    engine: Path, prompts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program([*command(engine), "--env", "FAKE_ENGINE=fails", "--prompts", prompts]) == Exit.FINDINGS
    out, err = capsys.readouterr()
    assert "  ok    none ran: to its end" in out
    said = " ".join(out.split())  # paragraphs, wrapped
    assert "FAIL dflash ran: ended with exit status 1; its log says: ValueError: no such drafter" in said
    assert f"all that was said is in {logs(tmp_path)[0]} there" in err


@pytest.mark.parametrize("target", ["vllm==0.33.0", "wheel:vllm.whl", "git:vllm@v0.33.0"])
def test_nothing_can_run_where_no_engine_is_installed(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program(["smoke", target]) == Exit.ERROR
    assert capsys.readouterr().err.splitlines() == [
        f"error: {target} is no installed engine, so nothing can run there.",
        "  try: Name one that is installed on a GPU host: @local, dir:PATH, or a machine as ssh knows it.",
    ]


def test_what_is_wrong_on_the_command_line_is_said(
    engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    for more, said in (
        (["--modes", "none,eagle"], "There is no mode 'eagle'"),
        (["--modes", "eagle"], "There are: none, dflash, ddtree, ddtree-exact, given; given runs what --spec"),
        (["--modes", "none,given"], "The mode given needs --speculative-config."),
        (["--modes", "ddtree"], "needs a recipe that"),
        (["--batch", "1,x"], "are no batch sizes"),
        (["--prompts", "/nowhere"], "cannot be read"),
        (["--prompts", str(tmp_path / "empty.txt")], "holds no prompts"),
        (["--env", "X"], "is no NAME=VALUE"),
        (["--env", "=x"], "is no NAME=VALUE"),
        (["--modes", ","], "No mode is named.\n  try: Write --modes none,dflash; there are: none, dflash, ddtree,"),
        (["--modes", "dflash", "--min-speedup", "1"], "compare with the mode none, which is not named"),
        (["--modes", "dflash", "--min-agreement", "1"], "compare with the mode none, which is not named"),
        (["--modes", "none", "--min-acceptance", "2"], "about modes that speculate, and none is named"),
        (["--temperature", "1", "--min-agreement", "1"], "at a temperature above 0 they are sampled"),
        (["--compare", "/nowhere"], "cannot be read"),
        (["--attach", "vllm-000000"], "there is no run vllm-000000"),
    ):
        assert program([*command(engine), *more]) == Exit.ERROR
        assert said in capsys.readouterr().err, more
    for mode in ("dflash", "ddtree", "ddtree-exact"):
        assert program(["smoke", f"dir:{engine}", "--target", "t", "--modes", f"none,{mode}"]) == Exit.ERROR
        assert "go together" in capsys.readouterr().err

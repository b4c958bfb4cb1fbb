"""Engines as processes: every one that a run needs starts once, all at the same time, and parts share them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .arms import Arm, Pair
from .figures import Report

FAKE = Path(__file__).parent / "fake"


class EngineFailed(Exception):
    """An engine's process ended, or did not answer in time. The message ends with what it printed last."""


@dataclass(frozen=True)
class Places:
    """Where engines come from and what they leave.

    path: search path of the patched engine; stock_path of the unpatched one (the same: the recipe is switched off).
    cache: compiled graphs, apart for both, since a cache key need not hold what a patch changes; and Triton's kernels,
    together, since theirs is their source.
    """

    python: str
    path: str = ""
    stock_path: str = ""
    logs: Path = Path("/tmp/engine-logs")
    cache: Path = Path("/tmp/engine-cache")
    fake: bool = False

    def environment(self, arm: Arm) -> dict[str, str]:
        path = self.path if arm.patched else self.stock_path or self.path
        kind = "patched" if arm.patched or not self.stock_path else "stock"
        own = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CACHE_ROOT": str(self.cache / kind),
            "TRITON_CACHE_DIR": str(self.cache / "triton"),  # else each engine compiles the same kernels at its start
            "VLLM_TRITON_JIT_WARMUP_NUM_THREADS": "8",
            "TEARDOWN_CUPTI": "0",  # a process with CUDA graphs is profiled more than once (torch/profiler/profiler.py)
        }
        if path or self.fake:
            own["PYTHONPATH"] = str(FAKE) if self.fake else path
        return {**os.environ, **own}


class Engine(AbstractContextManager["Engine"]):
    """One process. `ask` sends an operation of worker.py and waits for its answer."""

    def __init__(self, arm: Arm, pair: Pair, places: Places, start: bool = True) -> None:
        self.arm = arm
        self.gone = ""  # why there is no process any more
        self.facts: dict[str, Any] = {}
        places.logs.mkdir(parents=True, exist_ok=True)
        self._log = places.logs / f"{arm.name.replace(' ', '-')}.{os.getpid()}.{time.monotonic_ns() % 10**6}.log"
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        worker = [places.python, str(Path(__file__).with_name("worker.py")), str(commands), str(answers)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                worker, env=places.environment(arm), stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                pass_fds=(commands, answers), start_new_session=True,
            )  # fmt: skip
        os.close(commands)
        os.close(answers)
        self._buffer = b""
        self._asked = threading.Lock()  # parts that run together share engines: one question at a time
        if start:
            self._send({"op": "start", "arguments": arm.arguments(pair), "plain": arm.plain})

    def started(self, seconds: float) -> dict[str, Any]:
        """Waits for the engine to be up; what it says of itself."""
        self.facts = self._receive(seconds)
        return self.facts

    def ask(self, op: str, seconds: float = 120, **arguments: Any) -> Any:
        """Raises EngineFailed: the operation failed, or gave no answer in `seconds`; the process is gone then."""
        end = time.monotonic() + seconds
        if not self._asked.acquire(timeout=seconds):
            raise EngineFailed(f"{self.arm.name} was busy with another part for {seconds:.0f} s")
        try:
            if self.gone:
                raise EngineFailed(self.gone)
            self._send({"op": op, **arguments})
            return self._receive(end - time.monotonic())
        finally:
            self._asked.release()

    def _send(self, message: dict[str, Any]) -> None:
        with suppress(BrokenPipeError):  # the missing answer tells
            data = json.dumps(message).encode() + b"\n"
            while data:
                data = data[os.write(self._commands, data) :]

    def _receive(self, seconds: float) -> Any:
        end = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self._answers, 1 << 20) if ready else b""
            if not data:
                why = "ended" if ready else f"gave no answer in {seconds:.0f} s"
                self.gone = f"{self.arm.name} {why}"
                self.close(10 if ready else 0)  # one that does not answer does not hear either
                self.gone += f":\n{self.tail()}"
                raise EngineFailed(self.gone)
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer = json.loads(line)
        if "error" in answer:
            raise EngineFailed(f"{self.arm.name}: {answer['error']}")
        return answer["result"]

    def tail(self, lines: int = 12) -> str:
        text = self._log.read_text(errors="replace").splitlines()
        return "\n".join(line[:300] for line in text[-lines:])

    def dismiss(self) -> None:
        """Nothing more is asked: the process ends by itself."""
        self.gone = self.gone or f"{self.arm.name} was closed"
        for descriptor in (self._commands, self._answers):
            with suppress(OSError):
                os.close(descriptor)
        self._commands = self._answers = -1

    def close(self, seconds: float = 10) -> None:
        self.dismiss()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        self.close()


class Pool(AbstractContextManager["Pool"]):
    """The engines of a run. Arms of equal arguments are one engine, whatever their names."""

    def __init__(self, pair: Pair, places: Places) -> None:
        self.pair, self.places = pair, places
        self._engines: dict[str, Engine] = {}
        self._names: dict[str, list[str]] = {}

    def start(self, arms: Iterable[Arm], seconds: float) -> None:
        """Starts what these arms need, all at once, and waits for it. One that does not start is said and stays out."""
        begun = time.monotonic()
        for arm in arms:
            key = arm.key(self.pair)
            if key not in self._engines:
                self._engines[key] = Engine(arm, self.pair, self.places)
            names = self._names.setdefault(key, [])
            names.extend({arm.name} - {*names})
        for key, engine in self._engines.items():
            name = " = ".join(self._names[key])
            try:
                facts = engine.started(max(5.0, seconds - (time.monotonic() - begun)))
                facts["up_after"] = round(time.monotonic() - begun, 1)
                print(f"{name} is up after {facts['up_after']:.0f} s: {facts}", flush=True)
            except EngineFailed as failed:
                engine.close()
                engine.gone = f"{name} did not start: {failed}"
                print(engine.gone, file=sys.stderr, flush=True)

    def engine(self, arm: Arm) -> Engine:
        return self._engines[arm.key(self.pair)]

    def facts(self) -> list[dict[str, Any]]:
        """What each engine that was started is called, and what it said of itself."""
        return [{"arms": self._names[key], "gone": e.gone, **e.facts} for key, e in self._engines.items()]

    def __exit__(self, *_: object) -> None:
        for engine in self._engines.values():
            engine.dismiss()
        end = time.monotonic() + 10
        for engine in self._engines.values():
            engine.close(max(0.0, end - time.monotonic()))


class Engines:
    """The engines of one part, by the names that its arms have there. One that is gone is said, and left out."""

    def __init__(self, arms: Iterable[Arm], pool: Pool, report: Report) -> None:
        self._engines = {arm.name: pool.engine(arm) for arm in arms}
        self._report = report
        for name, engine in self._engines.items():
            if engine.gone:
                report.failed(f"{name}: {engine.gone}")

    def __getitem__(self, name: str) -> Engine:
        if name not in self:
            raise EngineFailed(f"{name} is not there")
        return self._engines[name]

    def __contains__(self, name: str) -> bool:
        return name in self._engines and not self._engines[name].gone

    def names(self, wanted: Sequence[str] = ()) -> list[str]:
        """Those that are up, of the wanted ones or of all, in that order."""
        return [name for name in wanted or self._engines if name in self]

    def attempt(self, name: str, op: str, seconds: float, **arguments: Any) -> Any:
        """As `ask`; None where the engine fails or is gone, which is said: the other arms go on."""
        if name not in self:
            return None
        try:
            return self[name].ask(op, seconds, **arguments)
        except EngineFailed as failed:
            self._report.failed(f"{name}: {failed}")
            return None

    def together(self, op: str, seconds: float, asked: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """`attempt` of several engines at the same time, with arguments of their own: for what is not timed."""
        with ThreadPoolExecutor(max(1, len(asked))) as threads:
            futures = {name: threads.submit(self.attempt, name, op, seconds, **given) for name, given in asked.items()}
        return {name: future.result() for name, future in futures.items()}

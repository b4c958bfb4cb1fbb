"""Engines as processes: start several at once, ask each in turn, leave none behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .arms import Arm, Pair
from .figures import Clock

FAKE = Path(__file__).parent / "fake"


class EngineFailed(Exception):
    """An engine's process ended, or did not answer in time. The message ends with what it printed last."""


@dataclass(frozen=True)
class Places:
    """Where engines come from and what they leave.

    path: search path of the patched engine; stock_path of the unpatched one (the same: the recipe is switched off).
    cache: compiled graphs, apart for both, since a cache key need not hold what a patch changes.
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
        }
        if path or self.fake:
            own["PYTHONPATH"] = str(FAKE) if self.fake else path
        return {**os.environ, **own}


class Engine(AbstractContextManager["Engine"]):
    """One arm's process. `ask` sends an operation of worker.py and waits for its answer."""

    def __init__(self, arm: Arm, pair: Pair, places: Places, start: bool = True) -> None:
        self.arm = arm
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
        self.facts: dict[str, Any] = {}
        if start:
            self._send({"op": "start", "arguments": arm.arguments(pair), "plain": arm.plain})

    def started(self, seconds: float) -> dict[str, Any]:
        """Waits for the engine to be up; what it says of itself."""
        self.facts = self._receive(seconds)
        return self.facts

    def ask(self, op: str, seconds: float = 120, **arguments: Any) -> Any:
        """Raises EngineFailed: the operation failed, or gave no answer in `seconds`; the process is gone then."""
        self._send({"op": op, **arguments})
        return self._receive(seconds)

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
                self.close()
                why = "ended" if ready else f"gave no answer in {seconds:.0f} s"
                raise EngineFailed(f"{self.arm.name} {why}:\n{self.tail()}")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer = json.loads(line)
        if "error" in answer:
            raise EngineFailed(f"{self.arm.name}: {answer['error']}")
        return answer["result"]

    def tail(self, lines: int = 12) -> str:
        text = self._log.read_text(errors="replace").splitlines()
        return "\n".join(line[:300] for line in text[-lines:])

    def close(self) -> None:
        for descriptor in (self._commands, self._answers):
            with suppress(OSError):
                os.close(descriptor)
        self._commands = self._answers = -1
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __exit__(self, *_: object) -> None:
        self.close()


class Engines(AbstractContextManager["Engines"]):
    """Several arms up at the same time. One that does not start is reported and left out."""

    def __init__(self, arms: Iterable[Arm], pair: Pair, places: Places, clock: Clock) -> None:
        begun = time.monotonic()
        self.failed: dict[str, str] = {}
        self._engines = {arm.name: Engine(arm, pair, places) for arm in arms}
        for name, engine in list(self._engines.items()):
            try:
                facts = engine.started(max(1.0, clock.left))
                print(f"{name} is up after {time.monotonic() - begun:.0f} s: {facts}", flush=True)
            except EngineFailed as failed:
                self.failed[name] = str(failed)
                del self._engines[name]
                print(f"{name} did not start: {failed}", file=sys.stderr, flush=True)

    def __getitem__(self, name: str) -> Engine:
        if name in self.failed:
            raise EngineFailed(f"{name} did not start")
        return self._engines[name]

    def __contains__(self, name: str) -> bool:
        return name in self._engines

    def names(self, wanted: Sequence[str] = ()) -> list[str]:
        """Those that are up, of the wanted ones or of all, in that order."""
        return [name for name in wanted or self._engines if name in self._engines]

    def __exit__(self, *_: object) -> None:
        for engine in self._engines.values():
            engine.close()

"""The command line: what every measurement takes, and which there are."""

from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .arms import Pair
from .figures import Clock, OutOfTime, Report
from .pool import EngineFailed, Places

#: Command -> module with `run(setting) -> None`, in the order of importance.
COMMANDS = {
    "acceptance": "acceptance",
    "lossless": "lossless",
    "speed": "speed",
    "steps": "steps",
    "launches": "launches",
    "correctness": "correctness",
    "soak": "soak",
    "off-switch": "off_switch",
    "refusals": "refusals",
}
TEXT_VOCABULARY = 4000  # random prompts stay below every vocabulary's special ids


@dataclass(frozen=True)
class Setting:
    """What a measurement is given."""

    pair: Pair
    places: Places
    clock: Clock
    report: Report
    prompts: list[list[int]]
    tokens: int
    options: argparse.Namespace

    def only(self, names: Sequence[str]) -> list[str]:
        """Those of the named parts that were asked for; all without --only."""
        chosen = self.options.only or names
        unknown = [name for name in chosen if name not in names]
        if unknown:
            sys.exit(f"--only {unknown[0]}: there are {', '.join(names)}")
        return list(chosen)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="benchmarks/engine", description="Measures a DDTree in real engines.")
    made.add_argument("command", choices=COMMANDS)
    made.add_argument("--target", required=True, help="model folder")
    made.add_argument("--draft", required=True, help="DFlash drafter's folder")
    made.add_argument("--python", default=sys.executable, help="interpreter that imports the patched vLLM")
    made.add_argument("--path", default="", help="PYTHONPATH of the patched vLLM")
    made.add_argument("--stock-path", default="", help="PYTHONPATH of the unpatched one (default: the patched, off)")
    made.add_argument("--minutes", type=float, default=10.0, help="ends by itself within this time")
    made.add_argument("--json", type=Path, help="figures go here, as they come")
    made.add_argument("--logs", type=Path, default=Path(tempfile.gettempdir()) / "engine-logs")
    made.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "engine-cache")
    made.add_argument("--prompts", type=Path, help="JSON: lists of token ids (default: random ids)")
    made.add_argument("--prompt-length", type=int, default=64, help="a prompt is so many of its ids")
    made.add_argument("--count", type=int, default=32, help="prompts")
    made.add_argument("--tokens", type=int, default=192, help="generated per prompt")
    made.add_argument("--budgets", type=int, nargs="+", default=[16, 64], help="tree nodes")
    made.add_argument("--horizon", type=int, default=15, help="draft tokens of the stock chain")
    made.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 128])
    made.add_argument("--pairs", type=int, default=10, help="alternating measurements of each arm")
    made.add_argument("--runner", choices=["v1", "v2"], default="v2", help="which runner the recipe was made for")
    made.add_argument("--small-cache", type=int, default=200, help="KV blocks where requests shall be preempted")
    made.add_argument("--requests", type=int, default=2000, help="of the soak")
    made.add_argument("--only", nargs="+", help="parts of the command")
    made.add_argument("--fake", action="store_true", help="rehearse without vLLM and without a GPU")
    return made


def setting(options: argparse.Namespace) -> Setting:
    prompts = read_prompts(options.prompts, options.count, options.prompt_length)
    return Setting(
        pair=Pair(options.target, options.draft),
        places=Places(options.python, options.path, options.stock_path, options.logs, options.cache, fake=options.fake),
        clock=Clock(options.minutes),
        report=Report(options.json),
        prompts=prompts,
        tokens=options.tokens,
        options=options,
    )


def read_prompts(path: Path | None, count: int, length: int) -> list[list[int]]:
    if path is None:
        generator = random.Random(0)
        return [[generator.randrange(10, TEXT_VOCABULARY) for _ in range(length)] for _ in range(count)]
    return [list(map(int, ids[:length])) for ids in json.loads(path.read_text())[:count]]


def main(arguments: list[str] | None = None) -> int:
    """0: every bar met; 1: one missed or not measured; 3: an engine failed."""
    given = setting(parser().parse_args(arguments))
    module: Any = importlib.import_module(f".{COMMANDS[given.options.command]}", __package__)
    status = 0
    try:
        module.run(given)
    except OutOfTime:
        print("out of time: the rest was not measured", flush=True)
        given.report.bar("measured to the end", 0, "1", None)
    except EngineFailed as failed:
        print(f"FAILED {failed}", flush=True)
        given.report.keep("failed", str(failed))
        status = 3
    given.report.keep("command", given.options.command)
    return status or int(given.report.missed > 0)

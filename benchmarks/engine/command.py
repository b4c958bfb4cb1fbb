"""The command line: what every measurement takes."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

from .arms import Pair
from .figures import Clock, Report
from .part import Setting
from .pool import Places
from .suite import COMMANDS, run

TEXT_VOCABULARY = 4000  # random prompts stay below every vocabulary's special ids


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="benchmarks/engine", description="Measures a DDTree in real engines.")
    made.add_argument("command", choices=["suite", *COMMANDS])
    made.add_argument(
        "--parts",
        nargs="+",
        metavar="COMMAND[:PART]",
        help="of a suite, in this order, on the same engines; launches and off-switch last, for they leave a profiler",
    )
    made.add_argument(
        "--together",
        action="store_true",
        help="a suite's parts at the same time, on shared engines: none of them timed",
    )
    made.add_argument("--target", required=True, help="model folder")
    made.add_argument("--draft", required=True, help="DFlash drafter's folder")
    made.add_argument("--python", default=sys.executable, help="interpreter that imports the patched vLLM")
    made.add_argument("--path", default="", help="PYTHONPATH of the patched vLLM")
    made.add_argument("--stock-path", default="", help="PYTHONPATH of the unpatched one (default: the patched, off)")
    made.add_argument("--minutes", type=float, default=10.0, help="ends by itself within this time, all parts of it")
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
        clock=Clock(60 * options.minutes),
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
    made = parser()
    options = made.parse_args(arguments)
    suite = options.command == "suite"
    if suite != bool(options.parts):
        made.error("--parts says what a suite measures, and belongs to it alone")
    if options.together and not suite:
        made.error("--together belongs to a suite")
    if suite and options.only:
        made.error("--only belongs to a single command: write COMMAND:PART in --parts")
    return run(setting(options), options.parts or [options.command], keyed=suite)

"""Times ``specaudit patch`` on a release in a folder, and prints a Markdown table. Run by ``make bench-patch``.

Each number is the median over whole processes, start of Python and all, with files in the page cache and the index warm
(one run before the first that is timed). The engine is a copy, so that an apply can be timed and taken back.

    python benchmarks/patch.py [--runs 7] [--release 0.33.0] [--recipe NAME]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from specaudit.cache import folder
from specaudit.hosts.unpack import unpack

PROGRAM = (sys.executable, "-c", "from specaudit.cli import main; main()")


def timed(command: list[str], environment: dict[str, str]) -> float:
    """Seconds of one whole process, which has to succeed."""
    begun = time.perf_counter()
    done = subprocess.run([*PROGRAM, *command], capture_output=True, text=True, env=environment, check=False)
    seconds = time.perf_counter() - begun
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return seconds


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--release", default="0.33.0")
    parser.add_argument("--recipe", default="gdn-state-index")
    options = parser.parse_args()
    source = unpack(f"vllm=={options.release}", folder() / "releases")
    with tempfile.TemporaryDirectory() as scratch:
        site = Path(scratch) / "site-packages"
        shutil.copytree(source, site, symlinks=True)
        target = f"dir:{site}"
        state = {"XDG_STATE_HOME": f"{scratch}/state", "XDG_CACHE_HOME": f"{scratch}/cache"}
        environment = {**os.environ, **state}
        commands = {
            "plan, nothing cached": ["patch", target, "--recipe", options.recipe, "--dry-run"],
            "plan, index warm": ["patch", target, "--recipe", options.recipe, "--dry-run"],
            "status": ["patch", "status", target],
            "apply and verify": ["patch", target, "--recipe", options.recipe, "--yes", "--no-diff"],
            "verify": ["patch", "verify", target],
            "revert": ["patch", "revert", target, "--yes"],
        }
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for run in range(options.runs):
            for name, command in commands.items():
                if name == "plan, nothing cached":
                    shutil.rmtree(f"{scratch}/cache", ignore_errors=True)
                seconds[name].append(timed(command, environment))
            print(f"run {run + 1} of {options.runs}", file=sys.stderr)
    print(f"| vLLM {options.release}, {options.recipe} | median s | least | most |\n|---|---:|---:|---:|")
    for name, values in seconds.items():
        print(f"| {name} | {statistics.median(values):.2f} | {min(values):.2f} | {max(values):.2f} |")


if __name__ == "__main__":
    main()

"""Times the scan beside other tools that read source code, and prints a Markdown table. Run by ``make bench``.

Every number is the median over whole processes, files in the page cache, start of Python and all. All cases take turns,
so that a slow minute of the machine falls on all of them. Memory is the largest sum over all processes of a run
(proportional set size, so that shared pages count once), taken in runs of its own because looking costs time. The other
tools answer a much smaller question (where is a method called ``propose`` called?); they are there to say what reading
the same tree costs at least.

    python benchmarks/scan.py [--runs 7] [--tools .bench/bin]
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from specaudit.cache import folder
from specaudit.hosts.unpack import unpack

PATTERN = "$X.propose($$$)"
SEMGREP_RULE = """
rules:
  - {id: propose, languages: [python], severity: INFO, message: propose, pattern: $X.propose(...)}
"""


@dataclass
class Case:
    """One row: what is measured, its command, and what is done before each run (outside of the time)."""

    name: str
    release: str
    command: list[str]
    before: Callable[[], None] = lambda: None
    bar: str = ""


def main() -> None:
    """Measures all cases that the installed tools allow."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--tools", type=Path, default=Path(".bench/bin"), help="folder with semgrep and ast-grep")
    options = parser.parse_args()
    trees = {version: unpack(f"vllm=={version}", folder() / "releases") for version in ("0.33.0", "0.20.1")}
    with tempfile.TemporaryDirectory() as scratch:
        cases = list(specaudit_cases(trees, Path(scratch))) + list(tool_cases(trees, options.tools, Path(scratch)))
        for tree in trees.values():
            warm(tree)
        print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, median of {options.runs} whole processes\n")
        print("| What | vLLM | seconds (fastest to slowest) | peak MiB | bar |")
        print("|---|---|---:|---:|---|")
        timed(cases[0])
        rounds = [[timed(case) for case in cases] for _ in range(options.runs)]
        for case, seconds in zip(cases, zip(*rounds, strict=True), strict=True):
            peak = max(watched(case) for _ in range(2))
            spread = f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
            print(f"| {case.name} | {case.release} | {spread} | {peak:.0f} | {case.bar} |", flush=True)


def specaudit_cases(trees: dict[str, Path], scratch: Path) -> list[Case]:
    """Cold: with an empty cache. Second: with the cache that the scan before left."""
    program = str(Path(sys.executable).with_name("specaudit"))
    cache = scratch / "cache"
    cases = []
    for version, bars in (("0.33.0", ("3.0 s (goal 2.0), 400 MiB", "0.5 s (goal 0.3)")), ("0.20.1", ("1.8 s", ""))):
        for rules, bar in (("--no-rules", bars), ("", ("", ""))):
            command = [
                "env",
                f"XDG_CACHE_HOME={cache}",
                program,
                "scan",
                f"dir:{trees[version]}",
                *filter(None, [rules]),
            ]
            label = f"`specaudit scan {rules}`".replace(" `", "`")
            cases.append(
                Case(f"{label}, cold", version, command, lambda: shutil.rmtree(cache, ignore_errors=True), bar[0])
            )
            cases.append(Case(f"{label}, second", version, command, bar=bar[1]))
    return cases


def tool_cases(trees: dict[str, Path], tools: Path, scratch: Path) -> list[Case]:
    """The same tree read by others, where they are installed."""
    rule = scratch / "rule.yaml"
    rule.write_text(SEMGREP_RULE)
    tree = str(trees["0.33.0"] / "vllm")
    cases = []
    semgrep, ast_grep = tools / "semgrep", tools / "ast-grep"
    if semgrep.exists():
        path = f"PATH={tools.resolve()}:{os.environ['PATH']}"
        quiet = ["--metrics=off", "--disable-version-check", "--quiet", "--no-git-ignore"]
        cases.append(
            Case(
                "semgrep, one rule", "0.33.0", ["env", path, str(semgrep), "scan", *quiet, "--config", str(rule), tree]
            )
        )
    if ast_grep.exists():
        command = [str(ast_grep), "run", "--lang", "python", "--pattern", PATTERN, tree]
        cases.append(Case("ast-grep, the same rule", "0.33.0", command))
    words = "spec_decode|rejection|proposer|speculat"
    cases.append(
        Case(f"`grep -rnE '{words}'`".replace("|", "\\|"), "0.33.0", ["grep", "-rnE", "--include=*.py", words, tree])
    )
    return cases


def warm(tree: Path) -> None:
    """Brings the tree into the page cache."""
    for file in tree.rglob("*.py"):
        file.read_bytes()


def timed(case: Case) -> float:
    """Seconds of one run."""
    case.before()
    start = time.perf_counter()
    done = subprocess.run(case.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode not in (0, 1):  # 1: nothing found, or findings
        sys.exit(f"{case.name} failed: {done.stderr[-2000:]}")
    return seconds


def watched(case: Case) -> float:
    """Largest memory of one run's processes together, in MiB."""
    case.before()
    process = subprocess.Popen(case.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(map(proportional_kib, family(process.pid))))
        time.sleep(0.005)
    return peak / 1024


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for parent in found:
        try:
            found += map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
        except OSError:
            continue
    return found


def proportional_kib(pid: int) -> int:
    """Proportional set size of one process; 0 once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


if __name__ == "__main__":
    main()

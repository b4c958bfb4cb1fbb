"""What the rules add to a scan, beside ast-grep's own command line with the same shapes. Run by ``make bench-rules``.

A row's numbers are medians over whole processes, files in the page cache: seconds on the clock, and seconds of
processor time, which other work on the machine disturbs less. "Added" is the difference of the medians of
scans with and without rules, taken in turns so that a busy machine slows both. ast-grep's command line gets every shape
that a rule matches with, once on the whole package and once on the files that rules read; it finds matches, not
statuses: no subjects, no joins of files, no absence.

    python benchmarks/rules.py [--runs 7] [--tools .bench/bin]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path

from specaudit.cache import folder
from specaudit.hosts.unpack import unpack
from specaudit.ruling.judge import RuleJudge
from specaudit.ruling.rule import Edit, Example, Flows, Match, Order, Shape, Values
from specaudit.ruling.store import rulebook

RELEASE = "0.33.0"
Time = tuple[float, float]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--tools", type=Path, default=Path(".bench/bin"), help="folder with ast-grep")
    options = parser.parse_args()
    tree = unpack(f"vllm=={RELEASE}", folder() / "releases")
    for file in tree.rglob("*.py"):
        file.read_bytes()
    rules = rulebook().rules
    shapes = [shape for rule in rules for shape in shapes_of(rule)]
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, vLLM {RELEASE}, {len(rules)} rules with")
    print(f"{len(shapes)} shapes, median of {options.runs} whole processes\n")
    print("| What | seconds (fastest to slowest) | processor | bar |")
    print("|---|---:|---:|---|")
    with tempfile.TemporaryDirectory() as scratch:
        scans(tree, Path(scratch) / "cache", options.runs)
        ast_grep(options.tools / "ast-grep", tree, shapes, Path(scratch), options.runs)


def scans(tree: Path, cache: Path, runs: int) -> None:
    """Scans with and without rules, cold (empty cache) and second (the cache of the scan before)."""
    program = str(Path(sys.executable).with_name("specaudit"))
    kinds = {"without rules": ["--no-rules"], "with rules": []}
    cold: dict[str, list[Time]] = {kind: [] for kind in kinds}
    second: dict[str, list[Time]] = {kind: [] for kind in kinds}
    for _ in range(runs):
        for kind, words in kinds.items():
            shutil.rmtree(cache, ignore_errors=True)
            command = ["env", f"XDG_CACHE_HOME={cache}", program, "scan", f"dir:{tree}", *words]
            cold[kind].append(timed(command))
            second[kind].append(timed(command))
    for label, seconds, bar in (("cold", cold, "1.5 s"), ("second", second, "0.1 s")):
        for kind in kinds:
            row(f"`specaudit scan` {kind}, {label}", seconds[kind])
        clock, processor = (
            statistics.median(t[at] for t in seconds["with rules"])
            - statistics.median(t[at] for t in seconds["without rules"])
            for at in (0, 1)
        )
        print(f"| **added by the rules, {label}** | **{clock:.2f}** | **{processor:.2f}** | {bar} |", flush=True)


def ast_grep(program: Path, tree: Path, shapes: Sequence[Shape], scratch: Path, runs: int) -> None:
    """ast-grep's own scan with the same shapes."""
    if not program.exists():
        print(f"| ast-grep: not at {program} | | | |")
        return
    (scratch / "rules").mkdir()
    for number, shape in enumerate(shapes):
        document = {"id": f"shape-{number}", "language": "python", "rule": shape}
        (scratch / "rules" / f"{number}.yml").write_text(json.dumps(document))
    (scratch / "sgconfig.yml").write_text("ruleDirs: [rules]\n")
    judge = RuleJudge(rulebook())
    read = scratch / "read"
    for file in (tree / "vllm").rglob("*.py"):
        path = file.relative_to(tree).as_posix()
        if judge.wants(path):
            (read / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, read / path)
    for label, place in (("the files that rules read", read), ("the whole package", tree / "vllm")):
        for jobs in ("1", "0"):
            command = [
                str(program),
                "scan",
                "-c",
                str(scratch / "sgconfig.yml"),
                "-j",
                jobs,
                "--json=stream",
                str(place),
            ]
            threads = "one thread" if jobs == "1" else "all threads"
            row(f"ast-grep, the same shapes, {label}, {threads}", [timed(command) for _ in range(runs)])


def shapes_of(value: object) -> Iterator[Shape]:
    """Every shape that a rule, or a part of one, matches with."""
    if isinstance(value, Match):
        yield value.shape
    elif isinstance(value, Order):
        yield from (value.first, value.then)
    elif isinstance(value, Flows):
        yield from (value.source, value.sink)
    elif isinstance(value, Values) and value.shape is not None:
        yield value.shape
    elif isinstance(value, tuple):
        for item in value:
            yield from shapes_of(item)
    elif is_dataclass(value) and not isinstance(value, (Example, Edit)):
        for part in fields(value):
            yield from shapes_of(getattr(value, part.name))


def timed(command: list[str]) -> Time:
    """Seconds of one run: clock, and processor of all its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode not in (0, 1):  # 1: findings
        sys.exit(f"{command} failed: {done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def row(name: str, times: list[Time]) -> None:
    """One line of the table."""
    clock, processor = ([t[at] for t in times] for at in (0, 1))
    spread = f"{statistics.median(clock):.2f} ({min(clock):.2f} to {max(clock):.2f})"
    print(f"| {name} | {spread} | {statistics.median(processor):.2f} | |", flush=True)


if __name__ == "__main__":
    main()

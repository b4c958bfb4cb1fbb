"""Several measurements one after the other, on engines that are started once, all together, and shared."""

from __future__ import annotations

import importlib
import shutil
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from .figures import OutOfTime, Report
from .part import Part, Setting, choose
from .pool import EngineFailed, Engines, Pool

#: Command -> module with `parts(options, only) -> dict[str, Part]`, in the order of importance. A command that is one
#: part calls it "".
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
START = 0.7  # of the time: an engine that takes longer is left out, so that the others are measured


def expand(given: Setting, wanted: Sequence[str]) -> dict[str, Part]:
    """`COMMAND` or `COMMAND:PART` -> parts by name, a command's own in its order."""
    found: dict[str, Part] = {}
    for text in wanted:
        command, _, one = text.partition(":")
        module: Any = importlib.import_module(f".{COMMANDS[choose(list(COMMANDS), [command])[0]]}", __package__)
        only = [one] if one else list(given.options.only or [])
        for name, part in module.parts(given.options, only).items():
            found[":".join(filter(None, (command, name or one)))] = part
    return found


def run(given: Setting, wanted: Sequence[str], keyed: bool) -> int:
    """One part after the other, each with its weight's share of the time that is left; or all at the same time, each
    with all of it (`--together`, for what is not timed). keyed: a part's report stands below its name.

    0: every bar met; 1: one missed or not measured; 3: an engine or a part failed.
    """
    parts = expand(given, wanted)
    timed = [name for name, part in parts.items() if part.timed]
    if given.options.together and timed:
        sys.exit(f"--together: {timed[0]} is timed, so it has to run alone")
    if not given.places.fake:
        refuse_absent(given)
    left = sum(part.weight for part in parts.values())
    with Pool(given.pair, given.places) as pool:
        pool.start([arm for part in parts.values() for arm in part.arms(given)], START * given.clock.left)
        given.report.keep("engines", pool.facts())
        reports = {name: given.report.section(name) if keyed else given.report for name in parts}
        if given.options.together:
            run_together(parts, reports, given, pool)
        else:
            for name, part in parts.items():
                print(f"\n## {name}", flush=True)
                clock = given.clock.share(part.weight / left)
                run_part(part, replace(given, clock=clock, report=reports[name]), pool)
                left -= part.weight
        for name, report in reports.items():
            report.keep("command", name)
    if any("failed" in report.content for report in reports.values()):
        return 3
    return int(any(report.missed for report in reports.values()))


def refuse_absent(given: Setting) -> None:
    """Before any engine starts: an interpreter or a model that is not there."""
    if shutil.which(given.places.python) is None:
        sys.exit(f"--python {given.places.python}: there is no such program")
    for name, folder in (("target", given.pair.target), ("draft", given.pair.draft)):
        if not Path(folder).is_dir():
            sys.exit(f"--{name} {folder}: there is no such folder")


def run_together(parts: dict[str, Part], reports: dict[str, Report], given: Setting, pool: Pool) -> None:
    """What a part says is printed when it is through."""
    with ThreadPoolExecutor(len(parts)) as threads:
        running = {}
        for name, part in parts.items():
            reports[name].held = []
            own = replace(given, clock=given.clock.share(1.0), report=reports[name])
            running[threads.submit(run_part, part, own, pool)] = name
        for future in as_completed(running):
            name = running[future]
            future.result()
            print("\n".join([f"\n## {name}", *(reports[name].held or [])]), flush=True)
            reports[name].held = None


def run_part(part: Part, given: Setting, pool: Pool) -> None:
    try:
        part.run(given, Engines(part.arms(given), pool, given.report))
    except OutOfTime:
        given.out_of_time()
    except EngineFailed as failed:
        given.report.failed(str(failed))
    except Exception as broken:  # one part's fault must not cost the others the engines that are up
        traceback.print_exc()
        given.report.failed(f"{type(broken).__name__}: {broken}")

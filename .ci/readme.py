"""Keeps the README's console blocks true: each ``$ specaudit …`` line in them is run, and followed by what it prints.

python .ci/readme.py          compare, exit 1 where they differ (a test does the same)
python .ci/readme.py --write  put in what the program prints now
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"(?<=^```console\n)(?P<body>.*?)(?=^```$)", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"\$ (?P<command>specaudit .*?)(?P<cut> \| head -(?P<lines>\d+))?\n")


def refreshed(text: str) -> str:
    """The README with what the program prints now."""
    return BLOCK.sub(lambda block: answered(block["body"]), text)


def answered(body: str) -> str:
    """One block: every command with its output; a line that is no command belongs to the output before it."""
    out = []
    for found in COMMAND.finditer(body):
        lines = output(found["command"]).splitlines()
        if found["cut"]:
            lines = lines[: int(found["lines"])]
        out.append(found[0] + "".join(f"{line.rstrip()}\n" for line in lines))
    return "\n".join(out)


def output(command: str) -> str:
    """What a command prints on stdout, 80 columns wide. Ends the program when the command fails or prints nothing."""
    program, *arguments = shlex.split(command)
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    binary = Path(sys.executable).with_name(program)
    done = subprocess.run([binary, *arguments], env=environment, capture_output=True, text=True, check=False)
    if done.returncode or not done.stdout.strip():
        sys.exit(f"$ {command}\nended with {done.returncode}: {done.stderr[-1000:]}")
    return done.stdout.strip("\n") + "\n"


if __name__ == "__main__":
    before = README.read_text(encoding="utf-8")
    after = refreshed(before)
    if "--write" in sys.argv:
        README.write_text(after, encoding="utf-8")
    elif before != after:
        sys.exit("README.md shows what the program no longer prints; run `make readme`.")

"""Prints a constraints file: one ``name==version`` per package that pip resolves for all extras, sorted.

Run by ``make lock``. Works with any pip since 23.0 (``--dry-run --report``). Local labels (``+cpu``) are dropped,
so that the file fits every build of a package.
"""

from __future__ import annotations

import json
import subprocess
import sys

WANTED = ".[dev,ddtree]"


def main() -> None:
    """Asks pip what it would install into an empty environment."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--dry-run",
        "--ignore-installed",
        "--report",
        "-",
        WANTED,
    ]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    found = {
        item["metadata"]["name"].lower().replace("_", "-"): item["metadata"]["version"] for item in report["install"]
    }
    found.pop("specaudit")
    print("# Versions this program is tested with. Made by `make lock`; used as `pip install -c constraints.txt …`.")
    for name, version in sorted(found.items()):
        print(f"{name}=={version.partition('+')[0]}")


if __name__ == "__main__":
    main()

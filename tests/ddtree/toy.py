"""The toy pair: a 23M-parameter target of Qwen3's architecture and its DFlash drafter, trained on Python source.

It is not part of the repository (28 MB). SPECAUDIT_TOY names a folder that holds it, unpacked (target/, draft/,
holdout.json) or packed (toy.npz.xz with its toy.py); without the variable ../shared/gpu beside the checkout is tried.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

VARIABLE = "SPECAUDIT_TOY"
BESIDE_CHECKOUT = Path(__file__).parents[3] / "shared" / "gpu"


def find() -> Path | None:
    """The folder that holds the toy pair. A variable that names no such folder is an error, not an absence."""
    named = os.environ.get(VARIABLE)
    folder = Path(named) if named else BESIDE_CHECKOUT
    if (folder / "holdout.json").is_file() or (folder / "toy.npz.xz").is_file():
        return folder
    if named:
        raise FileNotFoundError(f"{VARIABLE}={named} holds neither holdout.json nor toy.npz.xz")
    return None


def unpacked(destination: Path) -> Path:
    """A folder with target/, draft/ and holdout.json."""
    folder = find()
    if folder is None:
        raise FileNotFoundError(f"no toy pair: set {VARIABLE}")
    if (folder / "holdout.json").is_file():
        return folder
    subprocess.run([sys.executable, folder / "toy.py", "unpack", destination], check=True)
    return destination

"""`python benchmarks/engine COMMAND …` from anywhere."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1])  # the package, not its modules, which have everyday names
if __name__ == "__main__":
    from engine.command import main

    sys.exit(main())

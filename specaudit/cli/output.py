"""Where a command's results go, stdout and files: one that cannot be written takes nothing from the others."""

from __future__ import annotations

import sys
from collections.abc import Callable

from specaudit.errors import Exit, UsageError


class Output:
    """Results, shown and saved in the order in which they are given."""

    def __init__(self) -> None:
        #: What a file that could not be written adds to the exit codes of the command.
        self.code = Exit.CLEAN
        self._problem: OSError | None = None

    def put(self, show: Callable[[], object]) -> None:
        """Shows something on stdout, unless that could not be written before (``| head``, a full disk)."""
        if self._problem is None:
            try:
                show()
                sys.stdout.flush()
            except OSError as bad:
                self._problem = bad

    def save(self, write: Callable[[], object]) -> bool:
        """Writes a file; where that fails it is said at once. Whether it was written."""
        try:
            write()
        except UsageError as bad:
            from specaudit.console import complain

            complain(bad.message, bad.hint)
            self.code = bad.code
            return False
        return True

    def finish(self) -> None:
        """Raises what kept something from being shown."""
        if self._problem is not None:
            raise self._problem

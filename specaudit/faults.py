"""The one seam at which an exception that nobody expected becomes an error like any other.

Everything else in the core catches the exceptions that it knows. What is left is a mistake of this program; it costs
the target, or the part of it, that was being worked on, never the run.
"""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specaudit import __version__
from specaudit.errors import FaultError, SpecauditError

#: An environment variable: set to anything but 0, tracebacks of faults are shown.
DEBUG = "SPECAUDIT_DEBUG"
_LOG = logging.getLogger("specaudit")
_PACKAGE = Path(__file__).parent
#: Characters of an exception's text that are told; it may quote a whole file.
_LIMIT = 200


@contextmanager
def unexpected(what: str) -> Iterator[None]:
    """Turns exceptions that are not ours into a :class:`specaudit.errors.FaultError`.

    The traceback is logged as ``specaudit``, at the level DEBUG.

    Args:
        what: what then was not done, as ``dir:/opt/site-packages could not be classified``.
    """
    try:
        yield
    except SpecauditError:
        raise
    except Exception as bad:  # the only one in the core: see above
        raise fault(what, bad) from bad


def fault(what: str, bad: Exception) -> FaultError:
    """The error for an exception that nobody expected."""
    _LOG.debug("%s", what, exc_info=bad)
    text = " ".join(str(bad).split())[:_LIMIT]
    said = type(bad).__name__ + (f": {text}" if text else "")
    return FaultError(
        f"{what}: {said} ({_place(bad)}). This is a fault of specaudit {__version__}, not of what it reads.",
        f"Please report this line with the release or commit that was read; {DEBUG}=1 adds the traceback.",
    )


@contextmanager
def tracebacks() -> Iterator[None]:
    """Meanwhile writes the tracebacks of faults to stderr, if the user asks for them by :data:`DEBUG`."""
    if os.environ.get(DEBUG, "0") in ("", "0"):
        yield
        return
    handler, level = logging.StreamHandler(), _LOG.level
    _LOG.addHandler(handler)
    _LOG.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        _LOG.removeHandler(handler)
        _LOG.setLevel(level)


def _place(bad: Exception) -> str:
    """The last line of this package that was running, as ``classify/terms.py:120``."""
    for frame in reversed(traceback.extract_tb(bad.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(_PACKAGE):
            return f"{path.relative_to(_PACKAGE).as_posix()}:{frame.lineno}"
    return "outside of it"

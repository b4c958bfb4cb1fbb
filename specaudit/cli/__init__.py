"""The program: one file per command, loaded when it is asked for.

:func:`main` is the console script. It maps every error to a line on stderr and to an exit code of
:class:`specaudit.errors.Exit`; no command prints an error or exits on its own.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from specaudit import __version__
from specaudit.errors import Exit, SpecauditError

if TYPE_CHECKING:
    from typer._click.exceptions import NoSuchOption

#: How writing to stdout fails: closed, a full disk or quota, a terminal that is gone. Files are written elsewhere, and
#: errors of these are caught there.
_OUTPUT = frozenset({errno.EBADF, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the program and exits with one of :class:`specaudit.errors.Exit`."""
    _open_streams()
    gc.set_threshold(100_000)  # the default looks through hundreds of thousands of lasting objects again and again
    code = run(sys.argv[1:] if argv is None else argv)
    if code == Exit.INTERRUPTED:
        _show_typing()
        os._exit(code)  # at once: the interpreter would wait for threads, which have nothing to lose any more
    sys.exit(code)


def _show_typing() -> None:
    """A thread that was asking for a password has left the terminal showing nothing."""
    import termios

    with suppress(OSError, ValueError, termios.error):
        settings = termios.tcgetattr(0)
        settings[3] |= termios.ECHO
        termios.tcsetattr(0, termios.TCSANOW, settings)


def _open_streams() -> None:
    """Makes the three standard streams usable.

    One that the caller has closed (``>&-``) is no stream to Python, and its number would go to the next file that is
    opened. What is written to a closed stdout fails as it does for any other program; what is said on a closed stderr
    goes nowhere. A stream that cannot show a character shows its code. A stdout without a buffer (PYTHONUNBUFFERED)
    gets one: what a full disk or a reader that goes away takes only a part of would pass for written.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # gets the lowest free number, which is this one
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w", errors="backslashreplace")
    if isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):
        sys.stdout = os.fdopen(sys.stdout.fileno(), "w", buffering=1, encoding=sys.stdout.encoding, closefd=False)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")


#: Where Git says to a hook which repository it runs for; ours are others.
_GIT = (
    "GIT_DIR", "GIT_COMMON_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_DEFAULT_HASH",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_PREFIX",
)  # fmt: skip


def run(argv: Sequence[str]) -> int:
    """Runs one command line and returns its exit code; everything that can go wrong ends here."""
    from specaudit.faults import fault, tracebacks

    for name in _GIT:
        os.environ.pop(name, None)
    try:
        with tracebacks():
            code = _run(argv)
        sys.stdout.flush()
        return code
    except SpecauditError as bad:
        _complain(bad.message, bad.hint)
        return bad.code
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        return _reader_gone()
    except Exception as bad:  # all but the first: a mistake of ours, see specaudit.faults
        if isinstance(bad, OSError) and bad.filename is None and bad.errno in _OUTPUT:
            _complain(f"stdout cannot be written: {bad.strerror}.", "Check where it goes.")
            _drop_output()
        else:
            with tracebacks():
                found = fault("The command could not be carried out", bad)
            _complain(found.message, found.hint)
        return Exit.ERROR


def _run(argv: Sequence[str]) -> int:
    """As :func:`run`, for what typer raises."""
    if list(argv) == ["--version"]:  # answered before typer is imported, which costs more than the answer
        print(f"specaudit {__version__}")
        return Exit.CLEAN
    import typer
    from typer._click.exceptions import NoArgsIsHelpError, NoSuchOption

    from specaudit.cli.root import program

    try:
        code = program().main(args=list(argv) or ["--help"], prog_name="specaudit", standalone_mode=False)
    except NoArgsIsHelpError as bad:  # a group of commands was named, and none of its commands
        print(bad.format_message(), file=sys.stderr)
        return Exit.ERROR
    except NoSuchOption as bad:
        _complain(*_no_option(bad, argv))
        return Exit.ERROR
    except typer.TyperException as bad:
        _complain(bad.format_message(), _help_hint(bad))
        return Exit.ERROR
    except typer.Abort:  # Ctrl-C at a question, or its input was closed
        _complain("The question was left, so nothing was done.", "Answer y or n, or give --yes.")
        return Exit.INTERRUPTED
    except SystemExit as leaving:  # typer turns a broken pipe into an exit of its own, with a gate's code
        if isinstance(leaving.__context__, BrokenPipeError):
            return _reader_gone()
        raise
    if code == Exit.INTERRUPTED:
        return _interrupted()
    return int(code or 0)


def _complain(message: str, hint: str) -> None:
    from specaudit.console import complain

    complain(message, hint)


def _no_option(bad: NoSuchOption, argv: Sequence[str]) -> tuple[str, str]:
    """What to say of an option that the command has not: as it was written, and the one that it is most like."""
    from specaudit.words import meant

    # Of -recipe only the first letter that is no option is handed on.
    single = (word for word in argv if word[:1] == "-" != word[1:2] and bad.option_name[1:] in word[1:])
    written = bad.option_name if bad.option_name.startswith("--") else next(single, bad.option_name)
    wanted = f"--{written.lstrip('-')}"
    known = [name for one in bad.ctx.command.params for name in (*one.opts, *one.secondary_opts)] if bad.ctx else []
    options = [name for name in known if name.startswith("--")]
    begun = [name for name in options if name.startswith(wanted)]
    hint = meant(wanted, begun, cutoff=0) if len(begun) == 1 else meant(wanted, options)
    return f"There is no option {written}.", hint or _help_hint(bad)


def _help_hint(bad: Exception) -> str:
    context = getattr(bad, "ctx", None)
    return f"{context.command_path} --help" if context is not None else "specaudit --help"


def _interrupted() -> int:
    _complain("Interrupted.", "")
    return Exit.INTERRUPTED


def _reader_gone() -> int:
    """The reader of a pipe went away (``| head``)."""
    _drop_output()
    return Exit.READER_GONE


def _drop_output() -> None:
    """What the interpreter would still flush at exit goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

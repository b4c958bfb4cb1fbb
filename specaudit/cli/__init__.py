"""The program: one file per command, loaded when it is asked for.

:func:`main` is the console script. It maps every error to a line on stderr and to an exit code of
:class:`specaudit.errors.Exit`; no command prints an error or exits on its own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from specaudit import __version__
from specaudit.errors import Exit, SpecauditError


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the program and exits with one of :class:`specaudit.errors.Exit`."""
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def run(argv: Sequence[str]) -> int:
    """Runs one command line and returns its exit code; everything that can go wrong ends here."""
    if list(argv) == ["--version"]:  # answered before typer is imported, which costs more than the answer
        print(f"specaudit {__version__}")
        return Exit.CLEAN
    import typer
    from typer._click.exceptions import NoArgsIsHelpError

    from specaudit.cli.root import program

    try:
        code = program().main(args=list(argv) or ["--help"], prog_name="specaudit", standalone_mode=False)
    except NoArgsIsHelpError as bad:  # a group of commands was named, and none of its commands
        print(bad.format_message(), file=sys.stderr)
        return Exit.ERROR
    except typer.TyperException as bad:
        _complain(bad.format_message(), _help_hint(bad))
        return Exit.ERROR
    except SpecauditError as bad:
        _complain(bad.message, bad.hint)
        return bad.code
    except typer.Abort:  # the user declined at a prompt, or closed its input
        _complain("Nothing was done.", "")
        return Exit.CLEAN
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        return _reader_gone()
    except SystemExit as leaving:  # typer and rich turn a broken pipe into an exit of their own, with a gate's code
        if isinstance(leaving.__context__, BrokenPipeError):
            return _reader_gone()
        raise
    if code == Exit.INTERRUPTED:
        return _interrupted()
    return int(code or 0)


def _complain(message: str, hint: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"  try: {hint}", file=sys.stderr)


def _help_hint(bad: Exception) -> str:
    context = getattr(bad, "ctx", None)
    return f"{context.command_path} --help" if context is not None else "specaudit --help"


def _interrupted() -> int:
    _complain("Interrupted.", "")
    return Exit.INTERRUPTED


def _reader_gone() -> int:
    """The reader of a pipe went away (``| head``): what the interpreter would still flush at exit goes nowhere."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.READER_GONE

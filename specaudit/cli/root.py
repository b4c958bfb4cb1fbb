"""The root command: knows every command's name and summary, and imports a command's module when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer._click.core import ParameterSource
from typer.core import TyperGroup
from typer.main import get_command

from specaudit import __version__
from specaudit.errors import UsageError

if TYPE_CHECKING:
    from typer._click import Command, Parameter
    from typer._click import Context as ClickContext
    from typer._click.formatting import HelpFormatter

#: command -> one line for ``specaudit --help``. Module ``specaudit.cli.<command>`` holds a typer app called ``app``.
COMMANDS = {
    "scan": "Tell which speculative-decoding code an engine really runs.",
    "trace": "Print each hop from a configuration to the kernel that accepts.",
    "rules": "List, explain and test the rules for known defects.",
    "report": "Turn scan documents into reports, and gate on them.",
    "diff": "Tell what changed between two engines or scan documents.",
    "history": "Tell how releases differ, one row each.",
    "patch": "Install DDTree into an engine, reversibly.",
    "smoke": "Prove on a GPU what a patch changes.",
}


class LazyGroup(TyperGroup):
    """A group whose commands are imported by name."""

    def list_commands(self, ctx: ClickContext) -> list[str]:
        """Names of all commands, in the order of the help text."""
        return list(COMMANDS)

    def get_command(self, ctx: ClickContext, cmd_name: str) -> Command | None:
        """Imports the command's module."""
        if cmd_name not in COMMANDS:
            return None
        command = get_command(import_module(f"specaudit.cli.{cmd_name}").app)
        command.name = cmd_name
        _refuse_empty(command)
        self.commands[cmd_name] = command
        return command

    def resolve_command(self, ctx: ClickContext, args: list[str]) -> Any:
        """Resolves a command; a misspelt one gets suggestions from all names, imported or not."""
        self.commands = {**dict.fromkeys(COMMANDS), **self.commands}  # type: ignore[dict-item]
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: ClickContext, formatter: HelpFormatter) -> None:
        """Writes the table of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _refuse_empty(command: Command) -> None:
    """Gives every option and path of a command, and what may be left out, a look at what it was given; also below it.

    Other words tell themselves what they cannot be.
    """
    for param in command.params:
        word = param.param_type_name == "argument" and (param.required or param.nargs != 1)
        if param.callback is None and (not word or param.type.name == "path"):
            param.callback = _not_empty
    for below in getattr(command, "commands", {}).values():
        _refuse_empty(below)


def _not_empty(ctx: ClickContext, param: Parameter, value: Any) -> Any:
    """An empty word is an unset variable: it was to say something, and is not taken for silence, or for this folder."""
    given = ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
    if given and "" in (value if isinstance(value, (list, tuple)) else (value,)):
        shown = param.metavar or param.human_readable_name
        name = max(param.opts, key=len) if param.param_type_name == "option" else shown.strip("[]….")
        way = f"{name} {shown}" if param.param_type_name == "option" else name
        raise UsageError(f"{name} is empty.", f"{'Write' if param.required else 'Leave it out, or write'} {way}.")
    return value


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"specaudit {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Which speculative-decoding code an installed vLLM or SGLang really runs, with evidence.

    Exit codes: 0 clean; 1 findings at or above the gate, or an expectation unmet; 2 usage or tool error;
    3 a target unreachable or not fully examined, or one of several failed; 130 interrupted.
    """


def program() -> Any:
    """The root command, ready to run."""
    return get_command(app)


def sub_app(**settings: Any) -> typer.Typer:
    """A typer app for one command's module, set up like the root."""
    return typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        **settings,
    )

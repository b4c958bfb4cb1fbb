"""``specaudit trace``: each hop from a configuration to the kernel that accepts."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import typer

from specaudit.cli import machines
from specaudit.cli.root import sub_app
from specaudit.errors import ConfigurationError, Exit

#: Bytes; a speculative configuration has some hundred.
_LIMIT = 1 << 20

app = sub_app()


@app.command()
@machines.reaching
def trace(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="As for scan.", show_default=False)],
    method: Annotated[
        str | None,
        typer.Option("--method", metavar="NAME", help="The method (default: the configuration's, else all)."),
    ] = None,
    speculative_config: Annotated[
        str | None,
        typer.Option("--speculative-config", metavar="JSON|FILE", help="As given to the engine."),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="An environment variable (repeatable).")
    ] = None,
    model_arch: Annotated[
        str | None, typer.Option("--model-arch", metavar="NAME", help="The target model's architecture.")
    ] = None,
    draft_arch: Annotated[
        str | None, typer.Option("--draft-arch", metavar="NAME", help="The draft model's architecture.")
    ] = None,
    *,
    said: machines.Said,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="NAME", help="vllm or sglang, where both are installed.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Write a scan document with these paths to stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Print each hop from a configuration to the kernel, and when another path is taken."""
    from specaudit import document
    from specaudit.cli.caching import cached
    from specaudit.console import Progress, show_paths
    from specaudit.scan import Options
    from specaudit.tracing import Asked
    from specaudit.tracing import trace as trace_target

    settings = read_configuration(speculative_config) if speculative_config is not None else {}
    named = settings.pop("method", None)
    if method is not None and named is not None and method != named:
        raise ConfigurationError(
            f"--method says {method}, the configuration says {named}.", "Leave out one of the two."
        )
    asked = Asked(
        method=named if method is None else method,
        settings={**settings, **read_environment(env or ())},
        model_architecture=model_arch,
        draft_architecture=draft_arch,
        named=speculative_config is not None,
    )
    progress = Progress(quiet)
    where, reached = machines.one_meant(target, said, progress.clear)
    with cached() as cache, reached:
        scan = trace_target(where, asked, Options(engine=engine, machines=reached), cache, progress)
    progress.clear()
    if json:
        sys.stdout.buffer.write(document.encode(scan))
    else:
        show_paths(scan, scan.paths)
    raise typer.Exit(Exit.INCOMPLETE if scan.errors else Exit.CLEAN)


def read_configuration(text: str) -> dict[str, str | None]:
    """A speculative configuration, as JSON or in a file, as settings by name.

    Raises:
        ConfigurationError: neither JSON nor a readable file with JSON; or not an object of plain values.
    """
    from specaudit.given import decoded

    source = "--speculative-config"
    text = text.removeprefix("\ufeff")
    if not text.lstrip().startswith("{"):
        source, text = text, _read(text)
    try:
        values = decoded(text, object_pairs_hook=partial(_object, source), parse_constant=partial(_refused, source))
    except ValueError as bad:
        raise ConfigurationError(f"{source} is no JSON: {bad}.", "Check quotes and commas.") from bad
    if not isinstance(values, dict):
        raise ConfigurationError(f"{source} is no JSON object.", 'Write the options as {"name": value, …}.')
    return {name: _setting(value) for name, value in values.items()}


def _read(file: str) -> str:
    """The text of a file; it may be a pipe (``<(…)``)."""
    try:
        with open(file, "rb") as stream:
            data = stream.read(_LIMIT + 1)
        if len(data) > _LIMIT:
            raise ConfigurationError(f"{file} is larger than a speculative configuration.", "Check the path.")
        return data.decode("utf-8-sig")
    except (OSError, ValueError) as bad:
        why = bad.strerror if isinstance(bad, OSError) else "it is not text"
        raise ConfigurationError(
            f"{file} is neither a JSON object nor a file that can be read: {why}.",
            """Write for example --speculative-config '{"method": "eagle3", "num_speculative_tokens": 3}'.""",
        ) from bad


def _object(source: str, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object in which nothing is said twice: readers differ in which of the two counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"{source} says {twice!r} twice.", "Leave out one of the two.")
    return found


def _refused(source: str, word: str) -> None:
    raise ConfigurationError(f"{source} holds {word}, which is no JSON.", "Write a number.")


def _setting(value: Any) -> str | None:
    """A value as conditions write it: ``true``, ``4``, ``eagle3``; ``None`` where nothing is set."""
    import json

    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


def read_environment(items: Iterable[str]) -> Mapping[str, str]:
    """``NAME=VALUE`` items by name.

    Raises:
        ConfigurationError: an item has no equals sign or no name.
    """
    found: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not name or not equals:
            lacks = "value" if name else "name"
            raise ConfigurationError(f"--env {item!r} has no {lacks}.", "Write --env NAME=VALUE.")
        if found.setdefault(name, value) != value:
            raise ConfigurationError(f"--env says {name} twice, with different values.", "Leave out one of the two.")
    return found

"""Running servers -> paths: which way each server of a machine takes, by its own arguments and variables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from specaudit.errors import ConfigurationError
from specaudit.hosts.shell import printable
from specaudit.model import NotLooked, Path, Scan, Server

#: Names of the option under which a speculative configuration goes, and of those that stand for one key of it
#: (vllm/engine/arg_utils.py).
_SPECULATIVE = ("speculative_config", "sc")
_KEYS = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}
#: SGLang's option for the method, and what its other options of drafting begin with (sglang/srt/server_args.py).
_ALGORITHM = "speculative_algorithm"
_PREFIX = "speculative_"
#: Short names of options that conditions know by the long one.
_SHORT = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size"}


@dataclass(frozen=True, slots=True)
class Running:
    """The configuration of one server: ``speculative`` (without the method), and its other options and variables."""

    method: str
    speculative: Mapping[str, str | None]
    options: Mapping[str, str | None]

    @property
    def settings(self) -> dict[str, str | None]:
        """All of it by name; a speculative option comes before another of the same name."""
        return {**self.options, **self.speculative}

    def traced_by(self, scan: Scan) -> dict[str, str | None]:
        """What a trace takes: speculative options, variables, and options that conditions of the engine ask for.

        Conditions write ``parallel_config.pipeline_parallel_size`` where a command line has
        ``--pipeline-parallel-size``.
        """
        conditions = [c for runner in scan.runners for c in runner.when] + [c for path in scan.paths for c in path.when]
        asked = {condition.option for condition in conditions}
        dotted = {name: name.rpartition(".")[2] for name in asked if "." in name}
        named = {name: self.options[last] for name, last in dotted.items() if last in self.options}
        variables = {name: value for name, value in self.options.items() if name.isupper()}
        return {**variables, **named, **self.speculative}


def running(server: Server) -> Running | None:
    """What a server's command line and environment say; ``None``: it runs without speculative decoding.

    Raises:
        ConfigurationError: they say that it drafts, but not how.
    """
    # The command line comes before the file, as in the engine.
    found: dict[str, str | None] = {**server.env, **options(server.config), **options(server.argv)}
    algorithm = found.pop(_ALGORITHM, None)
    if algorithm is not None:  # SGLang: the options of drafting are options of the server
        drafting = {name: found.pop(name) for name in list(found) if name.startswith(_PREFIX)}
        return Running(algorithm, drafting, found)
    configuration = _configuration(server.pid, found)
    if not configuration:
        return None
    method = configuration.pop("method", None)
    if method is None:
        if configuration.get("model") in ("ngram", "[ngram]"):
            method = "ngram"
        else:
            raise ConfigurationError(
                f"Process {server.pid} names no method; the engine takes it from its draft model.",
                "Give it with --speculative-config or --method.",
            )
    return Running(method, configuration, found)


def _configuration(pid: int, found: dict[str, str | None]) -> dict[str, str | None]:
    """The speculative options of a command line, taken out of ``found``: as JSON, dotted, or one by one."""
    configuration: dict[str, str | None] = {}
    for name in _SPECULATIVE:
        text = found.pop(name, None)
        if not text:
            continue
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as bad:
            raise ConfigurationError(
                f"The speculative configuration of process {pid} is no JSON: {bad}.",
                "Give it with --speculative-config.",
            ) from bad
        if not isinstance(values, dict):
            raise ConfigurationError(
                f"The speculative configuration of process {pid} is no JSON object.",
                "Give it with --speculative-config.",
            )
        configuration |= {printable(name): setting(value) for name, value in values.items()}
    for name in list(found):
        owner, dot, key = name.partition(".")
        if dot and owner in _SPECULATIVE:
            configuration[key.replace("-", "_")] = found.pop(name)
        elif name in _KEYS:
            configuration[_KEYS[name]] = found.pop(name)
    return configuration


def setting(value: object) -> str | None:
    """A JSON value as conditions write it: ``true``, ``4``, ``eagle3``; ``None`` where nothing is set."""
    if value is None:
        return None
    return printable(value) if isinstance(value, str) else json.dumps(value)


def options(argv: Sequence[str]) -> dict[str, str | None]:
    """Options of a command line by name; ``--name`` alone is true, ``--no-name`` is false."""
    found: dict[str, str | None] = {}
    words = iter([*argv, "-"])
    word = next(words)
    for following in words:
        name, equals, value = word.lstrip("-").partition("=")
        if word.startswith("-") and name and not _number(word):
            name = name.replace("-", "_")
            if not equals:
                value = "true" if following.startswith("-") and not _number(following) else following
            if name.startswith("no_") and value == "true":
                name, value = name.removeprefix("no_"), "false"
            found[_SHORT.get(name, name)] = value
        word = following
    return found


def _number(text: str) -> bool:
    return text.removeprefix("-").replace(".", "", 1).isdigit()


def with_paths(scan: Scan, trace: Callable[[str, Mapping[str, str | None]], Path]) -> Scan:
    """A scan whose servers know their path; paths that it does not have yet are added behind its own.

    What cannot be traced is ``not_looked`` with the reason.

    Args:
        scan: with servers.
        trace: the path of a method under settings; raises ``ConfigurationError`` where the engine would refuse them.
    """
    paths = list(scan.paths)
    known = [replace(path, configured=False) for path in paths]
    servers = []
    untraced = []
    for server in scan.servers:
        path = None
        try:
            found = running(server)
            path = trace(found.method, found.traced_by(scan)) if found is not None else None
        except ConfigurationError as bad:
            untraced.append(NotLooked(f"the path of process {server.pid}", bad.message))
        if path is not None and path not in known:
            paths.append(path)
            known.append(path)
        servers.append(replace(server, path=None if path is None else known.index(path)))
    return replace(scan, paths=tuple(paths), servers=tuple(servers), not_looked=(*scan.not_looked, *untraced))


def repointed(servers: Iterable[Server], old: Sequence[Path], new: Sequence[Path]) -> tuple[Server, ...]:
    """Servers whose path is named by its place in ``new`` in place of ``old``; ``None`` where it is not there."""
    found = []
    for server in servers:
        path = old[server.path] if server.path is not None else None
        found.append(replace(server, path=new.index(path) if path is not None and path in new else None))
    return tuple(found)

"""Scan x configuration -> Scan: which findings a configuration, or a running server, can reach."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from specaudit.errors import ConfigurationError
from specaudit.model import Condition, Scan, Server
from specaudit.ruling.reach import Configuration, reached
from specaudit.snapshot import Snapshot
from specaudit.tracing import Asked, traced

#: Options of a server under which a speculative configuration goes, and short names that conditions do not use.
_SPECULATIVE = ("speculative_config", "sc")
_SHORT = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size"}


@dataclass(frozen=True, slots=True)
class Configured:
    """The :class:`specaudit.scan.Configure` of the command line.

    Args:
        methods: the methods that are configured; empty where ``server`` says it.
        settings: options and variables by name; ``None``: known not to be set.
        needs: each rule's own conditions (:class:`specaudit.ruling.judge.Summary`).
        server: the process whose command line and environment are the configuration.
    """

    methods: tuple[str, ...]
    settings: Mapping[str, str | None]
    needs: Mapping[str, tuple[Condition, ...]]
    server: int | None = None

    def __call__(self, scan: Scan, snapshot: Snapshot) -> Scan:
        """The scan with the configuration's paths, and every finding judged by what they reach.

        Raises:
            ConfigurationError: the engine does not know a method, or the process is no server.
        """
        methods, settings = self.methods, dict(self.settings)
        if self.server is not None:
            method, found = of_server(scan.servers, self.server)
            methods, settings = methods or (method,), {**found, **settings}
        asked = [Asked(method, settings) for method in methods]
        ways = {one.method: traced(scan, snapshot, one).paths for one in asked}
        known = {**settings, **_platform(scan)}
        configurations = [Configuration(method, known, ways[method]) for method in methods]
        paths = tuple(path for found_paths in ways.values() for path in found_paths)
        return replace(scan, findings=reached(scan.findings, self.needs, configurations), paths=paths)


def _platform(scan: Scan) -> dict[str, str]:
    """The compute capability, where all GPUs of the host have the same."""
    majors = {gpu.capability.partition(".")[0] for gpu in scan.environment.gpus if gpu.capability}
    return {"compute capability": majors.pop()} if len(majors) == 1 else {}


def of_server(servers: Sequence[Server], pid: int) -> tuple[str, dict[str, str | None]]:
    """The method and the settings of a running server.

    Raises:
        ConfigurationError: no such process is a server, or it runs without speculative decoding.
    """
    server = next((one for one in servers if one.pid == pid), None)
    if server is None:
        found = ", ".join(str(one.pid) for one in servers) or "none"
        raise ConfigurationError(
            f"Process {pid} is no server of this engine there.", f"Servers that were found: {found}."
        )
    settings: dict[str, str | None] = {**server.env, **options(server.argv)}
    written = next((settings.pop(name) for name in _SPECULATIVE if settings.get(name)), None)
    try:
        speculative = json.loads(written) if written else None
    except (ValueError, RecursionError) as bad:
        raise ConfigurationError(
            f"The speculative configuration of process {pid} is no JSON: {bad}.", "Give it with --speculative-config."
        ) from bad
    if not isinstance(speculative, dict) or "method" not in speculative:
        raise ConfigurationError(
            f"Process {pid} names no method of speculative decoding on its command line.",
            "Give the configuration with --speculative-config.",
        )
    for name, value in speculative.items():
        settings[name] = value if isinstance(value, str) or value is None else json.dumps(value)
    method = settings.pop("method")
    assert method is not None
    return method, settings


def options(argv: Sequence[str]) -> dict[str, str | None]:
    """Options of a command line by name; ``--name`` alone is true, ``--no-name`` is false."""
    found: dict[str, str | None] = {}
    words = list(argv)
    for number, word in enumerate(words):
        if not word.startswith("-") or word.strip("-") == "":
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        following = words[number + 1] if number + 1 < len(words) else "-"
        if not equals:
            value = "true" if following.startswith("-") and not _number(following) else following
        if name.startswith("no_") and value == "true":
            name, value = name.removeprefix("no_"), "false"
        found[_SHORT.get(name, name)] = value
    return found


def _number(text: str) -> bool:
    return text.removeprefix("-").replace(".", "", 1).isdigit()

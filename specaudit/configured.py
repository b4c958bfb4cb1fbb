"""Scan x configuration -> Scan: which findings a configuration, or a running server, can reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from specaudit.engines import ENGINES
from specaudit.errors import ConfigurationError
from specaudit.model import Condition, Scan, Server
from specaudit.ruling.reach import Configuration, reached
from specaudit.serving import Running, running
from specaudit.snapshot import Snapshot
from specaudit.tracing import Asked, traced, trees_of, unread


@dataclass(frozen=True, slots=True)
class Configured:
    """The :class:`specaudit.scan.Configure` of the command line.

    Args:
        methods: the methods that are configured; empty where ``server`` says it.
        settings: options and variables by name; ``None``: known not to be set.
        needs: each rule's own conditions (:class:`specaudit.ruling.judge.Summary`).
        server: the process whose command line and environment are the configuration.
        named: a configuration was named, and not a method alone; else whether there are settings says so.
    """

    methods: tuple[str, ...]
    settings: Mapping[str, str | None]
    needs: Mapping[str, tuple[Condition, ...]]
    server: int | None = None
    named: bool = False

    def __call__(self, scan: Scan, snapshot: Snapshot) -> Scan:
        """The scan with the configuration's paths, every finding judged by what they reach, and its own answers about
        trees.

        Raises:
            ConfigurationError: the engine does not know a method, or the process is no server.
        """
        methods, settings = self.methods, dict(self.settings)
        traceable = settings
        if self.server is not None:
            found = of_server(scan.servers, self.server)
            traceable = {**found.traced_by(scan), **settings}
            methods, settings = methods or (found.method,), {**found.settings, **settings}
        seen = self._seen(scan, snapshot, methods, settings, traceable)
        return trees_of(seen, methods, snapshot) if seen.tree is not None else seen

    def _seen(
        self,
        scan: Scan,
        snapshot: Snapshot,
        methods: Sequence[str],
        settings: Mapping[str, str | None],
        traceable: Mapping[str, str | None],
    ) -> Scan:
        """The scan with its paths and findings; ``traceable`` are the settings that a trace takes."""
        if not ENGINES[snapshot.engine.name].config.whole and not settings:  # nothing to follow: a method is chosen
            return _with_methods(scan, methods)
        named = self.named or self.server is not None
        made = [traced(scan, snapshot, Asked(method, traceable, named=named)) for method in methods]
        known = {**settings, **_platform(scan)}
        configurations = [Configuration(one.paths[0].method, known, one.paths) for one in made]
        paths = tuple(path for one in made for path in one.paths)
        configured = replace(scan, findings=reached(scan.findings, self.needs, configurations), paths=paths)
        return unread(configured, snapshot, self.settings)


def _with_methods(scan: Scan, methods: Sequence[str]) -> Scan:
    """The scan, if the engine has these methods.

    Raises:
        ConfigurationError: it has not.
    """
    known = sorted({runner.method for runner in scan.runners})
    for method in methods:
        if method not in known:
            raise ConfigurationError(
                f"{scan.target.spec} has no method {method!r}.", f"It has: {', '.join(known) or 'none'}."
            )
    return scan


def _platform(scan: Scan) -> dict[str, str]:
    """The compute capability, where all GPUs of the host have the same."""
    majors = {gpu.capability.partition(".")[0] for gpu in scan.environment.gpus if gpu.capability}
    return {"compute capability": majors.pop()} if len(majors) == 1 else {}


def of_server(servers: Sequence[Server], pid: int) -> Running:
    """The configuration of a running server.

    Raises:
        ConfigurationError: no such process is a server, or it runs without speculative decoding.
    """
    server = next((one for one in servers if one.pid == pid), None)
    if server is None:
        found = ", ".join(str(one.pid) for one in servers) or "none"
        raise ConfigurationError(
            f"Process {pid} is no server of this engine there.", f"Servers that were found: {found}."
        )
    configuration = running(server)
    if configuration is None:
        raise ConfigurationError(
            f"Process {pid} runs without speculative decoding.", "Give a configuration with --speculative-config."
        )
    return configuration

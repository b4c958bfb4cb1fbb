"""Scan x methods -> Scan: what concerns some methods alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from specaudit.model import OptionVerdict, Scan
from specaudit.serving import repointed


def only_methods(made: Scan, methods: tuple[str, ...]) -> Scan:
    """A scan with what concerns some methods alone."""
    wanted_methods = set(methods)
    runners = tuple(r for r in made.runners if r.method in wanted_methods)
    labels = {r.runner for r in runners}
    paths = tuple(p for p in made.paths if p.method in wanted_methods)
    return replace(
        made,
        runners=runners,
        proposers=tuple(
            replace(p, variants=tuple(v for v in p.variants if not v.methods or wanted_methods.intersection(v.methods)))
            for p in made.proposers
            if wanted_methods.intersection(p.methods)
        ),
        verifiers=tuple(
            v
            for v in made.verifiers
            if (not v.runner or v.runner in labels) and (not v.methods or wanted_methods.intersection(v.methods))
        ),
        options=tuple(_options_of(made, wanted_methods)),
        paths=paths,
        servers=repointed(made.servers, made.paths, paths),
    )


def _options_of(made: Scan, methods: set[str]) -> Iterator[OptionVerdict]:
    """The verdicts that hold for some methods, each naming those of its methods that are among them."""
    for verdict, told in with_methods(made):
        kept = [method for method in told if method in methods]
        if kept:
            yield verdict if kept == told else replace(verdict, method=", ".join(kept))


def with_methods(made: Scan) -> Iterator[tuple[OptionVerdict, list[str]]]:
    """Each verdict on an option, with the methods that it is about: where it names none, all that can take the
    runner.
    """
    on: dict[str, dict[str, None]] = {}
    for runner in made.runners:
        on.setdefault(runner.runner, {})[runner.method] = None
    for verdict in made.options:
        yield verdict, verdict.method.split(", ") if verdict.method else list(on.get(verdict.runner, ()))

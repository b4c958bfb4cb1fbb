"""Target + configuration -> paths: which way one configuration takes through an engine, hop by hop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from specaudit.cache import Cache
from specaudit.engines import ENGINES
from specaudit.errors import ConfigurationError
from specaudit.index import Index
from specaudit.model import Scan, Server, Target
from specaudit.scan import Options, document_of, snapshot_of


@dataclass(frozen=True, slots=True)
class Asked:
    """What to trace.

    ``method`` ``None``: every method; ``settings`` by option or variable name, ``None``: explicitly not set. The two
    architectures are class names of the target's and the draft's model.
    """

    method: str | None = None
    settings: Mapping[str, str | None] = field(default_factory=dict)
    model_architecture: str | None = None
    draft_architecture: str | None = None


def trace(
    target: Target,
    asked: Asked | Callable[[tuple[Server, ...]], Asked],
    options: Options,
    cache: Cache,
    progress: Callable[[str], None] = lambda _: None,
    consent: Callable[[str], bool] = lambda _: False,
) -> Scan:
    """A scan whose paths are those of one configuration; nothing else of it is narrowed.

    Args:
        target: from :func:`specaudit.targets.parse`.
        asked: the configuration, or a function that reads it off the servers that run there.
        options: as in :func:`specaudit.scan.scan`; so are the others.

    Raises:
        SpecauditError: as :func:`specaudit.scan.scan`.
        ConfigurationError: the engine does not know the method, or refuses the configuration.
    """
    from specaudit.classify.audit import trace as trace_index

    with snapshot_of(target, options, cache, progress, consent) as (snapshot, servers):
        scan = document_of(target, snapshot, servers, options.judge)
        asked = asked(servers) if callable(asked) else asked
        known = sorted({runner.method for runner in scan.runners})
        if asked.method is not None and asked.method not in known:
            raise ConfigurationError(
                f"{target.spec} has no method {asked.method!r}.", f"It has: {', '.join(known) or 'none'}."
            )
        engine = ENGINES[snapshot.engine.name]
        settings = {**asked.settings, **_architectures(asked)}
        index = Index(snapshot.narrowed(engine.wants))
        methods = [asked.method] if asked.method else known
        paths = tuple(path for method in methods for path in trace_index(index, method, settings, scan.verifiers))
    return replace(scan, paths=paths)


def _architectures(asked: Asked) -> dict[str, str]:
    """Architectures under the names by which configuration code asks for them: one, or a list that holds it."""
    named = {"model_config": asked.model_architecture, "draft_model_config": asked.draft_architecture}
    return {
        f"{owner}.{attribute}": value
        for owner, value in named.items()
        if value is not None
        for attribute in ("architecture", "architectures")
    }

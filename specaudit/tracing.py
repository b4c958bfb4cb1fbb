"""Target + configuration -> paths: which way one configuration takes through an engine, hop by hop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from specaudit.cache import Cache
from specaudit.engines import ENGINES
from specaudit.errors import ConfigurationError, IncompleteError
from specaudit.index import Index
from specaudit.model import Scan, Target
from specaudit.scan import Options, computing, document_of, snapshot_of
from specaudit.snapshot import Snapshot


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
    asked: Asked,
    options: Options,
    cache: Cache,
    progress: Callable[[str], None] = lambda _: None,
    consent: Callable[[str], bool] = lambda _: False,
) -> Scan:
    """A scan whose paths are those of one configuration; nothing else of it is narrowed.

    Raises:
        SpecauditError: as :func:`specaudit.scan.scan`; IncompleteError: the engine could not be classified.
        ConfigurationError: the engine does not know the method, or refuses the configuration.
    """
    with snapshot_of(target, options, cache, progress, consent) as (snapshot, servers):
        scan = document_of(target, snapshot, servers, options.judge)
        if scan.tree is None:
            what, _, more = scan.errors[-1].error.partition(". ")
            raise IncompleteError(f"{target.spec} {what}.", more)
        with computing():
            return traced(scan, snapshot, asked)


def traced(scan: Scan, snapshot: Snapshot, asked: Asked) -> Scan:
    """A scan with the paths of one configuration; ``snapshot`` is what it was made of, still readable.

    Raises:
        ConfigurationError: as :func:`trace`.
    """
    from specaudit.classify.audit import trace as trace_index

    known = sorted({runner.method for runner in scan.runners})
    if asked.method is not None and asked.method not in known:
        raise ConfigurationError(
            f"{scan.target.spec} has no method {asked.method!r}.", f"It has: {', '.join(known) or 'none'}."
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

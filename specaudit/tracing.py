"""Target + configuration -> paths: which way one configuration takes through an engine, hop by hop."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specaudit import taken
from specaudit.cache import Cache
from specaudit.classify.treeparts import drafting, verification
from specaudit.engines import ENGINES
from specaudit.errors import ConfigurationError, IncompleteError, SpecauditError
from specaudit.index import Index
from specaudit.model import NotLooked, Path, Scan, Target, TreePart
from specaudit.narrowing import only_methods
from specaudit.scan import Options, computing, document_of, snapshot_of
from specaudit.snapshot import Snapshot
from specaudit.words import counted


@dataclass(frozen=True, slots=True)
class Asked:
    """What to trace.

    ``method`` ``None``: every method; ``settings`` by option or variable name, ``None``: explicitly not set. The two
    architectures are class names of the target's and the draft's model. ``named``: a configuration was named, and not a
    method alone; else whether there are settings says so.
    """

    method: str | None = None
    settings: Mapping[str, str | None] = field(default_factory=dict)
    model_architecture: str | None = None
    draft_architecture: str | None = None
    named: bool = False


def trace(
    target: Target,
    asked: Asked,
    options: Options,
    cache: Cache,
    progress: Callable[[str], None] = lambda _: None,
    consent: Callable[[str], bool] = lambda _: False,
) -> Scan:
    """A scan whose paths are those of one configuration, with its answers about trees; nothing else is narrowed.

    Raises:
        SpecauditError: as :func:`specaudit.scan.scan`; IncompleteError: the engine, or what the path rests on, could
            not be classified.
        ConfigurationError: the engine does not know the method, or refuses the configuration.
    """
    with snapshot_of(target, options, cache, progress, consent) as (snapshot, servers):
        scan = document_of(target, snapshot, servers, options.judge)
        if scan.tree is None:
            what, _, more = scan.errors[-1].error.partition(". ")
            raise IncompleteError(f"{target.spec} {what}.", more)
        with computing():
            made = unread(traced(scan, snapshot, asked), snapshot, asked.settings)
            return trees_of(made, (), snapshot) if taken.configured(made) else made


def trees_of(scan: Scan, methods: Sequence[str], snapshot: Snapshot) -> Scan:
    """The scan with its answers about trees asked of these methods; what attention masks is no matter of a method."""
    assert scan.tree is not None
    shown = taken.part(only_methods(scan, (*methods, *(path.method for path in scan.paths))))
    index = Index(snapshot.narrowed(ENGINES[snapshot.engine.name].wants))
    told = {
        line for one in scan.proposers for part in (one.evidence, *(v.evidence for v in one.variants)) for line in part
    }
    read = {
        path
        for one in shown.proposers
        for path in (one.path, *(line.path for line in one.evidence))
        if path in snapshot.files
    }
    shape = (line for line in scan.tree.drafting.evidence if line not in told)
    return replace(
        scan,
        tree=replace(
            scan.tree,
            drafting=_known(drafting(index, shown.proposers, read, shape), scan.tree.drafting),
            verification=_known(verification(index, shown.verifiers), scan.tree.verification),
        ),
    )


def _known(of_method: TreePart, of_engine: TreePart) -> TreePart:
    """What is not known of the engine, since a file could not be read, is not known of a method."""
    return of_engine if of_engine.verdict == "unknown" else of_method


def _in_doubt(bad: ConfigurationError, scan: Scan, snapshot: Snapshot) -> SpecauditError:
    """A refusal; where files that may say otherwise could not be read, it cannot be told whether it is one."""
    wants = ENGINES[snapshot.engine.name].wants
    lost = [failure for failure in scan.errors if failure.path and wants(failure.path)]
    if not lost:
        return bad
    named = "; ".join(f"{failure.path}: {failure.error}" for failure in lost[:3])
    return IncompleteError(
        f"The path cannot be told, since {counted(len(lost), 'file')} could not be read ({named}); without "
        f"{'it' if len(lost) == 1 else 'them'}: {bad.message}",
        "Repair what cannot be read, and trace again.",
    )


def traced(scan: Scan, snapshot: Snapshot, asked: Asked) -> Scan:
    """A scan with the paths of one configuration; ``snapshot`` is what it was made of, still readable.

    Raises:
        ConfigurationError: as :func:`trace`.
        IncompleteError: it would be one, and files that may say otherwise could not be read.
    """
    try:
        return _traced(scan, snapshot, asked)
    except ConfigurationError as bad:
        raise _in_doubt(bad, scan, snapshot) from bad


def _traced(scan: Scan, snapshot: Snapshot, asked: Asked) -> Scan:
    from specaudit.classify.audit import tracing

    engine = ENGINES[snapshot.engine.name]
    settings = {**asked.settings, **_architectures(asked)}
    _check(settings, engine.config.count_field)
    configured = asked.named or bool(settings)
    known = sorted({runner.method for runner in scan.runners})
    methods = known if asked.method is None else [asked.method]
    drawn = {path.method for path in scan.paths}
    if not settings and drawn.issuperset(methods):  # nothing is set: the scan has the answer
        answers = (path for method in methods for path in scan.paths if path.method == method)
        return replace(scan, paths=_marked(answers, configured))
    way = tracing(Index(snapshot.narrowed(engine.wants)), scan.verifiers)
    if asked.method is not None:
        return replace(scan, paths=_marked(way(asked.method, settings), configured))
    paths: list[Path] = []
    refused: dict[str, ConfigurationError] = {}
    for method in methods:
        try:
            paths += way(method, settings)
        except ConfigurationError as bad:
            refused[method] = bad
    if refused and not paths:
        raise next(iter(refused.values()))
    items = tuple(NotLooked(f"the path of {method}", bad.message) for method, bad in refused.items())
    return replace(scan, paths=_marked(paths, configured), not_looked=(*scan.not_looked, *items))


def _marked(paths: Iterable[Path], configured: bool) -> tuple[Path, ...]:
    """The paths, said to be a configuration's where anything of one was named."""
    return tuple(replace(path, configured=configured) for path in paths)


def _check(settings: Mapping[str, str | None], count_field: str) -> None:
    """Refuses what no engine could understand."""
    for name, value in settings.items():
        if name.endswith((".architecture", ".architectures")) and not str(value).isidentifier():
            raise ConfigurationError(
                f"{value!r} cannot be the architecture of a model.",
                "Write the name in `architectures` of its config.json, as LlamaForCausalLM.",
            )
    count = settings.get(count_field)
    if count is not None and not re.fullmatch(r"-?[0-9]{1,9}", count):
        raise ConfigurationError(f"{count_field} must be a whole number, not {count}.", "Correct the configuration.")


def unread(scan: Scan, snapshot: Snapshot, settings: Mapping[str, str | None]) -> Scan:
    """The scan, saying which environment variables nothing reads: an engine ignores these without a word."""
    index = Index(snapshot.narrowed(ENGINES[snapshot.engine.name].wants))
    why = "no file that classification reads mentions this variable"
    items = tuple(NotLooked(name, why) for name in settings if name.isupper() and not _mentioned(index, name))
    return replace(scan, not_looked=(*scan.not_looked, *items))


def _mentioned(index: Index, name: str) -> bool:
    word = re.compile(rb"\b%s\b" % re.escape(name).encode())
    return any(word.search(index.read(path)) for path in index.mentioning(name.encode()))


def _architectures(asked: Asked) -> dict[str, str]:
    """Architectures under the names by which configuration code asks for them: one, or a list that holds it."""
    named = {"model_config": asked.model_architecture, "draft_model_config": asked.draft_architecture}
    return {
        f"{owner}.{attribute}": value
        for owner, value in named.items()
        if value is not None
        for attribute in ("architecture", "architectures")
    }

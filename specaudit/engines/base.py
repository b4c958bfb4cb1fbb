"""The anchors of one engine, as data.

Classification starts from these names and follows the code from there: which class is the configuration, which field
of it names the method, which classes run the target model, what the entry of a drafter is called. Everything else
(which proposers exist, which sampler verifies, which kernel accepts) is read from the source. Paths are relative to
the folder that holds the package; patterns are those of :func:`fnmatch.fnmatchcase`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate
from functools import cache


@dataclass(frozen=True, slots=True)
class RunnerAnchor:
    """One model runner: ``label`` names it in reports, ``entry`` is the method of a proposer that it calls for drafts.

    ``runs`` names methods of other objects whose call runs the draft model. ``keeps`` is the attribute that holds the
    proposer where that cannot be told from the calls of its entry; ``verifies``: the entry does more than draft, so
    that what it returns says nothing about drafts.
    """

    label: str
    path: str
    cls: str
    entry: str
    runs: tuple[str, ...] = ()
    keeps: str = ""
    verifies: bool = False


@dataclass(frozen=True, slots=True)
class WorkerAnchor:
    """The class that decides which runner is made, in the function where it does so (``""``: wherever it stands)."""

    path: str
    cls: str
    function: str = ""


@dataclass(frozen=True, slots=True)
class GateAnchor:
    """The function that chooses between two engine generations: true means ``label``, false means ``otherwise``."""

    path: str
    cls: str
    function: str
    flag: str
    label: str
    otherwise: str


@dataclass(frozen=True, slots=True)
class ConfigAnchor:
    """The configuration of speculative decoding.

    ``objects`` maps the names under which configuration objects travel (attributes, parameters, locals) to their
    class; ``renamed`` the names of locals and parameters that carry one field to that field. Settings below one of
    ``models`` are facts of a model. ``named`` are the fields that are filled before anything else is decided (a draft
    model is named). ``method_field`` holds the method's name, ``method_type`` is the ``Literal`` or ``Enum`` of all of
    them, ``count_field`` the number of drafted tokens, ``tree_field`` the user's tree, ``backend_field`` the attention
    backend of the drafter. ``initialiser`` is the method that completes a configuration object. ``whole``: every file
    that reads an option of it is among the engine's ``files``, so that an option that none of them reads is ignored.
    """

    cls: str
    engine_cls: str
    paths: tuple[str, ...]
    objects: dict[str, str]
    method_field: str
    method_type: str
    count_field: str
    initialiser: str = "__post_init__"
    tree_field: str = ""
    backend_field: str = ""
    renamed: tuple[tuple[str, str], ...] = ()
    models: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Engine:
    """All anchors of one engine.

    ``environment`` is the module object through which environment flags are read (``envs.NAME``) and
    ``environment_path`` its file; ``platform`` the names under which the platform object travels and the predicates
    that hold by default; ``files`` are patterns of every file that classification may read; ``assumed`` are settings
    that every run with speculative decoding has. ``backend_registries`` are the files that name attention backends by
    dotted path, ``backend_setting`` the configuration class and field that select one, ``backend_flag`` the
    environment flag that did so where there is no such field; ``attention`` are patterns of the files that hold
    attention code.
    """

    name: str
    package: str
    files: tuple[str, ...]
    config: ConfigAnchor
    runners: tuple[RunnerAnchor, ...]
    workers: tuple[WorkerAnchor, ...]
    environment: str
    environment_path: str
    platform: tuple[str, ...]
    platform_default: tuple[str, ...]
    backend_registries: tuple[str, ...] = ()
    backend_setting: tuple[str, str] = ("", "")
    backend_flag: str = ""
    device_flags: tuple[str, ...] = ()
    gate: GateAnchor | None = None
    assumed: tuple[tuple[str, str], ...] = ()
    attention: tuple[str, ...] = ()

    def wants(self, path: str) -> bool:
        """Whether classification may read that file."""
        return _any_of(self.files).fullmatch(path) is not None

    def runner(self, label: str) -> RunnerAnchor | None:
        """The anchor of that runner."""
        return next((r for r in self.runners if r.label == label), None)


@cache
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(pattern) for pattern in patterns))

"""Stdlib-only modules of this package as one script: what a host runs is what is tested here, import lines and all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

#: Modules of the probe, each after those that it imports.
PROBE = tuple(
    f"specaudit.hosts.probe.{name}"
    for name in (
        "reading",
        "redact",
        "configfile",
        "files",
        "applied",
        "installed",
        "ops",
        "environments",
        "processes",
        "hardware",
        "survey",
    )
)

_LOADER = """\
import sys, types
def _module(name, text=None):
    module = sys.modules[name] = types.ModuleType(name)
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent] if parent in sys.modules else _module(parent), last, module)
    module.__path__ = []
    if text is not None:
        exec(compile(text, name, "exec"), module.__dict__)
    return module
for _name, _text in {modules!r}:
    _last = _module(_name, _text)
main = _last.main
"""


@cache
def bundle(names: Sequence[str] = PROBE) -> str:
    """A script for :meth:`specaudit.hosts.base.Machine.call`: the modules in order; the last one defines ``main``."""
    texts = []
    for name in names:
        package, _, module = name.rpartition(".")
        texts.append((name, files(package).joinpath(module + ".py").read_text(encoding="utf-8")))
    return _LOADER.replace("{modules!r}", repr(texts))

"""One engine's source with its identifiers replaced by hashes, so that nothing can be told from a name any more.

Kept are words that the engine did not choose: those of Python, torch, Triton and numpy with the names of their
functions' parameters, the anchors in ``engines/``, and the names and values of settings (a scan reports these, so they
are no names of code): every identifier of the files that declare configuration, environment flags and backends.
"""

from __future__ import annotations

import builtins
import inspect
import io
import keyword
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from fnmatch import fnmatchcase
from functools import cache
from hashlib import sha256
from importlib import import_module

from specaudit.engines.base import Engine

_LIBRARIES = (
    *("torch", "torch.Tensor", "torch.nn", "torch.nn.Module", "torch.nn.functional", "torch.cuda", "torch.cuda.Event"),
    *("torch.cuda.Stream", "torch.distributed", "torch.profiler", "torch.library", "torch.Size", "torch.dtype"),
    *("torch.Generator", "torch.ops", "triton", "triton.language", "triton.language.core", "triton.runtime"),
    *("numpy", "numpy.ndarray", "typing", "dataclasses", "functools", "itertools", "collections", "contextlib", "abc"),
    *("copy", "enum", "math", "os", "sys", "time", "threading", "logging", "inspect", "importlib", "operator", "gc"),
    *("weakref", "warnings", "types", "re", "json", "pathlib", "builtins", "collections.abc", "asyncio", "queue"),
)
_WORD = re.compile(r"[A-Za-z_]\w*")


def kept_words(engine: Engine, texts: Mapping[str, str]) -> frozenset[str]:
    """Identifiers that stay as they are."""
    words = {*keyword.kwlist, *keyword.softkwlist, *dir(builtins), "self", "cls", "tl", "np", "nn", "F", "element_ty"}
    for name in _LIBRARIES:
        words.update(_library_words(name))
    words.update(_anchors(engine))
    declaring = (*engine.config.paths, engine.environment_path, *engine.backend_registries)
    for path, text in texts.items():
        words.update(path.removesuffix(".py").split("/"))  # modules are named by their files, which stay
        if any(fnmatchcase(path, pattern) for pattern in declaring):
            words.update(_names(text))
    return frozenset(words)


@cache
def _library_words(name: str) -> frozenset[str]:
    """The names in a library's module or class, and those of the parameters of its functions."""
    library = _library(name)
    words = {*dir(library), *name.split(".")}
    if name.startswith(("torch", "triton", "numpy")):
        for member in dir(library):
            words.update(_parameters(getattr(library, member, None)))
    return frozenset(words)


def _parameters(function: object) -> Iterable[str]:
    if not callable(function):
        return ()
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # compiled: its first lines say how it is called
        return _WORD.findall("".join((inspect.getdoc(function) or "").split("\n")[:4]))


def _library(name: str) -> object:
    head, _, rest = name.partition(".")
    found: object = import_module(head)
    for part in rest.split(".") if rest else ():
        found = getattr(found, part, None) or import_module(name)
    return found


def _anchors(part: object) -> Iterator[str]:
    """Every word in the anchors of an engine."""
    if isinstance(part, str):
        yield from _WORD.findall(part)
    elif is_dataclass(part):
        for field in fields(part):
            yield from _anchors(getattr(part, field.name))
    elif isinstance(part, Mapping):
        yield from _anchors((*part.keys(), *part.values()))
    elif isinstance(part, Iterable):
        for item in part:
            yield from _anchors(item)


class Renaming:
    """The new names of one engine.

    Args:
        engine: its anchors.
        texts: all files that are read.
        chosen: the paths whose identifiers are replaced, wherever else these stand.
    """

    def __init__(self, engine: Engine, texts: Mapping[str, str], chosen: Iterable[str]) -> None:
        kept = kept_words(engine, texts)
        self.names: dict[str, str] = {}
        for path in chosen:
            for word in _names(texts[path]):
                if word not in kept and not (word.startswith("__") and word.endswith("__")):
                    self.names[word] = self._hashed(word)

    @staticmethod
    def _hashed(word: str) -> str:
        """A new name of the same kind: a class by its capital, a constant by its capitals."""
        digest = sha256(word.encode()).hexdigest()[:10]
        if word.lstrip("_").isupper():
            return f"K{digest.upper()}"
        return f"{'C' if word.lstrip('_')[:1].isupper() else 'x'}{digest}"

    def apply(self, text: str) -> str:
        """A file with the new names; every line keeps its number."""
        lines = text.split("\n")
        changes: dict[int, list[tuple[int, int, str]]] = {}
        for token in _tokens(text):
            row, start = token.start
            if token.type == tokenize.NAME and token.string in self.names:
                changes.setdefault(row, []).append((start, token.end[1], self.names[token.string]))
            elif token.type == tokenize.STRING and token.start[0] == token.end[0]:
                new = self._dotted(token.string)
                if new != token.string:
                    changes.setdefault(row, []).append((start, token.end[1], new))
        for row, edits in changes.items():
            line = lines[row - 1]
            for start, end, new in sorted(edits, reverse=True):
                line = line[:start] + new + line[end:]
            lines[row - 1] = line
        return "\n".join(lines)

    def _dotted(self, string: str) -> str:
        """A string that names something of the engine by its dotted path, or an attribute by its name."""
        if not re.fullmatch(r"""["'][\w.]+["']""", string):
            return string
        return _WORD.sub(lambda found: self.names.get(found.group(), found.group()), string)


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(text).readline)


def _names(text: str) -> set[str]:
    return {token.string for token in _tokens(text) if token.type == tokenize.NAME}

"""Subject -> places: the files, classes and functions that it names, found by name wherever they moved."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from specaudit.index import Definition, Index
from specaudit.model import Evidence, TreeVerdict
from specaudit.ruling.rule import Subject
from specaudit.ruling.shapes import find_all, parse

if TYPE_CHECKING:
    from ast_grep_py import SgNode

_DEFINITIONS = {"any": [{"kind": "function_definition"}, {"kind": "class_definition"}]}


@dataclass(frozen=True, slots=True)
class Place:
    """A file (``definition`` is ``None``), or a class or function in it."""

    path: str
    definition: Definition | None = None

    @property
    def symbol(self) -> str:
        """The qualified name, or the path of a whole file."""
        return self.definition.qualname if self.definition else self.path

    @property
    def line(self) -> int:
        """The ``class``/``def`` line; 1 for a file."""
        return self.definition.line if self.definition else 1


@lru_cache(maxsize=512)
def glob_regex(glob: str) -> re.Pattern[str]:
    """Compiles a glob of POSIX paths: ``**`` crosses folders, ``*`` and ``?`` do not."""
    out = ""
    for part in re.split(r"(\*\*/|\*\*|\*|\?)", glob):
        out += {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(part, re.escape(part))
    return re.compile(out)


@lru_cache(maxsize=512)
def _name_regex(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name).replace(r"\*", r"\w*"))


def matches_name(name: str, wanted: Iterable[str]) -> bool:
    """Whether a name is one of the wanted ones (``*`` stands for any letters)."""
    return any(_name_regex(one).fullmatch(name) for one in wanted)


def _needle(name: str) -> bytes:
    """The longest literal piece of a wanted name: a file without it cannot define it."""
    return max(name.split(".")[-1].split("*"), key=len).encode()


class Ground:
    """One engine under examination: its index, tree verdict and syntax trees, made once and shared by all rules."""

    def __init__(self, index: Index, tree: TreeVerdict | None = None) -> None:
        self.index = index
        self.tree = tree
        self._roots: dict[str, SgNode] = {}
        self._nodes: dict[str, dict[int, SgNode]] = {}
        self._files: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._bytes: dict[str, bytes] = {}
        self._places: dict[Subject, tuple[Place, ...]] = {}

    def files(self, globs: tuple[str, ...]) -> tuple[str, ...]:
        """Paths that one of the globs matches, sorted."""
        known = self._files.get(globs)
        if known is None:
            patterns = [glob_regex(glob) for glob in globs]
            known = tuple(path for path in self.index.paths if any(p.fullmatch(path) for p in patterns))
            self._files[globs] = known
        return known

    def bytes_of(self, path: str) -> bytes:
        """A file's bytes, read once; empty when it cannot be read (the index keeps the failure)."""
        known = self._bytes.get(path)
        if known is None:
            try:
                known = self.index.snapshot.read(path)
            except OSError:
                self.index.source(path)
                known = b""
            self._bytes[path] = known
        return known

    def holding(self, paths: Iterable[str], words: Iterable[bytes]) -> Iterator[str]:
        """Those paths whose bytes hold all of the words."""
        wanted = tuple(words)
        for path in paths:
            data = self.bytes_of(path)
            if all(word in data for word in wanted):
                yield path

    def root(self, path: str) -> SgNode:
        """The syntax tree of one file."""
        known = self._roots.get(path)
        if known is None:
            known = self._roots[path] = parse(self.index.source(path))
        return known

    def node(self, place: Place) -> SgNode | None:
        """The syntax node of a place; ``None`` where the two parsers disagree about what is there."""
        if place.definition is None:
            return self.root(place.path)
        nodes = self._nodes.get(place.path)
        if nodes is None:
            found = find_all(self.root(place.path), _DEFINITIONS)
            nodes = self._nodes[place.path] = {node.range().start.line + 1: node for node in found}
        return nodes.get(place.definition.line)

    def evidence(self, path: str, line: int) -> Evidence:
        """Evidence for one line."""
        return self.index.evidence(path, line)

    def places(self, subject: Subject) -> tuple[Place, ...]:
        """Everything that a subject names, in path and line order."""
        known = self._places.get(subject)
        if known is None:
            known = self._places[subject] = tuple(self._find(subject))
        return known

    def _find(self, subject: Subject) -> Iterator[Place]:
        files = self.files(subject.files)
        if not subject.classes and not subject.functions:
            yield from (Place(path) for path in files)
        elif not subject.functions:
            found = self._named(files, subject.classes, "class")
            yield from dict.fromkeys(one for p in found for one in self.chain(p)) if subject.chain else found
        elif not subject.classes:
            yield from self._named(files, subject.functions, "function")
        else:
            seen: set[tuple[str, str]] = set()
            for owner in self._named(files, subject.classes, "class"):
                for method in subject.functions:
                    for place in self._method(owner, method):
                        if (place.path, place.symbol) not in seen:
                            seen.add((place.path, place.symbol))
                            yield place

    def _named(self, files: Iterable[str], names: tuple[str, ...], kind: str) -> Iterator[Place]:
        needles = [_needle(name) for name in names]
        for path in files:
            data = self.bytes_of(path)
            if not any(needle in data for needle in needles):
                continue
            for found in self.index.outline(path).definitions:
                if found.kind == kind and any(_fits(found.qualname, name) for name in names):
                    yield Place(path, found)

    def _method(self, owner: Place, method: str) -> Iterator[Place]:
        """The method in the class itself, else in the nearest class that it derives from."""
        for place in self.chain(owner):
            prefix = f"{place.symbol}."
            found = [
                d
                for d in self.index.outline(place.path).definitions
                if d.kind == "function" and d.scope + "." == prefix and matches_name(d.name, (method,))
            ]
            if found:
                yield from (Place(place.path, d) for d in found)
                return

    def chain(self, owner: Place) -> Iterator[Place]:
        """A class and the classes that it derives from, nearest first, over any number of files."""
        queue, seen = [owner], set()
        while queue:
            place = queue.pop(0)
            if (place.path, place.symbol) in seen or place.definition is None:
                continue
            seen.add((place.path, place.symbol))
            yield place
            queue.extend(base for text in place.definition.bases for base in self._base(place, text))

    def _base(self, owner: Place, text: str) -> Iterator[Place]:
        """The definition of a base class: in the same file, else where the file imports it from."""
        name = text.partition("[")[0].rpartition(".")[2].strip()
        found = self._resolve(owner.path, name, hops=4)
        if found is not None:
            yield found

    def _resolve(self, path: str, name: str, hops: int) -> Place | None:
        """The class behind a name in a file; imports (and packages' re-exports) are followed a few times."""
        outline = self.index.outline(path)
        local = outline.definition(name)
        if local is not None:
            return Place(path, local) if local.kind == "class" else None
        if not hops:
            return None
        for imported in outline.imports:
            if imported.alias == name and imported.name:
                for module in self._module(path, imported.module):
                    found = self._resolve(module, imported.name, hops - 1)
                    if found is not None:
                        return found
        return None

    def _module(self, importer: str, module: str) -> Iterator[str]:
        """Paths of a module as the importing file names it."""
        dots = len(module) - len(module.lstrip("."))
        folder = importer.split("/")[:-dots] if dots else []
        stem = "/".join([*folder, *[part for part in module.lstrip(".").split(".") if part]])
        for path in (f"{stem}.py", f"{stem}/__init__.py"):
            if path in self.index.snapshot.files:
                yield path


def _fits(qualname: str, wanted: str) -> bool:
    """Whether a qualified name ends with the wanted one (``f``, ``C.f``)."""
    names = wanted.split(".")
    parts = qualname.split(".")[-len(names) :]
    return len(parts) == len(names) and all(_name_regex(n).fullmatch(p) for p, n in zip(parts, names, strict=True))

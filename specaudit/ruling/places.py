"""Subject -> places: the files, classes and functions that it names, found by name wherever they moved."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from specaudit.index import Definition, Index
from specaudit.model import Evidence, TreeVerdict
from specaudit.ruling.definitions import definitions, imports
from specaudit.ruling.rule import Subject
from specaudit.ruling.shapes import parse
from specaudit.snapshot import covers

if TYPE_CHECKING:
    from ast_grep_py import SgNode


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


@lru_cache(maxsize=512)
def _definition(name: str, kind: str) -> tuple[bytes, re.Pattern[bytes]]:
    """Bytes that a file must hold to define the name: a literal piece, and ``class`` or ``def`` before it.

    Only such a file is worth an outline.
    """
    last = name.rpartition(".")[2]
    word = "class" if kind == "class" else "def"
    return max(last.split("*"), key=len).encode(), re.compile(rf"\b{word}\s+{_name_regex(last).pattern}\b".encode())


def _may_define(data: bytes, names: Iterable[str], kind: str) -> bool:
    for name in names:
        piece, pattern = _definition(name, kind)
        if piece in data and pattern.search(data):
            return True
    return False


@lru_cache(maxsize=512)
def _matching(globs: tuple[str, ...], paths: tuple[str, ...]) -> tuple[str, ...]:
    """Of some paths those that one of the globs matches. An engine before and after a change has the same ones."""
    patterns = [glob_regex(glob) for glob in globs]
    return tuple(path for path in paths if any(p.fullmatch(path) for p in patterns))


class Ground:
    """One engine under examination: its index, tree verdict and syntax trees, made once and shared by all rules."""

    def __init__(self, index: Index, tree: TreeVerdict | None = None) -> None:
        self.index = index
        self.tree = tree
        self._roots: dict[str, SgNode] = {}
        self._defined: dict[str, tuple[tuple[Definition, SgNode], ...]] = {}
        self._imports: dict[str, tuple[tuple[str, str, str], ...]] = {}
        self._files: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._bytes: dict[str, bytes] = {}
        self._places: dict[Subject, tuple[Place, ...]] = {}

    def files(self, globs: tuple[str, ...]) -> tuple[str, ...]:
        """Paths that one of the globs matches, sorted."""
        known = self._files.get(globs)
        if known is None:
            known = self._files[globs] = _matching(globs, self.index.paths)
        return known

    def unread(self, globs: tuple[str, ...]) -> tuple[str, ...]:
        """What could not be read of the files that one of the globs matches; a folder that may hold some counts."""
        patterns = [(glob, glob_regex(glob)) for glob in globs]
        return tuple(
            path for path in self.index.unread if any(p.fullmatch(path) or covers(path, glob) for glob, p in patterns)
        )

    def bytes_of(self, path: str) -> bytes:
        """A file's bytes, read once; empty when it cannot be read (the index keeps the failure)."""
        known = self._bytes.get(path)
        if known is None:
            try:
                known = self.index.read(path)
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

    def definitions(self, path: str) -> tuple[Definition, ...]:
        """Classes and functions of one file, in source order."""
        return tuple(found for found, _ in self._pairs(path))

    def _pairs(self, path: str) -> tuple[tuple[Definition, SgNode], ...]:
        known = self._defined.get(path)
        if known is None:
            known = self._defined[path] = definitions(self.root(path))
        return known

    def imports(self, path: str) -> tuple[tuple[str, str, str], ...]:
        """What one file imports, as :func:`imports` gives it."""
        known = self._imports.get(path)
        if known is None:
            known = self._imports[path] = imports(self.root(path))
        return known

    def node(self, place: Place) -> SgNode:
        """The syntax node of a place."""
        if place.definition is None:
            return self.root(place.path)
        return next(node for found, node in self._pairs(place.path) if found == place.definition)

    def enclosing(self, path: str, line: int, kind: str = "") -> str:
        """The qualified name of the innermost class or function around a line; ``""`` at module level."""
        around = [d for d in self.definitions(path) if d.first <= line <= d.end and kind in ("", d.kind)]
        return max(around, key=lambda d: d.first).qualname if around else ""

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
            seen: set[tuple[str, int]] = set()
            for owner in self._named(files, subject.classes, "class"):
                for method in subject.functions:
                    for place in self._method(owner, method):
                        if (place.path, place.line) not in seen:  # one name may be defined several times
                            seen.add((place.path, place.line))
                            yield place

    def _named(self, files: Iterable[str], names: tuple[str, ...], kind: str) -> Iterator[Place]:
        for path in files:
            if not _may_define(self.bytes_of(path), names, kind):
                continue
            for found in self.definitions(path):
                if found.kind == kind and any(_fits(found.qualname, name) for name in names):
                    yield Place(path, found)

    def _method(self, owner: Place, method: str) -> Iterator[Place]:
        """The method in the class itself, else in the nearest class that it derives from."""
        for place in self.chain(owner):
            prefix = f"{place.symbol}."
            found = [
                d
                for d in self.definitions(place.path)
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
        module, _, name = text.partition("[")[0].strip().rpartition(".")
        paths = self._modules(owner.path, module) if module else (owner.path,)
        found = next((one for path in paths if (one := self._resolve(path, name, hops=4))), None)
        if found is not None:
            yield found

    def _modules(self, path: str, name: str) -> Iterator[str]:
        """Paths of the module that a name stands for in a file."""
        for source, imported, alias in self.imports(path):
            if alias == name:
                joined = f"{source}{'' if source.endswith('.') else '.'}{imported}" if imported else source
                yield from self._module(path, joined)

    def _resolve(self, path: str, name: str, hops: int) -> Place | None:
        """The class behind a name in a file; imports (and packages' re-exports) are followed a few times."""
        local = [d for d in self.definitions(path) if d.qualname == name]
        if local:
            return Place(path, local[-1]) if local[-1].kind == "class" else None
        if not hops:
            return None
        for source, imported, alias in self.imports(path):
            if imported and alias in (name, "*"):
                for module in self._module(path, source):
                    found = self._resolve(module, name if imported == "*" else imported, hops - 1)
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

"""Snapshot -> Index: what is defined, imported, called and assigned where, without importing anything.

An :class:`Outline` is made from one file by one ``ast`` pass and depends on that file's bytes alone, so it is cached
under the blob's SHA-256. Functions that a verdict rests on are parsed again, alone, by libcst
(:meth:`Index.function`): whole files through libcst would cost ten times as much (8.7 s against 0.9 s for the ``v1``
folder of one release).
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import msgspec

from specaudit.cache import recall
from specaudit.errors import ChangedError
from specaudit.hosts.probe.files import digest
from specaudit.model import Evidence, Failure, FileEntry, Search
from specaudit.nodes import children

if TYPE_CHECKING:
    import libcst

    from specaudit.snapshot import Snapshot

OUTLINE_VERSION = 2


@dataclass(frozen=True, slots=True)
class Definition:
    """A class or function. ``line`` is its ``class``/``def`` line, ``first`` that of its first decorator, ``end`` its
    last.
    """

    qualname: str
    kind: Literal["class", "function"]
    first: int
    line: int
    end: int
    decorators: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    params: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The last part of the qualified name."""
        return self.qualname.rpartition(".")[2]

    @property
    def scope(self) -> str:
        """The qualified name of what it is defined in, ``""`` for a module."""
        return self.qualname.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class Import:
    """``from module import name as alias`` (``name`` empty for ``import module``), with the scope that it stands in."""

    module: str
    name: str
    alias: str
    line: int
    scope: str


@dataclass(frozen=True, slots=True)
class Call:
    """One call: ``func`` is its source text (``self.x.run``, ``kernel[grid]``), so are the arguments."""

    func: str
    line: int
    scope: str
    args: tuple[str, ...]
    keywords: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """The last dotted part of ``func`` without a subscript: ``kernel`` for ``module.kernel[grid]``."""
        return self.func.partition("[")[0].rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Assign:
    """One assignment to a name or attribute: source texts of target and value (the value cut at 400 characters in
    functions).
    """

    target: str
    value: str
    line: int
    scope: str


@dataclass(frozen=True)
class Outline:
    """What one file defines, imports, calls and assigns, in source order."""

    definitions: tuple[Definition, ...]
    imports: tuple[Import, ...]
    calls: tuple[Call, ...]
    assigns: tuple[Assign, ...]

    def definition(self, qualname: str) -> Definition | None:
        """The definition of that qualified name (the last one wins, as in Python)."""
        return self._by_name.get(qualname)

    @cached_property
    def _by_name(self) -> dict[str, Definition]:
        return {d.qualname: d for d in self.definitions}


def outline(source: str) -> Outline:
    """Reads one file.

    Raises:
        SyntaxError: the text is no Python (also for NUL bytes).
        RecursionError: the text nests deeper than the parser allows.
    """
    try:
        tree = ast.parse(source)
    except ValueError as bad:  # NUL bytes before Python 3.12
        raise SyntaxError(str(bad)) from bad
    reader = _Reader(source)
    reader.body(tree.body, "")
    return Outline(tuple(reader.definitions), tuple(reader.imports), tuple(reader.calls), tuple(reader.assigns))


_DEFINING = frozenset({ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef})
_STORING = frozenset({ast.Assign, ast.AnnAssign, ast.Import, ast.ImportFrom})


class _Reader:
    """One recursive pass that keeps the scope; much cheaper than ``ast.NodeVisitor`` with ``ast.unparse``."""

    def __init__(self, source: str) -> None:
        self.lines = source.split("\n")  # as ``ast`` counts; ``splitlines`` also ends lines at form feeds and others
        self.ascii = source.isascii()
        self.definitions: list[Definition] = []
        self.imports: list[Import] = []
        self.calls: list[Call] = []
        self.assigns: list[Assign] = []

    def text(self, node: ast.expr, limit: int = 400) -> str:
        """The node's source on one line, inner white space as written, cut at ``limit`` characters."""
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        start, end = node.col_offset, node.end_col_offset or 0
        if first == last:
            return self._cut(self.lines[first], start, end)[:limit]
        parts = [self._cut(self.lines[first], start, None)]
        for row in range(first + 1, last):
            parts.append(self.lines[row])
            if len(parts) > limit // 32:
                break
        else:
            parts.append(self._cut(self.lines[last], 0, end))
        return " ".join(part.strip() for part in parts)[:limit]

    def _cut(self, line: str, start: int, end: int | None) -> str:
        if self.ascii or line.isascii():
            return line[start:end]
        return line.encode()[start:end].decode(errors="replace")

    def body(self, nodes: Iterable[ast.AST], scope: str) -> None:
        for node in nodes:
            self.node(node, scope)

    def node(self, node: ast.AST, scope: str) -> None:
        kind = node.__class__
        if kind in _DEFINING:
            self._define(node, scope)  # type: ignore[arg-type]
            return
        if kind is ast.Call:
            self.calls.append(self._call(node, scope))  # type: ignore[arg-type]
        elif kind in _STORING:
            self._stored(node, scope)
        for below in children(node):
            self.node(below, scope)

    def _stored(self, node: ast.AST, scope: str) -> None:
        """Assignments and imports."""
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value, node.lineno, scope)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value, node.lineno, scope)
            case ast.Import(names=names):
                for name in names:
                    alias = name.asname or name.name.partition(".")[0]
                    self.imports.append(Import(name.name, "", alias, node.lineno, scope))
            case ast.ImportFrom(names=names):
                module = "." * node.level + (node.module or "")
                for name in names:
                    self.imports.append(Import(module, name.name, name.asname or name.name, node.lineno, scope))

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, scope: str) -> None:
        inner = f"{scope}.{node.name}" if scope else node.name
        decorators = tuple(self.text(d) for d in node.decorator_list)
        first = node.decorator_list[0].lineno if node.decorator_list else node.lineno
        end = node.end_lineno or node.lineno
        self.body(node.decorator_list, scope)
        if isinstance(node, ast.ClassDef):
            bases = tuple(self.text(b) for b in node.bases)
            self.definitions.append(Definition(inner, "class", first, node.lineno, end, decorators, bases))
            self.body([*node.bases, *(k.value for k in node.keywords)], scope)
        else:
            a = node.args
            params = tuple(p.arg for p in [*a.posonlyargs, *a.args, *([a.vararg] if a.vararg else []), *a.kwonlyargs])
            self.definitions.append(Definition(inner, "function", first, node.lineno, end, decorators, (), params))
            self.body([*a.defaults, *(d for d in a.kw_defaults if d is not None)], scope)
        self.body(node.body, inner)

    def _call(self, node: ast.Call, scope: str) -> Call:
        keywords = tuple((k.arg or "**", self.text(k.value, 120)) for k in node.keywords)
        return Call(
            self.text(node.func, 200), node.lineno, scope, tuple(self.text(a, 120) for a in node.args), keywords
        )

    def _assign(self, target: ast.expr, value: ast.expr, line: int, scope: str) -> None:
        if isinstance(target, (ast.Name, ast.Attribute)):
            whole = scope == "" or scope[:1].isupper()  # constants of modules and classes are read whole
            self.assigns.append(Assign(self.text(target), self.text(value, 20000 if whole else 400), line, scope))
        elif isinstance(target, ast.Tuple):
            for element in target.elts:
                self._assign(element, value, line, scope)


class Index:
    """Everything that can be asked of one engine's source. Outlines are made on first use and kept."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._outlines: dict[str, Outline] = {}
        self._failures: dict[str, Failure] = {}
        self._lines: dict[str, list[str]] = {}
        self._functions: dict[tuple[str, str], libcst.FunctionDef] = {}
        self._bytes: dict[str, bytes] = {}

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """All ``.py`` paths, sorted."""
        return tuple(sorted(self.snapshot.files))

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Files that could not be read or parsed so far, each with its reason."""
        return tuple(self._failures[path] for path in sorted(self._failures))

    @property
    def unread(self) -> tuple[str, ...]:
        """Files that could not be read or parsed so far, and what the snapshot lacks for the same reason."""
        return tuple(sorted({*self._failures, *self._withheld}))

    def lost(self, path: str) -> bool:
        """Whether that file is there, and nothing can be said of what it defines."""
        self.outline(path)
        above = (path[:at] for at, sign in enumerate(path) if sign == "/")  # a folder that cannot be opened
        return path in self._failures or path in self._withheld or any(folder in self._withheld for folder in above)

    @cached_property
    def _withheld(self) -> frozenset[str]:
        return frozenset(failure.path for failure in self.snapshot.errors if failure.path)

    def failed(self, failures: Iterable[Failure]) -> None:
        """Notes what could not be read elsewhere, in another process."""
        for failure in failures:
            self._failures.setdefault(failure.path, failure)

    def read(self, path: str) -> bytes:
        """A file's bytes, kept: they are searched many times, and a snapshot hashes what it reads.

        Raises:
            ChangedError: it cannot be read any more as it was. Nothing that was derived so far is wrong, but nothing
                may be derived from its absence either.
        """
        known = self._bytes.get(path)
        if known is None:
            try:
                known = self._bytes[path] = self.snapshot.read(path)
            except OSError as bad:
                raise ChangedError(
                    f"{path} is gone or changed while it was being examined: {bad.strerror or bad}.", "Scan again."
                ) from bad
        return known

    def source(self, path: str) -> str:
        """The text as ``ast`` would decode it; ``""`` (and an entry in ``failures``) when it cannot be decoded."""
        try:
            return decode(self.read(path))
        except (SyntaxError, UnicodeDecodeError) as bad:
            self._failures[path] = Failure(path, f"cannot be read as Python text: {bad}")
            return ""

    def outline(self, path: str) -> Outline:
        """The outline of one file; an empty one when the file cannot be parsed (then it is in ``failures``)."""
        known = self._outlines.get(path)
        if known is None:
            known = self._outlines[path] = self._make(path)
        return known

    def _make(self, path: str) -> Outline:
        entry = self.snapshot.files.get(path)
        if entry is None:
            return _EMPTY
        cached = recall(self.snapshot.cache, "outline", entry.sha256, OUTLINE_VERSION, Outline)
        if cached is not None:
            return cached
        try:
            made = outline(self.source(path))
        except (SyntaxError, RecursionError, MemoryError) as bad:
            self._failures[path] = unparsed(path, bad)
            return _EMPTY
        if path not in self._failures:  # a file that cannot be decoded must be reported by the next scan, too
            self.snapshot.cache.put("outline", entry.sha256, OUTLINE_VERSION, msgspec.msgpack.encode(made))
        return made

    def mentioning(self, needle: bytes, paths: Iterable[str] | None = None) -> Iterator[str]:
        """Paths whose bytes contain ``needle``: the cheap, sound first cut for "who mentions this name at all"."""
        for path in self.paths if paths is None else paths:
            if needle in self.read(path):
                yield path

    def mentioning_any(self, needles: Iterable[bytes], paths: Iterable[str] | None = None) -> Iterator[str]:
        """Paths whose bytes contain one of ``needles``."""
        wanted = tuple(needles)
        for path in self.paths if paths is None else paths:
            data = self.read(path)
            if any(needle in data for needle in wanted):
                yield path

    def line(self, path: str, number: int) -> str:
        """Line ``number`` of ``path`` without its indentation and line end."""
        lines = self.lines(path)
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""

    def lines(self, path: str) -> list[str]:
        """The file's lines without their line ends."""
        known = self._lines.get(path)
        if known is None:
            known = self._lines[path] = self.source(path).split("\n")
        return known

    def evidence(self, path: str, number: int) -> Evidence:
        """Evidence for one line, its text read from the file."""
        return Evidence(path, number, self.line(path, number))

    def function(self, path: str, qualname: str) -> libcst.FunctionDef | None:
        """The libcst tree of one function alone (dedented slice, parsed once); ``None`` when it is not there."""
        import libcst

        key = path, qualname
        if key not in self._functions:
            found = self.outline(path).definition(qualname)
            if found is None or found.kind != "function":
                return None
            lines = self.lines(path)[found.first - 1 : found.end]
            node = libcst.parse_module(textwrap.dedent("\n".join(lines)) + "\n").body[0]
            assert isinstance(node, libcst.FunctionDef)
            self._functions[key] = node
        return self._functions[key]

    def searched(self, paths: Iterable[str], asked: str, looked_at: int) -> Search:
        """The record of a search through ``paths`` that found nothing."""
        entries = [self.snapshot.files[path] for path in sorted(paths)]
        return Search(len(entries), sum(e.size for e in entries), digest_of(entries), asked, looked_at)


def unparsed(path: str, bad: Exception) -> Failure:
    """What is said of a file that the parser refused."""
    if isinstance(bad, (RecursionError, MemoryError)):
        return Failure(path, "cannot be parsed: it nests too deeply")
    line = f", line {bad.lineno}" if isinstance(bad, SyntaxError) and bad.lineno else ""
    return Failure(path, f"cannot be parsed: {getattr(bad, 'msg', bad)}{line}")


_EMPTY = Outline((), (), (), ())


def decode(data: bytes) -> str:
    """Decodes source bytes by their coding cookie or BOM, line ends as ``\\n``.

    Raises:
        SyntaxError: unknown encoding. UnicodeDecodeError: bytes that the encoding does not allow.
    """
    import io
    import tokenize

    if data.isascii() and b"coding" not in data[:200]:
        return data.decode("ascii").replace("\r\n", "\n").replace("\r", "\n")
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        raise
    except (LookupError, UnicodeError) as bad:  # a codec that is none for text: hex, rot13, undefined
        raise SyntaxError(f"{encoding} is no encoding of text") from bad
    return text.replace("\r\n", "\n").replace("\r", "\n")


def digest_of(entries: Iterable[FileEntry]) -> str:
    """SHA-256 over the sorted (path, SHA-256) pairs of some files."""
    return digest((entry.path, entry.sha256) for entry in entries)

"""Edits of one source file: anchors that match exactly once, libcst in the function concerned, all other bytes kept.

An anchor is Python code in which names of two leading underscores stand for anything: ``self.sampler(__a, None, __b)``.
It is compared as syntax, so formatting and comments do not matter. Only the lines that an edit really changes are
written anew; a byte-order mark, the encoding and the line ends of every other line stay as they are.
"""

from __future__ import annotations

import ast
import codecs
import dataclasses
import difflib
import io
import re
import textwrap
import tokenize
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from specaudit.errors import RecipeRefused
from specaudit.index import unparsed
from specaudit.patching.model import Anchor
from specaudit.patching.syntax import (
    alike,
    below,
    definitions,
    expression,
    filled,
    is_expression,
    nodes_of,
    occurrences,
    pattern_of,
    same,
    statement,
    statement_around,
    statements,
    swap,
)
from specaudit.words import counted

if TYPE_CHECKING:
    import libcst

    from specaudit.patching.syntax import Definition

_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
#: Spaces of one indentation step in the engines' sources.
_INDENT = 4
_HINT = "This release has another shape; scan it to see whether the defect is there at all."
_BROKEN = "Repair this file, or reinstall the engine."


@dataclass(frozen=True, slots=True)
class _Line:
    """``origin`` is the line's number in the file as it was found, ``None`` for a line that an edit wrote."""

    text: str
    end: str
    origin: int | None


class FileEdit:
    """One file under edit.

    Args:
        path: package-relative path, for messages and anchors.
        data: the bytes as they are.

    Raises:
        RecipeRefused: the bytes are no Python text.
    """

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self.anchors: list[Anchor] = []
        self._bom = data.startswith(codecs.BOM_UTF8)
        try:
            self._encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            text = data.decode(self._encoding)
            self._lines = _split(text)
            self._reread()
        except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError) as bad:
            raise RecipeRefused(f"{path} {unparsed(path, bad).error}.", _BROKEN) from bad
        ends = [line.end for line in self._lines if line.end]
        self._end = max(set(ends), key=ends.count) if ends else "\n"

    @property
    def text(self) -> str:
        """The file as it is now, line ends as ``\\n``."""
        return "".join(line.text + ("\n" if line.end else "") for line in self._lines)

    def data(self) -> bytes:
        """The file's bytes as they are now."""
        encoded = "".join(line.text + line.end for line in self._lines).encode(self._encoding)
        return encoded if not self._bom or encoded.startswith(codecs.BOM_UTF8) else codecs.BOM_UTF8 + encoded

    # --- edits inside a function or class ---------------------------------------------------------------------------

    def replace(self, scope: str, anchor: str, code: str) -> None:
        """Replaces the one expression or statement that matches, in the function or class ``scope``.

        Args:
            anchor: code, with ``__names`` for anything.
            code: what takes its place; ``__names`` stand for what the anchor matched there.
        """
        parse: Callable[[str], libcst.CSTNode] = expression if is_expression(anchor) else statement
        pattern = parse(anchor)

        def edit(tree: libcst.Module, depth: int) -> libcst.Module:
            ((node, captured),) = occurrences(tree, pattern)
            return swap(tree, node, [filled(parse(code), captured)])

        self._edit(scope, anchor, partial(same, pattern_of(anchor)), edit)

    def replace_argument(self, scope: str, function: str, argument: int | str, code: str) -> None:
        """Replaces one argument of the one call of ``function`` in a scope.

        Args:
            function: code of what is called.
            argument: its position, or its keyword.
            code: the new value.
        """
        import libcst

        called, function_pattern = pattern_of(function), expression(function)

        def wanted(node: ast.AST) -> bool:
            if not isinstance(node, ast.Call) or not same(called, node.func):
                return False
            return isinstance(argument, int) or argument in {keyword.arg for keyword in node.keywords}

        def edit(tree: libcst.Module, depth: int) -> libcst.Module:
            calls = [n for n in nodes_of(tree) if isinstance(n, libcst.Call) and alike(function_pattern, n.func, {})]
            (call,) = calls
            keywords = [arg.keyword.value if arg.keyword else None for arg in call.args]
            old = call.args[keywords.index(argument) if isinstance(argument, str) else argument]
            return swap(tree, old, [old.with_changes(value=expression(code))])

        self._edit(scope, f"{function}(…), argument {argument}", wanted, edit)

    def insert_before(self, scope: str, anchor: str, code: str) -> None:
        """Inserts statements before the one statement that matches."""
        self._insert(scope, anchor, code, before=True)

    def insert_after(self, scope: str, anchor: str, code: str) -> None:
        """Inserts statements after the one statement that matches."""
        self._insert(scope, anchor, code, before=False)

    def _insert(self, scope: str, anchor: str, code: str, before: bool) -> None:
        new = statements(code)

        def edit(tree: libcst.Module, depth: int) -> libcst.Module:
            node = below(tree, depth)
            return swap(tree, node, [*new, node] if before else [node, *new])

        self._edit(scope, anchor, partial(same, pattern_of(anchor)), edit)

    def _edit(
        self,
        scope: str,
        anchor: str,
        wanted: Callable[[ast.AST], bool],
        edit: Callable[[libcst.Module, int], libcst.Module],
    ) -> None:
        """Finds the one place by ``ast``, and gives libcst the smallest statement around it."""
        import libcst

        around = self.definition(scope)
        nodes = [node for node in ast.walk(around) if wanted(node)]
        self._once(anchor, scope, [node.lineno for node in nodes])  # type: ignore[attr-defined]
        first, end = statement_around(around, nodes[0])
        body = "".join(line.text + "\n" for line in self._lines[first - 1 : end])
        # Under as many "if"s, a statement parses at its own indentation: no line of a string has to be moved.
        indent = len(body) - len(body.lstrip(" "))
        steps = range(0, indent, _INDENT) if indent % _INDENT == 0 else (0,)
        head = "".join(" " * step + "if True:\n" for step in steps)
        changed = edit(libcst.parse_module(head + body), head.count("\n"))
        self._splice(first, end, changed.code[len(head) :])

    # --- edits between definitions ----------------------------------------------------------------------------------

    def add_definition(self, after: str, code: str) -> None:
        """Adds a function, method or class after the definition ``after``, at its indentation."""
        found = self.definition(after)
        self._anchor(found.lineno, f"after {after}")
        indent = " " * found.col_offset
        blank = "\n" if indent else "\n\n"
        end = found.end_lineno or found.lineno
        self._write(end, blank + textwrap.indent(textwrap.dedent(code).strip("\n") + "\n", indent))

    def add_import(self, beside: str, name: str, module: str = "") -> None:
        """Imports ``name`` after the one top-level import of ``beside``, unless it is imported already.

        Args:
            beside: a name that the file imports.
            name: what to import.
            module: from where; by default from where ``beside`` comes.
        """
        imports = [n for n in self._tree.body if isinstance(n, ast.ImportFrom)]
        names = [(node, alias.name) for node in imports for alias in node.names if alias.asname is None]
        if any(imported == name for _, imported in names):
            return
        found = [node for node, imported in names if imported == beside]
        self._once(f"import {beside}", "the module", [node.lineno for node in found])
        source = module or "." * found[0].level + (found[0].module or "")
        self._write(found[0].end_lineno or found[0].lineno, f"from {source} import {name}\n")

    def definition(self, qualname: str) -> Definition:
        """The one definition of that qualified name.

        Raises:
            RecipeRefused: there is none, or more than one.
        """
        found = [node for name, node in definitions(self._tree) if name == qualname]
        if len(found) != 1:
            where = f" (lines {', '.join(str(self._origin(d.lineno)) for d in found)})" if found else ""
            count = "no" if not found else f"{counted(len(found), 'definition')} of"
            raise RecipeRefused(f"{self.path} has {count} {qualname}{where}; one was expected.", _HINT)
        return found[0]

    # --- bookkeeping ------------------------------------------------------------------------------------------------

    def _once(self, anchor: str, scope: str, lines: Sequence[int]) -> None:
        if len(lines) == 1:
            self._anchor(lines[0], anchor)
            return
        shown = " ".join(anchor.split())
        where = f" (lines {', '.join(str(self._origin(line)) for line in lines)})" if lines else ""
        times = counted(len(lines), "time") if lines else "nowhere"
        message = f"{self.path}: the anchor `{shown}` is {times} in {scope}{where}; once was expected."
        raise RecipeRefused(message, _HINT)

    def _anchor(self, line: int, what: str) -> None:
        self.anchors.append(Anchor(self.path, self._origin(line), self._lines[line - 1].text.strip(), what))

    def _origin(self, line: int) -> int:
        """The line's number in the file as it was found; for a line that an edit wrote, that of the line above it."""
        return next((o for row in range(line - 1, -1, -1) if (o := self._lines[row].origin) is not None), 1)

    def _splice(self, first: int, end: int, text: str) -> None:
        old, new = self._lines[first - 1 : end], text.split("\n")[:-1]
        merged: list[_Line] = []
        matcher = difflib.SequenceMatcher(None, [line.text for line in old], new, autojunk=False)
        for tag, a, b, c, d in matcher.get_opcodes():
            merged += old[a:b] if tag == "equal" else [_Line(text, self._end, None) for text in new[c:d]]
        merged[-1] = dataclasses.replace(merged[-1], end=old[-1].end)  # a file may end without a line end
        self._lines[first - 1 : end] = merged
        self._changed()

    def _write(self, after: int, text: str) -> None:
        if not self._lines[after - 1].end:
            self._lines[after - 1] = dataclasses.replace(self._lines[after - 1], end=self._end)
        self._lines[after:after] = [_Line(line, self._end, None) for line in text.split("\n")[:-1]]
        self._changed()

    def _changed(self) -> None:
        try:
            self._reread()
        except SyntaxError as bad:
            raise RecipeRefused(f"{self.path} would not be Python after the edit: {bad}.", "Report it.") from bad

    def _reread(self) -> None:
        self._tree = ast.parse(self.text)


def _split(text: str) -> list[_Line]:
    parts = [(match[1], match[2]) for match in _LINE.finditer(text)]
    if parts and parts[-1] == ("", ""):
        parts.pop()
    return [_Line(line, end, number) for number, (line, end) in enumerate(parts, 1)]

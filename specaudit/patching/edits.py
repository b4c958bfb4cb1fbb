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
from typing import TYPE_CHECKING, Any

from specaudit.errors import RecipeRefused
from specaudit.index import Definition, outline
from specaudit.patching.model import Anchor

if TYPE_CHECKING:
    import libcst
    from libcst.matchers import BaseMatcherNode

    Captured = dict[str, Any]

_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
#: Spaces of one indentation step in the engines' sources.
_INDENT = 4
_HINT = "This release has another shape; scan it to see whether the defect is there at all."


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
        except (SyntaxError, UnicodeDecodeError) as bad:
            raise RecipeRefused(f"{path} cannot be read as Python: {bad}.", _HINT) from bad
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
        from libcst import matchers

        parse: Callable[[str], libcst.CSTNode] = _expression if _is_expression(anchor) else _statement
        matcher = _matcher(parse(anchor))

        def edit(tree: libcst.Module, depth: int) -> libcst.Module:
            (node,) = matchers.findall(tree, matcher)
            return _swap(tree, node, [_filled(parse(code), matchers.extract(node, matcher) or {})])

        self._edit(scope, anchor, partial(_same, _pattern(anchor)), edit)

    def replace_argument(self, scope: str, function: str, argument: int | str, code: str) -> None:
        """Replaces one argument of the one call of ``function`` in a scope.

        Args:
            function: code of what is called.
            argument: its position, or its keyword.
            code: the new value.
        """
        import libcst
        from libcst import matchers

        called, matcher = _pattern(function), _matcher(_expression(function))

        def wanted(node: ast.AST) -> bool:
            fits = isinstance(node, ast.Call) and _same(called, node.func)
            return fits and (isinstance(argument, int) or argument in {k.arg for k in node.keywords})  # type: ignore[attr-defined]

        def edit(tree: libcst.Module, depth: int) -> libcst.Module:
            found = [n for n in matchers.findall(tree, matchers.Call()) if matchers.matches(n.func, matcher)]  # type: ignore
            (call,) = [n for n in found if isinstance(n, libcst.Call)]
            keywords = [arg.keyword.value if arg.keyword else None for arg in call.args]
            old = call.args[keywords.index(argument) if isinstance(argument, str) else argument]
            return _swap(tree, old, [old.with_changes(value=_expression(code))])

        self._edit(scope, f"{function}(…), argument {argument}", wanted, edit)

    def insert_before(self, scope: str, anchor: str, code: str) -> None:
        """Inserts statements before the one statement that matches."""
        self._insert(scope, anchor, code, before=True)

    def insert_after(self, scope: str, anchor: str, code: str) -> None:
        """Inserts statements after the one statement that matches."""
        self._insert(scope, anchor, code, before=False)

    def _insert(self, scope: str, anchor: str, code: str, before: bool) -> None:
        new = _statements(code)

        def edit(tree: libcst.Module, depth: int) -> libcst.Module:
            node = _below(tree, depth)
            return _swap(tree, node, [*new, node] if before else [node, *new])

        self._edit(scope, anchor, partial(_same, _pattern(anchor)), edit)

    def _edit(
        self,
        scope: str,
        anchor: str,
        wanted: Callable[[ast.AST], bool],
        edit: Callable[[libcst.Module, int], libcst.Module],
    ) -> None:
        """Finds the one place by ``ast``, and gives libcst the smallest statement around it."""
        import libcst

        around = self._node(self.definition(scope))
        nodes = [node for node in ast.walk(around) if wanted(node)]
        self._once(anchor, scope, [node.lineno for node in nodes])  # type: ignore[attr-defined]
        first, end = _statement_around(around, nodes[0])
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
        self._anchor(found.line, f"after {after}")
        first = self._lines[found.first - 1].text
        indent = first[: len(first) - len(first.lstrip())]
        blank = "\n" if indent else "\n\n"
        self._write(found.end, blank + textwrap.indent(textwrap.dedent(code).strip("\n") + "\n", indent))

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
        found = [d for d in self._definitions if d.qualname == qualname]
        if len(found) != 1:
            where = f" (lines {', '.join(str(self._origin(d.line)) for d in found)})" if found else ""
            count = "no" if not found else f"{len(found)} definitions of"
            raise RecipeRefused(f"{self.path} has {count} {qualname}{where}; one was expected.", _HINT)
        return found[0]

    # --- bookkeeping ------------------------------------------------------------------------------------------------

    def _once(self, anchor: str, scope: str, lines: Sequence[int]) -> None:
        if len(lines) == 1:
            self._anchor(lines[0], anchor)
            return
        shown = " ".join(anchor.split())
        where = f" (lines {', '.join(str(self._origin(line)) for line in lines)})" if lines else ""
        times = f"{len(lines)} times" if lines else "nowhere"
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
        text = self.text
        self._tree = ast.parse(text)
        self._definitions = outline(text).definitions

    def _node(self, definition: Definition) -> ast.AST:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        return next(n for n in ast.walk(self._tree) if isinstance(n, kinds) and n.lineno == definition.line)


def _split(text: str) -> list[_Line]:
    parts = [(match[1], match[2]) for match in _LINE.finditer(text)]
    if parts and parts[-1] == ("", ""):
        parts.pop()
    return [_Line(line, end, number) for number, (line, end) in enumerate(parts, 1)]


# --- anchors --------------------------------------------------------------------------------------------------------

_IGNORED = ("ctx", "kind", "type_comment", "type_params")


def _pattern(anchor: str) -> ast.AST:
    (statement,) = ast.parse(textwrap.dedent(anchor).strip()).body
    return statement.value if isinstance(statement, ast.Expr) and _is_expression(anchor) else statement


def _same(pattern: object, node: object) -> bool:
    """Whether two pieces of syntax are alike; a name of two leading underscores is like any expression."""
    if isinstance(pattern, ast.Name) and _stands_for_anything(pattern.id):
        return isinstance(node, ast.expr)
    if isinstance(pattern, list):
        return (
            isinstance(node, list)
            and len(pattern) == len(node)
            and all(_same(one, other) for one, other in zip(pattern, node, strict=True))
        )
    if not isinstance(pattern, ast.AST):
        return pattern == node
    return type(pattern) is type(node) and all(
        _same(getattr(pattern, name, None), getattr(node, name, None))
        for name in pattern._fields
        if name not in _IGNORED
    )


def _stands_for_anything(name: str) -> bool:
    return name.startswith("__") and not name.endswith("__")


def _statement_around(tree: ast.AST, wanted: ast.AST) -> tuple[int, int]:
    """First and last line of the innermost statement that holds a node; an ``elif`` belongs to its ``if``."""
    best = tree
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and any(inner is wanted for inner in ast.walk(node)):
            inside_elif = isinstance(best, ast.If) and node in best.orelse and node.col_offset == best.col_offset
            best = best if inside_elif else node
    decorators = getattr(best, "decorator_list", [])
    first = min([best.lineno, *(d.lineno for d in decorators)])  # type: ignore[attr-defined]
    return first, best.end_lineno  # type: ignore[attr-defined]


# --- libcst ---------------------------------------------------------------------------------------------------------

#: Fields that carry no meaning: an anchor matches whatever they hold.
_LAYOUT = re.compile(
    "whitespace|leading_lines|header|footer|lines_after|lpar|rpar|comma|semicolon|lbra|rbra|equal|indent"
)


def _is_expression(code: str) -> bool:
    try:
        ast.parse(code.strip(), mode="eval")
    except SyntaxError:
        return False
    return True


def _expression(code: str) -> libcst.CSTNode:
    import libcst

    return libcst.parse_expression(code.strip())


def _statement(code: str) -> libcst.CSTNode:
    (statement,) = _statements(code)
    return statement


def _statements(code: str) -> list[libcst.CSTNode]:
    """Statements with the comments above each; libcst keeps those above the first one in the module's header."""
    import libcst

    module = libcst.parse_module(textwrap.dedent(code).strip("\n") + "\n")
    first, *others = module.body
    return [first.with_changes(leading_lines=[*module.header, *first.leading_lines]), *others]


def _matcher(node: libcst.CSTNode) -> BaseMatcherNode:
    """The matcher for a pattern: same types and names, whatever the layout."""
    import libcst
    from libcst import matchers

    if isinstance(node, libcst.Name) and _stands_for_anything(node.value):
        return matchers.SaveMatchedNode(matchers.DoNotCare(), node.value)  # type: ignore[return-value]
    if isinstance(node, libcst.SimpleString):
        literal = node.evaluated_value
        return matchers.SimpleString(value=matchers.MatchIfTrue(lambda text: ast.literal_eval(text) == literal))
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if _LAYOUT.search(field.name):
            continue
        if isinstance(value, libcst.CSTNode):
            fields[field.name] = _matcher(value)
        elif isinstance(value, (list, tuple)):
            fields[field.name] = [_matcher(item) for item in value]
        elif isinstance(value, str):
            fields[field.name] = value
        elif value is None:
            fields[field.name] = None
    kind = getattr(matchers, type(node).__name__)
    return kind(**fields)  # type: ignore[no-any-return]


def _filled(node: libcst.CSTNode, captured: Captured) -> libcst.CSTNode:
    """A replacement with what the anchor matched put in for its ``__names``."""
    import libcst

    class Fill(libcst.CSTTransformer):
        def leave_Name(self, original_node: libcst.Name, updated_node: libcst.Name) -> libcst.BaseExpression:
            found = captured.get(original_node.value)
            return found if isinstance(found, libcst.BaseExpression) else updated_node

    filled = node.visit(Fill())
    assert isinstance(filled, libcst.CSTNode)
    return filled


def _below(tree: libcst.Module, depth: int) -> libcst.CSTNode:
    """The one statement under ``depth`` nested ``if``s."""
    import libcst

    (statement,) = tree.body
    for _ in range(depth):
        assert isinstance(statement, libcst.If)
        (statement,) = statement.body.body  # type: ignore[assignment]
    return statement


def _swap(tree: libcst.Module, node: libcst.CSTNode, new: Sequence[libcst.CSTNode]) -> libcst.Module:
    """``tree`` with ``node`` replaced; comments and blank lines above it stay above what takes its place."""
    import libcst

    class Swap(libcst.CSTTransformer):
        def on_leave(self, original_node: libcst.CSTNodeT, updated_node: libcst.CSTNodeT) -> Any:
            if original_node is not node:
                return super().on_leave(original_node, updated_node)
            return libcst.FlattenSentinel(new) if len(new) > 1 else _with_layout(node, new[0])

    return tree.visit(Swap())


def _with_layout(old: libcst.CSTNode, new: libcst.CSTNode) -> libcst.CSTNode:
    lines = getattr(old, "leading_lines", ())
    if lines and hasattr(new, "leading_lines"):
        return new.with_changes(leading_lines=[*lines, *new.leading_lines])
    return new

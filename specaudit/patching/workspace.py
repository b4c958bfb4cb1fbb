"""An engine as a recipe sees it: files to look through, files to change, and the tree as it would be afterwards."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping
from dataclasses import replace

from specaudit.errors import RecipeRefused
from specaudit.index import Index
from specaudit.model import FileEntry
from specaudit.patching.edits import FileEdit
from specaudit.patching.model import Change
from specaudit.snapshot import Snapshot


class Workspace:
    """Changes on top of one snapshot; nothing is written anywhere.

    Args:
        index: the engine before the recipe.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self._edits: dict[str, FileEdit] = {}
        self._new: dict[str, bytes] = {}

    def edit(self, path: str) -> FileEdit:
        """The file under edit. Files are replaced in the order in which they are asked for here: switches come last.

        Raises:
            RecipeRefused: there is no such file.
        """
        if path not in self._edits:
            if path not in self.index.snapshot.files:
                raise RecipeRefused(f"{path} is not in this engine.", "Scan it to see what it holds.")
            self._edits[path] = FileEdit(path, self.index.read(path))
        return self._edits[path]

    def add(self, path: str, data: bytes) -> None:
        """A file that does not exist yet; it is written before any file is replaced.

        Raises:
            RecipeRefused: it exists, or is no Python.
        """
        if path in self.index.snapshot.files:
            raise RecipeRefused(f"{path} exists already in this engine.", "Look at it: someone else put it there.")
        try:
            ast.parse(data)
        except (SyntaxError, ValueError) as bad:
            raise RecipeRefused(f"{path} would not be Python: {bad}.", "Report it.") from bad
        self._new[path] = data

    def find_class(self, name: str, below: str = "") -> str:
        """The one file below a folder that defines a top-level class of that name.

        Raises:
            RecipeRefused: none does, or several do.
        """
        return self._find(name, "class", below)

    def find_function(self, name: str, below: str = "") -> str:
        """The one file below a folder that defines that top-level function; raises as :meth:`find_class`."""
        return self._find(name, "function", below)

    def _find(self, name: str, kind: str, below: str) -> str:
        below = below or self.index.snapshot.engine.name
        paths = [path for path in self.index.paths if path.startswith(below + "/")]
        found = []
        word = "class" if kind == "class" else "def"
        for path in self.index.mentioning(f"{word} {name}".encode(), paths):
            if any(d.qualname == name and d.kind == kind for d in self.index.outline(path).definitions):
                found.append(path)
        if len(found) != 1:
            where = ", ".join(found) if found else "none"
            raise RecipeRefused(f"One file below {below} should define {name}; found {where}.", "Scan this engine.")
        return found[0]

    def changes(self) -> tuple[Change, ...]:
        """New files, then edited files in the order in which they were opened; one left as it was is no change."""
        changes = [Change(path, None, data) for path, data in self._new.items()]
        for path, edit in self._edits.items():
            before, after = self.index.read(path), edit.data()
            if before != after:
                changes.append(Change(path, before, after, tuple(edit.anchors)))
        return tuple(changes)

    def after(self) -> Index:
        """The engine as it would be."""
        return Index(overlay(self.index.snapshot, {change.path: change.after for change in self.changes()}))


def overlay(snapshot: Snapshot, contents: Mapping[str, bytes | None]) -> Snapshot:
    """A snapshot with some files replaced, added or (``None``) taken away."""
    files = dict(snapshot.files)
    for path, data in contents.items():
        if data is None:
            files.pop(path, None)
        else:
            files[path] = FileEntry(path, hashlib.sha256(data).hexdigest(), len(data))
    below = snapshot.read

    def read(path: str) -> bytes:
        data = contents[path] if path in contents else below(path)
        if data is None:
            raise FileNotFoundError(path)
        return data

    return replace(snapshot, files=files, read=read)

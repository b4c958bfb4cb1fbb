"""Syntax trees that are kept while one engine is judged, and edited, again and again with few of its files changed."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import pytest

from specaudit.patching.edits import FileEdit
from specaudit.ruling import places

_MOST = 500  # files of one release and what recipes make of them


class _Kept(threading.local):
    """Results by the text that was parsed; a tree may be used by the thread alone that made it."""

    def __init__(self) -> None:
        self.roots: dict[str, Any] = {}
        self.below: dict[tuple[str, int], Any] = {}

    def parse(self, made: Callable[[str], Any]) -> Callable[[str], Any]:
        def parsed(text: str) -> Any:
            if len(self.roots) > _MOST:
                self.roots, self.below = {}, {}
            if text not in self.roots:
                self.roots[text] = made(text)
            return self.roots[text]

        return parsed

    def of_root(self, what: str, made: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def found(root: Any) -> Any:
            key = what, id(root)
            if key not in self.below:
                self.below[key] = (root, made(root))  # with its root, whose identity nobody else gets then
            return self.below[key][1]

        return found


@contextmanager
def kept() -> Iterator[None]:
    """Keeps what rules parse, definitions and imports, and the last files under edit, until the block ends."""
    store = _Kept()
    tree_of = lru_cache(maxsize=16)(ast.parse)

    def reread(edit: FileEdit) -> None:
        edit._tree = tree_of(edit.text)  # nobody changes it

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "parse", store.parse(places.parse))
        for name in ("definitions", "imports"):
            patch.setattr(places, name, store.of_root(name, getattr(places, name)))
        patch.setattr(FileEdit, "_reread", reread)
        yield

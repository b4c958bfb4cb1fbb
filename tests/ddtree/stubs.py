"""Modules of an engine that is not installed, with the names that the hooks import from them."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest


def install(monkeypatch: pytest.MonkeyPatch, contents: dict[str, dict[str, Any]]) -> None:
    """contents: what each module of that full name holds; the packages above are made, too."""
    for name, held in contents.items():
        for i in range(1, name.count(".") + 1):
            package = name.rsplit(".", i)[0]
            monkeypatch.setitem(sys.modules, package, sys.modules.get(package, ModuleType(package)))
        module = ModuleType(name)
        vars(module).update(held)
        monkeypatch.setitem(sys.modules, name, module)

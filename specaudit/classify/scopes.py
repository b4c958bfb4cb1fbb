"""Where an expression stands, and what the names around it are known to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specaudit.classify.code import Symbol
from specaudit.classify.values import Value


@dataclass(frozen=True, slots=True)
class Scope:
    """File, enclosing qualified name, class of the object (``owner``), what ``self`` is known to be, local names."""

    path: str
    qualname: str
    owner: Symbol | None = None
    self_value: Value | None = None
    names: Mapping[str, Value] = field(default_factory=dict)
    depth: int = 0

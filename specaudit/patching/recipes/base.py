"""What a recipe is: which findings it repairs, what it writes, and what must be true of the tree afterwards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from specaudit.index import Index
from specaudit.model import Finding
from specaudit.patching.workspace import Workspace


class Recipe(ABC):
    """One change of an engine, decided by code shape and never by a version string.

    A recipe with ``repairs`` applies when at least one of these findings is present (or partial), and each present one
    must be fixed in the tree as it would be. A recipe that adds a feature leaves ``repairs`` empty and says in
    :meth:`check` what must hold afterwards. Reverting needs no recipe: the journal knows every byte.
    """

    #: What the user calls it.
    name: ClassVar[str]
    #: Raised with every change of what it writes; a journal names it.
    version: ClassVar[str]
    #: The package it is for.
    engine: ClassVar[str] = "vllm"
    #: One line for lists.
    summary: ClassVar[str]
    #: Rules whose findings it repairs.
    repairs: ClassVar[tuple[str, ...]] = ()
    #: Rules whose findings may turn out repaired as well, depending on the release.
    also: ClassVar[tuple[str, ...]] = ()
    #: Recipes that must stand before it; they are planned along with it.
    requires: ClassVar[tuple[str, ...]] = ()
    #: Recipes that do the same in engines of another shape (for another runner); a refusal names those that fit.
    siblings: ClassVar[tuple[str, ...]] = ()
    #: What a user must know: how it is switched on, what it costs, what it was not run on.
    notes: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def write(self, work: Workspace, present: frozenset[str]) -> None:
        """Makes the edits.

        Args:
            work: the engine.
            present: those of ``repairs`` that are present or partial in it.

        Raises:
            RecipeRefused: an anchor is missing or not unique.
        """

    def check(self, before: Index, after: Index) -> tuple[str, ...]:
        """Postconditions that no rule states; returns what is wrong, in words."""
        return ()


Findings = Mapping[str, Finding]

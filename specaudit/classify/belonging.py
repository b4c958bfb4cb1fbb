"""Whose files are whose: what only other runners use, or only the proposers and verifiers of other methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from specaudit.classify.code import Code, Symbol
from specaudit.classify.proposers import Proposers
from specaudit.classify.runners import RunnerChoice
from specaudit.model import Verifier


@dataclass(frozen=True, slots=True)
class Others:
    """What is not on a path: whole files, and in files that are on it the lines (first and last) of classes."""

    files: frozenset[str]
    classes: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)

    def hold(self, path: str, line: int) -> bool:
        """Whether a line is theirs."""
        return path in self.files or any(first <= line <= last for first, last in self.classes.get(path, ()))


class Belonging:
    """Tells what of some files is not on the path of a method.

    Args:
        asked: the files that are asked about, beside those of proposers and verifiers.
    """

    def __init__(
        self,
        code: Code,
        choice: RunnerChoice,
        proposers: Proposers,
        verifiers: tuple[Verifier, ...],
        asked: frozenset[str],
    ) -> None:
        self.code = code
        self.index = code.index
        self.choice = choice
        self.proposers = proposers
        self.verifiers = verifiers
        self.asked = asked
        self._foreign: dict[str, frozenset[str]] = {}
        self._importers: dict[str, tuple[str, ...]] = {}

    def others(self, method: str, label: str) -> Others:
        """What only other runners, or only other methods' proposers, use."""
        mine: set[str] = set()
        theirs: set[str] = set(self._foreign_files(label))
        my_classes: set[Symbol] = set()
        their_classes: set[Symbol] = set()
        for found in self.proposers.found:
            own = found.proposer.runner == label and method in found.proposer.methods
            classes = self.code.bases(found.site.cls) if found.site.cls is not None else ()
            (mine if own else theirs).update({c.path for c in classes} or {found.site.maker.path})
            (my_classes if own else their_classes).update(classes)
        for verifier in self.verifiers:
            if verifier.runner:
                (mine if verifier.runner == label else theirs).add(verifier.path)
        theirs -= mine
        files = frozenset(theirs | {p for p in self.asked if p not in theirs and self._beside(p, mine, theirs)})
        spans: dict[str, tuple[tuple[int, int], ...]] = {}
        for cls in their_classes - my_classes:
            if cls.path not in files:
                spans[cls.path] = (*spans.get(cls.path, ()), (cls.definition.line, cls.definition.end))
        return Others(files, spans)

    def _beside(self, path: str, mine: set[str], theirs: set[str], asking: frozenset[str] = frozenset()) -> bool:
        """A file in a folder that others have for themselves, and that nothing outside of it imports but what is
        theirs, too.
        """
        folder = path.rpartition("/")[0]
        neighbours = {p for p in mine | theirs if p.rpartition("/")[0] == folder}
        if not neighbours or neighbours & mine:
            return False
        asking |= {path}
        return all(
            p in theirs or p in asking or p.rpartition("/")[0] == folder or self._beside(p, mine, theirs, asking)
            for p in self._importing(path)
        )

    def _importing(self, path: str) -> tuple[str, ...]:
        """The files that name a file's module: the same for every method, and looked for in all files."""
        if path not in self._importers:
            module = path.removesuffix(".py").replace("/", ".").encode()
            self._importers[path] = tuple(self.index.mentioning(module))
        return self._importers[path]

    def _foreign_files(self, label: str) -> frozenset[str]:
        """The files of the other runners: their own, and their folder where no other runner lives below it."""
        if label not in self._foreign:
            out: set[str] = set()
            for anchor in self.choice.present:
                folder = f"{anchor.path.rpartition('/')[0]}/"
                nested = any(a is not anchor and a.path.startswith(folder) for a in self.choice.present)
                if anchor.label != label:
                    out |= {anchor.path} if nested else {p for p in self.index.paths if p.startswith(folder)}
            self._foreign[label] = frozenset(out)
        return self._foreign[label]

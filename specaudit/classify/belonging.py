"""Whose files are whose: what only other runners use, or only the proposers and verifiers of other methods."""

from __future__ import annotations

import re
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
        self._importers: dict[str, frozenset[str]] = {}

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
        definitions = [cls for cls in their_classes - my_classes if cls.path not in files]
        for path in self.asked - files:
            if self._among(path, mine, theirs) and self._importing(path) & theirs:
                definitions += self._unused(path, files)
        spans: dict[str, tuple[tuple[int, int], ...]] = {}
        for one in definitions:
            spans[one.path] = (*spans.get(one.path, ()), (one.definition.first, one.definition.end))
        return Others(files, spans)

    def _beside(self, path: str, mine: set[str], theirs: set[str]) -> bool:
        """A file in a folder that others have for themselves, and that nothing outside of it imports but theirs."""
        folder = path.rpartition("/")[0]
        return self._among(path, mine, theirs) and all(
            p in theirs or p.rpartition("/")[0] == folder for p in self._importing(path)
        )

    @staticmethod
    def _among(path: str, mine: set[str], theirs: set[str]) -> bool:
        """Whether others have a file's folder for themselves."""
        folder = path.rpartition("/")[0]
        neighbours = {p for p in mine | theirs if p.rpartition("/")[0] == folder}
        return bool(neighbours) and not neighbours & mine

    def _unused(self, path: str, theirs: frozenset[str]) -> list[Symbol]:
        """What a file defines for others alone: nothing else imports it, and nothing in the file that is used names
        it.
        """
        left = self._imported_from(path, theirs)
        if left is None:
            return []
        top = {d.name: d for d in self.index.outline(path).definitions if "." not in d.qualname}
        lines = dict(enumerate(self.index.lines(path), 1))
        texts = {
            name: "\n".join(lines.pop(n, "") for n in range(found.first, found.end + 1)) for name, found in top.items()
        }
        left |= set(re.findall(r"\w+", "\n".join(lines.values())))  # what runs when the module is imported
        used: set[str] = set()
        while left:
            name = left.pop()
            if name in top:
                used.add(name)
                left |= top.keys() & set(re.findall(r"\w+", texts[name])) - used
        return [Symbol(path, found) for name, found in top.items() if name not in used]

    def _imported_from(self, path: str, theirs: frozenset[str]) -> set[str] | None:
        """The names that files but these import from a file; ``None`` where one imports the module as such."""
        found: set[str] = set()
        folder = path.rpartition("/")[0]
        beside = (p for p in self.index.paths if p.startswith(folder) and p.rpartition("/")[0] == folder)
        for importer in {*self._importing(path), *beside} - theirs - {path}:  # one beside it may name it by a dot alone
            for known in self.index.outline(importer).imports:
                target = self.code.module_path(known.module, importer)
                below = known.module + known.name if known.module.endswith(".") else f"{known.module}.{known.name}"
                if target == path and known.name not in ("", "*"):
                    found.add(known.name)
                elif path in (target, self.code.module_path(below, importer)):
                    return None
        return found

    def _importing(self, path: str) -> frozenset[str]:
        """The files that name a file's module: the same for every method, and looked for in all files."""
        if path not in self._importers:
            module = path.removesuffix(".py").replace("/", ".").encode()
            self._importers[path] = frozenset(self.index.mentioning(module))
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

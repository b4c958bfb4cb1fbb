"""Where rules come from: the packaged folder, and folders of the user's own. Reading them never runs code.

Limits: at most ``MAX_RULES`` documents in all; what one document may be is in :mod:`specaudit.ruling.document`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Literal

from specaudit.errors import ConfigurationError
from specaudit.ruling.document import MAX_BYTES, DocumentError
from specaudit.ruling.rule import Rule
from specaudit.ruling.schema import read_rule
from specaudit.words import counted, meant, one_line

MAX_RULES = 1_000


#: Name, contents (or why they cannot be read), and who wrote it.
Document = tuple[str, bytes | DocumentError, Literal["packaged", "user"]]


@dataclass(frozen=True)
class Rulebook:
    """Rule documents as bytes, in the order of their names; parsed when :attr:`rules` is first asked for.

    ``digest`` identifies the set, so that findings can be kept between runs without parsing a single document.
    """

    documents: tuple[Document, ...]

    @property
    def digest(self) -> str:
        """SHA-256 over names and contents."""
        made = hashlib.sha256()
        for name, data, _ in self.documents:
            contents = data if isinstance(data, bytes) else data.message.encode()
            made.update(f"{name}\0{len(contents)}\0".encode() + contents)
        return made.hexdigest()

    @property
    def ids(self) -> frozenset[str]:
        """The rules' ids, which are the names of their files; nothing is parsed."""
        return frozenset(PurePath(name).stem for name, _, _ in self.documents)

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """The rules, checked.

        Raises:
            DocumentError: a document is wrong, or two have the same id; the message counts the other bad ones.
        """
        good, bad = self.read()
        if bad:
            more = f" (wrong besides: {counted(len(bad) - 1, 'document')})" if len(bad) > 1 else ""
            raise DocumentError(bad[0].where, bad[0].reason + more, bad[0].hint) from bad[0]
        return good

    def read(self) -> tuple[tuple[Rule, ...], tuple[DocumentError, ...]]:
        """The rules that are right, and what is wrong with each other document."""
        made: dict[str, Rule] = {}
        bad: list[DocumentError] = []
        for document in self.documents:
            try:
                rule = _single(document)
                if rule.id in made:
                    raise DocumentError(
                        f"{rule.name}:1", f"the id {rule.id!r} is taken by {made[rule.id].name}", "Choose another id."
                    )
                made[rule.id] = rule
            except DocumentError as wrong:
                bad.append(wrong)
        return tuple(made.values()), tuple(bad)

    def rule(self, rule_id: str) -> Rule:
        """The rule of that id.

        Raises:
            ConfigurationError: there is none; the message names similar ids.
        """
        for rule in self.rules:
            if rule.id == rule_id:
                return rule
        hint = meant(rule_id, (rule.id for rule in self.rules), 3, 0.4) or "`specaudit rules list` prints all ids."
        raise ConfigurationError(f"There is no rule {rule_id!r}.", hint)


def _single(document: Document) -> Rule:
    """One document's rule.

    Raises:
        DocumentError: it is wrong.
    """
    name, data, source = document
    if isinstance(data, DocumentError):
        raise data
    return read_rule(_decode(name, data), name, source)


def _decode(name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as bad:
        line = data[: bad.start].count(b"\n") + 1
        raise DocumentError(f"{name}:{line}", "the document is not UTF-8") from bad


def rulebook(folders: Sequence[Path] = (), *, packaged: bool = True) -> Rulebook:
    """The packaged rules followed by those of the given folders (``*.yaml`` and ``*.yml``, not recursive).

    A file that cannot be read, or is too large, is an error when its rule is asked for. Hidden files are left out:
    editors keep such.

    Raises:
        ConfigurationError: a folder does not exist or holds no rules, or there are more than ``MAX_RULES`` documents.
    """
    documents: list[Document] = []
    if packaged:
        for resource in sorted(files("specaudit.rules").iterdir(), key=lambda one: one.name):
            if resource.name.endswith(".yaml"):
                documents.append((f"rules/{resource.name}", resource.read_bytes(), "packaged"))
    for folder in folders:
        found = _listing(folder, MAX_RULES - len(documents))
        documents += [(name := one_line(str(path)), _contents(path, name), "user") for path in found]
    return Rulebook(tuple(documents))


def _listing(folder: Path, room: int) -> list[Path]:
    try:
        if not folder.is_dir():
            raise ConfigurationError(
                f"There is no folder {folder}.", "Name a folder of rules: YAML documents, one for each."
            )
        named = (path for path in folder.iterdir() if path.suffix in (".yaml", ".yml") and path.name[0] != ".")
        found = _capped(named, room, folder)
    except OSError as bad:
        raise ConfigurationError(
            f"The folder {folder} cannot be read: {bad.strerror}.", "Check its permissions."
        ) from bad
    if not found:
        raise ConfigurationError(
            f"The folder {folder} holds no *.yaml document.", "Name a folder of rules: YAML documents, one for each."
        )
    return sorted(found)


def _capped(paths: Iterable[Path], room: int, folder: Path) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if len(found) >= room:
            raise ConfigurationError(
                f"{folder} holds too many rules: the limit is {MAX_RULES} in all.", "Split the folder."
            )
        found.append(path)
    return found


def _contents(path: Path, name: str) -> bytes | DocumentError:
    where = f"{name}:1"
    try:
        if not path.resolve().is_relative_to(path.parent.resolve()):
            # A folder of rules may come from elsewhere; what it links to is printed by messages and by `rules show`.
            return DocumentError(where, "this link leads out of the folder", "Copy the rule into the folder.")
        if not path.is_file():  # a FIFO or device would never end
            return DocumentError(where, "this is no regular file", "Take it out of the folder.")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, RuntimeError) as bad:  # Python 3.11 and 3.12 raise RuntimeError for links in a circle
        why = bad.strerror if isinstance(bad, OSError) else "the link leads in a circle"
        return DocumentError(where, f"cannot be read: {why}", "Check its permissions, or take it out of the folder.")
    if len(data) > MAX_BYTES:
        return DocumentError(where, f"the document has more than {MAX_BYTES} bytes", "Split it, or shorten its texts.")
    return data

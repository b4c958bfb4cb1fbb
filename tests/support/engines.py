"""An engine's source as an index, with some files replaced: how tests change one kernel of a real release."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

from specaudit.index import Index
from specaudit.model import EngineFacts, Environment, FileEntry, Target
from specaudit.snapshot import Snapshot


def index_of(
    root: Path,
    engine: str = "vllm",
    wants: Callable[[str], bool] = lambda path: True,
    changed: Mapping[str, str] | None = None,
) -> Index:
    """The index of an unpacked release.

    Args:
        root: the folder that holds the package ``engine``.
        engine: the package.
        wants: which of its files to read.
        changed: texts that stand in the place of files (or beside them), by package-relative path.
    """
    given = {path: text.encode() for path, text in (changed or {}).items()}
    texts = dict(given)
    for file in sorted((root / engine).rglob("*.py")):
        path = file.relative_to(root).as_posix()
        if wants(path):
            texts.setdefault(path, file.read_bytes())
    files = {path: FileEntry(path, sha256(data).hexdigest(), len(data)) for path, data in sorted(texts.items())}
    facts = EngineFacts(engine, "", "dir", "", len(files))
    return Index(Snapshot(Target(f"dir:{root}"), facts, Environment(), files, texts.__getitem__))


def replaced(text: str, *edits: tuple[str, str]) -> str:
    """The text with each edit made; every old part must stand in it exactly once."""
    for old, new in edits:
        assert text.count(old) == 1, f"stands {text.count(old)} times in the text: {old!r}"
        text = text.replace(old, new)
    return text

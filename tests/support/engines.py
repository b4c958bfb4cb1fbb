"""An engine's source as an index, with some files replaced: how tests change one kernel of a real release."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from support.derived import derived

from specaudit.cache import DerivedCache
from specaudit.index import Index
from specaudit.model import EngineFacts, Environment, FileEntry, Target
from specaudit.snapshot import Snapshot


def index_of(
    root: Path,
    engine: str = "vllm",
    wants: Callable[[str], bool] = lambda path: True,
    changed: Mapping[str, str] | None = None,
    cache: DerivedCache | None = None,
) -> Index:
    """The index of an unpacked release, or of another tree.

    Args:
        root: the folder that holds the package ``engine``.
        engine: the package.
        wants: which of its files to read.
        changed: texts that stand in the place of files (or beside them), by package-relative path.
        cache: for what is derived from the files; default that of the test run.
    """
    texts = {path: _hashed(text.encode()) for path, text in (changed or {}).items()}
    for path, found in _files(root, engine).items():
        if wants(path):
            texts.setdefault(path, found)
    files = {path: FileEntry(path, sha, len(data)) for path, (data, sha) in sorted(texts.items())}
    facts = EngineFacts(engine, "", "dir", "", len(files))
    kept = derived() if cache is None else cache
    return Index(Snapshot(Target(f"dir:{root}"), facts, Environment(), files, lambda path: texts[path][0], cache=kept))


def _files(root: Path, engine: str) -> Mapping[str, tuple[bytes, str]]:
    """The Python files of a tree, with their hashes. A release has its metadata beside it, and nobody changes it."""
    return _unchanging(root, engine) if any(root.glob("*.dist-info")) else _read(root, engine)


def _read(root: Path, engine: str) -> Mapping[str, tuple[bytes, str]]:
    found = ((file.relative_to(root).as_posix(), file) for file in sorted((root / engine).rglob("*.py")))
    return {path: _hashed(file.read_bytes()) for path, file in found}


_unchanging = lru_cache(maxsize=3)(_read)  # of few: a release has up to 40 MB


def _hashed(data: bytes) -> tuple[bytes, str]:
    return data, sha256(data).hexdigest()


def replaced(text: str, *edits: tuple[str, str]) -> str:
    """The text with each edit made; every old part must stand in it exactly once."""
    for old, new in edits:
        assert text.count(old) == 1, f"stands {text.count(old)} times in the text: {old!r}"
        text = text.replace(old, new)
    return text

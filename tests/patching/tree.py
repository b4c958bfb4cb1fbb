"""A small engine on disk, its complete description, and a change of it: what the agent's tests work on."""

from __future__ import annotations

import hashlib
import os
import py_compile
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Facts = Mapping[str, tuple[Any, ...]]

HOOK, SHARED, LINKED, PLAIN = "vllm/hook.py", "vllm/a/shared.py", "vllm/a/linked.py", "vllm/a/plain.py"
NEW, NEW_DEEP = "vllm/a/added.py", "vllm/tree/kernels/walk.py"


def sha(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()


def make(root: Path) -> Path:
    """An engine with a file that a cache shares by hard link, a symbolic link, odd modes, and compiled files."""
    site, cache = root / "site", root / "cache"
    for folder in (site / "vllm/a", cache):
        folder.mkdir(parents=True)
    for path in ("vllm/__init__.py", HOOK, SHARED, PLAIN):
        (site / path).write_text(f'"""{path}"""\nvalue = 1\n')
    os.link(site / SHARED, cache / "shared")
    (cache / "linked").write_text("linked = 1\n")
    (site / LINKED).symlink_to("../../../cache/linked")
    (site / HOOK).chmod(0o640)
    os.utime(site / HOOK, ns=(10**18, 10**18 + 123456789))
    compile_(site / HOOK)
    compile_(site / SHARED, unchecked=True)
    return site


def compile_(path: Path, unchecked: bool = False) -> None:
    """Compiles a file; "unchecked" is what an image build does, and the interpreter then never looks at the source."""
    mode = py_compile.PycInvalidationMode
    py_compile.compile(str(path), doraise=True, invalidation_mode=mode.UNCHECKED_HASH if unchecked else mode.TIMESTAMP)


def facts(folder: Path) -> Facts:
    """Everything below a folder: type, mode, owner, links, time, content or target, by path."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted(folder.rglob("*")):
        s = path.lstat()
        kind = "link" if path.is_symlink() else "folder" if path.is_dir() else "file"
        content = os.readlink(path) if kind == "link" else sha(path.read_bytes()) if kind == "file" else ""
        links, time = (0, 0) if kind == "folder" else (s.st_nlink, s.st_mtime_ns)
        found[str(path.relative_to(folder))] = (kind, stat.S_IMODE(s.st_mode), s.st_uid, s.st_gid, links, time, content)
    return found


def contents(folder: Path) -> Mapping[str, str]:
    """Contents alone, without compiled files: what two applications of the same thing must agree in."""
    return {p: f[-1] for p, f in facts(folder).items() if f[0] != "folder" and "__pycache__" not in p}


def application(
    site: Path, recipe: str = "demo", only: tuple[str, ...] = ()
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """A change of four files and two new ones in new folders, the file that imports them last."""
    changes, blobs = [], {}
    for path in (NEW, NEW_DEEP, SHARED, LINKED, PLAIN, HOOK):
        if only and path not in only:
            continue
        target = site / path
        before = target.read_bytes() if target.exists() else None
        after = (before or b"") + f"# {recipe}\nvalue = 2\n".encode()
        blobs[sha(after)] = after
        changes.append({"path": path, "before": sha(before) if before is not None else None, "after": sha(after)})
    return {"recipe": recipe, "version": "1", "changes": changes}, blobs

"""Builds small wheels and source archives with the layout of real ones."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path


def wheel_bytes(
    files: Mapping[str, bytes], name: str = "vllm", version: str = "1.0", *, promised: Mapping[str, bytes] | None = None
) -> bytes:
    """A wheel with METADATA, WHEEL and RECORD. ``promised``: what RECORD says that some files hold."""
    info = f"{name}-{version}.dist-info"
    members = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    told = {**members, **(promised or {})}
    lines = [f"{path},sha256={_urlsafe(told[path])},{len(told[path])}" for path in members]
    members[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in members.items():
            archive.writestr(path, data)
    return out.getvalue()


def sdist_bytes(files: Mapping[str, bytes], name: str = "vllm", version: str = "1.0") -> bytes:
    """A source archive whose top folder holds the files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for path, data in {"PKG-INFO": b"Name: vllm\n", **files}.items():
            member = tarfile.TarInfo(f"{name}-{version}/{path}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def _urlsafe(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def part_of_release(root: Path, *patterns: str) -> dict[str, bytes]:
    """Some files of a real release, by path."""
    found = sorted({file for pattern in patterns for file in root.glob(pattern) if file.is_file()})
    return {file.relative_to(root).as_posix(): file.read_bytes() for file in found}

"""Scan documents: what is written and read as JSON. The same scan gives the same bytes.

``specaudit/scan/1`` is one scan, ``specaudit/run/1`` several. Their JSON schemas are published in ``reports/`` and are
made from the types of :mod:`specaudit.model` by :func:`json_schema`; fields may be added to them, never renamed.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import msgspec

from specaudit.errors import ConfigurationError, UsageError
from specaudit.model import Fleet, Run, Scan
from specaudit.writing import way_out, why

SCAN = "specaudit/scan/1"
RUN = "specaudit/run/1"
#: Of a document that is read: some five hundred scans.
MAX_BYTES = 256 << 20


def encode(document: Scan | Run) -> bytes:
    """The document as indented JSON, ``schema`` first, with a final newline.

    Bytes of a path that are no UTF-8 are shown by their code.
    """
    plain = _schema_first(document)
    try:
        made = msgspec.json.encode(plain)
    except UnicodeEncodeError:
        made = msgspec.json.encode(_printable(plain))
    return msgspec.json.format(made, indent=2) + b"\n"


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, (list, tuple)) else value


def as_json(plain: Any, indent: int = 1) -> bytes:
    """Other documents: builtin values as indented JSON with a final newline, in UTF-8 whatever the locale is.

    Bytes of a path that are no UTF-8 are shown by their code.
    """
    return (json.dumps(plain, indent=indent, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def of_scans(scans: Iterable[Scan], fleet: Fleet | None = None) -> Scan | Run:
    """One scan stays one; several become a run."""
    found = tuple(scans)
    return found[0] if len(found) == 1 else Run(found, fleet)


def decode(data: bytes, name: str) -> Scan | Run:
    """Reads a document; fields that this version does not know are ignored.

    Args:
        data: the JSON text.
        name: where it came from, for messages.

    Raises:
        ConfigurationError: not JSON, another schema, or a field has the wrong type.
    """
    try:
        schema = msgspec.json.decode(data, type=_Header).schema
        if schema == RUN:
            return msgspec.json.decode(data, type=Run)
        if schema == SCAN:
            return msgspec.json.decode(data, type=Scan)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as bad:
        raise ConfigurationError(
            f"{name} is no scan document: {bad}.", "Write one with `specaudit scan TARGET --json --output FILE`."
        ) from bad
    raise ConfigurationError(
        f"{name} has the schema {schema!r}; this program reads {SCAN} and {RUN}.",
        "Update specaudit, or scan again.",
    )


def load(path: Path) -> Scan | Run:
    """Reads a document from a file.

    Raises:
        ConfigurationError: as :func:`decode`, or the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return read(file, str(path))
    except OSError as bad:
        raise ConfigurationError(f"{path} cannot be read: {bad.strerror}.", "Check the path.") from bad


def read(stream: IO[bytes], name: str) -> Scan | Run:
    """Reads a document from an open stream.

    Raises:
        ConfigurationError: as :func:`decode`, or it is too large.
    """
    return decode(_limited(stream.read(MAX_BYTES + 1), name), name)


def _limited(data: bytes, name: str) -> bytes:
    if len(data) > MAX_BYTES:
        raise ConfigurationError(f"{name} has more than {MAX_BYTES >> 20} MiB.", "No scan document is that large.")
    return data


def check_writable(path: Path) -> None:
    """Tries, before work of minutes, what :func:`write` will do; nothing of it stays.

    Raises:
        UsageError: the file cannot be written.
    """
    if str(path) == "-":
        raise UsageError("- is no name for a file.", "Name a file; standard output needs no name.")
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not _in_place(path):
            handle, scratch = _scratch(path)
            os.close(handle)
            os.unlink(scratch)
        elif not os.access(path, os.W_OK):  # not opened: the reader of a pipe would take it for the end
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as bad:
        raise _unwritable(path, bad) from bad


def write(path: Path, data: bytes) -> None:
    """Writes a file so that a reader sees the old one or the new one, never a half.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        if _in_place(path):
            path.write_bytes(data)
            return
        handle, scratch = _scratch(path)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            mode = path.stat().st_mode & 0o7777 if path.exists() else 0o644
            os.chmod(scratch, mode)
            os.replace(scratch, path)
        except OSError:
            os.unlink(scratch)
            raise
    except OSError as bad:
        raise _unwritable(path, bad) from bad


def _in_place(path: Path) -> bool:
    """Whether it is there and no file that another could replace: /dev/stdout, a pipe."""
    return path.exists() and not path.is_file()


def _scratch(path: Path) -> tuple[int, str]:
    return tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)


def _unwritable(path: Path, bad: OSError) -> UsageError:
    return UsageError(f"{path} cannot be written: {why(bad)}.", way_out(path, bad))


def json_schema(kind: type[Scan] | type[Run]) -> dict[str, Any]:
    """The JSON schema of a document. Everything that we write is required; anything else is allowed."""
    made = msgspec.json.schema(kind)
    for definition in made["$defs"].values():
        if definition.get("type") == "object" and "properties" in definition:
            definition["required"] = sorted(definition["properties"])
            for described in definition["properties"].values():
                described.pop("default", None)
    name = SCAN if kind is Scan else RUN
    made["$defs"][kind.__name__]["properties"]["schema"] = {"const": name}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{name.replace('/', ':')}",
        "title": name,
        **made,
    }


def publish_schemas(folder: Path) -> None:
    """Writes the schemas of both kinds of document into a folder."""
    for name, kind in (("scan-1", Scan), ("run-1", Run)):
        made = msgspec.json.format(msgspec.json.encode(json_schema(kind)), indent=2)
        (folder / f"{name}.schema.json").write_bytes(made + b"\n")


class _Header(msgspec.Struct):
    schema: str = ""


def _schema_first(document: Scan | Run) -> dict[str, Any]:
    plain = msgspec.to_builtins(document)
    if isinstance(document, Run):
        plain["scans"] = [_schema_first(scan) for scan in document.scans]
    return {"schema": plain.pop("schema"), **plain}

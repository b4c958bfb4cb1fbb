"""What ``vllm serve --config FILE`` adds to a command line. Python 3.8 and newer, stdlib only.

There is no YAML reader to rely on, so only what such files hold is read: ``key: value`` lines, and one level of
them below a key, which become JSON (``speculative-config``). Lists and anything deeper are passed over.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

from specaudit.hosts.probe import reading, redact

LIMIT = 1 << 16
_LINE = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z_][\w.-]*|\"[^\"]+\"|'[^']+')\s*:(?:\s+(?P<value>.*))?")


def named_by(argv: list[str]) -> str:
    """The file that a command line names with ``--config``; empty: none."""
    for number, word in enumerate(argv):
        if word.startswith("--config="):
            return word.partition("=")[2]
        if word == "--config" and number + 1 < len(argv):
            return argv[number + 1]
    return ""


def arguments(argv: list[str], folder: str, mount: str) -> list[str]:
    """Redacted ``--key=value`` words of the file that ``argv`` names.

    Args:
        argv: of the server.
        folder: its working directory, as it sees it.
        mount: what precedes its absolute paths for us.
    """
    name = named_by(argv)
    if not name:
        return []
    found = reading.text(mount + os.path.join(folder, name), LIMIT)
    return ["--" + key + "=" + redact.named(key, value) for key, value in read(found)]


def read(text: str) -> list[tuple[str, str]]:
    """Keys and values; a nested mapping is given as JSON."""
    found: list[tuple[str, Any]] = []
    inner: dict[str, Any] | None = None
    depth = 0
    for line in text.splitlines():
        match = _LINE.fullmatch(re.sub(r"(^|\s)#.*", "", line).rstrip())
        if match is None:
            continue
        key, value = match.group("key").strip("\"'"), (match.group("value") or "").strip()
        indent = len(match.group("indent"))
        if indent == 0:
            inner = {} if not value else None
            depth = 0
            found.append((key, inner if inner is not None else _plain(value)))
        elif inner is not None and value and (depth in (0, indent)):
            depth = indent
            inner[key] = _typed(value)
    return [(key, json.dumps(value) if isinstance(value, dict) else value) for key, value in found if value != {}]


def _plain(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


def _typed(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return {"null": None, "~": None, "true": True, "false": False}.get(value.lower(), _plain(value))

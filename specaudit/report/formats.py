"""Formats by name, and several reports from one run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from specaudit import document
from specaudit.errors import UsageError
from specaudit.report.github import github
from specaudit.report.junit import junit
from specaudit.report.pages import html, markdown, text
from specaudit.report.sarif import sarif
from specaudit.report.view import Report


def scan_json(report: Report) -> str:
    """The scans as a document again."""
    return document.encode(document.of_scans(report.scans)).decode()


FORMATS: Mapping[str, Callable[[Report], str]] = {
    "text": text,
    "json": scan_json,
    "markdown": markdown,
    "html": html,
    "sarif": sarif,
    "junit": junit,
    "github": github,
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A format and where it goes (``None``: standard output)."""

    name: str
    path: Path | None = None


def wanted(specs: Iterable[str]) -> tuple[Wanted, ...]:
    """Reads ``FORMAT`` and ``FORMAT=FILE``.

    Raises:
        UsageError: an unknown format, or two that would share standard output or a file.
    """
    found: list[Wanted] = []
    for spec in specs:
        name, equals, path = spec.partition("=")
        if name not in FORMATS or (equals and not path):
            raise UsageError(f"--format {spec!r} is not known.", f"Write FORMAT or FORMAT=FILE; {', '.join(FORMATS)}.")
        one = Wanted(name, Path(path) if path else None)
        if any(other.path == one.path for other in found):
            place = str(one.path) if one.path else "standard output"
            raise UsageError(
                f"Two formats go to {place}.", "Give all but one of them a file: --format sarif=out.sarif."
            )
        found.append(one)
    return tuple(found)

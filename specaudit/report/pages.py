"""Report -> text, Markdown and HTML, by the templates in ``reports/``. What an engine or a user wrote is escaped."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING

from specaudit import summary
from specaudit.hosts.shell import harmless, printable
from specaudit.lines import hanging
from specaudit.report import view
from specaudit.report.view import Report
from specaudit.words import counted

if TYPE_CHECKING:
    from jinja2 import Environment

_SHOWN = (
    summary.title,
    summary.answers,
    summary.manner,
    summary.rows,
    summary.choices,
    summary.conditions,
    summary.place,
    view.opened,
    view.closed,
    view.counts,
    view.count_words,
    view.standing,
    view.verdict,
    view.where,
    view.tree_parts,
    view.search_words,
    view.default_paths,
    view.landmarks,
    counted,
)


def text(report: Report) -> str:
    """Plain text for a terminal or a log; no line of it is a command to a CI service that reads the log."""
    return harmless(_render("report.txt.j2", report))


def markdown(report: Report) -> str:
    """GitHub-flavoured Markdown."""
    return _render("report.md.j2", report)


def html(report: Report) -> str:
    """One self-contained page: no script, nothing loaded from anywhere."""
    return _render("report.html.j2", report)


class Paragraph(str):
    """Lines of plain text that are ready to stand in a report."""


def behind(value: object, lead: str) -> Paragraph:
    """A paragraph that hangs behind its lead, 80 columns wide."""
    return Paragraph("\n".join(line for line, _ in hanging(lead, str(_line(str(value))))))


def _line(value: object) -> object:
    """A value as one line without control characters, and without those that turn the direction of writing."""
    if isinstance(value, Paragraph):
        return value
    return printable(re.sub(r"\s+", " ", value)) if isinstance(value, str) else value


def escaped(value: object) -> str:
    """Text as one line of Markdown that says what it says: no markup, no HTML, no new table cell, no mention."""
    line = str(_line(str(value))).strip()
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([\\`*_{}\[\]|~])", r"\\\1", line)
    return re.sub(r"([@#])(?=\w)", "\\1\N{ZERO WIDTH SPACE}", line)


def code(value: object) -> Markdown:
    """A line of code or a path in Markdown; a fence would need another rule in a table than elsewhere."""
    return Markdown(f"<code>{escaped(value)}</code>")


class Markdown(str):
    """Text that is Markdown already."""


def _markdown(value: object) -> str:
    return value if isinstance(value, Markdown) else escaped(value)


#: What is done to each value on its way into a template.
_FINALLY: Mapping[str, Callable[[object], object]] = {"txt": _line, "md": _markdown, "html": _line}


def _render(name: str, report: Report) -> str:
    written = _environment(name.split(".")[1]).get_template(name).render(report=report)
    return re.sub(r"\n{3,}", "\n\n", written).rstrip() + "\n"


@cache
def _environment(kind: str) -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("specaudit.reports", ""),
        autoescape=kind == "html",
        finalize=_FINALLY[kind],
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.globals.update({function.__name__: function for function in _SHOWN})
    made.filters.update({"code": code, "behind": behind})
    return made

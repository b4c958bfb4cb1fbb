"""Report -> text, Markdown and HTML, by the templates in ``reports/``. What an engine or a user wrote is escaped."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from specaudit import summary
from specaudit.hosts.shell import printable
from specaudit.report import view
from specaudit.report.view import Report

if TYPE_CHECKING:
    from jinja2 import Environment

_SHOWN = (
    summary.title,
    summary.answers,
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
)


def text(report: Report) -> str:
    """Plain text for a terminal or a log."""
    return printable(_render("report.txt.j2", report))


def markdown(report: Report) -> str:
    """GitHub-flavoured Markdown."""
    return _render("report.md.j2", report)


def html(report: Report) -> str:
    """One self-contained page: no script, nothing loaded from anywhere."""
    return _render("report.html.j2", report)


def escaped(value: object) -> str:
    """Text as one line of Markdown that says what it says: no markup, no HTML, no new table cell."""
    line = re.sub(r"\s+", " ", str(value)).strip()
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]|~])", r"\\\1", line)


def _render(name: str, report: Report) -> str:
    return re.sub(r"\n{3,}", "\n\n", _environment().get_template(name).render(report=report)).rstrip() + "\n"


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("specaudit.reports", ""),
        autoescape=lambda name: bool(name and name.endswith(".html.j2")),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.globals.update({function.__name__: function for function in _SHOWN})
    made.filters["md"] = escaped
    return made

"""Everything that is printed for people: the summary, the tables, notes and progress. The only import of rich.

Text keeps to 80 columns, except for paths and lines of code. Colours follow NO_COLOR and the kind of terminal; progress
appears on a terminal only. Whatever came out of an engine is made printable first: a file under audit does not get to
write on the auditor's terminal.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, get_args

from specaudit import summary
from specaudit.fleet import gpus
from specaudit.hosts.shell import harmless, printable
from specaudit.lines import WIDTH, Line, hanging
from specaudit.model import Finding, Fleet, Path, Scan, Severity, Status
from specaudit.words import counted

if TYPE_CHECKING:
    from rich.console import Console

#: Statuses in the order in which they are told, with their style; the first ones are listed one by one.
_STATUS: dict[Status, str | None] = {
    "present": "bold red",
    "partial": "yellow",
    "unreachable": "dim",
    "fixed": "green",
    "not-applicable": None,
    "not-found": "yellow",
}
_OPEN: tuple[Status, ...] = ("present", "partial", "unreachable")
_WALK = {"tree": "bold green", "unknown": "yellow"}
_OPTION = {"ignored": "bold red", "overridden": "yellow", "honoured": None}
#: Lines of evidence per verdict; the document holds all of them.
_EVIDENCE = 4
#: Files that differ, per group of machines and kind; the document holds all of them.
_FILES = 12


def _say(text: str) -> None:
    """Writes on stderr; where nothing can be written there, what is said is lost, not the work."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


class Progress:
    """One line on stderr that is overwritten; silent where stderr is no terminal, or when told to be."""

    def __init__(self, quiet: bool = False) -> None:
        self._shown = not quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def __call__(self, message: str) -> None:
        """Shows a message in place of the last one."""
        if self._shown:
            _say(f"\r\x1b[K{printable(message)[: WIDTH - 1]}")

    def clear(self) -> None:
        """Leaves an empty line for what comes next."""
        if self._shown:
            _say("\r\x1b[K")


def note(message: str) -> None:
    """A line for people that must not mix with a document on stdout."""
    _say(f"note: {harmless(message)}\n")


def complain(message: str, hint: str = "") -> None:
    """An error: what happened, and what to do next."""
    _say(f"error: {harmless(message)}\n" + (f"  try: {harmless(hint)}\n" if hint else ""))


def show_scan(scan: Scan, *, brief: bool = False) -> None:
    """Prints one scan on stdout: the answers first, then (unless ``brief``) all that they rest on."""
    out = _Page()
    out.line(summary.title(scan), "bold")
    if scan.engine is not None:
        for question, answer in summary.answers(scan, below=not brief):
            out.entry(f"  {question:<9}", answer)
    if not brief:
        _methods(out, scan)
        _runners(out, scan)
        _proposers(out, scan)
        _verifiers(out, scan)
        _trees(out, scan)
        _options(out, scan)
        _findings(out, scan.findings)
        _environment(out, scan)
    _servers(out, scan)
    if scan.servers or not brief:
        out.line()
    _unexamined(out, scan)
    out.line()


def _unexamined(out: _Page, scan: Scan) -> None:
    for failure in scan.errors:
        out.entry("not examined: ", f"{failure.path + ': ' if failure.path else ''}{failure.error}", "red")
    for item in scan.not_looked:
        out.entry("not looked at: ", f"{item.what} ({item.why})", "dim")


def show_fleet(fleet: Fleet, scans: Mapping[str, Scan]) -> None:
    """Prints machines as one table, grouped by engine, and what is different in the groups.

    Args:
        fleet: the comparison.
        scans: by machine.
    """
    out = _Page()
    rows = []
    for group in fleet.groups:
        for host in group.hosts:
            rows.append((group.label, host, f"{group.engine} {group.version}", *_machine(scans[host])))
    rows += [("-", host, "not examined", "", error) for host, error in fleet.failed.items()]
    out.table(("group", "machine", "engine", "GPUs", "servers"), rows)
    for group in fleet.groups[1:]:
        first = fleet.groups[0].label
        out.heading(f"Files of group {group.label} ({', '.join(group.hosts)}) beside group {first}")
        for word, paths in (("differ", group.changed), ("only here", group.added), ("missing here", group.missing)):
            for path in paths[:_FILES]:
                out.line(f"  {word:<12} {path}")
            if len(paths) > _FILES:
                out.line(f"  {word:<12} and {len(paths) - _FILES} more")
    for kind, title in (("version", "Versions that differ"), ("configuration", "Configurations that differ")):
        found = [difference for difference in fleet.differences if difference.what == kind]
        if found:
            out.heading(title)
        for difference in found:
            for number, (value, hosts) in enumerate(difference.values.items()):
                out.entry(f"  {difference.name if number == 0 else '':<20}  ", f"{value}  ({', '.join(hosts)})")
    out.line()


def _machine(scan: Scan) -> tuple[str, str]:
    """GPUs and servers of one machine, in a few words."""
    paths = [scan.paths[server.path] if server.path is not None else None for server in scan.servers]
    ways = [f"{path.method} on {path.runner}" if path else "no path" for path in paths]
    return gpus(scan) or "-", ", ".join(ways) or "-"


def show_lines(lines: Iterable[Line]) -> None:
    """Prints lines on stdout, each with its style."""
    out = _Page()
    for text, style in lines:
        out.line(text, style)


def show_table(
    columns: tuple[str, ...], rows: Iterable[tuple[str, ...]], below: Iterable[Iterable[tuple[str, str]]]
) -> None:
    """Prints a table on stdout.

    Args:
        columns: titles.
        rows: cells, as many as there are titles.
        below: what follows each row, indented: paragraphs, each with its lead.
    """
    out = _Page()
    cells = [columns, *rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    out.line(lines[0], "dim")
    for line, paragraphs in zip(lines[1:], below, strict=True):
        out.line(line, "bold")
        for lead, text in paragraphs:
            out.entry(f"    {lead}", text)


def show_paths(scan: Scan, paths: Iterable[Path]) -> None:
    """Prints each hop from configuration to kernel, one path after the other."""
    out = _Page()
    out.line(summary.title(scan), "bold")
    for path in paths:
        out.heading(f"{path.method} on {path.runner}")
        for condition in path.when:
            out.entry("  if ", condition.text)
        for number, hop in enumerate(path.hops, 1):
            out.line(f"{number:4}  {hop.what:<9}  {hop.path}:{hop.line}")
            out.line(f"{'':17}{hop.text}", "dim")
    out.line()
    _unexamined(out, scan)
    out.line()


def _methods(out: _Page, scan: Scan) -> None:
    found = summary.rows(scan)
    if found:
        out.heading(summary.manner(scan).capitalize())
        cells = [
            (row.method, row.runner.replace(" or ", "/"), _chain(row.topology), ", ".join(row.proposers) or "-")
            for row in found
        ]
        out.table(("method", "on", "draft", "proposer"), cells)


def _chain(topology: str) -> str:
    """Short for a narrow column: chains are the rule, so only trees say what they are."""
    return ", ".join(part.removeprefix("chain-") for part in topology.split(", ")) or "-"


def _runners(out: _Page, scan: Scan) -> None:
    if scan.runners:
        out.heading("Runners")
    for choice in summary.choices(scan.runners):
        out.entry(f"  {choice.runner}  ", ("by default: " if choice.default else "") + ", ".join(choice.methods))
        if len(choice.ways) > 1:
            out.line("        if one of these holds")
        for way in choice.ways:
            out.entry("        - ", way or "always")
        if choice.always:
            out.entry("        and ", "; ".join(choice.always))
        if choice.kept:
            out.entry("        and ", "as by default: " + "; ".join(choice.kept))


def _proposers(out: _Page, scan: Scan) -> None:
    if scan.proposers:
        out.heading("Proposers")
    for proposer in scan.proposers:
        runner = f"{proposer.runner}, {proposer.reachable}" if proposer.reachable != "default" else proposer.runner
        out.entry("  ", f"{proposer.name}  {proposer.topology}  ({runner})  {', '.join(proposer.methods)}", "bold")
        out.line(f"      {proposer.path}:{proposer.line}")
        for variant in proposer.variants:
            out.entry("      ", variant.topology + summary.conditions(variant.when, " if "))
        if proposer.reason:
            out.entry("      ", proposer.reason)


def _verifiers(out: _Page, scan: Scan) -> None:
    if scan.verifiers:
        out.heading("Verifiers")
    for verifier in scan.verifiers:
        state = ", ".join(filter(None, (verifier.role, verifier.runner, verifier.reachable)))
        out.entry("  ", f"{verifier.name}  {verifier.walk}  ({state})", _WALK.get(verifier.walk, "bold"))
        out.line(f"      {verifier.path}:{verifier.line}")
        for variant in verifier.variants:
            out.entry("      ", f"{variant.walk}, line {variant.line}" + summary.conditions(variant.when, ", if "))
        if verifier.reason:
            out.entry("      ", verifier.reason)


def _trees(out: _Page, scan: Scan) -> None:
    if scan.tree is None:
        return
    out.heading("Trees")
    parts = (
        ("is a tree drafted?", scan.tree.drafting),
        ("does the target's attention mask one?", scan.tree.attention),
        ("does the verifier walk one?", scan.tree.verification),
    )
    for question, part in parts:
        out.line(f"  {question} {part.verdict}", "bold")
        for text in (part.reason, summary.searched(part)):
            if text:
                out.entry("      ", text)
        for item in part.not_looked:
            out.entry("      ", f"not looked at: {item.what} ({item.why})", "dim")
        for evidence in part.evidence[:_EVIDENCE]:
            out.entry("      ", summary.place(evidence))


def _options(out: _Page, scan: Scan) -> None:
    """Per option what becomes of it, the methods that agree brought together; ignored options first to be seen."""
    if scan.options:
        out.heading("Speculative options")
    groups: dict[str, dict[tuple[str, str], dict[str, list[str]]]] = {}
    runners = {option.runner for option in scan.options}
    for option in scan.options:
        name = option.name + (f" = {option.value}" if option.value else "")
        agreeing = groups.setdefault(name, {}).setdefault((option.status, option.reason), {})
        agreeing.setdefault(option.runner, []).append(option.method or "every method")
    for name, found in groups.items():
        if len(found) == 1:
            ((status, why),) = found
            out.entry("  ", f"{name}: {status}" + (f", {why}" if why else ""), _OPTION.get(status))
            continue
        out.line(f"  {name}")
        for (status, why), agreeing in sorted(found.items(), key=lambda item: list(_OPTION).index(item[0][0])):
            who = (", ".join(names) + (f" ({on})" if len(runners) > 1 else "") for on, names in agreeing.items())
            out.entry("      ", f"{status} by {'; '.join(who)}" + (f": {why}" if why else ""), _OPTION[status])


def _findings(out: _Page, findings: Sequence[Finding]) -> None:
    """Open findings, the worst first; of the others only how many there are."""
    if not findings:
        return
    counts = Counter(finding.status for finding in findings)
    out.heading(f"Known defects ({counted(len(findings), 'rule')})")
    out.entry("  ", ", ".join(f"{counts[status]} {status}" for status in _STATUS if counts[status]))
    worst = {severity: rank for rank, severity in enumerate(reversed(get_args(Severity)))}
    shown = [finding for finding in findings if finding.status in _OPEN]
    for finding in sorted(shown, key=lambda f: (_OPEN.index(f.status), worst[f.severity], f.rule)):
        out.entry("  ", f"{finding.severity:<8} {finding.rule}: {finding.status}", _STATUS[finding.status])
        if finding.title:
            out.entry("           ", finding.title)
        for site in finding.sites[:_EVIDENCE]:
            out.entry("           ", summary.place(site))
        if finding.reason:
            out.entry("           ", finding.reason)


def _environment(out: _Page, scan: Scan) -> None:
    facts = scan.environment
    names = ("python", "torch", "cuda", "triton", "platform")
    versions = [f"{name} {value}" for name in names if (value := getattr(facts, name))]
    if versions or facts.gpus:
        out.heading("Environment")
    if versions:
        out.entry("  ", ", ".join(versions))
    for gpu in facts.gpus:
        out.entry("  ", f"{gpu.name}, compute {gpu.capability}, driver {gpu.driver}, {gpu.memory_mib} MiB")


def _servers(out: _Page, scan: Scan) -> None:
    if scan.servers:
        out.heading("Servers")
    for server in scan.servers:
        out.entry(f"  process {server.pid}: ", " ".join(server.argv))
        for name, value in server.env.items():
            out.entry("      ", f"{name}={value}", "dim")
        if server.path is not None:
            path = scan.paths[server.path]
            steps = [hop for hop in path.hops if hop.what in ("proposer", "kernel")]
            out.entry("      takes ", f"{path.method} on {path.runner}", "bold")
            for hop in steps[:1] + steps[-1:]:
                out.entry("            ", f"{hop.what} {hop.path}:{hop.line} {hop.text}")
        counted = summary.counters(server)
        if counted:
            out.entry("      counts ", counted)


class _Page:
    """stdout, 80 columns wide; every text is made printable on its way.

    Where no style can be shown, rich is not even imported: that takes a fifth of a second scan.
    """

    def __init__(self) -> None:
        self._console: Console | None = None
        if sys.stdout.isatty() or os.environ.get("FORCE_COLOR"):
            self._console = _terminal()

    def line(self, text: str = "", style: str | None = None) -> None:
        """One line, however long: paths and code must stay whole to be copied."""
        shown = harmless(text.replace("\n", "\N{REPLACEMENT CHARACTER}"))
        if self._console is None:
            print(shown)
        else:
            self._console.print(shown, style=style, soft_wrap=True)

    def heading(self, text: str) -> None:
        """An empty line and a title."""
        self.line()
        self.line(text, "bold underline")

    def entry(self, lead: str, text: str, style: str | None = None) -> None:
        """A paragraph that hangs behind its lead."""
        for line, _ in hanging(lead, printable(text)):
            self.line(line, style)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns as wide as their cells; the last one is wrapped into what is left of the line."""
        widths = [max(len(row[at]) for row in [columns, *rows]) for at in range(len(columns) - 1)]
        for number, row in enumerate([columns, *rows]):
            lead = "  " + "".join(f"{cell:<{width}}  " for cell, width in zip(row, widths, strict=False))
            self.entry(lead, row[-1], "dim" if number == 0 else None)


def _terminal() -> Console:
    """Rich's way to stdout; a reader that goes away is an error here as everywhere else, not an exit."""
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise

    return Terminal(width=WIDTH, highlight=False, emoji=False, markup=False)

"""``specaudit rules``: list, explain and test rule documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specaudit.cli.root import sub_app
from specaudit.errors import Exit
from specaudit.lines import Line, hanging
from specaudit.words import counted

if TYPE_CHECKING:
    from specaudit.cache import Cache
    from specaudit.index import Index
    from specaudit.ruling.rule import Rule
    from specaudit.ruling.store import Rulebook
    from specaudit.ruling.trials import Trial

app = sub_app(help="List, explain and test the rules for known defects.", no_args_is_help=True)

Folders = Annotated[
    list[Path] | None,
    typer.Option("--rules", metavar="DIR", help="A folder with rules of your own (repeatable)."),
]


@app.command("list")
def list_rules(rules: Folders = None) -> None:
    """Print severity, runners, id and title of every rule."""
    from specaudit.console import show_lines
    from specaudit.ruling.store import rulebook

    found = rulebook(rules or ()).rules
    show_lines(_listed(found))


def _listed(rules: Iterable[Rule]) -> Iterator[Line]:
    yield f"{'severity':<9} {'runner':<7} id", "dim"
    for rule in rules:
        yield f"{rule.severity:<9} {rule.runner:<7} {rule.id}", "bold"
        yield from hanging("    ", rule.title)


@app.command()
def show(
    rule: Annotated[str, typer.Argument(metavar="ID", help="As `rules list` prints it.")], rules: Folders = None
) -> None:
    """Print one rule: what it is about, what to do, and the document that decides it."""
    from specaudit.console import show_lines
    from specaudit.ruling.store import rulebook

    book = rulebook(rules or ())
    found = book.rule(rule)
    text = next(data.decode() for name, data, _ in book.documents if name == found.name and isinstance(data, bytes))
    show_lines(
        [*_manual(found), ("", None), (found.name, "bold underline"), *((line, None) for line in text.splitlines())]
    )


def _manual(rule: Rule) -> Iterator[tuple[str, str | None]]:
    yield rule.title, "bold"
    yield f"{rule.severity}; {rule.runner}; {', '.join(rule.methods)}", "dim"
    parts = (
        ("What you see", rule.symptom),
        ("Why", rule.cause),
        ("What to do", str(rule.remedy)),
        ("Notes", rule.notes),
        ("Needs", "; ".join(need.text for need in rule.reach)),
        ("References", "\n".join(rule.references)),
    )
    for heading, text in parts:
        if text:
            yield "", None
            yield heading, "bold underline"
            for line in text.splitlines():
                yield from hanging("", line)


@app.command("test")
def try_rules(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[DIR]", help="A folder of rules (default: the packaged ones).", show_default=False),
    ] = None,
    tree: Annotated[
        list[str] | None,
        typer.Option(
            "--tree",
            metavar="TARGET",
            help="An engine for the mutation checks, as dir:PATH or vllm==VERSION (repeatable).",
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also print what passed.")] = False,
) -> None:
    """Judge every rule's examples; with trees, also put each defect back into real code and see the status flip.

    Exit codes: 0 all passed, 1 something failed, 2 a document is wrong.
    """
    from specaudit.cache import Cache
    from specaudit.cache import folder as cache_folder
    from specaudit.console import note, show_lines
    from specaudit.ruling.store import Rulebook, rulebook
    from specaudit.ruling.trials import examples, mutations, strangers

    book = rulebook((folder,), packaged=False) if folder is not None else rulebook()
    rules, wrong = book.read()
    for bad in wrong:
        note(f"{bad.message} {bad.hint}")
    good = Rulebook(tuple(document for document in book.documents if document[0] in {rule.name for rule in rules}))
    trials: list[Trial] = []
    with Cache(cache_folder()) as cache, ExitStack() as stack:
        trees = [_index(spec, good, cache, stack) for spec in tree or ()]
        methods = _methods(index for _, index in trees)
        for rule in rules:
            trials += examples(rule)
            trials += mutations(rule, trees)
    style = {"failed": "bold red", "skipped": "dim", "passed": None}
    shown = [t for t in trials if verbose or t.outcome == "failed"]
    show_lines(
        (f"{t.outcome:<8} {t.rule}: {t.what}{f': {t.reason}' if t.reason else ''}", style[t.outcome]) for t in shown
    )
    counts = [f"{sum(t.outcome == word for t in trials)} {word}" for word in ("passed", "failed", "skipped")]
    broken = f"; wrong documents: {len(wrong)}" if wrong else ""
    show_lines([(f"{counted(len(rules), 'rule')}: {', '.join(counts)}{broken}", "bold")])
    show_lines((line, "dim") for line in _reasons(trials))
    for text in strangers(rules, methods):
        show_lines(hanging("", text, "dim"))
    failed = any(trial.outcome == "failed" for trial in trials)
    raise typer.Exit(Exit.ERROR if wrong else Exit.FINDINGS if failed else Exit.CLEAN)


def _reasons(trials: Iterable[Trial]) -> Iterator[str]:
    """One line that tells why something was skipped, the most frequent reason first."""
    found = Counter(trial.reason for trial in trials if trial.outcome == "skipped")
    if found:
        yield "skipped mutations: " + ", ".join(f"{number} because {reason}" for reason, number in found.most_common())


def _methods(trees: Iterable[Index]) -> dict[str, set[str]]:
    """Per engine, the methods that the configuration of any of the trees names."""
    from specaudit.scan import classify, computing

    found: dict[str, set[str]] = {}
    with computing():
        for index in trees:
            runners = classify(index.snapshot).runners
            found.setdefault(index.snapshot.engine.name, set()).update(runner.method for runner in runners)
    return found


def _index(spec: str, book: Rulebook, cache: Cache, stack: ExitStack) -> tuple[str, Index]:
    from specaudit.index import Index
    from specaudit.ruling.judge import TrialJudge
    from specaudit.scan import Options, snapshot_of
    from specaudit.targets import parse

    judge = TrialJudge(book, cache)
    snapshot, _ = stack.enter_context(snapshot_of(parse(spec), Options(judge=judge), cache))
    return spec, Index(snapshot)

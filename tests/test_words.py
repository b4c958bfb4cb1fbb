"""Numbers with their nouns, here and in everything that is said to people."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from jinja2 import Environment, nodes

import specaudit
from specaudit.words import about, counted, meant

PACKAGE = Path(specaudit.__file__).parent
#: Run by an engine's own Python, where this package is not.
ELSEWHERE = ("ddtree", "patching/payload", "smoke/runner.py", "smoke/train.py")
PLURAL = re.compile(r" (?:more )?(?!(?:is|was|has|does|this|as|of)\b)[A-Za-z]+s\b")


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [
        (0, "file", "0 files"),
        (1, "file", "1 file"),
        (3231, "file", "3,231 files"),
        (1, "class", "1 class"),
        (2, "class", "2 classes"),
        (1, "more hard link", "1 more hard link"),
        (2, "more hard link", "2 more hard links"),
    ],
)
def test_one_is_no_plural(number: int, noun: str, said: str) -> None:
    assert counted(number, noun) == said


def uncounted(source: str) -> Iterator[str]:
    """Counts in f-strings (``len``, or with a thousands separator) before a plural that is written down."""
    for node in ast.walk(ast.parse(source)):
        for value, text in zip(node.values, node.values[1:], strict=False) if isinstance(node, ast.JoinedStr) else ():
            if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                continue
            written = ast.unparse(value)
            if ("len(" in written or ":," in written) and "counted(" not in written and PLURAL.match(str(text.value)):
                yield f"line {value.lineno}: {ast.unparse(node)}"


def test_a_plural_that_is_written_down_is_found() -> None:
    assert list(uncounted("f'{len(x)} changes'"))
    assert list(uncounted("f'{len(x) - 1} more files'"))
    assert list(uncounted("f'{n:,} candidates'"))
    assert not list(uncounted("f'{len(x)} is odd'"))


def test_every_count_agrees_with_its_noun() -> None:
    found = [
        f"{file.relative_to(PACKAGE)}, {text}"
        for file in sorted(PACKAGE.rglob("*.py"))
        if not file.relative_to(PACKAGE).as_posix().startswith(ELSEWHERE)
        for text in uncounted(file.read_text())
    ]
    assert found == []


def test_reports_count_by_the_same_words() -> None:
    for template in sorted((PACKAGE.parent / "reports").glob("*.j2")):
        outputs = Environment().parse(template.read_text()).find_all(nodes.Output)
        for before, after in ((a, b) for out in outputs for a, b in zip(out.nodes, out.nodes[1:], strict=False)):
            length = isinstance(before, nodes.Filter) and before.name == "length"
            assert not (length and isinstance(after, nodes.TemplateData) and PLURAL.match(after.data)), template.name


@pytest.mark.parametrize(
    ("word", "most", "expected"),
    [
        ("scna", 1, "Did you mean scan?"),
        ("stats", 3, "Did you mean status or scan?"),
        ("stats", 1, "Did you mean status?"),
        ("zzz", 3, ""),
    ],
)
def test_a_mistyped_word_is_like_the_nearest_ones(word: str, most: int, expected: str) -> None:
    assert meant(word, ("scan", "status", "verify"), most, 0.4) == expected


@pytest.mark.parametrize(
    ("spec", "message", "said"),
    [
        ("gpu1", "It is gone.", "gpu1: It is gone."),
        ("gpu1", "gpu1 (127.0.0.1 port 1) is gone.", "gpu1 (127.0.0.1 port 1) is gone."),
        ("gpu1", "gpu12 is gone.", "gpu1: gpu12 is gone."),
        ("e", "There is none.", "e: There is none."),
        ("dir:/a", "dir:/a: there is none.", "dir:/a: there is none."),
        ("dir:/a", "dir:/a/b is none.", "dir:/a: dir:/a/b is none."),
        ("vllm==0.33.0", "Nobody has vllm==0.33.0.", "Nobody has vllm==0.33.0."),
    ],
)
def test_a_message_says_which_target_it_is_about(spec: str, message: str, said: str) -> None:
    assert about(spec, message) == said

"""Rule documents are data: hostile and broken ones end in one clear error with file, line and reason."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from specaudit.errors import ConfigurationError
from specaudit.ruling.document import MAX_BYTES, MAX_DEPTH, MAX_NODES, DocumentError, parse
from specaudit.ruling.schema import read_rule
from specaudit.ruling.shapes import MAX_FAR
from specaudit.ruling.store import MAX_RULES, rulebook
from specaudit.ruling.trials import examples

GOOD = """\
id: example
title: An example
severity: low
methods: [eagle]
runners: [v1]
symptom: Something is wrong.
cause: Somebody forgot.
remedy: {option: Do it right.}
subject: {files: vllm/v1/**, function: draft}
present:
  match: {pattern: wrong($$$)}
examples:
  present:
    - |
      def draft():
          wrong(1)
"""


def test_a_good_document_is_read() -> None:
    rule = read_rule(GOOD, "example.yaml")
    assert (rule.id, rule.severity, rule.methods, rule.runner) == ("example", "low", ("eagle",), "v1")


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("Use another method.", "until then: use another method."),
        ("A chain does it.", "until then: a chain does it."),
        ("VLLM_DISABLE_COMPILE_CACHE=1 helps.", "until then: VLLM_DISABLE_COMPILE_CACHE=1 helps."),
        ("V2 is not concerned.", "until then: V2 is not concerned."),
        ("EAGLE is not concerned.", "until then: EAGLE is not concerned."),
        ("enforce_eager=True.", "until then: enforce_eager=True."),
    ],
)
def test_a_remedy_that_follows_a_colon_keeps_names_as_they_are_written(option: str, told: str) -> None:
    rule = read_rule(GOOD.replace("Do it right.", option).replace("{option", "{release: 0.9.0, option"), "example.yaml")
    assert str(rule.remedy).endswith(told)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{n}: &{n} [*{p}, *{p}, *{p}]\n" for p, n in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (BOMB, 1, "anchors and aliases"),
        ("id: &anchor example\n", 1, "anchors and aliases"),
        ("a: 1\nb: *a\n", 2, "anchors and aliases"),
        ("id: !!python/object/apply:os.system ['true']\n", 1, "tag"),
        ("id: !custom x\n", 1, "tag"),
        ("id: x\n---\nid: y\n", 2, "second document"),
        ("id: x\nid: y\n", 2, "twice"),
        ("[" * (MAX_DEPTH + 5) + "]" * (MAX_DEPTH + 5), 1, f"deeper than {MAX_DEPTH}"),
        ("a:\n" + "- x\n" * (MAX_NODES + 1), None, f"more than {MAX_NODES}"),
        ("x: " + "y" * MAX_BYTES, 1, "bytes"),
        ("a: [1, 2\nb: 3\n", None, "no valid YAML"),
        ("a: b: c\n", 1, "no valid YAML"),
        ("a: \x00\n", 1, "no valid YAML"),
        ("a: 1\nb: \x1b[31m\n", 2, "no valid YAML"),
        ("a: 1\nb: 'ä\x00'\n", 2, "no valid YAML"),
        ('a: 1\nb: "\\e[31m red"\n', 2, "control character"),
        ('a: "\\u202e"\n', 1, "control character"),
        ("a: {<<: *b}\n", 1, "anchors and aliases"),
        ("a: !!binary aGVsbG8=\n", 1, "tag"),
        ("%YAML 3.1\n---\na: 1\n", 1, "no valid YAML"),
        ("", 1, "empty"),
        ("? [1]\n: x\n", 1, "key must be text"),
        ("1: x\n", 1, "key must be text"),
    ],
    ids=lambda value: repr(value)[:30] if isinstance(value, str) else str(value),
)
def test_hostile_and_broken_yaml(text: str, line: int | None, reason: str) -> None:
    with pytest.raises(DocumentError, match=reason) as caught:
        parse(text, "rules/x.yaml")
    file, _, number = caught.value.where.rpartition(":")
    assert file == "rules/x.yaml"
    assert line is None or int(number) == line


EDIT = "{find: {pattern: wrong($$$)}, replace: right()}"


def changed(before: str, after: str) -> str:
    assert before in GOOD
    return GOOD.replace(before, after)


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (changed("severity: low", "severity: awful"), 3, "expected one of info, low, medium, high, critical"),
        (changed("severity: low", "severity: 3"), 3, "expected one of"),
        (changed("title: An example", "title: [a]"), 2, "expected a title"),
        (changed("title: An example\n", ""), 1, "'title' is missing"),
        (changed("cause:", "cauze:"), 7, "unknown key 'cauze'"),
        (changed("id: example", "id: other"), 1, "file's name differ"),
        (changed("id: example", "id: Not An Id"), 1, "lower-case"),
        (changed("runners: [v1]", "runners: [v3]"), 5, "v3"),
        (changed("methods: [eagle]", "methods: []"), 4, "expected"),
        (changed("files: vllm/v1/**", "files: /etc/passwd"), 9, "no pattern of package-relative"),
        (changed("files: vllm/v1/**", "files: ../../**"), 9, "no pattern of package-relative"),
        (changed("function: draft", "function: 'draft()'"), 9, "no function name"),
        (changed("subject: {files: vllm/v1/**, function: draft}", "subject: {}"), 9, "needs files, class or function"),
        (changed("subject: {files: vllm/v1/**, function: draft}\n", ""), 9, "needs its own `at`"),
        (changed("match: {pattern: wrong($$$)}", "matches: 1"), 11, "unknown key 'matches'"),
        (changed("match: {pattern: wrong($$$)}", "all: []"), 11, "expected a list of tests"),
        (changed("match: {pattern: wrong($$$)}", "at: {files: a}"), 10, "exactly one of"),
        (changed("pattern: wrong($$$)", "pattern: 'wrong('"), 11, "is no Python"),
        (changed("pattern: wrong($$$)", "pattern: ''"), 11, "expected a pattern"),
        (changed("pattern: wrong($$$)", "kind: nonsense"), 11, "ast-grep rejects"),
        (changed("pattern: wrong($$$)", "kind: call, regex: '('"), 11, "ast-grep rejects"),
        (changed("pattern: wrong($$$)", "paterrn: x"), 11, "unknown key 'paterrn'"),
        (changed("pattern: wrong($$$)", "kind: call, has: {kind: call, stopBy: never}"), 11, "end, neighbor"),
        (changed("pattern: wrong($$$)", "kind: call, nthChild: [1]"), 11, "number or a formula"),
        (changed("pattern: wrong($$$)", "kind: call, has: {field: nosuch, kind: call}"), 11, "ast-grep rejects"),
        (changed("  present:\n", "  fixed:\n"), 12, "no example has the status present"),
        (changed("  present:\n    - |", "  present:\n    - 3\n  fixed:\n    - |"), 14, "expected code"),
        (changed("remedy: {option: Do it right.}", "remedy: {advice: x}"), 8, "unknown key 'advice'"),
        (changed("remedy: {option: Do it right.}", "remedy: {<<: {option: x}}"), 8, "unknown key '<<'"),
        (changed("severity: low", "severity: low\nengine: vlm"), 4, "expected one of vllm, sglang"),
        (changed("methods: [eagle]", "methods: [eagle, 'a b']"), 4, "'a b' is no method"),
        (changed("title: An example", "title: 'a\n\n  b'"), 2, "of one line"),
        (changed("title: An example", "title: " + "x" * 201), 2, "at most 200 characters"),
        (changed("function: draft", "class: A, chain: maybe"), 9, "expected true or false, found 'maybe'"),
        (changed("pattern: wrong($$$)", "pattern: $X"), 11, "matches everything"),
        (changed("pattern: wrong($$$)", "regex: ''"), 11, "expected a regex"),
        (changed("pattern: wrong($$$)", "regex: .*"), 11, "matches everything"),
        (changed("pattern: wrong($$$)", "not: {pattern: wrong}"), 11, "matches everything"),
        (changed("match: {pattern: wrong($$$)}", "verdict: {part: drafting, is: awful}"), 11, "none, static, dynamic"),
        (changed("cause:", "references: ['https://x/\"><b>']\ncause:"), 7, "no web address"),
        (
            changed("cause:", "reach: [{option: x, kind: option, op: '<', value: many, text: t}]\ncause:"),
            7,
            "whole number",
        ),
        (changed("cause:", "reach: [{option: x, kind: option, op: '==', text: t}]\ncause:"), 7, "needs a value"),
        (
            changed("cause:", "reach: [{option: x, kind: option, op: '==', value: [a], text: t}]\ncause:"),
            7,
            "one value",
        ),
        (changed("cause:", "reach: [{option: x, kind: env, op: is set, value: a, text: t}]\ncause:"), 7, "no value"),
        (f"{GOOD}mutations: [{{from: present, to: present, edits: [{EDIT}]}}]\n", 17, "changes the status"),
        (f"{GOOD}mutations: [{{from: present, to: fixed, edits: [{{first: 1, {EDIT[1:]}]}}]\n", 17, "true or false"),
        (changed("match: {pattern: wrong($$$)}", "declares: draft"), 10, "`declares` is about a class"),
        (
            changed("match: {pattern: wrong($$$)}", "not: {inherits: A, at: {files: a}}"),
            10,
            "`inherits` is about a class",
        ),
        (
            changed("subject: {files: vllm/v1/**, function: draft}\n", "").replace(
                "  match", "  at: {class: A}\n  match"
            )
            + f"mutations: [{{from: present, to: fixed, edits: [{EDIT}]}}]\n",
            17,
            "each edit needs its own `at`",
        ),
    ],
    ids=lambda value: repr(value)[-30:] if isinstance(value, str) else str(value),
)
def test_wrong_documents(text: str, line: int, reason: str) -> None:
    with pytest.raises(DocumentError) as caught:
        read_rule(text, "example.yaml")
    assert reason in caught.value.reason
    assert caught.value.where == f"example.yaml:{line}"
    assert caught.value.hint


def test_the_error_travels_between_processes() -> None:
    error = DocumentError("a.yaml:3", "wrong", "do it")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.where, copy.reason, copy.hint, copy.message) == ("a.yaml:3", "wrong", "do it", error.message)


Write = Callable[[str, str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def call(name: str, text: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return call


def test_a_folder_of_rules_comes_after_the_packaged_ones(write: Write, tmp_path: Path) -> None:
    write("example.yaml", GOOD)
    book = rulebook((tmp_path,))
    assert book.rules[-1].id == "example"
    assert len(book.rules) == len(rulebook().rules) + 1


def test_two_rules_of_one_id(write: Write, tmp_path: Path) -> None:
    write("example.yaml", GOOD)
    write("example.yml", GOOD)
    with pytest.raises(DocumentError, match="is taken by"):
        _ = rulebook((tmp_path,), packaged=False).rules


def test_a_bad_document_among_good_ones_is_named(write: Write, tmp_path: Path) -> None:
    write("example.yaml", GOOD)
    write("broken.yaml", "id: [")
    with pytest.raises(DocumentError, match=r"broken\.yaml:2"):
        _ = rulebook((tmp_path,), packaged=False).rules


def test_too_many_rules(tmp_path: Path) -> None:
    for number in range(10_000):
        (tmp_path / f"rule-{number}.yaml").touch()
    with pytest.raises(ConfigurationError, match=f"limit is {MAX_RULES}"):
        rulebook((tmp_path,), packaged=False)


def test_folders_and_files_that_cannot_be_read(write: Write, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no folder"):
        rulebook((tmp_path / "nowhere",))
    with pytest.raises(ConfigurationError, match=r"no \*\.yaml"):
        rulebook((tmp_path,))
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(DocumentError, match="no regular file"):
        _ = rulebook((tmp_path,)).rules


def test_files_that_are_no_text_or_too_large(write: Write, tmp_path: Path) -> None:
    write("a.yaml", b"id: x\ntitle: \xff\n")
    with pytest.raises(DocumentError, match=r"a\.yaml:2.*not UTF-8"):
        _ = rulebook((tmp_path,), packaged=False).rules
    write("a.yaml", b"x" * (MAX_BYTES + 1))
    with pytest.raises(DocumentError, match="more than"):
        _ = rulebook((tmp_path,), packaged=False).rules


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "marked"])
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
def test_line_ends_and_byte_order_marks(write: Write, tmp_path: Path, ends: str, mark: bytes) -> None:
    write("example.yaml", mark + GOOD.replace("\n", ends).encode())
    (rule,) = rulebook((tmp_path,), packaged=False).rules
    assert [trial.outcome for trial in examples(rule)][1:] == ["passed"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_other_encodings_are_refused(write: Write, tmp_path: Path, encoding: str) -> None:
    write("example.yaml", GOOD.encode(encoding))
    with pytest.raises(DocumentError, match=r"example\.yaml:1"):
        _ = rulebook((tmp_path,), packaged=False).rules


def test_what_is_no_document_in_a_folder_is_named_and_the_rest_is_read(write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "example.yaml").write_text(GOOD)
    secret = write("secret.yaml", "TOKEN=abc")
    os.mkfifo(folder / "pipe.yaml")
    (folder / "device.yaml").symlink_to("/dev/zero")
    (folder / "dangling.yaml").symlink_to(folder / "nowhere")
    (folder / "circle.yaml").symlink_to(folder / "circle.yaml")
    (folder / "leading-out.yaml").symlink_to(secret)
    (folder / ".#example.yaml").symlink_to("somebody@host.1")  # an editor's lock
    (folder / "a\n::error::b.yaml").write_text("id: [")
    good, bad = rulebook((folder,), packaged=False).read()
    assert [rule.id for rule in good] == ["example"]
    assert [Path(one.where.rpartition(":")[0]).name for one in bad] == [
        "a\N{REPLACEMENT CHARACTER}::error::b.yaml",
        "circle.yaml",
        "dangling.yaml",
        "device.yaml",
        "leading-out.yaml",
        "pipe.yaml",
    ]
    assert not any("TOKEN" in one.message for one in bad)


def test_links_inside_the_folder_are_followed(write: Write, tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    write("..data/example.yaml", GOOD)
    (tmp_path / "example.yaml").symlink_to("..data/example.yaml")
    assert [rule.id for rule in rulebook((tmp_path,), packaged=False).rules] == ["example"]


def test_a_message_quotes_little_of_a_value() -> None:
    with pytest.raises(DocumentError) as caught:
        read_rule("secret " * 100, "example.yaml")
    assert len(caught.value.reason) < 250


def test_searches_inside_one_another_are_few() -> None:
    shape = "kind: identifier"
    for _ in range(MAX_FAR):
        shape = f"kind: call, has: {{{shape}, stopBy: end}}"
    read_rule(changed("pattern: wrong($$$)", shape), "example.yaml")
    with pytest.raises(DocumentError, match="inside one another"):
        read_rule(changed("pattern: wrong($$$)", f"kind: block, has: {{{shape}, stopBy: end}}"), "example.yaml")


@pytest.mark.parametrize(
    ("op", "value", "kept"),
    [("==", "true", "true"), ("!=", "4", "4"), ("in", "[a, b]", "a, b"), (">=", "2", "2"), ("==", "'x y'", "x y")],
)
def test_values_of_conditions_are_written_as_the_scan_writes_them(op: str, value: str, kept: str) -> None:
    reach = f"reach: [{{option: x, kind: option, op: '{op}', value: {value}, text: t}}]\ncause:"
    assert read_rule(changed("cause:", reach), "example.yaml").reach[0].value == kept


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("", "none is without the defect"),
        ('  fixed: ["def draft(:"]\n', "is no Python"),
        ('  fixed: ["def draft(): wrong(2)"]\n', "the rule says present"),
    ],
)
def test_examples_that_show_nothing_fail(more: str, reason: str) -> None:
    failed = [trial for trial in examples(read_rule(GOOD + more, "example.yaml")) if trial.outcome == "failed"]
    assert len(failed) == 1
    assert reason in failed[0].reason


def test_reading_rules_runs_nothing(write: Write, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    code = f"open({str(flag)!r}, 'w').write('x')"
    write("example.yaml", changed("wrong(1)", code).replace("wrong($$$)", "open($$$)"))
    (rule,) = rulebook((tmp_path,), packaged=False).rules
    assert [trial.outcome for trial in examples(rule)][1:] == ["passed"]
    assert not flag.exists()


def test_an_unknown_id_gets_suggestions() -> None:
    with pytest.raises(ConfigurationError) as caught:
        rulebook().rule("v2-runner-defaults")
    assert "v2-runner-default" in caught.value.hint

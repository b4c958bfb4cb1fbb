"""Subjects and relations on small engines: what holds, what does not, and where it points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from specaudit.index import Index
from specaudit.model import Finding
from specaudit.ruling.evaluate import judge
from specaudit.ruling.places import Ground, glob_regex
from specaudit.ruling.rule import Rule
from specaudit.ruling.schema import read_rule
from specaudit.ruling.trials import of_texts

HEAD = """\
id: example
title: An example
severity: low
methods: [eagle]
runners: [v1]
symptom: Something is wrong.
cause: Somebody forgot.
remedy: {}
examples: {present: ["x = 1"]}
"""


def rule(logic: str) -> Rule:
    return read_rule(HEAD + logic, "example.yaml")


def found(logic: str, files: Mapping[str, str] | str) -> Finding:
    texts = {"vllm/v1/a.py": files} if isinstance(files, str) else files
    return judge(rule(logic), Ground(Index(of_texts("vllm", texts))))


def at(finding: Finding) -> list[tuple[str, int]]:
    return [(site.path, site.line) for site in finding.sites]


WRONG = "subject: {files: vllm/v1/**, class: Runner, function: draft}\npresent: {match: {pattern: wrong($$$)}}\n"
CODE = "class Runner:\n    def draft(self):\n        return wrong(1)\n"


def test_a_finding_names_symbol_line_and_text() -> None:
    finding = found(WRONG, CODE)
    assert (finding.status, finding.symbol) == ("present", "Runner.draft")
    assert at(finding) == [("vllm/v1/a.py", 3)]
    assert finding.sites[0].text == "return wrong(1)"


def test_the_subject_is_found_wherever_it_moved() -> None:
    for path in ("vllm/v1/b.py", "vllm/v1/deep/down/c.py"):
        assert at(found(WRONG, {path: "import os\n\n" + CODE})) == [(path, 5)]


def test_a_method_is_found_in_the_class_that_it_moved_up_to() -> None:
    files = {
        "vllm/v1/base.py": "class Base:\n    def draft(self):\n        return wrong(1)\n",
        "vllm/v1/mixed.py": "from .base import Base as Parent\nclass Mixed(Parent):\n    pass\n",
        "vllm/v1/a.py": "from vllm.v1.mixed import Mixed\nclass Runner(Mixed):\n    pass\n",
    }
    assert at(found(WRONG, files)) == [("vllm/v1/base.py", 3)]


@pytest.mark.parametrize(
    "header",
    [
        "import vllm.v1.base\nclass Runner(vllm.v1.base.Base): pass\n",
        "import vllm.v1.base as b\nclass Runner(b.Base): pass\n",
        "from vllm.v1 import base\nclass Runner(base.Base): pass\n",
        "from . import base as b\nclass Runner(b.Base[int], Generic[T]): pass\n",
        "from vllm.v1.base import *\nclass Runner(Base): pass\n",
        "from .base import Base as B\nclass Runner(B): pass\n",
    ],
)
def test_a_base_class_is_found_however_it_is_imported(header: str) -> None:
    base = "class Base:\n    def draft(self):\n        return wrong(1)\n"
    assert at(found(WRONG, {"vllm/v1/base.py": base, "vllm/v1/a.py": header})) == [("vllm/v1/base.py", 3)]


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("class Runner:\n    if X:\n        def draft(self): pass\n    else:\n        def draft(self): wrong(1)\n", 5),
        ("class Runner:\n    def draft(self): pass\nclass Runner:\n    def draft(self):\n        wrong(1)\n", 5),
        ("class Runner:\n    @one\n    @two(3)\n    async def draft(self):\n        wrong(1)\n", 5),
        ("class Runner[T]:\n    def draft[U](self, x: U):\n        wrong(\n            1,\n        )\n", 3),
        ("\ufeffclass Runner:\r\n\tdef draft(self):\r\n\t\r\n\t\twrong(1)\r\n", 4),
        ("class Runner:\n    def draft(self):\n\x0c\n        wrong(1)\n\ndef broken(:\n", 4),
    ],
    ids=["twice", "again", "decorated", "generic", "crlf and tabs", "damaged elsewhere"],
)
def test_the_subject_is_found_however_it_is_written(code: str, line: int) -> None:
    assert at(found(WRONG, code)) == [("vllm/v1/a.py", line)]


def test_the_same_name_elsewhere_is_not_the_subject() -> None:
    files = {"vllm/v1/a.py": "class Other:\n    def draft(self):\n        wrong(1)\n", "vllm/v2.py": CODE}
    finding = found(WRONG, files)
    assert finding.status == "not-found"
    assert finding.searched is not None
    assert finding.searched.files == 1


@pytest.mark.parametrize("status", ["not-found", "not-applicable", "present", "fixed"])
def test_a_missing_subject_has_the_status_that_the_rule_says(status: str) -> None:
    assert found(f"{WRONG}missing: {status}\n", "x = 1\n").status == status


def test_a_subject_that_cannot_be_parsed_is_not_found_whatever_the_rule_says() -> None:
    snapshot = replace(of_texts("vllm", {"vllm/v1/a.py": CODE}), read=lambda path: b"class Runner: \xff def draft")
    finding = judge(rule(f"{WRONG}missing: not-applicable\n"), Ground(Index(snapshot)))
    assert finding.status == "not-found"
    assert "vllm/v1/a.py" in finding.reason


def test_neither_the_defective_nor_the_corrected_shape_is_not_found() -> None:
    logic = WRONG + "fixed: {match: {pattern: right($$$)}}\n"
    assert found(logic, CODE.replace("wrong", "right")).status == "fixed"
    finding = found(logic, CODE.replace("wrong", "other"))
    assert finding.status == "not-found"
    assert "neither" in finding.reason


def test_partial_comes_after_present() -> None:
    logic = WRONG + "partial: {match: {pattern: half($$$)}}\n"
    assert found(logic, CODE).status == "present"
    assert found(logic, CODE.replace("wrong", "half")).status == "partial"


def test_what_the_defect_needs_may_be_missing() -> None:
    logic = WRONG + "applies: {uses: dflash}\n"
    finding = found(logic, CODE)
    assert finding.status == "not-applicable"
    assert finding.searched is not None
    assert found(logic, CODE.replace("wrong(1)", "wrong('dflash')")).status == "present"


def test_a_comment_is_no_use() -> None:
    logic = "subject: {files: vllm/**}\npresent: {uses: secret}\n"
    assert found(logic, "# secret\nx = 'a secret thing'\n").status == "fixed"
    for code in ("secret = 1\n", "x = 'secret'\n", "x.secret()\n", "f(secret=1)\n"):
        assert found(logic, code).status == "present"


def test_absence_across_files_keeps_the_record_of_the_search() -> None:
    logic = (
        "subject: {files: vllm/v1/config.py, class: Config}\n"
        "present: {all: [{declares: option}, {not: {uses: option, at: {files: vllm/v1/worker/**}}}]}\n"
    )
    config = "class Config:\n    option: int = 1\n"
    files = {"vllm/v1/config.py": config, "vllm/v1/worker/a.py": "x = 1\n", "vllm/v1/worker/b.py": "# option\n"}
    finding = found(logic, files)
    assert finding.status == "present"
    assert at(finding) == [("vllm/v1/config.py", 2)]
    assert found(logic, {**files, "vllm/v1/worker/b.py": "use(config.option)\n"}).status == "fixed"
    gone = found("subject: {files: vllm/v1/worker/**}\npresent: {uses: option}\n", files)
    assert gone.searched is not None
    assert (gone.searched.files, gone.searched.bytes) == (2, 15)
    assert "option" in gone.searched.asked


def test_declarations_along_the_inheritance_chain() -> None:
    logic = "subject: {files: vllm/**, class: Child}\npresent: {declares: option}\n"
    parent = "class Parent:\n    option: int\n    def option2(self): pass\n"
    child = "from vllm.v1.parent import Parent\nclass Child(Parent):\n    other = 1\n"
    assert found(logic, {"vllm/v1/parent.py": parent, "vllm/v1/child.py": child}).status == "present"
    assert found(logic, child).status == "fixed"
    assert (
        found(logic.replace("option}", "option2}"), {"vllm/v1/parent.py": parent, "vllm/v1/c.py": child}).sites[0].line
        == 3
    )


def test_inheritance_over_files_and_from_outside() -> None:
    logic = "subject: {files: vllm/**, class: Child}\npresent: {inherits: Far}\n"
    parent = "from elsewhere import Far\nclass Parent(Far):\n    pass\n"
    child = "from .parent import Parent\nclass Child(Parent):\n    pass\n"
    assert found(logic, {"vllm/v1/parent.py": parent, "vllm/v1/child.py": child}).status == "present"
    assert found(logic, "class Child(Near):\n    pass\n").status == "fixed"
    assert found(logic, "class Child(Child):\n    pass\n").status == "fixed"


def test_overrides_stop_below_the_class_that_is_named() -> None:
    logic = "subject: {files: vllm/**, class: Child}\npresent: {not: {overrides: {method: load, below: Base}}}\n"
    base = "class Base:\n    def load(self): pass\n"
    assert found(logic, base + "class Child(Base):\n    pass\n").status == "present"
    middle = "class Middle(Base):\n    def load(self): pass\nclass Child(Middle):\n    pass\n"
    assert found(logic, base + middle).status == "fixed"


def test_the_set_of_writers() -> None:
    logic = "subject: {files: vllm/**}\npresent: {writers: {attribute: flag, within: only_one}}\n"
    one = "def only_one(group):\n    group.flag = True\n"
    assert found(logic, one).status == "present"
    two = found(logic, one + "def another(group):\n    group.flag = group.name in drafted\n")
    assert two.status == "fixed"
    assert "another" in two.reason
    assert found(logic, "x = 1\n").status == "present"
    assert found(logic, one + "def reads(group):\n    return group.flag == True\n").status == "present"


def test_the_difference_of_two_sets() -> None:
    logic = (
        "subject: {files: vllm/v1/sampler.py}\n"
        "present:\n  difference:\n    of: {strings: {pattern: 'Kind = Literal[$$$]'}, at: {files: vllm/v1/config.py}}\n"
        "    minus:\n      - strings: {kind: comparison_operator}\n        at: {files: vllm/v1/sampler.py}\n"
        "      - literals: default\n"
    )
    config = "Kind = Literal['default', 'block', 'fly']\n"
    finding = found(logic, {"vllm/v1/config.py": config, "vllm/v1/sampler.py": "if kind == 'fly':\n    pass\n"})
    assert finding.status == "present"
    assert finding.reason.startswith("block:")
    both = "if kind == 'fly' or kind == 'block':\n    pass\n"
    assert found(logic, {"vllm/v1/config.py": config, "vllm/v1/sampler.py": both}).status == "fixed"


@pytest.mark.parametrize(
    ("call", "passed"),
    [
        ("draft(1)", False),
        ("draft(1, 2)", True),
        ("draft(1, out=2)", True),
        ("draft(1, **more)", True),
        ("draft(*all)", True),
        ("self.draft(1, other=2)", False),
        ("module.draft[grid](1, 2)", True),
        ("draft_more(1, out=2)", False),
    ],
)
def test_a_parameter_that_no_caller_passes(call: str, passed: bool) -> None:
    logic = "subject: {files: vllm/**}\npresent: {not: {passes: {function: draft, parameter: out}}}\n"
    finding = found(logic, f"def draft(steps, out=None):\n    pass\n{call}\n")
    assert finding.status == ("fixed" if passed else "present")


def test_order_inside_one_function() -> None:
    logic = (
        "subject: {files: vllm/**, function: step}\n"
        "present: {order: {first: {pattern: count($$$)}, then: {pattern: trim($$$)}}}\n"
    )
    assert at(found(logic, "def step():\n    count(1)\n    trim(1)\n")) == [("vllm/v1/a.py", 2), ("vllm/v1/a.py", 3)]
    assert found(logic, "def step():\n    trim(1)\n    count(1)\n").status == "fixed"
    assert found(logic, "def step():\n    count(1)\n").status == "fixed"


def test_flow_through_local_names() -> None:
    logic = (
        "subject: {files: vllm/**, function: slot}\n"
        "present: {flows: {from: {pattern: 'positions[0]'}, to: {kind: binary_operator, regex: '//'}}}\n"
    )
    assert found(logic, "def slot(positions, size):\n    return positions[0] // size\n").status == "present"
    far = "def slot(positions, size):\n    a = positions[0]\n    b = a + 1\n    c, d = b, 2\n    return c // size\n"
    assert found(logic, far).status == "present"
    none = "def slot(positions, index, size):\n    rope(positions[0])\n    return index // size\n"
    assert found(logic, none).status == "fixed"


def test_two_tests_that_must_hold_in_one_place() -> None:
    logic = (
        "subject: {files: vllm/**}\n"
        "present:\n  some: {all: [{match: {pattern: compare($$$)}}, {not: {uses: agree}}]}\n  at: {files: vllm/**}\n"
    )
    assert found(logic, {"vllm/a.py": "compare(1)\n", "vllm/b.py": "agree(1)\n"}).status == "present"
    assert found(logic, {"vllm/a.py": "compare(1)\nagree(1)\n", "vllm/b.py": "x = 1\n"}).status == "fixed"


def test_lines_and_names_beside_other_alphabets() -> None:
    code = "# Größe, 大小, 🙂\nclass Runner:\n    def draft(self):\n        x = '🙂'; return wrong('ä')  # ü\n"
    finding = found(WRONG, code)
    assert at(finding) == [("vllm/v1/a.py", 4)]
    assert finding.symbol == "Runner.draft"


def test_another_engine_is_not_judged() -> None:
    finding = judge(rule(WRONG), Ground(Index(of_texts("sglang", {"sglang/a.py": CODE}))))
    assert finding.status == "not-applicable"


def test_the_fingerprint_survives_moved_lines_and_files_but_not_other_text() -> None:
    first = found(WRONG, CODE)
    moved = found(WRONG, {"vllm/v1/moved.py": "\n\n\n" + CODE})
    spaced = found(WRONG, CODE.replace("wrong(1)", "wrong( 1 )"))
    other = found(WRONG, CODE.replace("wrong(1)", "wrong(2)"))
    assert first.fingerprint == moved.fingerprint == spaced.fingerprint
    assert first.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("vllm/v1/**", "vllm/v1/a/b.py", True),
        ("vllm/v1/**", "vllm/v10/a.py", False),
        ("vllm/**/ops/*.py", "vllm/ops/a.py", True),
        ("vllm/**/ops/*.py", "vllm/x/y/ops/a.py", True),
        ("vllm/**/ops/*.py", "vllm/x/ops/deep/a.py", False),
        ("vllm/config.py", "vllm/config.py", True),
        ("vllm/config.py", "vllm/configXpy", False),
        ("**", "anything/at/all.py", True),
    ],
)
def test_globs(glob: str, path: str, matches: bool) -> None:
    assert bool(glob_regex(glob).fullmatch(path)) == matches

"""Anchors match once or refuse; everything that an edit does not concern keeps its bytes."""

from __future__ import annotations

import codecs
import textwrap

import pytest

from specaudit.errors import RecipeRefused
from specaudit.patching.edits import FileEdit

SOURCE = textwrap.dedent(
    '''
    """Module."""
    from package.types import (
        Alpha,
        Beta,
    )


    class Runner:
        """A runner."""

        def sample(self, data, flag=True):
            # why it is called so
            result = self.sampler(
                data,
                None,  # nothing known
                flag=flag,
            )
            if flag:
                text = """
      less indented than the code
    """
                return result, text
            elif data:
                return self.other(data)
            return None

        def other(self, data):
            return data + 1
    '''
).lstrip("\n")


def edit(source: str = SOURCE) -> FileEdit:
    return FileEdit("vllm/x.py", source.encode())


def test_a_file_without_edits_keeps_its_bytes() -> None:
    for data in (b"", b"x = 1", b"x = 1\r\ny = 2\n", codecs.BOM_UTF8 + b"x = 1\n", "é = '\x0c'\n".encode()):
        assert FileEdit("vllm/x.py", data).data() == data


def test_an_argument_is_replaced_and_its_comment_stays() -> None:
    e = edit()
    e.replace_argument("Runner.sample", "self.sampler", 1, "self.probs(data)")
    assert e.text == SOURCE.replace("None,  # nothing known", "self.probs(data),  # nothing known")
    e.replace_argument("Runner.sample", "self.sampler", "flag", "not flag")
    assert "flag=not flag,\n" in e.text
    assert [(a.line, a.text) for a in e.anchors] == [(13, "result = self.sampler(")] * 2


def test_wildcards_stand_for_what_they_matched() -> None:
    e = edit()
    e.replace("Runner.other", "__what + 1", "__what + len(__what)")
    assert e.text == SOURCE.replace("data + 1", "data + len(data)")


def test_layout_and_comments_do_not_matter_to_an_anchor() -> None:
    e = edit()
    e.insert_after("Runner.sample", "result = self.sampler(data, None, flag=flag)", "# then\ncount(result)\n")
    assert "        )\n        # then\n        count(result)\n        if flag:\n" in e.text
    assert e.text.count("less indented than the code") == 1


def test_a_block_is_inserted_at_the_depth_of_its_neighbour() -> None:
    e = edit()
    e.insert_before("Runner.sample", "return self.other(data)", "if self.ready:\n    self.go()\n")
    inserted = "            if self.ready:\n                self.go()\n"
    assert f"        elif data:\n{inserted}            return self.other(data)\n" in e.text


def test_an_anchor_that_is_nowhere_or_twice_is_refused_with_its_lines() -> None:
    with pytest.raises(RecipeRefused, match=r"the anchor `self\.missing\(\)` is nowhere in Runner\.sample"):
        edit().replace("Runner.sample", "self.missing()", "x")
    with pytest.raises(RecipeRefused, match=r"the anchor `data` is 3 times in Runner\.sample \(lines 14, 23, 24\)"):
        edit().replace("Runner.sample", "data", "x")


def test_a_definition_that_is_missing_or_there_twice_is_refused() -> None:
    with pytest.raises(RecipeRefused, match=r"vllm/x\.py has no Runner\.gone"):
        edit().replace("Runner.gone", "x", "y")
    twice = "def f():\n    return 1\n\n\ndef f():\n    return 2\n"
    with pytest.raises(RecipeRefused, match=r"2 definitions of f \(lines 1, 5\)"):
        edit(twice).replace("f", "1", "2")


def test_lines_of_later_anchors_count_in_the_file_as_it_was() -> None:
    e = edit()
    e.add_definition("Runner.sample", "def added(self):\n    return 0\n")
    e.replace("Runner.other", "data + 1", "data")
    assert e.anchors[-1].line == SOURCE.split("\n").index("        return data + 1") + 1


def test_a_definition_is_added_after_another_at_its_indentation() -> None:
    e = edit()
    e.add_definition("Runner.sample", "def added(self):\n    if self:\n        return 0\n")
    added = "        return None\n\n    def added(self):\n        if self:\n            return 0\n\n    def other"
    assert added in e.text
    e = edit("def f():\n    pass\n")
    e.add_definition("f", "def g():\n    pass\n")
    assert e.text == "def f():\n    pass\n\n\ndef g():\n    pass\n"


def test_an_import_goes_beside_another_and_only_once() -> None:
    e = edit()
    e.add_import("Beta", "Gamma")
    e.add_import("Beta", "Gamma")
    e.add_import("Beta", "Alpha")
    e.add_import("Beta", "tools", module="package")
    assert "    Beta,\n)\nfrom package import tools\nfrom package.types import Gamma\n\n\nclass" in e.text
    with pytest.raises(RecipeRefused, match="the anchor `import Nothing` is nowhere"):
        e.add_import("Nothing", "Other")


def test_crlf_stays_crlf_and_mixed_line_ends_stay_mixed() -> None:
    crlf = SOURCE.replace("\n", "\r\n").encode()
    e = FileEdit("vllm/x.py", crlf)
    e.replace("Runner.other", "data + 1", "data + 2")
    e.insert_before("Runner.other", "return data + 2", "data = int(data)")
    expected = SOURCE.replace("        return data + 1", "        data = int(data)\n        return data + 2")
    assert e.data() == expected.replace("\n", "\r\n").encode()
    lines = SOURCE.encode().split(b"\n")
    mixed = b"\r\n".join(lines[:5]) + b"\n" + b"\n".join(lines[5:])
    e = FileEdit("vllm/x.py", mixed)
    e.replace("Runner.other", "data + 1", "data + 2")
    assert e.data() == mixed.replace(b"data + 1", b"data + 2")


def test_a_byte_order_mark_and_an_encoding_stay() -> None:
    marked = codecs.BOM_UTF8 + "name = 'ä'\n\n\ndef f():\n    return 1\n".encode()
    e = FileEdit("vllm/x.py", marked)
    e.replace("f", "1", "2")
    assert e.data() == marked.replace(b"return 1", b"return 2")
    latin = "# -*- coding: latin-1 -*-\nname = 'ä'\n\n\ndef f():\n    return 1\n".encode("latin-1")
    e = FileEdit("vllm/x.py", latin)
    e.replace("f", "1", "2")
    assert e.data() == latin.replace(b"return 1", b"return 2")


def test_a_file_without_a_last_newline_keeps_lacking_it() -> None:
    e = edit("def f():\n    return 1")
    e.replace("f", "1", "2")
    assert e.data() == b"def f():\n    return 2"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"x = 1\ndef f(:\n", "vllm/x.py cannot be parsed: invalid syntax, line 2."),
        (b"x = 1\0\n", "vllm/x.py cannot be parsed: source code "),
        (b"# coding: klingon\n", "vllm/x.py cannot be parsed: unknown encoding: klingon"),
        (b"# coding: rot13\n", "vllm/x.py cannot be parsed: 'rot13' is not a text encoding"),
        (b"name = '\xff'\n", "vllm/x.py cannot be parsed: "),
    ],
)
def test_a_broken_file_is_named_with_its_line_and_is_to_be_repaired(data: bytes, told: str) -> None:
    with pytest.raises(RecipeRefused) as refused:
        FileEdit("vllm/x.py", data)
    assert refused.value.message.startswith(told)
    assert refused.value.hint == "Repair this file, or reinstall the engine."


def test_what_would_be_no_python_is_refused() -> None:
    with pytest.raises(RecipeRefused, match="would not be Python after the edit"):
        edit().add_definition("Runner.sample", "def broken(:\n    pass\n")

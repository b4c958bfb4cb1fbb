"""The index against ``ast`` itself, on real files; and what becomes of files that cannot be read."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from support.engines import index_of

from specaudit.cache import Cache
from specaudit.index import Index, outline
from specaudit.model import EngineFacts, Environment, FileEntry, Target
from specaudit.snapshot import Snapshot

Release = Callable[[str], Path]
FILES = ("vllm/v1/worker/gpu_model_runner.py", "vllm/config/speculative.py", "vllm/v1/sample/rejection_sampler.py")


def holding(files: Mapping[str, bytes], cache: Cache | None = None) -> Index:
    entries = {p: FileEntry(p, hashlib.sha256(data).hexdigest(), len(data)) for p, data in files.items()}
    facts = EngineFacts("vllm", "", "dir", "", len(files))
    made = Snapshot(Target("dir:"), facts, Environment(), entries, lambda path: files[path])
    return Index(made if cache is None else replace(made, cache=cache))


@pytest.fixture(scope="module")
def index(release: Release) -> Index:
    return index_of(release("0.33.0"), wants=lambda path: path in FILES)


@pytest.mark.parametrize("path", FILES)
def test_an_outline_holds_what_ast_finds(path: str, index: Index) -> None:
    tree = ast.parse(index.source(path))
    made = index.outline(path)
    nodes = list(ast.walk(tree))
    defined = [n for n in nodes if isinstance(n, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))]
    assert sorted((d.name, d.line, d.end) for d in made.definitions) == sorted(
        (n.name, n.lineno, n.end_lineno) for n in defined
    )
    calls = [n for n in nodes if isinstance(n, ast.Call)]
    assert sorted((c.line, len(c.args), len(c.keywords)) for c in made.calls) == sorted(
        (n.lineno, len(n.args), len(n.keywords)) for n in calls
    )
    names = [a.asname or a.name.partition(".")[0] for n in nodes if isinstance(n, ast.Import) for a in n.names]
    names += [a.asname or a.name for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names]
    assert sorted(i.alias for i in made.imports) == sorted(names)


def test_texts_are_those_of_the_source(index: Index) -> None:
    for path in FILES:
        tree = {
            (n.lineno, ast.unparse(n.func)) for n in ast.walk(ast.parse(index.source(path))) if isinstance(n, ast.Call)
        }
        short = {
            (c.line, c.func)
            for c in index.outline(path).calls
            if "\n" not in c.func and c.func.replace(".", "").isidentifier()
        }
        assert short <= tree
        assert len(short) > 30


def test_scopes_bases_decorators_and_parameters() -> None:
    made = outline(
        "import a.b\n"
        "class A(B[int], metaclass=M):\n"
        "    @wrap(x=1)\n"
        "    async def f(self, p, /, q=g(), *rest, r, **more):\n"
        "        from .c import d as e\n"
        "        def inner(): return e(p)\n"
        "        self.x, y = q, rest\n"
        "        self.z: int = r\n"
    )
    cls, f, inner = made.definitions
    assert (cls.qualname, cls.kind, cls.bases) == ("A", "class", ("B[int]",))
    assert (f.qualname, f.first, f.line, f.end, f.scope) == ("A.f", 3, 4, 8, "A")
    assert (f.decorators, f.params) == (("wrap(x=1)",), ("self", "p", "q", "rest", "r"))
    assert inner.qualname == "A.f.inner"
    assert [(c.func, c.scope) for c in made.calls] == [("wrap", "A"), ("g", "A"), ("e", "A.f.inner")]
    assert [(i.module, i.name, i.alias, i.scope) for i in made.imports] == [
        ("a.b", "", "a", ""),
        (".c", "d", "e", "A.f"),
    ]
    assert [(a.target, a.value) for a in made.assigns] == [("self.x", "q, rest"), ("y", "q, rest"), ("self.z", "r")]


@pytest.mark.parametrize("separator", ["\x0c", "\x0b", "\x1c", "\x85", "\u2028"])
def test_characters_that_end_no_line_of_python_move_nothing(separator: str) -> None:
    text = f"a = '{separator}'\nb = f(c)\n" if separator != "\x0c" else f"{separator}\na = 1\nb = f(c)\n"
    (call,) = outline(text).calls
    assert (call.func, call.args) == ("f", ("c",))
    assert text.split("\n")[call.line - 1] == "b = f(c)"


def test_columns_count_in_bytes_where_ast_does() -> None:
    (call,) = outline('x = "ü" + f("ä", b)\n').calls
    assert (call.func, call.args) == ("f", ('"ä"', "b"))


BROKEN = {
    "vllm/syntax.py": b"def f(:\n",
    "vllm/nul.py": b"a = 1\x00\n",
    "vllm/latin.py": b"a = '\xe4'\n",
    "vllm/cookie.py": b"# -*- coding: no-such-thing -*-\na = 1\n",
    "vllm/deep.py": b"a = " + b"(" * 5000 + b")" * 5000 + b"\n",
}


@pytest.mark.parametrize("path", BROKEN)
def test_a_file_that_cannot_be_read_is_a_failure_of_that_file(path: str) -> None:
    found = holding({**BROKEN, "vllm/good.py": b"def g(): pass\n"})
    assert found.outline(path).definitions == ()
    assert found.outline("vllm/good.py").definitions[0].name == "g"
    (failure,) = found.failures
    assert failure.path == path
    assert failure.error.startswith("cannot be ")


def test_encodings_that_python_reads_are_read() -> None:
    found = holding(
        {
            "vllm/bom.py": b"\xef\xbb\xbfa = f('x')\n",
            "vllm/cookie.py": b"# coding: latin-1\na = f('\xe4')\n",
            "vllm/crlf.py": b"a = 1\r\nb = f(c)\r\n",
        }
    )
    assert found.outline("vllm/bom.py").calls[0].func == "f"
    assert found.outline("vllm/cookie.py").calls[0].args == ("'ä'",)
    assert found.evidence("vllm/crlf.py", 2).text == "b = f(c)"
    assert found.failures == ()


def test_a_line_that_is_not_there_is_empty() -> None:
    found = holding({"vllm/a.py": b"x = 1\n"})
    assert [found.line("vllm/a.py", number) for number in (0, 1, 99)] == ["", "x = 1", ""]
    assert found.outline("vllm/missing.py").definitions == ()


def test_an_outline_is_made_once_per_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    real = ast.parse

    def counting(source: str, *args: object, **kwargs: object) -> ast.AST:
        parsed.append(source)
        return real(source, *args, **kwargs)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr("specaudit.index.ast.parse", counting)
    data = b"def f(): return g(1)\n"
    with Cache(tmp_path) as cache:
        first = holding({"vllm/a.py": data, "vllm/b.py": data}, cache)
        assert first.outline("vllm/a.py") == first.outline("vllm/a.py") == first.outline("vllm/b.py")
        cache.flush()
        again = holding({"vllm/c.py": data}, cache)
        assert again.outline("vllm/c.py") == first.outline("vllm/a.py")
    assert len(parsed) == 1


def test_one_function_is_read_by_libcst_alone() -> None:
    import libcst

    found = holding({"vllm/a.py": b"class A:\n    @d\n    def f(self):\n        return 1  # why\n\nx = 2\n"})
    node = found.function("vllm/a.py", "A.f")
    assert isinstance(node, libcst.FunctionDef)
    assert libcst.Module([node]).code.strip() == "@d\ndef f(self):\n    return 1  # why"
    assert found.function("vllm/a.py", "A") is None
    assert found.function("vllm/a.py", "A.g") is None


def test_a_search_says_what_was_looked_through() -> None:
    found = holding({"vllm/a.py": b"x = 1\n", "vllm/b.py": b"y = 22\n"})
    search = found.searched(["vllm/b.py", "vllm/a.py"], "is there a z", 3)
    assert (search.files, search.bytes, search.asked, search.looked_at) == (2, 13, "is there a z", 3)
    assert search == found.searched(["vllm/a.py", "vllm/b.py"], "is there a z", 3)
    assert search.digest != found.searched(["vllm/a.py"], "is there a z", 3).digest
    assert list(found.mentioning(b"22")) == ["vllm/b.py"]
    assert list(found.mentioning_any([b"22", b"x"])) == ["vllm/a.py", "vllm/b.py"]

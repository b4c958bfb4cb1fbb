"""A patched engine -> a shell script that starts it with trees, and says the way back.

The script forces the attention backend that trees need. What stock would pick in its place is read off the engine's own
order of backends (``vllm/platforms/cuda.py``), which is parsed and never run.
"""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from specaudit.errors import UsageError
from specaudit.model import Gpu
from specaudit.smoke import modes
from specaudit.words import one_line

#: The backend of which the recipes extend the attention.
BACKEND = "FLASH_ATTN"
ORDER_PATH = "vllm/platforms/cuda.py"
_ORDER = "_get_backend_priorities"
#: Recipe -> the largest tree that it builds, in nodes.
_MOST = {"ddtree": 512, "ddtree-v1": 128}
#: Major compute capability -> what it is called where no GPU is known.
_GENERATIONS = {8: "Ampere, Ada (8.x)", 9: "Hopper (9.0)", 10: "Blackwell (10.x)", 12: "Blackwell (12.x)"}
#: What the target of a DFlash drafter is not.
_USUAL = {"use_mla": False, "use_non_causal": False, "use_mm_prefix": False}


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start: paths or names of models as the engine takes them, drafted tokens, nodes of a tree."""

    model: str
    draft: str
    tokens: int
    budget: int
    exact: bool = False

    def arguments(self, recipe: str) -> tuple[str, ...]:
        """The arguments of ``vllm serve``.

        Raises:
            UsageError: the recipe builds no tree of that many nodes.
        """
        if not 1 <= self.budget <= _MOST[recipe]:
            raise UsageError(
                f"{recipe} builds no tree of {self.budget} nodes.", f"Write --budget 1 to --budget {_MOST[recipe]}."
            )
        mode = "ddtree-exact" if self.exact else "ddtree"
        engine = modes.arguments((mode,), self.draft, self.tokens, self.budget, None)[mode]
        return (
            self.model,
            *("--speculative-config", json.dumps(engine["speculative_config"])),
            *("--additional-config", json.dumps(engine["additional_config"])),
            *("--attention-backend", BACKEND),
        )


def recipe_of(standing: Iterable[str], asked: str) -> str:
    """The recipe for trees among those that stand.

    Raises:
        UsageError: none does.
    """
    found = next((name for name in standing if name in modes.NEEDS["ddtree"]), None)
    if found is None:
        raise UsageError(
            "No recipe for trees stands there, so nothing would take the arguments.",
            f"Apply one first: specaudit patch {asked} --recipe {' or '.join(modes.NEEDS['ddtree'])}.",
        )
    return found


def script(
    launch: Launch, recipe: str, engine: str, asked: str, source: str, gpus: Iterable[Gpu], python: str | None
) -> str:
    """The script.

    Args:
        launch: what to start.
        recipe: the one that stands.
        engine: name and version.
        asked: the target as a command line names it.
        source: of :data:`ORDER_PATH`; empty where it is not there.
        gpus: of the target; where none is known, the generations are told.
        python: the engine's interpreter, if it was named: its environment's program is started.

    Raises:
        UsageError: as :meth:`Launch.arguments`.
    """
    model, *options = launch.arguments(recipe)
    pairs = zip(options[::2], options[1::2], strict=True)
    program = str(PurePosixPath(python).parent / "vllm") if python else "vllm"
    notes = [
        f"{engine} with DDTree, which specaudit's recipe {recipe} installed.",
        "",
        f"Attention: trees need {BACKEND}, so it is forced. Left alone, this engine takes the",
        "first of these that can run the model:",
        *(f"  {line}" for line in _stock(source, gpus)),
        f"Where that is not {BACKEND}, compare with the chain on the other one, too.",
        "",
        "Way back:",
        "  - trees off, files as they are: start it without --additional-config;",
        "  - the release's own files, byte for byte: stop the server, run",
        f"      specaudit patch revert {asked} --yes",
        "    and start it without --additional-config and --attention-backend;",
        f"      specaudit patch status {asked}",
        "    says what stands.",
        "",
        "More arguments of vllm serve may follow the script's name.",
    ]
    lines = [
        "#!/bin/sh",
        *(f"# {one_line(note)}".rstrip() for note in notes),  # names from a host or a path end no comment
        "set -eu",
        f"vllm={shlex.quote(program)}",
        f'exec "${{VLLM:-$vllm}}" serve {shlex.quote(model)} \\',
        *(f"    {name} {shlex.quote(value)} \\" for name, value in pairs),
        '    "$@"',
    ]
    return "\n".join(lines) + "\n"


def _stock(source: str, gpus: Iterable[Gpu]) -> Iterator[str]:
    majors = {f"{gpu.name} ({gpu.capability})": int(gpu.capability.partition(".")[0] or 0) for gpu in gpus}
    for name, major in (majors or {name: major for major, name in _GENERATIONS.items()}).items():
        yield f"{name}: {', '.join(stock_order(source, major)) or 'not known'}"


def stock_order(source: str, major: int) -> tuple[str, ...]:
    """The attention backends that an engine tries for a usual target, in its order; empty: it cannot be told.

    Args:
        source: of :data:`ORDER_PATH`.
        major: the GPU's major compute capability.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()
    known = {**_USUAL, "device_capability.major": major}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == _ORDER:
            try:
                return tuple(_returned(node.body, known) or ())
            except LookupError:
                return ()
    return ()


def _returned(body: Iterable[ast.stmt], known: Mapping[str, int]) -> list[str] | None:
    for statement in body:
        match statement:
            case ast.If(test=test, body=then, orelse=otherwise):
                found = _returned(then if _value(test, known) else otherwise, known)
                if found is not None:
                    return found
            case ast.Return(value=ast.expr() as value):
                return _names(value, known)
    return None


def _names(value: ast.expr, known: Mapping[str, int]) -> list[str]:
    match value:
        case ast.List(elts=parts):
            return [name for part in parts for name in _names(part, known)]
        case ast.Starred(value=inner):
            return _names(inner, known)
        case ast.IfExp(test=test, body=then, orelse=otherwise):
            return _names(then if _value(test, known) else otherwise, known)
        case ast.Attribute(attr=name):
            return [name]
    raise LookupError(ast.unparse(value))


def _value(test: ast.expr, known: Mapping[str, int]) -> int:
    """What a test gives. Raises LookupError where it asks for more than is known."""
    match test:
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_value(part, known) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_value(part, known) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return not _value(inner, known)
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            return _value(left, known) == _value(right, known)
        case ast.Constant(value=int(value)):
            return value
    return known[ast.unparse(test)]

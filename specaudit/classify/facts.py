"""One file -> what its functions accept, and how. Depends on the file's text alone, so it is cached under the blob's
hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import msgspec

from specaudit.cache import recall
from specaudit.classify import flags, reading, slices, vectorised, walks
from specaudit.classify.candidates import candidates
from specaudit.classify.ir import Const, Function
from specaudit.classify.machine import Machine
from specaudit.classify.oracle import discover, tests_drafts
from specaudit.classify.statements import Program, program
from specaudit.classify.terms import Terms
from specaudit.index import Index
from specaudit.model import Failure, Walk

FACTS_VERSION = 2


@dataclass(frozen=True, slots=True)
class WalkFact:
    """One walk of a function: the line of its comparison, and the flag (a compile-time parameter) that turns it on.

    ``branch`` is the line of the test of that flag (0 without a flag); ``rewrites`` the parameter that a pre-pass
    overwrites; ``draws`` the functions of other files that must draw random numbers for this to hold; ``reads`` the
    parameters that the comparison rests on.
    """

    walk: Walk
    line: int
    flag: str = ""
    branch: int = 0
    rewrites: str = ""
    draws: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FunctionFacts:
    """What one function accepts: its walks without flags first, then those that a flag adds.

    ``form`` says what it was read as: a kernel (or a part of one), a loop over single tokens, or work on whole tensors.
    """

    qualname: str
    line: int
    form: slices.Form
    params: tuple[str, ...]
    walks: tuple[WalkFact, ...]

    @property
    def device(self) -> bool:
        """It is a kernel, or is called by one."""
        return self.form == "device"

    @property
    def reads(self) -> frozenset[str]:
        """The parameters that any of its comparisons rests on."""
        return frozenset(name for walk in self.walks for name in walk.reads)

    @property
    def draws(self) -> tuple[str, ...]:
        """The functions of other files on whose randomness a walk rests."""
        return tuple(dict.fromkeys(name for walk in self.walks for name in walk.draws))


_FACTS = tuple[FunctionFacts, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """What one file accepts, encoded as it is cached, and the files that could not be read on the way to it."""

    path: str
    facts: bytes
    failures: tuple[Failure, ...]


class Facts:
    """What the functions of every file accept: known from the cache, or still to be made, file by file."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._known: dict[str, tuple[FunctionFacts, ...]] = {}
        self._lacking: list[str] = []
        for path in index.paths:
            if slices.worth_reading(index.read(path)):
                stored = recall(index.snapshot.cache, "walks", self._key(path), FACTS_VERSION, _FACTS)
                if stored is None:
                    self._lacking.append(path)
                else:
                    self._known[path] = stored

    def pieces(self) -> list[Callable[[], Made]]:
        """The work that is still to be done, one piece for each file, the longest first."""
        lacking = sorted(self._lacking, key=lambda path: slices.effort(self.index.read(path)), reverse=True)
        return [partial(self._make, path) for path in lacking]

    def _make(self, path: str) -> Made:
        found = msgspec.msgpack.encode(analyse(self.index.source(path)))
        return Made(path, found, self.index.failures)

    def take(self, made: Made) -> None:
        """Keeps the result of one piece, which may have been made in another process."""
        self._known[made.path] = msgspec.msgpack.decode(made.facts, type=_FACTS)
        if made.path not in {failure.path for failure in made.failures}:  # else the next scan would not report it
            self.index.snapshot.cache.put("walks", self._key(made.path), FACTS_VERSION, made.facts)
        self.index.failed(made.failures)

    def _key(self, path: str) -> str:
        return self.index.snapshot.files[path].sha256

    def all(self) -> dict[str, tuple[FunctionFacts, ...]]:
        """By path; files in which nothing accepts are left out."""
        return {path: self._known[path] for path in self.index.paths if self._known.get(path)}


def facts_of(index: Index) -> dict[str, tuple[FunctionFacts, ...]]:
    """What the functions of every file accept, by path; files in which nothing does are left out."""
    facts = Facts(index)
    for piece in facts.pieces():
        facts.take(piece())
    return facts.all()


def analyse(source: str) -> tuple[FunctionFacts, ...]:
    """The accepting functions of one file, in source order. A file that is no Python gives none (the index reports
    it).
    """
    pieces = slices.functions(source)
    local = Locals(pieces)
    found: dict[str, FunctionFacts] = {}
    for parsed in candidates(source, pieces):
        facts = _function(parsed, local)
        if facts is not None:
            found.setdefault(facts.qualname, facts)
    return tuple(found.values())


class Locals(Mapping[str, Program]):
    """The other functions of the file, made ready to run when they are asked for."""

    def __init__(self, pieces: tuple[slices.Slice, ...]) -> None:
        self._pieces = {piece.name: piece for piece in pieces if "." not in piece.qualname}
        self._made: dict[str, Program] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._pieces

    def __getitem__(self, name: str) -> Program:
        found = self._made.get(name)
        if found is None:
            parsed = slices.parse(self._pieces[name])
            made = tree(parsed) if parsed is not None else None
            found = program(made if made is not None else Function(name, (), (), self._pieces[name].first))
            self._made[name] = found
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)


def tree(parsed: slices.Parsed) -> Function | None:
    """The small tree of one parsed slice, read by libcst; ``None`` when it nests too deep or is newer Python than
    libcst.
    """
    import libcst

    try:
        node: libcst.CSTNode = libcst.parse_module(parsed.own).body[0]
        if parsed.nested:
            assert isinstance(node, libcst.If)
            node = node.body.body[0]
        assert isinstance(node, libcst.FunctionDef)
        return reading.function(node, parsed.node, parsed.shift)
    except (libcst.ParserSyntaxError, RecursionError):
        return None


def _function(parsed: slices.Parsed, local: Mapping[str, Program]) -> FunctionFacts | None:
    function = tree(parsed)
    if function is None:
        return None
    known = flags.switches(function)
    behind = {flag: flags.compared_behind(function, flag) for flag in known}
    always = flags.compared(function.body) - frozenset(site for sites in behind.values() for site in sites)
    reader = _Reader(program(function), local, tensors=parsed.form == "tensor")
    off = {flag: Const(0) for flag in known}
    base, drafts = reader.walks(off, always, thorough=False)
    found = [_fact(v, "", 0) for v in base]
    for flag, value in known.items():
        verdicts, _ = reader.walks({**off, flag: Const(value)}, behind[flag], thorough=drafts)
        for verdict in verdicts:
            if all((verdict.walk, verdict.rewrites) != (other.walk, other.rewrites) for other in base):
                found.append(_fact(verdict, flag, flags.branch(function, flag, verdict.line)))
    if not found:
        return None
    params = tuple(p.name for p in function.params)
    ordered = tuple(sorted(set(found), key=lambda f: (bool(f.flag), f.branch, f.line, f.walk)))
    return FunctionFacts(parsed.slice.qualname, function.line, parsed.form, params, ordered)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the walks of one function under fixed flags."""

    program: Program
    local: Mapping[str, Program]
    tensors: bool

    def walks(
        self, fixed: Mapping[str, Const], sites: frozenset[int], *, thorough: bool
    ) -> tuple[frozenset[walks.Verdict], bool]:
        """The verdicts, and whether drafts were compared at all (see :func:`specaudit.classify.oracle.discover`)."""
        machine = Machine(self.program, self.local, Terms(), fixed, tensors=self.tensors)
        paths = discover(machine, sites, thorough=thorough)
        found = walks.verdicts(machine, paths) or vectorised.verdicts([path.run for path in paths], machine.lines)
        drafts = any(tests_drafts(path) for path in paths)
        machine.terms.close()
        return found, drafts


def _fact(verdict: walks.Verdict, flag: str, branch: int) -> WalkFact:
    return WalkFact(verdict.walk, verdict.line, flag, branch, verdict.rewrites, verdict.draws, verdict.reads)

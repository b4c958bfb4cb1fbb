"""YAML text -> a tree of nodes that know their lines. A document is data: no tag, anchor or alias is accepted.

Built on the parser's event stream, so that every limit holds before anything is built, and a document costs what its
size costs. Limits (the README names them): one document of at most ``MAX_BYTES`` bytes, ``MAX_NODES`` nodes, nested at
most ``MAX_DEPTH`` deep, and no aliases at all, so that nothing can expand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specaudit.errors import ConfigurationError

MAX_BYTES = 64 * 1024
MAX_NODES = 5_000
MAX_DEPTH = 40
#: Of a value that a message quotes: a link into somebody's secrets must not print them.
MAX_QUOTED = 60
LEARN = "Correct that line; `specaudit rules show ID` prints rules to learn from."


class DocumentError(ConfigurationError):
    """A rule document cannot be used. ``where`` is ``file:line``, ``reason`` what is wrong there."""

    def __init__(self, where: str, reason: str, hint: str = "") -> None:
        super().__init__(f"{where}: {reason}.", hint or LEARN)
        self.where = where
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.where, self.reason, self.hint)


@dataclass(frozen=True, slots=True)
class Node:
    """A scalar, a sequence or a mapping with text keys; ``line`` counts from 1."""

    value: str | int | bool | tuple[Node, ...] | dict[str, Node] | None
    name: str
    line: int

    @property
    def where(self) -> str:
        """``file:line`` for messages."""
        return f"{self.name}:{self.line}"

    def wrong(self, reason: str) -> DocumentError:
        """The error to raise about this node."""
        return DocumentError(self.where, reason)

    def plain(self) -> Any:
        """The value as plain Python lists and dictionaries."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, tuple):
            return [node.plain() for node in self.value]
        return self.value

    def mapping(self, known: Sequence[str], needed: Sequence[str] = ()) -> Mapping[str, Node]:
        """The mapping behind this node, checked for unknown and missing keys.

        Raises:
            DocumentError: this is no mapping, or its keys are not those.
        """
        if not isinstance(self.value, dict):
            raise self.wrong(f"expected a mapping with {_either(known)}, found {self.kind}")
        for key, node in self.value.items():
            if key not in known:
                raise node.wrong(f"unknown key {key[:MAX_QUOTED]!r}{_near(key, known)}; known here: {', '.join(known)}")
        for key in needed:
            if key not in self.value:
                raise self.wrong(f"the key {key!r} is missing")
        return self.value

    def items(self, what: str) -> tuple[Node, ...]:
        """The sequence behind this node, never empty."""
        if not isinstance(self.value, tuple) or not self.value:
            raise self.wrong(f"expected a list of {what}, found {self.kind}")
        return self.value

    def text(self, what: str) -> str:
        """The text behind this node, never blank."""
        if not isinstance(self.value, str) or not self.value.strip():
            raise self.wrong(f"expected {what} (text), found {self.kind}")
        return self.value

    def line_of(self, what: str, limit: int = 200) -> str:
        """Text of one line, at most ``limit`` characters."""
        text = self.text(what).strip()
        if "\n" in text or len(text) > limit:
            raise self.wrong(f"expected {what} of one line and at most {limit} characters")
        return text

    def flag(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            raise self.wrong(f"expected true or false, found {self.kind}")
        return self.value

    def texts(self, what: str) -> tuple[str, ...]:
        """One text, or a list of texts."""
        if isinstance(self.value, tuple):
            return tuple(node.text(what) for node in self.items(what))
        return (self.text(what),)

    def choice(self, allowed: Sequence[str]) -> str:
        """One of the allowed words."""
        if self.value not in allowed:
            raise self.wrong(f"expected one of {', '.join(allowed)}, found {self.kind}")
        return str(self.value)

    @property
    def kind(self) -> str:
        """What this is, for messages."""
        if isinstance(self.value, dict):
            return "a mapping"
        if isinstance(self.value, tuple):
            return "a list" if self.value else "an empty list"
        if self.value is None:
            return "nothing"
        said = repr(self.value)
        return said if len(said) <= MAX_QUOTED else f"{said[:MAX_QUOTED]} …"


def _near(word: str, known: Sequence[str]) -> str:
    import difflib

    close = difflib.get_close_matches(word, known, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _either(known: Sequence[str]) -> str:
    return ", ".join(known) if len(known) <= 12 else f"{', '.join(known[:12])} …"


def parse(text: str, name: str) -> Node:
    """Reads one YAML document.

    Args:
        text: the document.
        name: file name for messages and line references.

    Raises:
        DocumentError: it is too large, nests too deep, is no YAML, holds more than one document, or uses tags, anchors,
            aliases, or a key twice.
    """
    import yaml

    size = len(text.encode(errors="surrogatepass"))
    if size > MAX_BYTES:
        raise DocumentError(f"{name}:1", f"the document has {size} bytes, the limit is {MAX_BYTES}")
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        events = yaml.parse(text, Loader=loader)
        reader = _Reader(events, name)
        return reader.document()
    except yaml.MarkedYAMLError as bad:
        line = bad.problem_mark.line + 1 if bad.problem_mark else 1
        raise DocumentError(f"{name}:{line}", f"no valid YAML: {bad.problem or bad.context}") from bad
    except yaml.YAMLError as bad:
        # The reader's errors name a place in the text, or in its bytes where the text is not ASCII: near enough.
        line = text[: getattr(bad, "position", None) or 0].count("\n") + 1
        raise DocumentError(f"{name}:{line}", f"no valid YAML: {str(bad).splitlines()[0]}") from bad


class _Reader:
    """Builds nodes from YAML events, one pass, limits first."""

    def __init__(self, events: Iterator[Any], name: str) -> None:
        self.events = events
        self.name = name
        self.nodes = 0

    def wrong(self, event: Any, reason: str) -> DocumentError:
        return DocumentError(f"{self.name}:{event.start_mark.line + 1}", reason)

    def document(self) -> Node:
        import yaml

        made: Node | None = None
        for event in self.events:
            if isinstance(event, (yaml.StreamStartEvent, yaml.StreamEndEvent, yaml.DocumentEndEvent)):
                continue
            if isinstance(event, yaml.DocumentStartEvent):
                if made is not None:
                    raise self.wrong(event, "a second document begins here; one rule a file")
                made = self.node(next(self.events), 0)
        if made is None:
            raise DocumentError(f"{self.name}:1", "the document is empty")
        return made

    def node(self, event: Any, depth: int) -> Node:
        import yaml

        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise self.wrong(event, f"more than {MAX_NODES} values in one document")
        if depth > MAX_DEPTH:
            raise self.wrong(event, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise self.wrong(event, "anchors and aliases are not accepted; write the value out")
        line = event.start_mark.line + 1
        if isinstance(event, yaml.ScalarEvent):
            return Node(self.scalar(event), self.name, line)
        if event.tag is not None:
            raise self.wrong(event, f"the tag {event.tag} is not accepted; rules are plain data")
        if isinstance(event, yaml.SequenceStartEvent):
            return Node(tuple(self.sequence(depth)), self.name, line)
        return Node(self.mapping(depth), self.name, line)

    def sequence(self, depth: int) -> Iterator[Node]:
        import yaml

        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            yield self.node(event, depth + 1)

    def mapping(self, depth: int) -> dict[str, Node]:
        import yaml

        made: dict[str, Node] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self.node(event, depth + 1)
            if not isinstance(key.value, str):
                raise key.wrong(f"a key must be text, found {key.kind}")
            if key.value in made:
                raise key.wrong(f"the key {key.value!r} stands here twice")
            value = self.node(next(self.events), depth + 1)
            # A mapping's own line is that of its first key; for messages the line of its key is the better one.
            made[key.value] = Node(value.value, self.name, key.line)
        return made

    def scalar(self, event: Any) -> str | int | bool | None:
        if event.tag is not None and event.tag != "!":
            raise self.wrong(event, f"the tag {event.tag} is not accepted; rules are plain data")
        if _CONTROL.search(event.value):
            raise self.wrong(event, "the value holds a control character, or one that turns the direction of writing")
        if not event.implicit[0]:  # quoted or a block: text
            return str(event.value)
        return _PLAIN.get(event.value, int(event.value) if _integer(event.value) else str(event.value))


#: What could write on a terminal, or show a reader other text than the program reads.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

#: Plain scalars that are no text. Fewer than YAML 1.1 has: `on`, `no` and dates stay text.
_PLAIN: dict[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}


def _integer(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 9

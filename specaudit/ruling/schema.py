"""Node -> Rule: the schema of a rule document. Every mistake is an error with file, line and reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any, Literal, cast, get_args

from specaudit.engines import ENGINES
from specaudit.model import VERDICTS, Condition, Severity, Status
from specaudit.ruling.document import Node, parse
from specaudit.ruling.rule import (
    All,
    AnyOf,
    Declares,
    Difference,
    Edit,
    Example,
    Exists,
    Flows,
    Inherits,
    Match,
    Mutation,
    Not,
    Order,
    Overrides,
    Passes,
    Remedy,
    Rule,
    Some,
    Subject,
    Test,
    Uses,
    Values,
    Verdict,
    Writers,
)
from specaudit.ruling.shapes import read_shape

STATUSES: tuple[Status, ...] = ("present", "partial", "fixed", "not-applicable", "not-found")
RUNNERS = ("v1", "v2")
_KEYS = (
    "id", "title", "severity", "engine", "methods", "runners", "symptom", "cause", "references", "remedy", "notes",
    "applies", "subject", "missing", "present", "partial", "fixed", "otherwise", "evidence", "reach",
    "examples", "mutations",
)  # fmt: skip
_NEEDED = ("id", "title", "severity", "methods", "runners", "symptom", "cause", "remedy", "present", "examples")
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_NAME = re.compile(r"[\w*]+(\.[\w*]+)*")
_GLOB = re.compile(r"[\w.*?/-]+")
_METHOD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,79}")
_ADDRESS = re.compile(r"https?://[^\s\"<>\\^`{|}\x00-\x20\x7f-\U0010ffff]+")
_PARTS = tuple(VERDICTS)
_OPERATIONS = ("==", "!=", "in", "not in", "<", "<=", ">", ">=", "is set", "is not set")


def read_rule(text: str, name: str, source: Literal["packaged", "user"] = "packaged") -> Rule:
    """Reads and checks one rule document.

    Args:
        text: the YAML document.
        name: its file name; the stem must be the rule's id.
        source: who wrote it.

    Raises:
        DocumentError: anything is wrong with it; the message begins with ``file:line``.
    """
    root = parse(text, name)
    keys = root.mapping(_KEYS, _NEEDED)
    subject = _subject(keys["subject"]) if "subject" in keys else None
    rule = Rule(
        id=_id(keys["id"]),
        title=keys["title"].line_of("a title"),
        severity=cast(Severity, keys["severity"].choice(get_args(Severity))),
        engine=keys["engine"].choice(tuple(ENGINES)) if "engine" in keys else next(iter(ENGINES)),
        methods=_methods(keys["methods"]),
        runners=_runners(keys["runners"]),
        symptom=keys["symptom"].text("the symptom in a user's words").strip(),
        cause=keys["cause"].text("the cause").strip(),
        references=_references(keys["references"]) if "references" in keys else (),
        remedy=_remedy(keys["remedy"]),
        present=_test(keys["present"]),
        subject=subject,
        missing=_status(keys, "missing", "not-found"),
        applies=_test(keys["applies"]) if "applies" in keys else None,
        partial=_test(keys["partial"]) if "partial" in keys else None,
        fixed=_test(keys["fixed"]) if "fixed" in keys else None,
        otherwise=_status(keys, "otherwise", "fixed"),
        evidence=read_shape(keys["evidence"]) if "evidence" in keys else None,
        reach=tuple(_condition(node) for node in keys["reach"].items("conditions")) if "reach" in keys else (),
        notes=_text(keys, "notes").strip(),
        examples=_examples(keys["examples"], subject),
        mutations=_mutations(keys["mutations"], subject) if "mutations" in keys else (),
        name=name,
        source=source,
    )
    if PurePosixPath(name).stem != rule.id:
        raise keys["id"].wrong(f"the id {rule.id!r} and the file's name differ")
    for key in ("applies", "present", "partial", "fixed"):
        if key in keys:
            _placed(getattr(rule, key), keys[key], subject)
    if "present" not in {example.status for example in rule.examples}:
        raise keys["examples"].wrong("no example has the status present, so nothing shows that the rule can match")
    return rule


def _placed(test: Test | None, node: Node, subject: Subject | None) -> None:
    """A test must know where it looks, and one about a class must look at a class."""
    if isinstance(test, (All, AnyOf)):
        for inner in test.of:
            _placed(inner, node, subject)
        return
    if isinstance(test, Not):
        _placed(test.of, node, subject)
        return
    if test is None or isinstance(test, (Exists, Difference, Verdict)):
        return
    at = test.at or subject
    if at is None:
        raise node.wrong("there is no subject here, so each test needs its own `at`")
    if isinstance(test, Some):
        _placed(test.of, node, at)
    elif isinstance(test, (Declares, Inherits, Overrides)) and (at.functions or not at.classes):
        word = type(test).__name__.lower()
        raise node.wrong(f"`{word}` is about a class, and looks at {at}; give it `at: {{files: …, class: …}}`")


def _methods(node: Node) -> tuple[str, ...]:
    names = node.texts("a method")
    for name in names:
        if not _METHOD.fullmatch(name):
            raise node.wrong(f"{name!r} is no method; write names as the engine's configuration has them, or all")
    return names


def _text(keys: Mapping[str, Node], key: str) -> str:
    return keys[key].text(key) if key in keys else ""


def _id(node: Node) -> str:
    text = node.text("an id")
    if not _ID.fullmatch(text) or len(text) > 80:
        raise node.wrong(f"the id {text!r} must be lower-case words joined by hyphens, at most 80 characters")
    return text


def _references(node: Node) -> tuple[str, ...]:
    found = node.texts("an address")
    for address in found:
        if not _ADDRESS.fullmatch(address):
            raise node.wrong(f"{address!r} is no web address")
    return found


def _runners(node: Node) -> tuple[str, ...]:
    names = node.texts("a runner")
    for name in names:
        if name not in RUNNERS:
            raise node.wrong(f"expected one of {', '.join(RUNNERS)}, found {name!r}")
    return names


def _status(keys: Mapping[str, Node], key: str, default: Status) -> Status:
    return cast(Status, keys[key].choice(STATUSES)) if key in keys else default


def _remedy(node: Node) -> Remedy:
    keys = node.mapping(("release", "option", "recipe"))
    return Remedy(**{key: _text(keys, key) for key in keys})


def _condition(node: Node) -> Condition:
    keys = node.mapping(("option", "kind", "op", "value", "text"), ("option", "kind", "op", "text"))
    kind = cast(Any, keys["kind"].choice(("env", "option", "model", "platform")))
    op = cast(Any, keys["op"].choice(_OPERATIONS))
    return Condition(keys["option"].line_of("an option"), kind, op, _operand(node, op), keys["text"].line_of("words"))


def _operand(node: Node, op: str) -> str:
    """The value that a condition compares with, as the scan document writes it."""
    keys = cast(Mapping[str, Node], node.value)
    if op.startswith("is "):
        if "value" in keys:
            raise keys["value"].wrong(f"{op!r} takes no value")
        return ""
    if "value" not in keys:
        raise node.wrong(f"{op!r} needs a value")
    value = keys["value"]
    if op in ("in", "not in"):
        return ", ".join(value.texts("a value"))
    if op in ("==", "!="):
        if isinstance(value.value, bool):
            return "true" if value.value else "false"
        if isinstance(value.value, (str, int)):
            return str(value.value)
        raise value.wrong(f"{op!r} compares with one value, found {value.kind}")
    if isinstance(value.value, int) and not isinstance(value.value, bool):
        return str(value.value)
    raise value.wrong(f"{op!r} compares with a whole number, found {value.kind}")


# --- subjects and tests ---------------------------------------------------------------------------------------------


def _names(node: Node, what: str) -> tuple[str, ...]:
    names = node.texts(what)
    for name in names:
        if not _NAME.fullmatch(name) or name.count("*") > 3 or len(name) > 120:
            raise node.wrong(f"{name!r} is no {what}")
    return names


def _globs(node: Node) -> tuple[str, ...]:
    globs = node.texts("a file pattern")
    for glob in globs:
        bad = glob.startswith("/") or ".." in glob.split("/") or glob.count("*") > 8 or len(glob) > 200
        if bad or not _GLOB.fullmatch(glob):
            raise node.wrong(f"{glob!r} is no pattern of package-relative paths such as vllm/v1/**")
    return globs


def _subject(node: Node) -> Subject:
    keys = node.mapping(("files", "class", "function", "chain"))
    if "chain" in keys and ("class" not in keys or "function" in keys):
        raise node.wrong("`chain` is about a class alone")
    if not keys:
        raise node.wrong("a subject needs files, class or function")
    return Subject(
        files=_globs(keys["files"]) if "files" in keys else ("**",),
        classes=_names(keys["class"], "class name") if "class" in keys else (),
        functions=_names(keys["function"], "function name") if "function" in keys else (),
        chain="chain" in keys and keys["chain"].flag(),
        line=node.line,
    )


def _match(node: Node, at: Subject | None) -> Test:
    return Match(read_shape(node), at)


def _uses(node: Node, at: Subject | None) -> Test:
    return Uses(node.texts("a name"), at)


def _declares(node: Node, at: Subject | None) -> Test:
    return Declares(_names(node, "name"), at)


def _inherits(node: Node, at: Subject | None) -> Test:
    return Inherits(_names(node, "class name"), at)


def _overrides(node: Node, at: Subject | None) -> Test:
    keys = node.mapping(("method", "below"), ("method", "below"))
    return Overrides(keys["method"].text("a method name"), keys["below"].text("a class name"), at)


def _writers(node: Node, at: Subject | None) -> Test:
    keys = node.mapping(("attribute", "within"), ("attribute", "within"))
    return Writers(keys["attribute"].text("an attribute name"), _names(keys["within"], "function name"), at)


def _passes(node: Node, at: Subject | None) -> Test:
    keys = node.mapping(("function", "parameter"), ("function", "parameter"))
    return Passes(keys["function"].text("a function name"), keys["parameter"].text("a parameter name"), at)


def _order(node: Node, at: Subject | None) -> Test:
    keys = node.mapping(("first", "then"), ("first", "then"))
    return Order(read_shape(keys["first"]), read_shape(keys["then"]), at)


def _flows(node: Node, at: Subject | None) -> Test:
    keys = node.mapping(("from", "to"), ("from", "to"))
    return Flows(read_shape(keys["from"]), read_shape(keys["to"]), at)


def _sets(node: Node) -> tuple[Values, ...]:
    return tuple(_values(item) for item in node.items("sets")) if isinstance(node.value, tuple) else (_values(node),)


def _values(node: Node) -> Values:
    keys = node.mapping(("literals", "strings", "at"))
    if "strings" in keys and "at" not in keys:
        raise node.wrong("`strings` needs `at`: where to look")
    if not {"literals", "strings"} & set(keys):
        raise node.wrong("a set needs literals or strings")
    return Values(
        literals=keys["literals"].texts("a value") if "literals" in keys else (),
        shape=read_shape(keys["strings"]) if "strings" in keys else None,
        at=_subject(keys["at"]) if "at" in keys else None,
    )


def _difference(node: Node, at: Subject | None) -> Test:
    keys = node.mapping(("of", "minus"), ("of", "minus"))
    return Difference(_sets(keys["of"]), _sets(keys["minus"]))


def _verdict(node: Node, at: Subject | None) -> Test:
    keys = node.mapping(("part", "is"), ("part", "is"))
    part = keys["part"].choice(_PARTS)
    words = keys["is"].texts("a verdict")
    for word in words:
        if word not in VERDICTS[part]:
            raise keys["is"].wrong(f"expected one of {', '.join(VERDICTS[part])}, found {word!r}")
    return Verdict(part, words)


def _exists(node: Node, at: Subject | None) -> Test:
    return Exists(_subject(node))


def _all(node: Node, at: Subject | None) -> Test:
    return All(tuple(_test(item, at) for item in node.items("tests")))


def _any(node: Node, at: Subject | None) -> Test:
    return AnyOf(tuple(_test(item, at) for item in node.items("tests")))


def _some(node: Node, at: Subject | None) -> Test:
    return Some(_test(node), at)


def _not(node: Node, at: Subject | None) -> Test:
    return Not(_test(node, at))


_OPERATORS: Mapping[str, Callable[[Node, Subject | None], Test]] = {
    "match": _match,
    "uses": _uses,
    "exists": _exists,
    "declares": _declares,
    "inherits": _inherits,
    "overrides": _overrides,
    "writers": _writers,
    "difference": _difference,
    "passes": _passes,
    "order": _order,
    "flows": _flows,
    "verdict": _verdict,
    "all": _all,
    "any": _any,
    "some": _some,
    "not": _not,
}
OPERATORS = tuple(_OPERATORS)


def _test(node: Node, at: Subject | None = None) -> Test:
    """One operator, optionally with ``at``: the place it looks at, also for the operators below it."""
    keys = node.mapping((*OPERATORS, "at"))
    operators = [key for key in keys if key != "at"]
    if len(operators) != 1:
        raise node.wrong(f"expected exactly one of {', '.join(OPERATORS)}, found {', '.join(operators) or 'none'}")
    inner = _subject(keys["at"]) if "at" in keys else at
    return _OPERATORS[operators[0]](keys[operators[0]], inner)


# --- examples and mutations -----------------------------------------------------------------------------------------


def _examples(node: Node, subject: Subject | None) -> tuple[Example, ...]:
    made: list[Example] = []
    for status, examples in node.mapping(STATUSES).items():
        for example in examples.items("examples"):
            made.append(_example(cast(Status, status), example, subject))
    return tuple(made)


def _example(status: Status, node: Node, subject: Subject | None) -> Example:
    if isinstance(node.value, str):
        path = sample_path(subject.files[0]) if subject else "vllm/example.py"
        return Example(status, {path: node.value}, line=node.line)
    if not isinstance(node.value, dict):
        raise node.wrong(f"expected code, or a mapping of paths to code, found {node.kind}")
    tree = {}
    files = {}
    for path, code in node.value.items():
        if path == "tree":
            tree = {part: word.choice(VERDICTS[part]) for part, word in code.mapping(_PARTS, _PARTS).items()}
        elif not _GLOB.fullmatch(path) or "*" in path or not path.endswith(".py"):
            raise code.wrong(f"{path!r} is no package-relative path of a .py file")
        else:
            files[path] = code.text("code")
    return Example(status, files, tree, node.line)


def sample_path(glob: str) -> str:
    """A path that the glob matches, for an example that does not name one."""
    path = glob.replace("**/", "").replace("**", "example.py").replace("*", "example").replace("?", "x")
    return path if path.endswith(".py") else f"{path}.py"


def _mutations(node: Node, subject: Subject | None) -> tuple[Mutation, ...]:
    return tuple(_mutation(item, subject) for item in node.items("mutations"))


def _mutation(node: Node, subject: Subject | None) -> Mutation:
    keys = node.mapping(("from", "to", "edits"), ("from", "to", "edits"))
    before, after = keys["from"].choice(STATUSES), keys["to"].choice(STATUSES)
    if before == after:
        raise keys["to"].wrong(f"a mutation changes the status, and both are {after}")
    edits = tuple(_edit(item, subject) for item in keys["edits"].items("edits"))
    return Mutation(cast(Status, before), cast(Status, after), edits)


def _edit(node: Node, subject: Subject | None) -> Edit:
    keys = node.mapping(("at", "find", "replace", "first"), ("find", "replace"))
    text = keys["replace"].value
    if not isinstance(text, str):
        raise keys["replace"].wrong(f"expected text, found {keys['replace'].kind}")
    at = _subject(keys["at"]) if "at" in keys else subject
    if at is None:
        raise node.wrong("there is no subject here, so each edit needs its own `at`")
    return Edit(read_shape(keys["find"]), text, at, "first" in keys and keys["first"].flag())

"""Takes secrets out of arguments and environment values, on the host, before anything is sent.

Runs on Python 3.8 and newer. A secret is recognised by the name it is given to (``--api-key``, ``HF_TOKEN=``,
``"password":``), by what precedes it (``Bearer``, ``user:…@`` in a URL), or by its own shape (``hf_…``, ``sk-…``).
Hiding too much is the cheaper mistake: no verdict rests on a value that is called a key. Every search takes time in
proportion to the text: whoever may start a process on the host chooses the text.
"""

from __future__ import annotations

import json
import re
from typing import Any

HIDDEN = "***"
#: Characters of one argument or value that are looked at and shown; the longest configurations have some 1,000.
LIMIT = 1 << 14

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# fmt: off
_ALWAYS = frozenset((
    "password", "passwd", "pwd", "passphrase", "secret", "secrets", "credential", "credentials", "authorization",
    "bearer", "apikey", "apikeys", "cookie", "cookies", "pat", "sas", "signature", "sig", "jwt",
))
# fmt: on
_LAST = frozenset(("token", "key", "keys", "auth", "pass"))
_TOKENS_OF = frozenset(("auth", "access", "api", "bearer", "hf", "refresh", "session"))
#: Ends of words that are written together: PGPASSWORD, hftoken.
_ENDS = ("password", "passwd", "passphrase", "secret", "token", "apikey", "credentials")

#: What stands for itself, wherever it appears.
_SHAPES = re.compile(
    r"""
      \b(?:hf|gsk|r8|nvapi|glpat|pypi|dop_v1|npm)[_-][A-Za-z0-9_-]{16,}
    | \b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}
    | \bgh[opsur]_[A-Za-z0-9]{20,} | \bgithub_pat_\w{20,}
    | \bxox[abeprs]-[A-Za-z0-9-]{10,}
    | \b(?:AKIA|ASIA)[A-Z0-9]{12,} | \bAIza[A-Za-z0-9_-]{20,}
    | (?<![\w-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*
    """,
    re.VERBOSE | re.DOTALL,
)
_HEADER = re.compile(r"\b((?:proxy-)?authorization|(?:set-)?cookie)(\s*[:=]\s*)[^\"'\n]+", re.IGNORECASE)
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[^\s\"']+", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)[^/\s@\"']+@")
#: ``name=``, ``"name":``, ``\"name\":``, ``--name `` with what lies between it and its value.
_NAME = re.compile(r"""(?<![\w.-])(?P<dashes>--?)?(?P<name>[\w.][\w.-]*)(?P<between>\\*["']?\s*[:=]\s*|\s+)""")
#: A value: quoted (also inside quotes that are escaped, or cut before its end), a list or mapping (all that follows),
#: or one word.
_VALUE = re.compile(
    r"""
      (?P<escapes>\\+)(?P<mark>["']).*?(?:(?P=escapes)(?P=mark)|\Z)
    | "(?:[^"\\]|\\.)*(?:"|\\?\Z) | '[^']*(?:'|\Z)
    | [\[{(].*
    | [^\s,;&"'}\])]+
    """,
    re.VERBOSE | re.DOTALL,
)
#: A word that ends where a value should follow.
_OPEN = re.compile(r"""(?<![\w.-])([\w.][\w.-]*)["']?\s*[:=]\s*\Z""")


def is_secret(name: str) -> bool:
    """Whether a value given to ``name`` (an option, a variable, a JSON key) is hidden."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words:
        return False
    if _ALWAYS.intersection(words) or words[-1] in _LAST or words == ["tokens"]:
        return True
    if words[-1] == "tokens" and _TOKENS_OF.intersection(words):
        return True
    return any(word.endswith(_ENDS) and word not in _ENDS for word in words)


def text(value: str) -> str:
    """A free text (a shell line, a header) without its secrets."""
    value = _short(value)
    value = _SHAPES.sub(HIDDEN, value)
    value = _HEADER.sub(r"\1\2" + HIDDEN, value)
    value = _BEARER.sub(r"\1 " + HIDDEN, value)
    value = _USERINFO.sub(HIDDEN + "@", value)
    return _without_named(value)


def _without_named(value: str) -> str:
    """What is given to secret names is hidden; what is given to others is looked at in its turn."""
    shown = ""
    at = 0
    while True:
        found = _NAME.search(value, at)
        if found is None:
            return shown + value[at:]
        shown += value[at : found.end()]
        at = found.end()
        assigned = not found.group("between").isspace()
        if is_secret(found.group("name")) and (assigned or found.group("dashes")):
            hidden = _VALUE.match(value, at)
            if hidden:
                shown += HIDDEN
                at = hidden.end()


def _short(value: str) -> str:
    return value if len(value) <= LIMIT else value[:LIMIT] + "…"


def named(name: str, value: str) -> str:
    """The value of an option or a variable."""
    return HIDDEN if value and is_secret(name) else anything(value)


def anything(value: str) -> str:
    """A value that may be JSON: its keys decide, and whatever is text inside is searched."""
    stripped = value.strip()
    if stripped[:1] in ("{", "[") and len(value) <= LIMIT:
        try:
            return json.dumps(_json(json.loads(stripped)), ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
    return text(value)


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: HIDDEN if is_secret(key) and item else _json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_json(item) for item in value]
    return anything(value) if isinstance(value, str) else value


def arguments(argv: list[str]) -> list[str]:
    """A command line; an option with a secret name hides everything up to the next option."""
    shown = []
    hiding = first = False
    for word in map(_short, argv):
        option, equals, value = word.partition("=")
        spaced = any(char.isspace() for char in option)
        if hiding and (first or not word.startswith("-")) and not word.startswith("--"):
            shown.append(HIDDEN)
            first = False
            continue
        hiding = first = False
        if option.startswith("-") and equals and not spaced:
            shown.append(option + "=" + named(option, value))
        elif word.startswith("-") and not spaced and is_secret(word):
            hiding = first = True
            shown.append(word)
        else:
            dangling = _OPEN.search(word)  # a header or JSON that a shell took apart: Authorization: Bearer …
            hiding = first = bool(dangling and is_secret(dangling.group(1)))
            shown.append(anything(word))
    return shown

"""Takes secrets out of arguments and environment values, on the host, before anything is sent.

Runs on Python 3.8 and newer. A secret is recognised by the name it is given to (``--api-key``, ``HF_TOKEN=``,
``"password":``), by what precedes it (``Bearer``, ``user:…@`` in a URL), or by its own shape (``hf_…``, ``sk-…``).
Hiding too much is the cheaper mistake: no verdict rests on a value that is called a key.
"""

from __future__ import annotations

import json
import re
from typing import Any

HIDDEN = "***"

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# fmt: off
_ALWAYS = frozenset((
    "password", "passwd", "pwd", "passphrase", "secret", "secrets", "credential", "credentials", "authorization",
    "bearer", "apikey", "apikeys", "cookie", "cookies", "pat", "sas", "signature", "sig", "jwt",
))
# fmt: on
_LAST = frozenset(("token", "key", "keys", "auth", "pass"))
_TOKENS_OF = frozenset(("auth", "access", "api", "bearer", "hf", "refresh", "session"))

#: What stands for itself, wherever it appears.
_SHAPES = re.compile(
    r"""
      \b(?:hf|gsk|r8|nvapi|glpat|pypi|dop_v1|npm)[_-][A-Za-z0-9_-]{16,}
    | \b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}
    | \bgh[opsur]_[A-Za-z0-9]{20,} | \bgithub_pat_\w{20,}
    | \bxox[abeprs]-[A-Za-z0-9-]{10,}
    | \b(?:AKIA|ASIA)[A-Z0-9]{12,} | \bAIza[A-Za-z0-9_-]{20,}
    | \beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*
    | -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*
    """,
    re.VERBOSE | re.DOTALL,
)
_HEADER = re.compile(r"\b((?:proxy-)?authorization|(?:set-)?cookie)(\s*[:=]\s*)[^\"'\n]+", re.IGNORECASE)
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[^\s\"']+", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)[^/\s@\"']+@")
_VALUE = r"""("(?:[^"\\]|\\.)*"|'[^']*'|[^\s,;&"'}\])]+)"""
_ASSIGNED = re.compile(r"""([A-Za-z_][\w.-]*)(["']?\s*[:=]\s*)""" + _VALUE)
_OPTION = re.compile(r"(?<![\w-])(--?[A-Za-z][\w.-]*)(\s+)" + _VALUE)


def is_secret(name: str) -> bool:
    """Whether a value given to ``name`` (an option, a variable, a JSON key) is hidden."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words:
        return False
    if _ALWAYS.intersection(words) or words[-1] in _LAST:
        return True
    return words[-1] == "tokens" and bool(_TOKENS_OF.intersection(words))


def _hide_named(match: re.Match[str]) -> str:
    name, between, value = match.groups()
    if is_secret(name):
        return name + between + HIDDEN
    # The value may hold more: bash -c 'vllm serve --api-key …', https://host/?token=…
    if value[0] in "\"'" and len(value) > 1:
        return name + between + value[0] + text(value[1:-1]) + value[-1]
    return name + between + _ASSIGNED.sub(_hide_named, value)


def text(value: str) -> str:
    """A free text (a shell line, a header) without its secrets."""
    value = _SHAPES.sub(HIDDEN, value)
    value = _HEADER.sub(r"\1\2" + HIDDEN, value)
    value = _BEARER.sub(r"\1 " + HIDDEN, value)
    value = _USERINFO.sub(HIDDEN + "@", value)
    return _OPTION.sub(_hide_named, _ASSIGNED.sub(_hide_named, value))


def named(name: str, value: str) -> str:
    """The value of an option or a variable."""
    return HIDDEN if value and is_secret(name) else anything(value)


def anything(value: str) -> str:
    """A value that may be JSON: its keys decide, and whatever is text inside is searched."""
    stripped = value.strip()
    if stripped[:1] in ("{", "["):
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
    return text(value) if isinstance(value, str) else value


def arguments(argv: list[str]) -> list[str]:
    """A command line; an option with a secret name hides everything up to the next option."""
    shown = []
    hiding = first = False
    for word in argv:
        option, equals, value = word.partition("=")
        if hiding and (first or not word.startswith("-")) and not word.startswith("--"):
            shown.append(HIDDEN)
            first = False
        elif option.startswith("-") and equals and " " not in option:
            hiding = False
            shown.append(option + "=" + named(option, value))
        else:
            hiding = first = word.startswith("-") and " " not in word and is_secret(word)
            shown.append(word if hiding else anything(word))
    return shown

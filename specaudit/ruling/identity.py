"""What makes a finding the same finding: its rule, its symbol and the text of its lines; no line number, no path."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from specaudit.model import Evidence

_QUOTED_OR_COMMENT = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|\#.*""")


def fingerprint(rule: str, symbol: str, sites: Iterable[Evidence]) -> str:
    """A finding's identity as 32 hexadecimal digits."""
    texts = sorted({normal(site.text) for site in sites})
    return hashlib.sha256("\0".join((rule, symbol, *texts)).encode()).hexdigest()[:32]


def normal(text: str) -> str:
    """A line without white space and without the comment behind it; a line that is a comment keeps its words."""
    code = _QUOTED_OR_COMMENT.sub(lambda found: found[1] or "", text)
    return re.sub(r"\s+", "", code if code.strip() else text)

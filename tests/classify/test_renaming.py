"""Every identifier of the code that drafts, verifies and attends is replaced by a hash: all verdicts stay."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from support.engines import index_of
from support.renaming import Renaming

from specaudit.classify.audit import audit
from specaudit.engines import ENGINES
from specaudit.model import Audit, Proposer, Verifier

VLLM = ENGINES["vllm"]
CHOSEN = (
    *("*spec_decode*", "*sampler*", "*attention*", "*/model_executor/*"),
    *(runner.path for runner in VLLM.runners),
    *(worker.path for worker in VLLM.workers),
)


def proposer(found: Proposer, name: Callable[[str], str]) -> tuple[object, ...]:
    variants = [(v.topology, v.when, v.methods, [(e.path, e.line) for e in v.evidence]) for v in found.variants]
    lines = [(e.path, e.line) for e in found.evidence]
    place = (name(found.name), found.path, found.line, found.methods, found.runner)
    return (*place, found.topology, found.reachable, found.conditions, variants, lines)


def verifier(found: Verifier, name: Callable[[str], str]) -> tuple[object, ...]:
    variants = [(v.walk, v.when, v.line) for v in found.variants]
    lines = [(e.path, e.line) for e in (*found.evidence, *found.called_from)]
    place = (name(found.name), found.path, found.line, found.role, found.runner)
    return (*place, found.walk, found.reachable, variants, lines)


def verdicts(found: Audit, renamed: Callable[[str], str]) -> dict[str, object]:
    """All that an audit says, by places; names through ``renamed``."""
    assert found.tree is not None
    parts = (found.tree.drafting, found.tree.attention, found.tree.verification)

    def name(text: str) -> str:
        return "".join(renamed(word) for word in text.replace(".", " . ").replace("(", " ( ").split(" "))

    return {
        "runners": [(r.method, r.runner, r.default, r.when) for r in found.runners],
        "proposers": [proposer(p, name) for p in found.proposers],
        "verifiers": [verifier(v, name) for v in found.verifiers],
        "tree": [(part.verdict, [(e.path, e.line) for e in part.evidence]) for part in parts],
        "options": [(o.name, o.value, o.status, o.method, o.runner) for o in found.options],
        "paths": [(p.method, p.runner, p.when, [(h.path, h.line) for h in p.hops]) for p in found.paths],
    }


@pytest.mark.parametrize("version", ["0.20.1", "0.33.0"])
def test_all_verdicts_stay(version: str, audited: Callable[[str], Audit], release: Callable[[str], Path]) -> None:
    root = release(version)
    files = (file for file in sorted((root / VLLM.package).rglob("*.py")))
    texts = {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8") for file in files}
    texts = {path: text for path, text in texts.items() if VLLM.wants(path)}
    chosen = [path for path in texts if any(fnmatchcase(path, pattern) for pattern in CHOSEN)]
    renaming = Renaming(VLLM, texts, chosen)
    hashed = {path: renaming.apply(text) for path, text in texts.items()}
    assert len(renaming.names) > 2000
    drafters = {p.name for p in audited(version).proposers if p.name.isidentifier()}
    assert drafters <= set(renaming.names)
    assert not any(f"class {name}" in text for name in drafters for text in hashed.values())

    after = verdicts(audit(index_of(root, wants=VLLM.wants, changed=hashed)), lambda word: word)
    before = verdicts(audited(version), lambda word: renaming.names.get(word, word))
    for part, expected in before.items():
        assert after[part] == expected, part

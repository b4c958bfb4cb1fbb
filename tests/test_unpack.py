"""The fixture itself: a real release, complete and as published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from specaudit.hosts.probe.files import sha256
from specaudit.hosts.probe.installed import parse_record, sources


def test_an_unpacked_release_holds_every_source_file_of_the_wheel_unchanged(release: Callable[[str], Path]) -> None:
    root = release("0.33.0")
    record = parse_record((root / "vllm-0.33.0.dist-info/RECORD").read_bytes())
    promised = sources(record, "vllm")
    assert len(promised) == 3231
    assert [path for path in promised if sha256((root / path).read_bytes()) != record[path]] == []

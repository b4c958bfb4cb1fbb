"""See the package. The first configuration is taken, every other one refused."""

from __future__ import annotations

from typing import Any

TAKEN: dict[str, Any] = {}


class EngineArgs:
    def __init__(self, **given: Any) -> None:
        self.given = given

    def create_engine_config(self) -> None:
        TAKEN.update(TAKEN or self.given)
        if self.given != TAKEN:
            raise ValueError("ddtree cannot run in this engine:\n  - an option a tree would get wrong: switch it off")

"""See the package."""

from __future__ import annotations

from enum import Enum
from typing import Any


class RequestOutputKind(Enum):
    DELTA = 1


class SamplingParams:
    def __init__(self, **given: Any) -> None:
        self.seed: int | None = None
        self.max_tokens = 16
        self.__dict__.update(given)


class StructuredOutputsParams:
    def __init__(self, **given: Any) -> None:
        self.given = given

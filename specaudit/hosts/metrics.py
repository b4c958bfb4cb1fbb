"""The counters of speculative decoding on an engine's metrics page (Prometheus text format).

vLLM: ``vllm/v1/spec_decode/metrics.py`` counts drafts, draft tokens, accepted tokens, and accepted tokens per
position, one series per engine of the server; they are added up. SGLang: gauges, of which the mean over its series
is taken.
"""

from __future__ import annotations

import math
import re

_LINE = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
#: A position of a draft; the deepest drafts have some tens of tokens.
_POSITION = re.compile(r"[0-9]{1,3}")
_COUNTERS = {
    "vllm:spec_decode_num_drafts": "drafts",
    "vllm:spec_decode_num_draft_tokens": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "accepted_tokens",
}
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"
_GAUGES = {"sglang:spec_accept_length": "acceptance_length", "sglang:spec_accept_rate": "acceptance_rate"}


def read_metrics(text: str) -> dict[str, float]:
    """Counters out of a metrics page.

    Returns:
        ``drafts``, ``draft_tokens``, ``accepted_tokens``, ``accepted_at_0`` …, and ``acceptance_length``: tokens per
        verification step with the bonus token, 1 + accepted / drafts (as vLLM computes it). Only what the page has.
    """
    found: dict[str, float] = {}
    gauges: dict[str, list[float]] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if not math.isfinite(value) or value < 0:
            continue
        name = match["name"].removesuffix("_total")
        if name in _COUNTERS:
            found[_COUNTERS[name]] = found.get(_COUNTERS[name], 0.0) + value
        elif name == _PER_POSITION:
            position = dict(_LABEL.findall(match["labels"] or "")).get("position", "")
            if _POSITION.fullmatch(position):
                key = f"accepted_at_{int(position)}"
                found[key] = found.get(key, 0.0) + value
        elif name in _GAUGES:
            gauges.setdefault(_GAUGES[name], []).append(value)
    found.update((name, sum(values) / len(values)) for name, values in gauges.items())
    if found.get("drafts"):
        found["acceptance_length"] = 1 + found.get("accepted_tokens", 0.0) / found["drafts"]
    return found

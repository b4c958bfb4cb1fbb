"""Modes of a smoke run: a name, and the keyword arguments of ``vllm.LLM`` that it stands for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from specaudit.errors import UsageError
from specaudit.given import decoded

#: Modes that run a DFlash drafter; mode -> recipes of which one must stand in the engine.
DRAFTING = ("dflash", "ddtree", "ddtree-exact")
NEEDS = dict.fromkeys(("ddtree", "ddtree-exact"), ("ddtree", "ddtree-v1"))


def arguments(
    names: Collection[str], draft: str, draft_tokens: int | None, budget: int, given: str | None
) -> dict[str, dict[str, Any]]:
    """The arguments of each mode.

    Args:
        names: ``none``, ``dflash``, ``ddtree``, ``ddtree-exact`` (attention that rounds as the chain's), or ``given``.
        draft: the draft model.
        draft_tokens: how many tokens are drafted; ``None``: as many as the drafter's block holds.
        budget: nodes of a tree.
        given: a speculative configuration as JSON, for the mode ``given`` (any other method).

    Raises:
        UsageError: an unknown mode, ``given`` without a configuration, or a configuration that is no JSON object.
    """
    dflash = {"method": "dflash", "model": draft, "num_speculative_tokens": draft_tokens}
    known: dict[str, dict[str, Any]] = {"none": {}, "dflash": {"speculative_config": dflash}}
    for name, more in (("ddtree", {}), ("ddtree-exact", {"exact": True})):
        tree = {"ddtree": {"budget": budget, **more}}
        known[name] = {"speculative_config": dict(dflash), "additional_config": tree}
    if given is not None:
        known["given"] = {"speculative_config": _object(given)}
    elif "given" in names:
        hint = "Write --speculative-config '{\"method\": …}', with the method that this mode is to run."
        raise UsageError("The mode given needs --speculative-config.", hint)
    if not names:
        raise UsageError("No mode is named.", f"Write --modes none,dflash; there are: {', '.join((*known, 'given'))}.")
    unknown = [name for name in names if name not in known]
    if unknown:
        hint = f"There are: {', '.join(dict.fromkeys((*known, 'given')))}; given runs what --speculative-config says."
        raise UsageError(f"There is no mode {unknown[0]!r}.", hint)
    return {name: known[name] for name in names}


def _object(text: str) -> Mapping[str, Any]:
    try:
        value = decoded(text)
    except ValueError as bad:
        raise UsageError(f"--speculative-config is no JSON: {bad}.", "Write '{\"method\": …}'.") from bad
    if not isinstance(value, dict):
        raise UsageError("--speculative-config is no JSON object.", "Write '{\"method\": …}'.")
    return value

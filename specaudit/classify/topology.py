"""Events of a drafter's entry -> the topology that it emits, by configuration.

tree: the emitted tokens are several candidates per position (*static* when their number is configured, *dynamic* when
scores of the run decide which are kept). chain-autoregressive: the draft model runs inside a loop over steps.
chain-parallel: it runs, but not once per token. none: what is returned was handed in. chain-lookup: no model runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from specaudit.classify.conditions import Formula, Lit, assume, given, usual
from specaudit.classify.emission import Emission
from specaudit.classify.events import Event, Summary
from specaudit.classify.ways import deviations, stated
from specaudit.model import Condition, Evidence, Topology, TopologyVariant


@dataclass(frozen=True, slots=True)
class Verdict:
    """The topology under the given settings, the lines that show it, what else the same code can emit, and why it is
    not known.
    """

    topology: Topology
    evidence: tuple[Evidence, ...]
    variants: tuple[TopologyVariant, ...] = ()
    reason: str = ""


def possible(f: Formula) -> Formula:
    """The formula when every test that only the running program knows may turn out as needed."""
    return assume(f, lambda lit: True if lit.condition is None else None)


def _live(events: Iterable[Event], settings: Mapping[str, str | None]) -> tuple[Event, ...]:
    """The events that can happen when everything that is not in ``settings`` is as it is by default."""
    return tuple(e for e in events if usual(possible(given(e.when, settings))) is not False)


def judge(emission: Emission, summary: Summary, settings: Mapping[str, str | None]) -> Verdict:
    """The topology of one drafter for one method with its settings, with its variants."""
    topology, shown = _of(emission, _live(summary.events, settings))
    variants: list[TopologyVariant] = []
    for way in _ways(summary.events, settings):
        changed = dict(settings)
        for c in way:
            changed[c.option] = c.value if c.op in ("==", "in") else settings.get(c.option)
        live = _live(summary.events, changed)
        other, lines = _of(emission, live)
        if (
            _fits(live, settings, summary.events)
            and other != topology
            and not any(v.topology == other for v in variants)
        ):
            variants.append(TopologyVariant(other, way, (), lines))
    return Verdict(topology, shown, tuple(variants))


def _fits(live: tuple[Event, ...], settings: Mapping[str, str | None], events: Iterable[Event]) -> bool:
    """Whether the draft model can run there: not when results are taken apart that, for this method, are not pairs."""
    unpacks = [e for e in events if e.kind == "unpack"]
    before = set(_live(events, settings))
    added = [e for e in live if e.kind == "run" and e not in before]
    pairs = not unpacks or any(e in before for e in unpacks)
    return pairs or not any("pair" in e.origin for e in added)


def _ways(events: Iterable[Event], settings: Mapping[str, str | None]) -> tuple[tuple[Condition, ...], ...]:
    """The smallest changes of settings that let something happen that does not happen otherwise."""
    ways: dict[tuple[Condition, ...], None] = {}
    for event in events:
        f = possible(given(event.when, settings))
        if usual(f) is False:
            for way in deviations(f):
                if all(_settable(lit) for lit in way):
                    ways.setdefault(stated(way))
    return tuple(ways)


def _settable(lit: Lit) -> bool:
    c = lit.stated
    return c is not None and c.op == "==" and c.kind in ("option", "env")


def _of(emission: Emission, events: tuple[Event, ...]) -> tuple[Topology, tuple[Evidence, ...]]:
    returns = [e for e in events if e.kind == "return" and e.origin]
    runs = [e for e in events if e.kind == "run"]
    emitted = _emitted(events, returns)
    several = [e for e in emitted if "several" in e.origin]
    if several:
        dynamic = any("ranked" in e.origin for e in several)
        return ("tree-dynamic" if dynamic else "tree-static"), _lines(emission, several)
    looped = [e for e in runs if e.loop is not None]
    if returns and all(e.origin <= {"given"} for e in returns):
        return "none", _lines(emission, returns)
    if looped:
        heads = [emission.code.index.evidence(*e.loop) for e in looped if e.loop is not None]
        return "chain-autoregressive", (*dict.fromkeys(heads), *_lines(emission, looped))
    if runs:
        return "chain-parallel", _lines(emission, [*runs, *emitted])
    return "chain-lookup", _lines(emission, emitted)


def _emitted(events: tuple[Event, ...], returns: list[Event]) -> list[Event]:
    """What leaves the drafter: what is returned, and what is written into a buffer that is returned."""
    kept = {tag for e in returns for tag in e.origin if tag.startswith(".")}
    return [*(e for e in events if e.kind == "write" and e.origin & kept), *returns]


def _lines(emission: Emission, events: Iterable[Event]) -> tuple[Evidence, ...]:
    return tuple(dict.fromkeys(emission.evidence(e) for e in events))

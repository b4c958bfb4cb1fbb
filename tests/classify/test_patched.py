"""A release with our own tree walk installed: the object that replaces the engine's sampler is found, and its walk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support import derived
from support.engines import index_of

from specaudit.classify.verifiers import verifiers
from specaudit.engines import ENGINES
from specaudit.index import Index
from specaudit.model import Audit
from specaudit.patching.recipes.base import Recipe
from specaudit.patching.recipes.ddtree import DDTree
from specaudit.patching.recipes.ddtree_v1 import DDTreeV1
from specaudit.patching.workspace import Workspace

VLLM = ENGINES["vllm"]
FOLDER = "vllm/specaudit_ddtree"


@pytest.mark.parametrize(("recipe", "version", "runner"), [(DDTree(), "0.33.0", "v2"), (DDTreeV1(), "0.20.1", "v1")])
def test_an_object_in_the_place_of_the_sampler_is_told(
    recipe: Recipe, version: str, runner: str, release: Callable[[str], Path]
) -> None:
    patched = _patched(recipe, release(version))
    found = {v.name: v for v in verifiers(patched, VLLM) if v.path.startswith(FOLDER)}
    sampler, walk = found["TreeRejectionSampler"], found["_walk"]
    assert (sampler.path, sampler.role, sampler.runner) == (f"{FOLDER}/{runner}/sampler.py", "class", runner)
    assert (walk.path, walk.role, walk.walk, walk.runner) == (f"{FOLDER}/walk.py", "kernel", "tree", runner)
    assert (sampler.reachable, walk.reachable) == ("conditional", "conditional")
    assert "in the place of another" in walk.reason
    assert found["_linear_walk"].runner == ("v2" if runner == "v2" else "")  # V2 walks trees that are read as chains


@pytest.mark.parametrize(("recipe", "version"), [(DDTree(), "0.33.0"), (DDTreeV1(), "0.20.1")])
def test_what_the_recipe_refuses_is_not_honoured_for_that(
    recipe: Recipe, version: str, release: Callable[[str], Path], audited: Callable[[str], Audit]
) -> None:
    stock, patched = audited(version), derived.audited(_patched(recipe, release(version)).snapshot)
    assert _statuses(patched) == _statuses(stock)
    told = {
        option.runner: option
        for option in patched.options
        if option.name == "use_local_argmax_reduction" and option.status == "ignored" and "suffix" in option.method
    }
    assert told["v1"].reason == "it is checked, and nothing acts on it"


def _statuses(found: Audit) -> set[tuple[str, str, str, str, str]]:
    return {(o.name, o.value, o.runner, o.method, o.status) for o in found.options}


def _patched(recipe: Recipe, root: Path) -> Index:
    work = Workspace(index_of(root, wants=VLLM.wants))
    recipe.write(work, frozenset())
    changed = {change.path: change.after.decode() for change in work.changes() if change.after is not None}
    return index_of(root, wants=VLLM.wants, changed=changed)

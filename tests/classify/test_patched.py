"""A release with our own tree walk installed: the object that replaces the engine's sampler is found, and its walk, and
for which methods it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support import derived
from support.engines import index_of

from specaudit.classify.audit import audit
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


def patched(
    release: Callable[[str], Path], version: str, recipe: Recipe, more: Mapping[str, str] | None = None
) -> Index:
    work = Workspace(index_of(release(version), wants=VLLM.wants))
    recipe.write(work, frozenset())
    changed = {change.path: change.after.decode() for change in work.changes() if change.after is not None}
    return index_of(release(version), wants=VLLM.wants, changed={**changed, **(more or {})})


@pytest.mark.parametrize(("recipe", "version", "runner"), [(DDTree(), "0.33.0", "v2"), (DDTreeV1(), "0.20.1", "v1")])
def test_an_object_in_the_place_of_the_sampler_is_told(
    recipe: Recipe, version: str, runner: str, release: Callable[[str], Path]
) -> None:
    found = {v.name: v for v in verifiers(patched(release, version, recipe), VLLM) if v.path.startswith(FOLDER)}
    sampler, walk = found["TreeRejectionSampler"], found["_walk"]
    assert (sampler.path, sampler.role, sampler.runner) == (f"{FOLDER}/{runner}/sampler.py", "class", runner)
    assert (walk.path, walk.role, walk.walk, walk.runner) == (f"{FOLDER}/walk.py", "kernel", "tree", runner)
    assert (sampler.reachable, walk.reachable) == ("conditional", "conditional")
    assert "in the place of another" in walk.reason
    assert found["_linear_walk"].runner == ("v2" if runner == "v2" else "")  # V2 walks trees that are read as chains


@pytest.mark.parametrize(("recipe", "version"), [(DDTree(), "0.33.0"), (DDTreeV1(), "0.20.1")])
def test_what_a_drafter_installs_verifies_for_its_methods(
    recipe: Recipe, version: str, release: Callable[[str], Path]
) -> None:
    made = audit(patched(release, version, recipe))
    trees = [v for v in made.verifiers if v.path.startswith(FOLDER) and v.runner]
    assert {(v.name, v.methods) for v in trees} >= {("TreeRejectionSampler", ("dflash",)), ("_walk", ("dflash",))}
    assert not any(v.methods for v in made.verifiers if v not in trees)


@pytest.mark.parametrize(
    "elsewhere",
    [
        # An object of the drafter that is no proposer: whoever has it may install the sampler.
        "from vllm.specaudit_ddtree.v2.speculator import DDTreeSpeculator\n\n\n"
        "def bound(config, device, runner):\n    DDTreeSpeculator(config, device).bind(runner)\n",
        # The sampler is put there by no drafter, too.
        "from vllm.specaudit_ddtree.v2.sampler import TreeRejectionSampler\n\n\n"
        "def bound(runner):\n    runner.rejection_sampler = TreeRejectionSampler(runner.sampler)\n",
    ],
)
def test_what_something_else_may_install_verifies_for_every_method(
    elsewhere: str, release: Callable[[str], Path]
) -> None:
    index = patched(release, "0.33.0", DDTree(), {"vllm/v1/worker/gpu/installing.py": elsewhere})
    found = {v.name: v for v in audit(index).verifiers if v.path.startswith(FOLDER)}
    assert (found["_walk"].walk, found["_walk"].runner, found["_walk"].methods) == ("tree", "v2", ())


@pytest.mark.parametrize(("recipe", "version"), [(DDTree(), "0.33.0"), (DDTreeV1(), "0.20.1")])
def test_what_the_recipe_refuses_is_not_honoured_for_that(
    recipe: Recipe, version: str, release: Callable[[str], Path], audited: Callable[[str], Audit]
) -> None:
    stock, found = audited(version), derived.audited(patched(release, version, recipe).snapshot)
    assert _statuses(found) == _statuses(stock)
    told = {
        option.runner: option
        for option in found.options
        if option.name == "use_local_argmax_reduction" and option.status == "ignored" and "suffix" in option.method
    }
    assert told["v1"].reason == "it is checked, and nothing acts on it"


def _statuses(found: Audit) -> set[tuple[str, str, str, str, str]]:
    return {(o.name, o.value, o.runner, o.method, o.status) for o in found.options}

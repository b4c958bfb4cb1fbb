"""The recipes that install DDTree: where they apply, what a scan says afterwards, and that the files are whole."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.derived import audited, derived

from specaudit.ddtree.engine import settings
from specaudit.errors import RecipeRefused
from specaudit.index import Index
from specaudit.patching.checks import every_finding
from specaudit.patching.model import Plan
from specaudit.patching.plan import plan
from specaudit.patching.recipes.base import Recipe
from specaudit.patching.recipes.ddtree import DDTree
from specaudit.patching.recipes.ddtree_files import PACKAGE
from specaudit.patching.recipes.ddtree_v1 import DDTreeV1
from specaudit.patching.recipes.registry import recipes
from specaudit.patching.workspace import Workspace, overlay
from specaudit.snapshot import Snapshot, of_folder

Release = Callable[[str], Path]


Planned = Callable[[str, type[Recipe]], tuple[Snapshot, Plan]]


def planned(snapshot: Snapshot, recipe: Recipe) -> Plan:
    return plan(snapshot, [recipe], known={**recipes(), recipe.name: recipe})


@pytest.fixture(scope="module")
def plans(release: Release) -> Planned:
    """A release with what a recipe makes of it, planned once."""

    @cache
    def made(version: str, recipe: type[Recipe]) -> tuple[Snapshot, Plan]:
        snapshot = of_folder(release(version), "vllm", version, derived())
        return snapshot, planned(snapshot, recipe())

    return made


@pytest.mark.parametrize(("version", "recipe"), [("0.33.0", DDTree), ("0.20.1", DDTreeV1)])
def test_a_scan_of_the_patched_engine_finds_a_tree_drafted_masked_and_walked(
    plans: Planned, version: str, recipe: type[Recipe]
) -> None:
    snapshot, made = plans(version, recipe)
    after = Index(overlay(snapshot, {change.path: change.after for change in made.total}))
    tree = audited(after.snapshot).tree
    assert tree is not None
    parts = (tree.drafting, tree.attention, tree.verification)
    assert [part.verdict for part in parts] == ["dynamic", "per-request", "tree-walk"]
    for part in parts:
        assert any(e.path.startswith(PACKAGE) for e in part.evidence)
        assert all(after.line(e.path, e.line) == e.text for e in part.evidence)
    for change in made.total:
        assert change.after is not None
        ast.parse(change.after)


@pytest.mark.parametrize(("version", "recipe"), [("0.33.0", DDTree), ("0.20.1", DDTreeV1)])
def test_no_other_finding_changes(plans: Planned, version: str, recipe: type[Recipe]) -> None:
    """Else the change is taken back: no rule may take the names in a hook for the repair of a defect."""
    snapshot, made = plans(version, recipe)
    after = Index(overlay(snapshot, {change.path: change.after for change in made.total}))
    old, new = every_finding(Index(snapshot)), every_finding(after)
    repaired = {rule for step in made.steps for rule in recipes()[step.recipe].repairs}
    assert {rule for rule in old if old[rule].status != new[rule].status} == repaired


def test_the_switch_is_the_last_file_to_be_replaced(plans: Planned) -> None:
    _, made = plans("0.33.0", DDTree)
    paths = [change.path for change in made.total]
    new = [path for path in paths if path.startswith(PACKAGE)]
    assert paths[: len(new)] == new
    assert paths[-1] == "vllm/v1/worker/gpu/spec_decode/__init__.py"


def test_trees_on_v1_come_with_the_layer_ids_that_they_need(plans: Planned) -> None:
    _, made = plans("0.20.1", DDTreeV1)
    assert [step.recipe for step in made.steps] == ["dflash-layer-ids", "ddtree-v1"]
    assert "dflash-layer-ids is planned too: ddtree-v1 needs it" in made.notes


@pytest.mark.parametrize(("budget", "seqs"), [(16, 30), (64, 7), (128, 3)])
def test_v1_starts_with_trees_larger_than_what_its_drafter_writes(
    plans: Planned, monkeypatch: pytest.MonkeyPatch, budget: int, seqs: int
) -> None:
    """The patched function itself: tokens are kept for K - 1 rows of the drafter a request, not for N - 1 nodes."""
    _, made = plans("0.20.1", DDTreeV1)
    (text,) = (change.after for change in made.total if change.path == "vllm/config/vllm.py")
    assert text is not None
    (body,) = (
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == "_set_max_num_scheduled_tokens"
    )
    scope: dict[str, Any] = {"logger": SimpleNamespace(warning_once=lambda *_: None)}
    exec(compile(ast.Module([body], []), "vllm.py", "exec"), scope)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    for name in ("specaudit_ddtree", "specaudit_ddtree.engine"):
        monkeypatch.setitem(sys.modules, f"vllm.{name}", ModuleType(name))
    monkeypatch.setitem(sys.modules, "vllm.specaudit_ddtree.engine.settings", settings)
    scheduler = SimpleNamespace(max_num_seqs=seqs, max_num_batched_tokens=2048, max_num_scheduled_tokens=None)
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(max_num_new_slots_for_drafting=budget - 1),
        scheduler_config=scheduler,
        additional_config={"ddtree": {"budget": budget, "_horizon": 15}},
    )
    scope["_set_max_num_scheduled_tokens"](config)
    assert scheduler.max_num_scheduled_tokens == 2048 - 14 * seqs
    scope["_set_max_num_scheduled_tokens"](config)  # a copy of the configuration passes through here again
    config.additional_config, scheduler.max_num_scheduled_tokens = {}, 2048
    with pytest.raises(ValueError, match="does not have enough slots"):  # switched off, the engine's own rule
        scope["_set_max_num_scheduled_tokens"](config)


def test_trees_on_v1_go_without_a_repair_that_was_made_by_hand(release: Release) -> None:
    snapshot = of_folder(release("0.20.1"), "vllm", "0.20.1", derived())
    known = recipes()
    ids = plan(snapshot, [known["dflash-layer-ids"]])
    repaired = overlay(snapshot, {change.path: change.after for change in ids.total})
    made = plan(repaired, [known["ddtree-v1"]], known=known)
    assert [step.recipe for step in made.steps] == ["ddtree-v1"]
    (note,) = (note for note in made.notes if "dflash-layer-ids" in note)
    assert note.startswith(
        "dflash-layer-ids, which ddtree-v1 needs, has no work here: nothing to repair: dflash-target-layer"
    )
    with pytest.raises(RecipeRefused, match="nothing to repair"):  # asked for by name, it is still refused
        plan(repaired, [known["dflash-layer-ids"], known["ddtree-v1"]], known=known)


@pytest.mark.parametrize(
    ("version", "recipe", "reason"),
    [
        ("0.20.1", DDTree(), "has no DFlashSpeculator.__init__"),
        ("0.24.0", DDTree(), "DraftModelSpeculator.sample_draft takes"),
        ("0.31.0", DDTree(), "has no DraftModelSpeculator.compute_draft_logits"),
        ("0.26.0", DDTreeV1(), "SpecDecodeBaseProposer.propose takes"),
        ("0.33.0", DDTreeV1(), "SpecDecodeBaseProposer.propose takes"),
    ],
)
def test_another_shape_is_refused_with_what_is_missing(
    release: Release, version: str, recipe: Recipe, reason: str
) -> None:
    index = Index(of_folder(release(version), "vllm", version, derived()))
    with pytest.raises(RecipeRefused, match=reason):
        recipe.write(Workspace(index), frozenset())


@pytest.mark.parametrize(("version", "recipe"), [("0.22.0", DDTreeV1()), ("0.23.0", DDTreeV1()), ("0.32.0", DDTree())])
def test_where_the_shape_is_the_same_it_is_planned(release: Release, version: str, recipe: Recipe) -> None:
    work = Workspace(Index(of_folder(release(version), "vllm", version, derived())))
    recipe.write(work, frozenset())
    assert {change.path.startswith("vllm/specaudit_ddtree/") for change in work.changes()} == {True, False}


def test_every_installed_module_imports_only_what_is_installed_with_it(plans: Planned) -> None:
    _, made = plans("0.33.0", DDTree)
    files = {change.path: change.after for change in made.total if change.path.startswith(PACKAGE)}
    for path, data in files.items():
        assert data is not None
        for node in ast.walk(ast.parse(data)):
            if isinstance(node, ast.ImportFrom) and node.level:
                folder = path.split("/")[: -node.level]
                base = "/".join([*folder, *(node.module or "").split(".")]).rstrip("/")
                targets = [f"{base}.py"] if node.module else [f"{base}/{a.name}.py" for a in node.names]
                assert all(target in files for target in targets), f"{path}:{node.lineno}"
            assert not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("specaudit"))

"""Every recipe on every release from 0.18.1 to 0.33.0: it flips exactly the findings it claims, or says why not."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from support.derived import derived

from specaudit.errors import RecipeRefused
from specaudit.index import Index
from specaudit.patching.checks import every_finding
from specaudit.patching.model import Plan
from specaudit.patching.plan import plan
from specaudit.patching.recipes.registry import recipes
from specaudit.patching.workspace import overlay
from specaudit.snapshot import Snapshot, of_folder

Release = Callable[[str], Path]

RELEASES = (
    *("0.18.1", "0.19.0", "0.20.0", "0.20.1", "0.20.2", "0.21.0", "0.22.0", "0.22.1", "0.23.0", "0.24.0", "0.25.1"),
    *("0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"),
)
#: Where a recipe applies, as read from the sources; everywhere else it must refuse.
APPLIES = {
    "dflash-layer-ids": ("0.20.0", "0.25.1"),
    "dflash-block-drop": ("0.20.0", "0.32.0"),
    "v1-draft-probs": ("0.18.1", "0.21.0"),
    "lookahead-slots": ("0.18.1", "0.22.1"),
    "hybrid-mamba-margin": ("0.20.0", "0.25.1"),
    "gdn-state-index": ("0.18.1", "0.33.0"),
}
DEFECTIVE = ("present", "partial")
REPAIRING = {name: recipe for name, recipe in recipes().items() if recipe.repairs}


@pytest.fixture(scope="module")
def engine(release: Release) -> Callable[[str], Snapshot]:
    """A release as a snapshot, made once."""
    return cache(lambda version: of_folder(release(version), "vllm", version, derived()))


def planned(snapshot: Snapshot, name: str) -> Plan | RecipeRefused:
    try:
        return plan(snapshot, [recipes()[name]])
    except RecipeRefused as refused:
        return refused


def after(snapshot: Snapshot, made: Plan) -> Index:
    return Index(overlay(snapshot, {change.path: change.after for change in made.total}))


@pytest.mark.parametrize("version", RELEASES)
def test_each_recipe_flips_exactly_what_it_claims_or_refuses(
    engine: Callable[[str], Snapshot], version: str, record_property: Callable[[str, object], None]
) -> None:
    snapshot = engine(version)
    before = every_finding(Index(snapshot))
    row = []
    for name, recipe in REPAIRING.items():
        outcome = planned(snapshot, name)
        first, last = APPLIES[name]
        expected = RELEASES.index(first) <= RELEASES.index(version) <= RELEASES.index(last)
        assert isinstance(outcome, Plan) == expected, f"{name} on {version}: {outcome}"
        if isinstance(outcome, RecipeRefused):
            assert "nothing to repair" in outcome.message
            statuses = {before[rule].status for rule in recipe.repairs}
            assert not statuses & set(DEFECTIVE)
            row.append(f"- ({'/'.join(sorted(statuses))})")
            continue
        then = every_finding(after(snapshot, outcome))
        flipped = {r: (before[r].status, then[r].status) for r in before if before[r].status != then[r].status}
        claimed = {r for r in recipe.repairs if before[r].status in DEFECTIVE}
        assert claimed
        assert claimed <= set(flipped) <= claimed | set(recipe.also), f"{name} on {version}: {flipped}"
        assert {new for _, new in flipped.values()} == {"fixed"}
        assert {flip.rule for step in outcome.steps for flip in step.flips} == set(flipped)
        row.append(f"{len(flipped)} repaired, {len(outcome.paths)} files")
    record_property("matrix", row)
    print(f"{version:<8}" + "".join(f"{cell:<26}" for cell in row))


@pytest.mark.parametrize("version", ["0.20.1", "0.25.1", "0.33.0"])
def test_a_recipe_on_its_own_result_finds_nothing_to_repair(engine: Callable[[str], Snapshot], version: str) -> None:
    for name in REPAIRING:
        outcome = planned(engine(version), name)
        if isinstance(outcome, Plan):
            again = planned(after(engine(version), outcome).snapshot, name)
            assert isinstance(again, RecipeRefused)
            assert "nothing to repair" in again.message


@pytest.mark.parametrize("version", ["0.20.1", "0.21.0", "0.28.0"])
def test_all_recipes_that_apply_go_together(engine: Callable[[str], Snapshot], version: str) -> None:
    snapshot = engine(version)
    fitting = [recipe for name, recipe in REPAIRING.items() if isinstance(planned(snapshot, name), Plan)]
    together = plan(snapshot, fitting)
    assert len(together.steps) == len(fitting) >= 2
    then = every_finding(after(snapshot, together))
    assert all(then[flip.rule].status == "fixed" for step in together.steps for flip in step.flips)
    for change in together.total:
        ast.parse(change.after)


def matrix() -> list[str]:
    """The README's table, of what the first test holds against every release."""
    lines = [f"| vLLM | {' | '.join(APPLIES)} |", f"|---|{':-:|' * len(APPLIES)}"]
    for at, version in enumerate(RELEASES):
        cells = [RELEASES.index(a) <= at <= RELEASES.index(b) for a, b in APPLIES.values()]
        lines.append(f"| {version} | {' | '.join('●' if cell else '·' for cell in cells)} |")
    return lines


def test_the_readme_shows_the_matrix() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert "\n".join(matrix()) in text


def test_an_engine_of_another_name_is_refused(release: Release) -> None:
    snapshot = of_folder(release("sglang==0.5.9"), "sglang", "0.5.9")
    with pytest.raises(RecipeRefused, match="it is for vllm, this is sglang"):
        plan(snapshot, [recipes()["dflash-layer-ids"]])


def test_a_defect_in_a_shape_that_nobody_described_is_refused(engine: Callable[[str], Snapshot]) -> None:
    """The finding is present, the anchor is not what the recipe knows: it must not guess."""
    snapshot = engine("0.20.1")
    path = "vllm/v1/worker/gpu_model_runner.py"
    source = snapshot.read(path).decode()
    known = 'layer_ids = dflash_config.get("target_layer_ids")'
    assert source.count(known) == 1
    other = source.replace(known, 'layer_ids = list(dflash_config.get("target_layer_ids"))')
    with pytest.raises(RecipeRefused, match=r"the anchor `layer_ids = dflash_config\.get.*` is nowhere"):
        plan(overlay(snapshot, {path: other.encode()}), [recipes()["dflash-layer-ids"]])
    twice = source.replace(known, f"{known}\n                {known}")
    with pytest.raises(RecipeRefused, match=r"is 2 times in .* \(lines 4965, 4966\)"):
        plan(overlay(snapshot, {path: twice.encode()}), [recipes()["dflash-layer-ids"]])


@pytest.mark.parametrize("form", ["crlf", "bom"])
def test_a_release_with_other_line_ends_or_a_bom_keeps_them(engine: Callable[[str], Snapshot], form: str) -> None:
    snapshot, path = engine("0.20.1"), "vllm/v1/core/sched/scheduler.py"
    plain = plan(snapshot, [recipes()["lookahead-slots"]]).total[0].after
    data = snapshot.read(path)
    other = data.replace(b"\n", b"\r\n") if form == "crlf" else b"\xef\xbb\xbf" + data
    made = plan(overlay(snapshot, {path: other}), [recipes()["lookahead-slots"]]).total[0].after
    assert made == (plain.replace(b"\n", b"\r\n") if form == "crlf" else b"\xef\xbb\xbf" + plain)


# --- what the edited code does --------------------------------------------------------------------------------------


def function(source: bytes, name: str, **names: object) -> Callable[..., object]:
    """One function of a patched file, run alone: the engine itself is never imported."""
    found = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef) and n.name == name]
    assert len(found) == 1
    found[0].decorator_list = []
    scope: dict[str, object] = {"__annotations__": {}, **names}
    module = ast.Module([ast.ImportFrom("__future__", [ast.alias("annotations")], 0), found[0]], [])
    exec(compile(ast.fix_missing_locations(module), name, "exec"), scope)
    result = scope[name]
    assert callable(result)
    return result


class Bag:
    """Attributes."""

    def __init__(self, **values: object) -> None:
        self.__dict__.update(values)


def contents(made: Plan) -> dict[str, bytes]:
    return {change.path: change.after for change in made.total}


def test_layer_ids_are_shifted_for_one_format_and_kept_for_the_other(engine: Callable[[str], Snapshot]) -> None:
    files = contents(plan(engine("0.20.1"), [recipes()["dflash-layer-ids"]]))
    layers = function(files["vllm/v1/worker/gpu_model_runner.py"], "_get_eagle3_aux_layers_from_config")

    def ask(**config: object) -> object:
        model = Bag(hf_config=Bag(**config))
        return layers(Bag(speculative_config=Bag(draft_model_config=model)))

    assert ask(dflash_config={"target_layer_ids": [0, 2, 4]}) == (1, 3, 5)
    assert ask(dflash_config={}) is None
    assert ask(eagle_aux_hidden_state_layer_ids=[1, 3, 5], dflash_config={"target_layer_ids": [0, 2, 4]}) == (1, 3, 5)

    update = function(files["vllm/transformers_utils/configs/speculators/algos.py"], "update_dflash")
    made: dict[str, object] = {}
    update({"aux_hidden_state_layer_ids": [1, 3, 5], "mask_token_id": 7}, made)
    assert made["eagle_aux_hidden_state_layer_ids"] == [1, 3, 5]
    assert made["dflash_config"] == {"mask_token_id": 7, "target_layer_ids": [0, 2, 4]}


@pytest.mark.parametrize("version", ["0.20.1", "0.23.0", "0.25.1"])
def test_the_compile_cache_key_changes_with_the_layer_ids(engine: Callable[[str], Snapshot], version: str) -> None:
    import hashlib

    snapshot = engine(version)
    patched = contents(plan(snapshot, [recipes()["dflash-layer-ids"]]))["vllm/config/speculative.py"]

    def key(source: bytes, ids: list[int]) -> object:
        names = {"safe_hash": lambda data, usedforsecurity: hashlib.sha256(data), "Any": object}
        hf_config = Bag(dflash_config={"target_layer_ids": ids})
        compute = function(source, "compute_hash", **names)
        return compute(Bag(method="dflash", draft_model_config=Bag(hf_config=hf_config)))

    stock = snapshot.read("vllm/config/speculative.py")
    assert key(stock, [0, 2, 4]) == key(stock, [1, 3, 5])  # the defect
    assert key(patched, [0, 2, 4]) != key(patched, [1, 3, 5])
    assert key(patched, [0, 2, 4]) != key(stock, [0, 2, 4])  # so a graph of the unpatched engine is never loaded


@pytest.mark.parametrize("version", ["0.20.1", "0.26.0", "0.29.0", "0.31.0"])
def test_only_dflash_and_dspark_keep_the_last_block(engine: Callable[[str], Snapshot], version: str) -> None:
    files = contents(plan(engine(version), [recipes()["dflash-block-drop"]]))
    source = files["vllm/config/speculative.py"]
    needs = function(source, "needs_eagle_block_drop")
    use_eagle = function(source, "use_eagle")

    def drops(method: str) -> object:
        config = Bag(method=method)
        for name, value in (("dflash", method == "dflash"), ("dspark", method == "dspark")):
            setattr(config, f"use_{name}", lambda value=value: value)
        config.__dict__["use_eagle"] = lambda: use_eagle(config)
        return needs(config)

    assert [m for m in ("eagle", "eagle3", "mtp", "dflash", "ngram") if drops(m)] == ["eagle", "eagle3", "mtp"]
    assert not drops("dspark")
    assert b"use_eagle=self.use_eagle_block_drop" in files["vllm/v1/core/sched/scheduler.py"] or version >= "0.30"


@pytest.mark.parametrize("version", ["0.20.0", "0.24.0"])
def test_the_margin_is_asked_for_attention_groups_only(engine: Callable[[str], Snapshot], version: str) -> None:
    (change,) = plan(engine(version), [recipes()["hybrid-mamba-margin"]]).total
    source = change.after.decode()
    assert source.count("and not isinstance(spec, MambaSpec)") == 1
    imported = [a.name for n in ast.parse(source).body if isinstance(n, ast.ImportFrom) for a in n.names]
    assert imported.count("MambaSpec") == 1

"""What a scan needs of the rules: files, findings that are kept, and what a configuration reaches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from specaudit.cache import Cache
from specaudit.configured import of_server
from specaudit.engines import ENGINES
from specaudit.errors import ConfigurationError
from specaudit.index import Index
from specaudit.model import (
    Audit,
    Condition,
    Finding,
    Hop,
    Search,
    Server,
    TreePart,
    TreeVerdict,
)
from specaudit.model import (
    Path as Way,
)
from specaudit.ruling.judge import RuleJudge
from specaudit.ruling.reach import Configuration, reached
from specaudit.ruling.store import Rulebook, rulebook
from specaudit.snapshot import of_folder


def absent(verdict: str = "none") -> TreePart:
    return TreePart(verdict, searched=Search(3, 100, "ab", "anything", 7))


AUDIT = Audit(tree=TreeVerdict(absent(), absent("dead"), absent()))


@pytest.fixture(scope="module")
def index(release: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Index:
    with Cache(tmp_path_factory.mktemp("cache")) as cache:
        judge = RuleJudge(rulebook())
        whole = of_folder(release("0.33.0"), "vllm", "0.33.0", cache)
        return Index(whole.narrowed(lambda path: judge.wants(path) or ENGINES["vllm"].wants(path)))


class Unparsed(Rulebook):
    """A rulebook whose documents must not be parsed."""

    @property
    def rules(self):  # type: ignore[no-untyped-def, override]
        raise AssertionError("parsed")


def test_a_second_scan_parses_no_rule_and_says_the_same(index: Index) -> None:
    book = rulebook()
    cache = index.snapshot.cache
    first = RuleJudge(book, cache)
    assert first.wants("vllm/v1/core/sched/scheduler.py")
    assert not first.wants("vllm/entrypoints/openai/api_server.py")
    findings, failures = first.findings(index, AUDIT)
    assert failures == ()
    again = RuleJudge(Unparsed(book.documents), cache)
    assert again.wants("vllm/v1/core/sched/scheduler.py")
    assert again.findings(index, AUDIT) == (findings, failures)
    assert again.summary.needs == first.summary.needs


def test_another_tree_verdict_or_another_rule_is_judged_anew(index: Index) -> None:
    book = rulebook()
    kept = RuleJudge(book, index.snapshot.cache)
    kept.findings(index, AUDIT)
    other = Audit(tree=TreeVerdict(absent("static"), absent(), absent("tree-walk")))
    found = {f.rule: f for f in RuleJudge(book, index.snapshot.cache).findings(index, other)[0]}
    assert found["tree-drafting"].status == found["tree-verification"].status == "present"
    fewer = Rulebook(book.documents[:3])
    assert len(RuleJudge(fewer, index.snapshot.cache).findings(index, AUDIT)[0]) == 3


def test_absent_trees_carry_the_search(index: Index) -> None:
    found = {f.rule: f for f in RuleJudge(rulebook()).findings(index, AUDIT)[0]}
    assert found["tree-drafting"].status == "not-found"
    assert found["tree-drafting"].searched == absent().searched
    assert found["tree-attention"].status == "partial"


# --- reachability ---------------------------------------------------------------------------------------------------

RUNNER = Hop("vllm/v1/worker/gpu_worker.py", 12, "self.v2 = config.use_v2", "runner")
PROPOSER = Hop("vllm/v1/spec.py", 3, "return EagleSpeculator(config)", "proposer")
V2 = Way("eagle3", "v2", hops=(RUNNER, PROPOSER))
NEEDS_TP = {"x": (Condition("tensor_parallel_size", "option", ">", "1", "the target runs on more than one rank"),)}


def finding(methods: tuple[str, ...] = ("eagle3",), runner: str = "v1+v2", status: str = "present") -> Finding:
    return Finding("x", "high", status, runner=runner, methods=methods)  # type: ignore[arg-type]


def seen(one: Finding, settings: dict[str, str | None] | None = None, **more: str) -> Finding:
    configuration = Configuration("eagle3", settings or {}, (V2,))
    return reached([one], NEEDS_TP, [configuration])[0]


def test_what_the_configuration_reaches_stays() -> None:
    assert seen(finding()).status == "present"
    assert seen(finding(methods=("all",))).status == "present"
    assert seen(finding(status="fixed", runner="v1")).status == "fixed"


def test_another_method_is_unreachable_with_the_hop_that_takes_another() -> None:
    said = seen(finding(methods=("dflash", "dspark")))
    assert said.status == "unreachable"
    assert said.hop == PROPOSER
    assert "dflash, dspark" in said.reason
    assert "vllm/v1/spec.py:3" in said.reason


def test_the_line_that_names_the_method_is_the_hop() -> None:
    named = Hop("vllm/config.py", 7, 'return self.method in ("eagle", "eagle3")', "config")
    way = Way("eagle3", "v2", hops=(Hop("vllm/config.py", 2, "Literal[", "config"), named, RUNNER, PROPOSER))
    said = reached([finding(methods=("dflash",))], {}, [Configuration("eagle3", {}, (way,))])[0]
    assert said.hop == named


def test_another_runner_is_unreachable_with_the_hop_that_chooses() -> None:
    said = seen(finding(runner="v1"))
    assert (said.status, said.hop) == ("unreachable", RUNNER)
    assert "takes v2" in said.reason


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({}, "present"),
        ({"tensor_parallel_size": "2"}, "present"),
        ({"tensor_parallel_size": "1"}, "unreachable"),
        ({"tensor_parallel_size": "many"}, "present"),
    ],
)
def test_a_condition_rules_out_what_is_known_not_to_hold(settings: dict[str, str | None], status: str) -> None:
    assert seen(finding(), settings).status == status


def test_of_several_methods_one_that_reaches_it_is_enough() -> None:
    ways = [Configuration("dflash", {}, ()), Configuration("eagle3", {}, (V2,))]
    assert reached([finding()], {}, ways)[0].status == "present"
    assert reached([finding(methods=("mtp",))], {}, ways)[0].status == "unreachable"


def test_the_configuration_of_a_running_server() -> None:
    argv = ("vllm", "serve", "m", "--speculative-config", '{"method": "eagle3"}', "--tensor-parallel-size", "1")
    found = of_server([Server(7, argv, {})], 7)
    assert found.method == "eagle3"
    assert seen(finding(), found.settings).status == "unreachable"
    with pytest.raises(ConfigurationError, match="no server"):
        of_server([Server(7, argv, {})], 8)
    with pytest.raises(ConfigurationError, match="without speculative"):
        of_server([Server(9, ("vllm", "serve", "m"), {})], 9)

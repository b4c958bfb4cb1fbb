"""Machines side by side."""

from __future__ import annotations

from specaudit.fleet import Member, compare, label_of
from specaudit.hosts.probe.files import digest
from specaudit.model import EngineFacts, Environment, Failure, Gpu, Path, Scan, Server, Target, Tool

FILES = {"vllm/a.py": "1", "vllm/b.py": "2", "vllm/c.py": "3"}


def member(host: str, files: dict[str, str] | None, *servers: Server, version: str = "0.33.0", **facts: str) -> Member:
    target = Target(host, host)
    environment = Environment(**facts, gpus=(Gpu("NVIDIA H200", "9.0", facts.get("cuda", "")),) * 8)
    if files is None:
        failed = Scan(Tool("0"), target, None, Environment(), errors=(Failure("", "is dead"),))
        return Member(failed, {}, "is dead")
    engine = EngineFacts("vllm", version, "dist", digest(files.items()), len(files))
    paths = (Path("eagle3", "v1"), Path("eagle3", "v2"))
    return Member(Scan(Tool("0"), target, engine, environment, servers=servers, paths=paths), files)


def test_two_identical_and_one_different_engine_and_a_dead_host() -> None:
    other = {"vllm/a.py": "1", "vllm/b.py": "changed", "vllm/new.py": "4"}
    fleet = compare([member("gpu3", other), member("gpu1", FILES), member("dead", None), member("gpu2", FILES)])
    first, second = fleet.groups
    assert (first.label, first.hosts, first.changed, first.added, first.missing) == ("A", ("gpu1", "gpu2"), (), (), ())
    assert (second.label, second.hosts) == ("B", ("gpu3",))
    assert second.changed == ("vllm/b.py",)
    assert second.added == ("vllm/new.py",)
    assert second.missing == ("vllm/c.py",)
    assert fleet.failed == {"dead": "is dead"}
    assert fleet.differences == ()


def test_versions_that_differ_are_named_with_their_machines() -> None:
    fleet = compare(
        [
            member("gpu1", FILES, torch="2.11.0", python="3.12.3"),
            member("gpu2", FILES, torch="2.10.0", python="3.12.3"),
            member("gpu3", {**FILES, "vllm/a.py": "9"}, torch="2.10.0", version="0.32.0"),
        ]
    )
    assert {d.name: d.values for d in fleet.differences} == {
        "engine": {"vllm 0.33.0": ("gpu1", "gpu2"), "vllm 0.32.0": ("gpu3",)},
        "torch": {"2.11.0": ("gpu1",), "2.10.0": ("gpu2", "gpu3")},
    }


def test_configurations_that_differ_are_named_although_the_engine_is_the_same() -> None:
    def serving(tokens: int, path: int, port: str, **env: str) -> Server:
        config = f'{{"method":"eagle3","num_speculative_tokens":{tokens}}}'
        argv = ("vllm", "serve", "m", "--port", port, "--speculative-config", config, "--enforce-eager")
        return Server(int(port), argv, env, path=path)

    fleet = compare(
        [
            member("gpu1", FILES, serving(3, 0, "1")),
            member("gpu2", FILES, serving(3, 1, "2", VLLM_USE_V2_MODEL_RUNNER="1")),
            member("idle", FILES),
        ]
    )
    assert len(fleet.groups) == 1
    assert {d.name: d.values for d in fleet.differences if d.what == "configuration"} == {
        "VLLM_USE_V2_MODEL_RUNNER": {"(not set)": ("gpu1",), "1": ("gpu2",)},
        "path": {"eagle3 on v1": ("gpu1",), "eagle3 on v2": ("gpu2",)},
    }


def test_labels_go_on_after_z() -> None:
    assert [label_of(n) for n in (0, 25, 26, 27, 701, 702)] == ["A", "Z", "AA", "AB", "ZZ", "AAA"]

"""Command lines of servers -> configurations."""

from __future__ import annotations

import json

import pytest

from specaudit.errors import ConfigurationError
from specaudit.model import Condition, Environment, Hop, Path, Runner, Scan, Server, Target, Tool
from specaudit.serving import Running, options, repointed, running, with_paths

JSON = json.dumps({"method": "eagle3", "num_speculative_tokens": 3, "parallel_drafting": True, "quantization": None})


def server(*words: str, **env: str) -> Server:
    return Server(7, ("vllm", "serve", "model", *words), env)


@pytest.mark.parametrize(
    "words",
    [
        ("--speculative-config", JSON),
        ("--speculative_config", JSON),
        (f"--speculative-config={JSON}",),
        ("-sc", JSON),
    ],
)
def test_a_speculative_configuration_in_every_spelling(words: tuple[str, ...]) -> None:
    found = running(server(*words, "--port", "8000", VLLM_USE_V2_MODEL_RUNNER="1"))
    assert found is not None
    assert found.method == "eagle3"
    assert found.speculative == {"num_speculative_tokens": "3", "parallel_drafting": "true", "quantization": None}
    assert found.options == {"port": "8000", "VLLM_USE_V2_MODEL_RUNNER": "1"}


def test_dotted_options_and_short_ones() -> None:
    found = running(server("--speculative-config.method", "mtp", "--speculative-config.num-speculative-tokens=2"))
    assert found == Running("mtp", {"num_speculative_tokens": "2"}, {})
    found = running(server("--spec-method", "dflash", "--spec-model", "some/draft", "--spec-tokens", "8"))
    assert found == Running("dflash", {"model": "some/draft", "num_speculative_tokens": "8"}, {})
    assert running(server("--speculative-config", '{"model": "ngram"}')) == Running("ngram", {"model": "ngram"}, {})


def test_the_options_of_sglang() -> None:
    words = [
        "-m",
        "sglang.launch_server",
        "--speculative-algorithm",
        "EAGLE3",
        "--speculative-num-steps",
        "3",
        "--tp",
        "2",
    ]
    found = running(Server(7, ("python3", *words), {}))
    assert found is not None
    assert (found.method, found.speculative) == ("EAGLE3", {"speculative_num_steps": "3"})
    assert found.options["tensor_parallel_size"] == "2"


def test_a_configuration_file_counts_behind_the_command_line() -> None:
    config = ("--speculative-config=" + JSON, "--tensor-parallel-size=4")
    found = running(Server(7, ("vllm", "serve", "--config", "a.yaml", "-tp", "8"), {}, config=config))
    assert found is not None
    assert found.method == "eagle3"
    assert found.options["tensor_parallel_size"] == "8"


def test_a_server_that_does_not_draft() -> None:
    assert running(server("--port", "8000")) is None
    assert running(server()) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{", "is no JSON:"), ("[]", "no JSON object"), ('{"model": "some/draft"}', "names no method")],
)
def test_configurations_that_do_not_say_how(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        running(server("--speculative-config", text))


def test_options_of_a_command_line() -> None:
    line = "-tp 4 --enforce-eager --no-enable-prefix-caching --temperature -1.5 --a=b=c --flag --x-y z -"
    assert options(line.split()) == {
        "tensor_parallel_size": "4",
        "enforce_eager": "true",
        "enable_prefix_caching": "false",
        "temperature": "-1.5",
        "a": "b=c",
        "flag": "true",
        "x_y": "z",
    }


def scan(*servers: Server, paths: tuple[Path, ...] = ()) -> Scan:
    asked = Condition("parallel_config.pipeline_parallel_size", "option", ">", "1", "…")
    runners = (Runner("eagle3", "v1", True, (asked,)),)
    return Scan(Tool("0"), Target("gpu1"), None, Environment(), runners, servers=servers, paths=paths)


def test_options_are_traced_under_the_names_that_conditions_use() -> None:
    found = running(server("--speculative-config", JSON, "-pp", "2", "--port", "1", VLLM_X="1"))
    assert found is not None
    assert found.traced_by(scan()) == {
        "VLLM_X": "1",
        "parallel_config.pipeline_parallel_size": "2",
        "num_speculative_tokens": "3",
        "parallel_drafting": "true",
        "quantization": None,
    }


PATHS = {name: Path(name, "v1", (), (Hop("vllm/a.py", 1, "x", "config"),)) for name in ("eagle3", "mtp")}


def test_each_server_points_to_its_path() -> None:
    servers = [
        server("--speculative-config", '{"method": "mtp"}'),
        server("--speculative-config", JSON),
        server(),
        server("--speculative-config", "{"),
        server("--speculative-config", '{"method": "unknown"}'),
    ]

    def trace(method: str, settings: object) -> Path:
        if method not in PATHS:
            raise ConfigurationError(f"no method {method}", "x")
        return PATHS[method]

    made = with_paths(scan(*servers, paths=(PATHS["eagle3"],)), trace)
    assert made.paths == (PATHS["eagle3"], PATHS["mtp"])
    assert [one.path for one in made.servers] == [1, 0, None, None, None]
    assert [item.what for item in made.not_looked] == ["the path of process 7"] * 2
    assert [one.path for one in repointed(made.servers, made.paths, (PATHS["mtp"],))] == [0, None, None, None, None]

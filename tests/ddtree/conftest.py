"""The same tests on a GPU and, without one, in Triton's interpreter on the CPU.

Tests marked `gpu` need the real thing (graph capture, the profiler, full-size vocabularies). Without a CUDA device they
are left out of the run, and the summary says so and names them.
"""

from __future__ import annotations

import os

import hypothesis
import pytest
import torch

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined: triton reads it when it decorates

# The interpreter takes about 0.1 s a launch. Examples are derived from the test, not drawn anew: a failure repeats.
hypothesis.settings.register_profile(
    "ddtree",
    max_examples=200 if HAS_GPU else 20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("ddtree")

# Triton 3.6's interpreter makes an int of an array of one element in every loop.
INTERPRETER_WARNING = "ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning"

left_out: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs a CUDA device; left out, and named in the summary, without one")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = [item for item in items if "ddtree" in item.path.parts]
    for item in here:
        item.add_marker(pytest.mark.filterwarnings(INTERPRETER_WARNING))
    if not HAS_GPU:
        gpu = [item for item in here if item.get_closest_marker("gpu")]
        left_out.extend(item.nodeid for item in gpu)
        items[:] = [item for item in items if item not in gpu]
        config.hook.pytest_deselected(items=gpu)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    device = torch.cuda.get_device_name() if HAS_GPU else "Triton's interpreter on the CPU"
    terminalreporter.section("DDTree kernels")
    terminalreporter.line(f"ran on: {device}")
    if left_out:
        terminalreporter.line(f"NOT RUN, no CUDA device here: {len(left_out)} tests that need a GPU", yellow=True)
        for nodeid in left_out:
            terminalreporter.line(f"  {nodeid}")


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if HAS_GPU else "cpu")

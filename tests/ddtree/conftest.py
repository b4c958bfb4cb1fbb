"""The same tests on a GPU and, without one, in Triton's interpreter on the CPU.

Tests marked `gpu` need the real thing (graph capture, the profiler, full-size vocabularies), those marked `toy` a pair
of trained models that is not in the repository (toy.py says where it is looked for), those marked `long` more minutes
on a CPU than a test run should take. What cannot run is skipped and named in pytest's summary, which the project's
configuration always asks for (-ra); a summary written here would be lost with parallel workers.
"""

from __future__ import annotations

import os

import hypothesis
import pytest
import torch
from ddtree import toy
from ddtree.interpreter import make_quick

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined: triton reads it when it decorates
    make_quick()

# The interpreter takes about 0.1 s a launch. Examples are derived from the test, not drawn anew: a failure repeats.
hypothesis.settings.register_profile(
    "ddtree",
    max_examples=80 if HAS_GPU else 20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("ddtree")

INTERPRETER_WARNINGS = (
    # Triton 3.6's interpreter makes an int of an array of one element in every loop.
    "ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning",
    # Infinities and NaN follow IEEE rules on both sides; only numpy speaks of it.
    "ignore:(overflow|invalid value|divide by zero) encountered:RuntimeWarning",
)

MARKERS = {
    "gpu": "needs a CUDA device",
    "toy": f"needs the toy pair: set {toy.VARIABLE} to its folder",
    "long": "takes minutes on a CPU: set SPECAUDIT_LONG=1, or use a GPU",
}
CANNOT_RUN = {
    "gpu": not HAS_GPU,
    "toy": toy.find() is None,
    "long": not (HAS_GPU or os.environ.get("SPECAUDIT_LONG")),
}


def pytest_configure(config: pytest.Config) -> None:
    for name, what in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {what}; skipped otherwise")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in (item for item in items if "ddtree" in item.path.parts):
        item.add_marker(pytest.mark.filterwarnings(*INTERPRETER_WARNINGS))
        for name, cannot in CANNOT_RUN.items():
            if cannot and item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=f"NOT RUN: {MARKERS[name]}"))


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if HAS_GPU else "cpu")

"""As much of torch as worker.py uses beside vLLM: no tensors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

Tensor = object
float16 = bfloat16 = float32 = "float"
cuda = SimpleNamespace(
    synchronize=lambda: None,
    reset_peak_memory_stats=lambda: None,
    memory_allocated=lambda: 10**9,
    max_memory_allocated=lambda: 2 * 10**9,
    max_memory_reserved=lambda: 3 * 10**9,
)


@contextmanager
def _profile(activities: object) -> Iterator[SimpleNamespace]:
    range_ = SimpleNamespace(elapsed_us=lambda: 3.0)
    seen = {"time_range": range_, "is_user_annotation": False}
    kernel = SimpleNamespace(device_type="DeviceType.CUDA", name="kernel", **seen)
    call = SimpleNamespace(device_type="DeviceType.CPU", name="cudaLaunchKernel", **seen)
    named = SimpleNamespace(device_type="DeviceType.CUDA", name="a graph", time_range=range_, is_user_annotation=True)
    kernels = [] if os.environ.get("FAKE_SEES_NOTHING") else [kernel] * 50
    yield SimpleNamespace(events=lambda: [named, *kernels, *[call] * 9])


profiler = SimpleNamespace(profile=_profile, ProfilerActivity=SimpleNamespace(CPU=0, CUDA=1))

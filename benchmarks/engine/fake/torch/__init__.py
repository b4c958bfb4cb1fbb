"""As much of torch as worker.py uses beside vLLM: no tensors."""

from __future__ import annotations

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
    kernel = SimpleNamespace(device_type="DeviceType.CUDA", name="kernel", time_range=range_)
    call = SimpleNamespace(device_type="DeviceType.CPU", name="cudaLaunchKernel", time_range=range_)
    yield SimpleNamespace(events=lambda: [kernel] * 50 + [call] * 9)


profiler = SimpleNamespace(profile=_profile, ProfilerActivity=SimpleNamespace(CPU=0, CUDA=1))

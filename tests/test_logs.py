"""The line of a log that says why."""

from __future__ import annotations

import subprocess
import sys

import pytest

from specaudit.logs import cause, missing_module

PYDANTIC = """\
Traceback (most recent call last):
  File "a.py", line 3, in <module>
    Model()
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, The checkpoint has no config.json [type=value_error]
    For further information visit a page
"""
WORKER = """\
(Engine_0 pid=71) ERROR 11-30 03:00:00 [core.py:70] Traceback (most recent call last):
(Engine_0 pid=71) ERROR 11-30 03:00:00 [core.py:70]   File "core.py", line 8, in run
(Engine_0 pid=71) ERROR 11-30 03:00:00 [core.py:70] torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB.
Traceback (most recent call last):
  File "b.py", line 1, in <module>
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
[rank0]:[W1130 03:00:01.1 group.cpp:1] Warning: the group was not destroyed
/usr/lib/python3.12/multiprocessing/resource_tracker.py:279: UserWarning: 1 leaked object to clean up
  warnings.warn('resource_tracker: 1')
"""


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", ""),
        ("\n  \n", ""),
        ("loading\nready\n\n", "ready"),
        ("loading\nx.py:1: DeprecationWarning: old\n  warnings.warn(\n", "loading"),
        ("Segmentation fault (core dumped)\n", "Segmentation fault (core dumped)"),
        (
            PYDANTIC,
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig "
            "Value error, The checkpoint has no config.json [type=value_error]",
        ),
        (WORKER, "torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB."),
        ("RuntimeError: failed, see root cause above\n", "RuntimeError: failed, see root cause above"),
        ("KeyboardInterrupt\n", "KeyboardInterrupt"),
    ],
)
def test_the_last_meaningful_line_is_taken(log: str, said: str) -> None:
    assert cause(log) == said


def test_a_long_line_is_cut() -> None:
    assert len(cause("ValueError: " + "x" * 1000)) == 302


def test_what_python_itself_prints_is_understood() -> None:
    code = "import sys\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    import torch_that_is_not_there.nn\n"
    log = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    assert cause(log) == "ModuleNotFoundError: No module named 'torch_that_is_not_there'"
    assert missing_module(cause(log)) == "torch_that_is_not_there"
    assert missing_module("ValueError: x") == ""

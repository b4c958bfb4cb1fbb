"""The cut on shape leaves nothing out that the machine would find to accept: each function here is written so that a
cheaper look at it might.
"""

from __future__ import annotations

import pytest

from specaudit.classify import slices
from specaudit.classify.candidates import candidates
from specaudit.classify.facts import analyse

KERNELS = {
    "the index of the loop is compared, too": """
@triton.jit
def accept(draft_ptr, target_ptr, count_ptr, out_ptr, num_ptr):
    row = tl.program_id(0)
    count = tl.load(count_ptr + row)
    accepted = 0
    going = True
    for i in range(count):
        if going:
            if i == count - 1:
                tl.store(out_ptr + i, -1)
            draft = tl.load(draft_ptr + i)
            wanted = tl.load(target_ptr + i)
            tl.store(out_ptr + i, wanted)
            going = draft == wanted
            if going:
                accepted = i + 1
    tl.store(num_ptr + row, accepted)
""",
    "another function of the module makes the lanes": """
@triton.jit
def steps(n: tl.constexpr):
    return tl.arange(0, n)


@triton.jit
def accept(draft_ptr, target_ptr, num_ptr, N: tl.constexpr):
    at = steps(N)
    hits = tl.load(draft_ptr + at) == tl.load(target_ptr + at)
    tl.store(num_ptr, tl.argmin(hits.to(tl.int32), axis=0))
""",
    "the lanes are named where they are used": """
@triton.jit
def accept(draft_ptr, target_ptr, num_ptr, N: tl.constexpr):
    drafts = tl.load(draft_ptr + (at := tl.arange(0, N)))
    hits = drafts == tl.load(target_ptr + at)
    tl.store(num_ptr, tl.argmin(hits.to(tl.int32), axis=0))
""",
    "the lanes go through several names": """
@triton.jit
def accept(draft_ptr, target_ptr, num_ptr, N: tl.constexpr):
    lanes = tl.arange(0, N)
    row = tl.program_id(0) * N
    at = row + lanes
    here, there = draft_ptr + at, target_ptr + at
    drafts = tl.load(here)
    wanted = tl.load(there)
    misses = drafts != wanted
    tl.store(num_ptr, tl.min(tl.where(misses, lanes, N), axis=0))
""",
}

TENSORS = {
    "a sum that is tested through a name": """
def accept(draft, target):
    missed = draft != target
    running = missed.cumsum(dim=-1)
    return (running == 0).sum(dim=-1)
""",
    "a sum that is tested by a method": """
def accept(draft, target):
    missed = draft != target
    return missed.cumsum(dim=-1).eq(0).sum(dim=-1)
""",
    "a sum that another function tests": """
def leading(running):
    return (running == 0).sum(dim=-1)


def accept(draft, target):
    missed = draft != target
    return leading(missed.cumsum(dim=-1))
""",
    "the place of the greatest": """
def accept(draft, target):
    missed = (draft != target).int()
    return missed.max(dim=-1).indices
""",
}


@pytest.mark.parametrize("form", KERNELS)
def test_a_kernel_that_accepts_is_not_cut(form: str) -> None:
    text = f"import triton\nimport triton.language as tl\n\n{KERNELS[form]}"
    assert {w.walk for f in analyse(text) if f.qualname == "accept" for w in f.walks} == {"linear"}


@pytest.mark.parametrize("form", TENSORS)
def test_a_function_that_accepts_is_not_cut(form: str) -> None:
    text = f"import torch\n\n{TENSORS[form]}"
    assert {w.walk for f in analyse(text) if f.qualname == "accept" for w in f.walks} == {"linear"}


CUT = {
    "an index against a loaded count": """
@triton.jit
def other(data_ptr, count_ptr, out_ptr):
    count = tl.load(count_ptr)
    lanes = tl.arange(0, 16)
    for i in range(count):
        values = tl.load(data_ptr + i * 16 + lanes)
        if i == count - 1:
            tl.store(out_ptr + i, tl.max(values, axis=0))
""",
    "two numbers outside any loop": """
@triton.jit
def other(place_ptr, count_ptr, data_ptr, out_ptr, N: tl.constexpr):
    place = tl.load(place_ptr)
    last = place == tl.load(count_ptr) - 1
    values = tl.load(data_ptr + tl.arange(0, N))
    tl.store(out_ptr, tl.where(last, tl.sum(values, axis=0), 0))
""",
}


@pytest.mark.parametrize("form", CUT)
def test_what_compares_no_drafts_is_not_run(form: str) -> None:
    text = f"import triton\nimport triton.language as tl\n\n{CUT[form]}"
    assert list(candidates(text, slices.functions(text))) == []


def test_the_greatest_of_some_truth_values_is_no_place() -> None:
    text = """
def other(lengths, wanted):
    mask = lengths == wanted
    return lengths.cumsum(0), lengths[mask].max()
"""
    assert list(candidates(text, slices.functions(text))) == []

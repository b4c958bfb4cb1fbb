"""One real linear kernel, rewritten: the verdict follows what the code does, whatever anything is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.engines import index_of, replaced

from specaudit.classify.facts import analyse
from specaudit.classify.verifiers import verifiers
from specaudit.engines import ENGINES
from specaudit.model import Verifier

FILE = "vllm/v1/worker/gpu/spec_decode/rejection_sampler.py"
KERNEL = "_strict_rejection_sample_kernel"

# The parts of the kernel that mutations replace, as they stand in the release.
START = "    num_sampled = 0\n    rejected = False\n"
TARGET = "            target_sampled = tl.load(target_sampled_ptr + start_idx + i)\n"
DRAFT = "            draft_sampled = tl.load(input_ids_ptr + start_idx + i + 1)\n"
MISS = "            if target_sampled != draft_sampled:\n                rejected = True\n"
LINKS = "    cu_num_logits_ptr,  # [num_reqs + 1]\n):"
WITH_LINKS = "    cu_num_logits_ptr,  # [num_reqs + 1]\n    a_ptr=None,\n    b_ptr=None,\n    N: tl.constexpr = 64,\n):"
LOOP = (
    "    for i in range(num_tokens - 1):\n        if not rejected:\n" + TARGET + DRAFT
    + "            tl.store(sampled_ptr + req_idx * sampled_stride + i, target_sampled)\n            num_sampled += 1\n"
    + MISS
)  # fmt: skip

TREES = {
    "descends through a loaded child": (
        (LINKS, WITH_LINKS),
        (START, START + "    at = 0\n"),
        (TARGET, "            target_sampled = tl.load(target_sampled_ptr + start_idx + at)\n"),
        (DRAFT, "            at = tl.load(a_ptr + start_idx + at)\n            draft_sampled = tl.load(input_ids_ptr + start_idx + at)\n"),
    ),
    "tries sibling after sibling": (
        (LINKS, WITH_LINKS),
        (START, START + "    at = tl.zeros((), tl.int32)\n"),
        (
            LOOP,
            """    for i in range(num_tokens - 1):
        if not rejected:
            wanted = tl.load(target_sampled_ptr + start_idx + at)
            tl.store(sampled_ptr + req_idx * sampled_stride + i, wanted)
            num_sampled += 1
            next = tl.load(a_ptr + start_idx + at)
            rejected = True
            while next >= 0 and rejected:
                if tl.load(input_ids_ptr + start_idx + next) == wanted:
                    at = next
                    rejected = False
                else:
                    next = tl.load(b_ptr + start_idx + next)
""",
        ),
    ),
    "looks through all nodes for a child": (
        (LINKS, WITH_LINKS),
        (START, START + "    at = tl.zeros((), tl.int32)\n"),
        (
            LOOP,
            """    for i in range(num_tokens - 1):
        if not rejected:
            wanted = tl.load(target_sampled_ptr + start_idx + at)
            tl.store(sampled_ptr + req_idx * sampled_stride + i, wanted)
            num_sampled += 1
            here = at
            rejected = True
            for j in range(N):
                if tl.load(a_ptr + start_idx + j) == here and tl.load(input_ids_ptr + start_idx + j) == wanted:
                    at = j
                    rejected = False
""",
        ),
    ),
    "looks for the child in all lanes at once": (
        (LINKS, WITH_LINKS),
        (START, START + "    at = tl.zeros((), tl.int32)\n    lanes = tl.arange(0, N)\n"),
        (
            LOOP,
            """    above = tl.load(a_ptr + start_idx + lanes)
    tokens = tl.load(input_ids_ptr + start_idx + lanes)
    for i in range(num_tokens - 1):
        if not rejected:
            wanted = tl.load(target_sampled_ptr + start_idx + at)
            tl.store(sampled_ptr + req_idx * sampled_stride + i, wanted)
            num_sampled += 1
            fits = (above == at) & (tokens == wanted)
            best = tl.min(tl.where(fits, lanes, N), axis=0)
            if best < N:
                at = best
            else:
                rejected = True
""",
        ),
    ),
    "takes what was decided for the parent from memory": (
        (LINKS, WITH_LINKS),
        (
            LOOP,
            """    for i in range(num_tokens - 1):
        up = tl.load(a_ptr + start_idx + i)
        ok = tl.load(b_ptr + start_idx + up)
        draft_sampled = tl.load(input_ids_ptr + start_idx + i + 1)
        target_sampled = tl.load(target_sampled_ptr + start_idx + up)
        good = ok & (draft_sampled == target_sampled)
        tl.store(b_ptr + start_idx + i, good)
        num_sampled += good
""",
        ),
    ),
    "takes what was decided for the parent from a word": (
        (LINKS, WITH_LINKS),
        (START, START + "    word = 1\n"),
        (
            LOOP,
            """    for i in range(num_tokens - 1):
        up = tl.load(a_ptr + start_idx + i)
        draft_sampled = tl.load(input_ids_ptr + start_idx + i + 1)
        target_sampled = tl.load(target_sampled_ptr + start_idx + up)
        good = ((word >> up) & 1) & (draft_sampled == target_sampled)
        word |= good << i
        num_sampled += good
""",
        ),
    ),
    "accepts a node when its ancestors' bits are set": (
        (LINKS, WITH_LINKS),
        (START, START + "    word = 0\n"),
        (
            LOOP,
            """    for i in range(num_tokens - 1):
        row = tl.load(b_ptr + start_idx + i)
        up = tl.load(a_ptr + start_idx + i)
        draft_sampled = tl.load(input_ids_ptr + start_idx + i + 1)
        target_sampled = tl.load(target_sampled_ptr + start_idx + up)
        if draft_sampled == target_sampled and (row & ~word) == 0:
            word = word | (1 << i)
            num_sampled = i + 1
""",
        ),
    ),
    "accepts nodes whose whole mask row is good, bits of a word": (
        (LINKS, WITH_LINKS),
        (
            LOOP,
            """    lanes = tl.arange(0, N)
    above = tl.load(a_ptr + start_idx + lanes)
    wanted = tl.load(target_sampled_ptr + start_idx + above)
    hits = tl.load(input_ids_ptr + start_idx + lanes) == wanted
    word = tl.sum(hits.to(tl.int64) << lanes, axis=0)
    rows = tl.load(b_ptr + start_idx + lanes)
    good = hits & ((rows & ~word) == 0)
    num_sampled = tl.max(tl.where(good, lanes, 0), axis=0)
""",
        ),
    ),
    "accepts nodes whose whole mask row is good, lane by lane": (
        (LINKS, WITH_LINKS),
        (
            LOOP,
            """    lanes = tl.arange(0, N)
    above = tl.load(a_ptr + start_idx + lanes)
    wanted = tl.load(target_sampled_ptr + start_idx + above)
    hits = tl.load(input_ids_ptr + start_idx + lanes) == wanted
    mask = tl.load(b_ptr + lanes[:, None] * N + lanes[None, :])
    good = tl.min(tl.where(mask != 0, hits[None, :].to(tl.int32), 1), axis=1)
    num_sampled = tl.max(tl.where(good != 0, lanes, 0), axis=0)
""",
        ),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def source(release: Callable[[str], Path]) -> str:
    """The real file."""
    return (release("0.20.1") / FILE).read_text(encoding="utf-8")


def walks_of(text: str, name: str = KERNEL) -> set[str]:
    """The walks of one function of a file."""
    return {walk.walk for found in analyse(text) if found.qualname == name for walk in found.walks}


def test_the_kernel_as_released_is_linear(source: str) -> None:
    assert walks_of(source) == {"linear"}


@pytest.mark.parametrize("form", TREES)
def test_rewritten_to_walk_a_tree_it_is_a_tree(form: str, source: str) -> None:
    assert walks_of(replaced(source, *TREES[form])) == {"tree"}

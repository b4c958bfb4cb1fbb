"""One real linear kernel, rewritten: the verdict follows what the code does, whatever anything is called."""

from __future__ import annotations

import re
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
        (
            DRAFT,
            "            at = tl.load(a_ptr + start_idx + at)\n"
            "            draft_sampled = tl.load(input_ids_ptr + start_idx + at)\n",
        ),
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


# --- what only looks like a tree --------------------------------------------------------------------------------------

LYING = (
    ("_strict_rejection_sample_kernel", "tree_accept"),
    ("req_idx", "parent"),
    ("rejected", "no_child"),
    ("num_sampled", "node"),
    ("draft_sampled", "child"),
    ("target_sampled", "sibling"),
    ("start_idx", "first_child"),
)

PROBES = {
    "open addressing": """

@triton.jit
def find_child(keys_ptr, values_ptr, wanted_ptr, out_ptr, capacity, EMPTY: tl.constexpr):
    row = tl.program_id(0)
    wanted = tl.load(wanted_ptr + row)
    slot = wanted % capacity
    found = -1
    searching = True
    while searching:
        key = tl.load(keys_ptr + slot)
        if key == wanted:
            found = tl.load(values_ptr + slot)
            searching = False
        elif key == EMPTY:
            searching = False
        else:
            slot = (slot + 1) % capacity
    tl.store(out_ptr + row, found)
""",
    "chained buckets": """

@triton.jit
def find_child(keys_ptr, next_ptr, wanted_ptr, out_ptr, heads_ptr, capacity):
    row = tl.program_id(0)
    wanted = tl.load(wanted_ptr + row)
    node = tl.load(heads_ptr + wanted % capacity)
    while node >= 0 and tl.load(keys_ptr + node) != wanted:
        node = tl.load(next_ptr + node)
    tl.store(out_ptr + row, node)
""",
    "many keys, each through its bucket": """

@triton.jit
def find_child(keys_ptr, next_ptr, wanted_ptr, out_ptr, heads_ptr, capacity, n):
    for i in range(n):
        wanted = tl.load(wanted_ptr + i)
        node = tl.load(heads_ptr + wanted % capacity)
        found = -1
        while node >= 0:
            if tl.load(keys_ptr + node) == wanted:
                found = node
                node = -1
            else:
                node = tl.load(next_ptr + node)
        tl.store(out_ptr + i, found)
""",
}


def test_names_that_lie_change_nothing(source: str) -> None:
    text = source
    for old, new in LYING:
        text = re.sub(rf"\b{old}\b", new, text)
    assert walks_of(text, "tree_accept") == {"linear"}


@pytest.mark.parametrize("probe", PROBES)
def test_a_hash_table_probe_is_no_verifier(probe: str, source: str, release: Callable[[str], Path]) -> None:
    launch = "    find_child[(num_reqs,)](target_sampled, draft_sampled, cu_num_logits, sampled, num_sampled, 8)\n"
    text = replaced(
        source,
        ("\n\ndef strict_rejection_sample(", PROBES[probe] + "\n\ndef strict_rejection_sample("),
        (
            "    _strict_rejection_sample_kernel[(num_reqs,)](\n",
            launch + "    _strict_rejection_sample_kernel[(num_reqs,)](\n",
        ),
    )
    assert walks_of(text, "find_child") == set()
    assert "find_child" not in {v.name for v in scanned(release("0.20.1"), text)}


def scanned(root: Path, text: str) -> tuple[Verifier, ...]:
    """The verifiers of the release with the kernel's file changed."""
    engine = ENGINES["vllm"]
    return verifiers(index_of(root, wants=engine.wants, changed={FILE: text}), engine)


@pytest.mark.parametrize("form", ["tries sibling after sibling", "accepts a node when its ancestors' bits are set"])
def test_a_rewritten_kernel_keeps_its_part(form: str, source: str, release: Callable[[str], Path]) -> None:
    before = scanned(release("0.20.1"), source)
    after = scanned(release("0.20.1"), replaced(source, *TREES[form]))
    changed = [(b.walk, a.walk) for b, a in zip(before, after, strict=True) if (b.name, b.walk) != (a.name, a.walk)]
    assert changed == [("linear", "tree")]
    (kernel,) = (v for v in after if v.walk == "tree")
    assert (kernel.name, kernel.role, kernel.runner) == (KERNEL, "kernel", "v2")

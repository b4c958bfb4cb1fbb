"""A few steps of an engine, short and uncompiled, for compute-sanitizer; with --chain the stock drafter's.

    PYTHONPATH=SITE compute-sanitizer --tool memcheck python benchmarks/ddtree_memcheck.py --target M --draft M

What the tree's run reports and the chain's does not is the tree's.
"""

from __future__ import annotations

import argparse
import os
import sys

from engine import arms

ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--chain", action="store_true")
    parser.add_argument("--exact", action="store_true", help="exact attention, which needs graphs: one is captured")
    options = parser.parse_args()
    arm = arms.chain(seqs=4) if options.chain else arms.tree(16, seqs=4, ddtree={"exact": options.exact})
    arm = arm.with_engine(max_model_len=1024, kv_cache_memory_bytes=1 << 28)
    graphs = {"compilation_config": {"mode": 0, "cudagraph_capture_sizes": [17]}}
    arm = arm.with_engine(**graphs if options.exact else {"enforce_eager": True})
    arguments = arm.arguments(arms.Pair(options.target, options.draft))

    os.environ.update(ENVIRONMENT)
    from vllm import LLM, SamplingParams

    engine = LLM(**arguments)
    prompts = [{"prompt_token_ids": [(7 * i + j) % 4000 + 10 for j in range(n)]} for i, n in enumerate((5, 40, 600))]
    given = [
        SamplingParams(temperature=t, max_tokens=12, ignore_eos=True, detokenize=False, **more)
        for t, more in ((0.0, {}), (0.7, {"seed": 1, "logprobs": 1}), (0.0, {"repetition_penalty": 1.1}))
    ]
    outputs = engine.generate(prompts, given, use_tqdm=False)
    print("emitted", [len(output.outputs[0].token_ids) for output in outputs])
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""DDTree in vLLM's V1 model runner.

The trees of a step lie in that step's batch order; the next step finds them through the runner's own map of batch rows
to rows of the step before (it exists with asynchronous scheduling only).

The policy is static per engine: trees when `max_num_seqs` is at most `max_batch`, else the stock chain.
"""

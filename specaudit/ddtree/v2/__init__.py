"""DDTree in vLLM's V2 model runner. One step, in order (the engine's own stage in brackets):

[prepare_attn]   rows.prepare: depth positions in place, ancestor masks and context lengths in batch order
[attention]      context.forward: the chain's own kernel over the context, the core's tree kernel over the tree
[sample]         sampler.TreeRejectionSampler: target token per node, walk, logits rows in path order
[after sample]   commit.Commit: accepted KV rows to the first slots, by the step's slot mappings
[propose]        speculator.DDTreeSpeculator: accepted rows in chain order to the drafter; build the next tree
"""

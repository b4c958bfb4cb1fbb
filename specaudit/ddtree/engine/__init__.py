"""DDTree inside an engine: what the V1 and the V2 runner share. Imports nothing of the engine at module level.

settings.py  the switch `additional_config={"ddtree": {...}}`, the policy, the refusals
state.py     the trees between two steps, static buffers that captured graphs read, what kind of step this is
rows.py      kernels around the forward pass: depth positions and masks before it, chain order after it
context.py   the attention branch: the chain's own kernel over the context, then the core's tree kernel
commit.py    accepted KV rows to the first slots of their request
"""

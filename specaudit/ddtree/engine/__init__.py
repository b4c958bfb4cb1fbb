"""DDTree inside an engine: what the V1 and the V2 runner share. Imports nothing of the engine at module level.

settings.py  the switch `additional_config={"ddtree": {...}}`, the policy, the refusals
state.py     the trees between two steps, static buffers that captured graphs read, what kind of step this is
rows.py      trees to and from their slots: depth positions and masks before the forward pass, new trees after it
order.py     chain order after it: what the drafter and log-probabilities get in place of a tree's rows
context.py   the attention branch: the chain's own kernel over the context, then the core's tree kernel
commit.py    accepted KV rows to the first slots of their request
"""

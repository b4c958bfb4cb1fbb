"""DDTree inside an engine: what the V1 and the V2 runner share. Imports nothing of the engine at module level.

hooks.py     what patched lines of an engine call
settings.py  the switch `additional_config={"ddtree": {...}}`, the policy, the refusals
state.py     the trees between two steps, static buffers that captured graphs read, what kind of step this is
rows.py      before the forward pass: trees from their slots, with depth positions and masks, or their greedy chains
slots.py     after drafting: trees and greedy chains to their slots
order.py     chain order after it: what the drafter and log-probabilities get in place of a tree's rows
context.py   the attention branch: the chain's own kernel over the context, then the core's tree kernel
exact.py     attention that rounds as the chain does: each row its own sequence (exact_setup.py: where it can be had;
             schedule.py: how FlashAttention 3 divides their keys)
commit.py    accepted KV rows to the first slots of their request
"""

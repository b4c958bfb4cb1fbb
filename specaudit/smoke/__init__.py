"""A smoke test on the GPU host: what a speculative method does there, in numbers, beside another one."""

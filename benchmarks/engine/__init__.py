"""What the DDTree recipes promise, measured in real engines: `python benchmarks/engine --help`.

Every engine runs in a process of its own (worker.py), started with the interpreter and the search path of that arm, so
that a stock and a patched engine live side by side on one GPU, answer in turn, and a crash is that arm's result. This
side needs the standard library alone.

arms.py      an arm: which engine, with which arguments
pool.py      engines as processes; ask one, get an answer
worker.py    the engine's side
figures.py   medians, bounds, tables, the clock
"""

"""What the DDTree recipes promise, measured in real engines: `python benchmarks/engine --help`.

Every engine runs in a process of its own (worker.py), started with the interpreter and the search path of that arm, so
that a stock and a patched engine live side by side on one GPU, answer in turn, and a crash is that arm's result. This
side needs the standard library alone.

suite.py     parts of commands, one after the other, on shared engines
part.py      what a part is: the arms it needs, and what it does with them
arms.py      an arm: which engine, with which arguments; shared.py: those that parts have in common
pool.py      engines as processes; ask one, get an answer
worker.py    the engine's side, with operations.py and flash.py
scoring.py   tokens scored again by a stock engine
figures.py   medians, bounds, tables, the clock
"""
